"""The report of a comparison: what to use when, samples side by side, one table, and what each takes and can do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from reverie.evaluation.compare import KINDS, Comparison, advice, likelihoods
from reverie.evaluation.html_report import escape, picture
from reverie.evaluation.scores import HEADLINE_METRICS, format_score

COLOURS = ("#2459b8", "#b8562b", "#2f8f5b", "#8a4fa3", "#a08a1f", "#3a8fa8", "#b03a5b", "#5d6b7a")
STYLE = """
body { max-width: 84rem; }
.use, .words { max-width: 60rem; }
.use { font-size: 1.15rem; margin: 0 0 2rem; padding: 1.1rem 1.4rem; background: var(--card);
  border-left: 4px solid var(--accent); border-radius: 4px; }
.use li { margin: 0.45rem 0; }
.use ol { margin: 0; padding-left: 1.3rem; }
.sheets { display: grid; grid-template-columns: repeat(auto-fill, minmax(19rem, 1fr)); gap: 1.5rem; }
.sheets figure { margin: 0; }
.sheets figure img { width: 100%; image-rendering: pixelated; }
.sheets figcaption { font-size: 0.95rem; color: var(--ink); font-weight: 600; }
table.wide th, table.wide td { padding: 0.4rem 1.1rem 0.4rem 0.5rem; white-space: nowrap; }
table.wide td, table.wide thead th { text-align: right; }
table.wide th:first-child { position: sticky; left: 0; background: var(--page); text-align: left; }
td.best { font-weight: 700; color: var(--accent); }
td.alike { color: var(--accent); }
td.lost { color: var(--soft); }
td .error { color: var(--soft); font-weight: 400; font-size: 0.8em; }
td.words { text-align: left !important; }
.bar { display: inline-block; height: 0.55rem; border-radius: 2px; margin-left: 0.6rem; vertical-align: middle; }
.key { color: var(--soft); font-size: 0.9rem; }
"""


def _cell(value: str, kind: str = "") -> str:
    shown = escape(value)
    number, plus, error = shown.partition(" ± ")
    if plus:
        shown = f'{number} <span class="error">± {error}</span>'
    return f'<td class="{kind}">{shown}</td>' if kind else f"<td>{shown}</td>"


def _wide(head: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]]) -> str:
    """Return a table: what stands in a row, and its cells, which are HTML already."""
    top = "".join(f"<th>{escape(name)}</th>" for name in ("", *head))
    body = "".join(f"<tr><th>{escape(name)}</th>{''.join(cells)}</tr>\n" for name, cells in rows)
    return f'<div class="scroll"><table class="wide"><thead><tr>{top}</tr></thead>\n<tbody>{body}</tbody></table></div>\n'


def _measured(c: Comparison) -> str:
    rows = []
    for row in c.rows():
        form, cells = HEADLINE_METRICS[row.key].form, list[str]()
        for k, found in enumerate(row.figures):
            kind = "best" if k == row.best else "lost" if k in row.worse else "alike" if row.sure else ""
            cells.append(_cell(format_score(found, form), kind) if found else _cell("\N{EN DASH}", "lost"))
        floor = next((found for found in row.figures if found and "floor" in found), None)
        cells.append(_cell(format_score(floor, form, "floor") if floor else "", "lost"))
        way = {"low": "less is better", "high": "more is better", "floor": "the nearer to real data"}[
            HEADLINE_METRICS[row.key].better
        ]
        rows.append((f"{HEADLINE_METRICS[row.key].title} ({way})", cells))
    return _wide([*c.names, "real data"], rows)


def _likelihood(c: Comparison) -> str:
    told = likelihoods(c)
    if not told:
        return '<p class="missing">None of them tells how probable data are.</p>\n'
    least, most = min(float(row["value"]) for row in told), max(float(row["value"]) for row in told)
    shown, reach = "", max(most - least, 1e-9)
    for number, kind in enumerate(kind for kind in KINDS.values() if any(row["kind"] == kind for row in told)):
        colour = COLOURS[number % len(COLOURS)]
        rows = []
        for row in (row for row in told if row["kind"] == kind):
            wide = 0.5 + 14 * (float(row["value"]) - least) / reach
            bar = f'<td class="words"><span class="bar" style="width:{wide:.2f}rem;background:{colour}"></span></td>'
            draws = f"{row['draws']} draws" if "draws" in row else ""
            rows.append(
                (
                    str(row["run"]),
                    [_cell(format_score(row, ".3f")), _cell(str(row.get("unit", "")), "lost"), _cell(draws, "lost"), bar],
                )
            )
        shown += f"<h3>{escape(kind[0].upper() + kind[1:])}</h3>\n" + _wide(["cost", "", "", "above the least of all"], rows)
    return shown


def _bytes(count: float) -> str:
    return f"{count / 2**20:,.1f} MiB" if count < 2**30 else f"{count / 2**30:,.2f} GiB"


def _costs(c: Comparison) -> str:
    rows: list[tuple[str, list[str]]] = []
    for competitor, e in zip(c.competitors, c.evaluations, strict=True):
        costs: Mapping[str, Any] = competitor.costs
        each = float(e.facts["processor_milliseconds_per_sample"])
        steps = f"{costs['steps']:,}" if "step_bytes" in costs else "fitted at once"
        best = f"{costs['best_at_step']:,}" if costs.get("kept") == "best" and "best_at_step" in costs else ""
        speed = f"{costs['steps'] / costs['seconds']:,.1f}" if "step_bytes" in costs and costs["seconds"] else ""
        memory = _bytes(costs["step_bytes"]) if "step_bytes" in costs else ""
        rows.append((competitor.name, [_cell(text) for text in (
            f"{costs['parameters']:,}", _bytes(costs["weights_bytes"]), steps, f"{costs['seconds']:,.1f} s", best, speed,
            memory, f"{each:.3g} ms", f"{1e3 / each:,.0f}" if each else "",
        )]))  # fmt: skip
    head = ["numbers", "on disk", "steps", "time to train", "best at step", "steps a second", "memory of a step",
            "a sample takes", "samples a second"]  # fmt: skip
    return _wide(head, rows)


def _abilities(c: Comparison) -> str:
    head = list(c.competitors[0].abilities)
    return _wide(head, [(e.name, [_cell(e.abilities[key], "" if e.abilities[key] != "no" else "lost") for key in head])
                        for e in c.competitors])  # fmt: skip


def _sheets(c: Comparison) -> str:
    if c.competitors:
        shown = {competitor.name: competitor.sheet for competitor in c.competitors}
    else:
        first = [[s.pictures for s in e.sections if s.name == "samples" and s.pictures] for e in c.evaluations]
        shown = {name: next(iter(p[0].values())) for name, p in zip(c.names, first, strict=True) if p}
    real = {"held-out data": c.truth} if c.truth is not None else {}
    return f'<div class="sheets">{"".join(picture(name, png) for name, png in {**real, **shown}.items())}</div>\n'


def _part(number: int, title: str, content: str, *words: str) -> str:
    said_below = "".join(f'<p class="words">{escape(line)}</p>\n' for line in words)
    return f'<section id="part-{number}">\n<h2>{escape(title)}</h2>\n{content}{said_below}</section>\n'


def body(c: Comparison) -> str:
    """Return the whole report of a comparison, below its title."""
    use = "".join(f"<li>{escape(line)}</li>\n" for line in advice(c))
    facts = c.evaluations[0].facts
    counts = f"{facts['samples']:,} samples of each, seed {facts['seed']}; {c.rule}."
    parts: list[tuple[str, str, tuple[str, ...]]] = [
        ("Samples side by side", _sheets(c), ("The first of the seed, not chosen; where there are labels, each in turn.",)),
        ("Measured", _measured(c), (
            "The best of a row is bold, what is as good within noise has its colour, what is clearly worse is grey.", counts,
        )),
        ("What held-out data cost", _likelihood(c), (
            "Less is better, within one kind. An exact cost is what the data cost. A ceiling is at least that: a bound by how"
            " much the latent is not known, a dequantised cost by how uneven the density is within a level. So a ceiling is not"
            " ranked with an exact cost, unless it lies below it. Importance weights bring ceilings down, by as many draws"
            " for all of one kind. The flow of a diffusion is another model than its bound is of; of images it is dequantised.",
        )),
    ]  # fmt: skip
    if c.competitors:
        clock = {str(e.costs["clock"]) for e in c.competitors}
        timed = "time of the processor, all threads together" if clock == {"processor"} else "time as each run counted it"
        parts += [
            ("What each takes", _costs(c), (
                f"Time to train is {timed}. Memory is that of the tensors of one step beside the weights. Samples are timed"
                " by the processor's clock, as they were drawn for the figures above.",
            )),
            ("What each can do", _abilities(c), ()),
        ]  # fmt: skip
    if c.failures:
        failed = "".join(f"<p><b>{escape(name)}</b>: {escape(why)}</p>\n" for name, why in c.failures.items())
        parts.append(("What failed", failed, ()))
    words = "".join(f"<p>{escape(line)}</p>\n" for line in c.verdict()[:-1])
    parts.append(("In words", words, ()))
    links = "".join(f'<a href="#part-{k}">{escape(title)}</a>\n' for k, (title, _, _) in enumerate(parts))
    shown = "".join(_part(k, title, content, *said_below) for k, (title, content, said_below) in enumerate(parts))
    return f'<div class="use"><ol>\n{use}</ol></div>\n<nav>\n{links}</nav>\n{shown}'
