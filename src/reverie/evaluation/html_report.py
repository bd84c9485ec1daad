"""HTML reports: one file with its pictures and styles, without scripts and external resources."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from reverie.base.errors import UserError
from reverie.base.files import atomic
from reverie.base.visible import visible
from reverie.evaluation.report_section import ReportSection

SUFFIXES = (".html", ".htm")
NOT_COMPUTABLE = "not_computable"
PLAIN_NUMBERS = ("seed", "seeds", "year")  # names, not amounts, so without thousands separators
DETAILS = ("p_value", "n", "samples", "seed")  # follow a figure, in this order
MEASURED = {"value", "error", "unit", "floor", "floor_error", "gap_error", *DETAILS}  # the keys of a figure on one line
MAGIC = {b"\x89PNG": "png", b"\xff\xd8": "jpeg", b"GIF8": "gif"}

STYLE = """
:root { color-scheme: light dark;
  --ink: #1b2733; --soft: #5d6b7a; --line: #dde3e9; --page: #fdfdfc; --card: #f4f6f8; --accent: #2459b8; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e3e8ed; --soft: #9aa7b4; --line: #35404b; --page: #14191f; --card: #1d242c; --accent: #8db4f5; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 3rem 1.5rem 5rem; max-width: 52rem; background: var(--page); color: var(--ink);
  font: 1.0625rem/1.6 Charter, "Bitstream Charter", "Iowan Old Style", Georgia, serif; overflow-wrap: break-word; }
h1 { font-size: 2.1rem; line-height: 1.2; font-weight: 600; margin: 0 0 1.5rem; }
h2 { font-size: 1.45rem; line-height: 1.3; font-weight: 600; margin: 3.5rem 0 0.75rem; padding-top: 1.25rem;
  border-top: 1px solid var(--line); }
h3 { font-size: 1rem; font-weight: 600; margin: 1.75rem 0 0.4rem; }
p { margin: 0.6rem 0; }
a { color: var(--accent); text-decoration: none; }
a:hover { text-decoration: underline; }
nav, table, figcaption { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
nav { font-size: 0.875rem; margin: 1.5rem 0; }
nav a { margin-right: 1.25rem; white-space: nowrap; }
.verdict { background: var(--card); border-left: 4px solid var(--accent); border-radius: 4px; padding: 0.9rem 1.25rem; }
.verdict p { margin: 0.45rem 0; }
.verdict p:first-child { font-size: 1.15rem; }
.notes { color: var(--soft); }
.missing { border-left: 4px solid var(--line); padding-left: 1.25rem; color: var(--soft); }
.scroll { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: 0.875rem; line-height: 1.45; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: 0.35rem 1.5rem 0.35rem 0; border-bottom: 1px solid var(--line); }
thead th { font-weight: 600; border-bottom: 2px solid var(--line); }
tbody th { font-weight: 400; color: var(--soft); }
th, td { overflow-wrap: normal; }
.pairs th, .pairs td { overflow-wrap: anywhere; }
.pairs th { min-width: 8rem; max-width: 18rem; }
table:not(.pairs) td:first-child { white-space: nowrap; }
td.number, th.number { text-align: right; }
figure { margin: 1.75rem 0; break-inside: avoid; }
figure img { display: block; max-width: 100%; height: auto; background: white;
  border: 1px solid var(--line); border-radius: 4px; padding: 0.5rem; }
figcaption { font-size: 0.8125rem; color: var(--soft); margin-top: 0.5rem; }
@media print {
  :root { --ink: #000; --soft: #333; --line: #bbb; --page: #fff; --card: #fff; --accent: #000; }
  body { max-width: none; padding: 0; font-size: 10.5pt; }
  nav { display: none; }
  h2 { break-after: avoid; margin-top: 2rem; }
  tr, .verdict { break-inside: avoid; }
  .scroll { overflow: visible; }
}
"""
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def escape(text: object) -> str:
    """Return untrusted text, such as a label or a path, escaped for HTML."""
    return html.escape(visible(str(text), lines=True), quote=True)


def _name(key: object) -> str:
    return escape(str(key).replace("_", " "))


def _number(value: float, key: str = "") -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return str(value) if key in PLAIN_NUMBERS else f"{value:,}"
    if "error" in key:
        return f"{value:.2g}"
    size = abs(value)
    shown = f"{value:.3e}" if size and (size < 1e-3 or size >= 1e7) else f"{value:,.0f}" if size >= 1e4 else f"{value:.4g}"
    return shown.replace("-", "\N{MINUS SIGN}")


def _is_scalar(value: object) -> bool:
    return value is None or isinstance(value, (str, int, float, Path))


def _scalar(value: object, key: str = "") -> str:
    if value is None:
        return "\N{EN DASH}"
    if isinstance(value, (int, float)):
        return _number(value, key)
    return f"<bdi>{escape(value)}</bdi>"


def _figure_line(figure: Mapping[str, Any]) -> str:
    """Return a figure on one line: value, standard error, unit, then real data, p-value, count and seed."""

    def plus(key: str) -> str:
        return f" ± {float(figure[key]):.2g}" if figure.get(key) is not None else ""

    error = plus("error")
    unit = f" {escape(figure['unit'])}" if figure.get("unit") else ""
    details = [f"real data {_number(figure['floor'])}{plus('floor_error')}"] if figure.get("floor") is not None else []
    details += [f"{_name(key)} = {_scalar(figure[key], key)}" for key in DETAILS if figure.get(key) is not None]
    return f"{_scalar(figure['value'])}{error}{unit}" + (f" ({', '.join(details)})" if details else "")


def _cell(value: Any, key: str = "") -> str:
    """Return the HTML of a table cell."""
    if isinstance(value, Mapping):
        if NOT_COMPUTABLE in value:
            return f"not computable: {escape(value[NOT_COMPUTABLE])}"
        if "value" in value and set(value) <= MEASURED:
            return _figure_line(value)
        return "; ".join(f"{_name(k)}: {_cell(v, str(k))}" for k, v in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(_cell(part, key) for part in value)
    return _scalar(value, key)


def _is_table(value: Any) -> bool:
    """Return whether a value is a list of mappings with the same keys."""
    if not isinstance(value, Sequence) or isinstance(value, str) or not value or not isinstance(value[0], Mapping):
        return False
    return all(isinstance(row, Mapping) and list(row) == list(value[0]) for row in value)


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    keys = list(rows[0])
    numeric = {key: all(row[key] is None or isinstance(row[key], (int, float)) for row in rows) for key in keys}
    style = {key: ' class="number"' if numeric[key] else "" for key in keys}
    head = "".join(f"<th{style[key]}>{_name(key)}</th>" for key in keys)
    body = "".join("<tr>" + "".join(f"<td{style[key]}>{_cell(row[key], key)}</td>" for key in keys) + "</tr>\n" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>\n'


def _pairs(pairs: Iterable[tuple[str, Any]]) -> str:
    rows = "".join(f"<tr><th>{_name(key)}</th><td>{_cell(value, key)}</td></tr>\n" for key, value in pairs)
    return f'<div class="scroll"><table class="pairs"><tbody>\n{rows}</tbody></table></div>\n' if rows else ""


def _is_group(value: Any) -> bool:
    """Return whether a value is a group of figures with its own heading."""
    if not isinstance(value, Mapping) or NOT_COMPUTABLE in value:
        return False
    return not ("value" in value and set(value) <= MEASURED) and not all(_is_scalar(v) for v in value.values())


def _figures(figures: Mapping[str, Any]) -> str:
    """Return figures as tables: single values first, then tables and groups under their names."""
    if NOT_COMPUTABLE in figures:
        return f'<p class="missing">Not computable: {escape(figures[NOT_COMPUTABLE])}</p>\n'
    single = [(key, value) for key, value in figures.items() if not _is_table(value) and not _is_group(value)]
    parts = [_pairs(single)]
    for key, value in figures.items():
        if _is_table(value):
            parts.append(f"<h3>{_name(key)}</h3>\n{_table(value)}")
        elif _is_group(value):
            parts.append(f"<h3>{_name(key)}</h3>\n{_figures(value)}")
    return "".join(parts)


def picture(caption: str, data: bytes) -> str:
    """Return an embedded picture with its caption."""
    kind = next((kind for magic, kind in MAGIC.items() if data.startswith(magic)), None)
    if kind is None:
        raise ValueError(f"the picture {caption!r} is neither PNG nor JPEG nor GIF")
    encoded = base64.b64encode(data).decode()
    text = escape(caption)
    return f'<figure><img alt="{text}" src="data:image/{kind};base64,{encoded}"><figcaption>{text}</figcaption></figure>\n'


def _section(number: int, section: ReportSection) -> str:
    verdict = "".join(
        f"<p>{escape(line)}</p>\n" for line in section.verdict if number
    )  # the page already starts with that of section 0
    notes = "".join(f'<p class="notes">{escape(line)}</p>\n' for line in section.notes)
    pictures = "".join(picture(caption, data) for caption, data in section.pictures.items())
    return (
        f'<section id="part-{number}">\n<h2>{escape(section.title)}</h2>\n'
        f"{verdict}{pictures}{_figures(section.figures)}{notes}</section>\n"
    )


def report(title: str, facts: Mapping[str, Any], sections: Sequence[ReportSection]) -> str:
    """Return the whole page: verdict, facts, and a part for each section."""
    lines = [
        f'<p>{escape(line)} <a href="#part-{number}" title="{escape(section.title)}">→</a></p>\n'
        for number, section in enumerate(sections)
        for line in section.verdict
    ]
    verdict = f'<div class="verdict">\n{"".join(lines)}</div>\n' if lines else ""
    links = "".join(f'<a href="#part-{number}">{escape(section.title)}</a>\n' for number, section in enumerate(sections))
    body = "".join(_section(number, section) for number, section in enumerate(sections))
    return page(title, f"{verdict}{_pairs(facts.items())}<nav>\n{links}</nav>\n{body}")


def page(title: str, body: str, style: str = "") -> str:
    """Return a whole page with a body; style: additional rules."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}{style}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{escape(title)}</h1>\n{body}</main>\n</body>\n</html>\n"
    )


def check_report(path: str | Path) -> Path:
    """Refuse a report that is not an HTML file, before any work for it."""
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES or path.is_dir():
        raise UserError(f"cannot write the report {path}: use a file name that ends in {' or '.join(SUFFIXES)}")
    return path


def write_report(path: str | Path, title: str, facts: Mapping[str, Any], sections: Sequence[ReportSection]) -> Path:
    """Write the report atomically and return its path."""
    return _write(path, report(title, facts, sections))


def write_page(path: str | Path, title: str, body: str, style: str = "") -> Path:
    """Write a page with a body and return its path."""
    return _write(path, page(title, body, style))


def _write(path: str | Path, text: str) -> Path:
    path = check_report(path)
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path
