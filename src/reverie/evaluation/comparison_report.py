"""The HTML report of a comparison: recommendations, samples, metrics, costs and capabilities."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from reverie.evaluation.compare import LIKELIHOOD_KINDS, Comparison, likelihoods, recommendations
from reverie.evaluation.html_report import escape, picture
from reverie.evaluation.scores import HEADLINE_METRICS, format_score

COLOURS = ("#2459b8", "#b8562b", "#2f8f5b", "#8a4fa3", "#a08a1f", "#3a8fa8", "#b03a5b", "#5d6b7a")
STYLE = """
body { max-width: 84rem; }
.advice, .notes { max-width: 60rem; }
.advice { font-size: 1.15rem; margin: 0 0 2rem; padding: 1.1rem 1.4rem; background: var(--card);
  border-left: 4px solid var(--accent); border-radius: 4px; }
.advice li { margin: 0.45rem 0; }
.advice ol { margin: 0; padding-left: 1.3rem; }
.sheets { display: grid; grid-template-columns: repeat(auto-fill, minmax(19rem, 1fr)); gap: 1.5rem; }
.sheets figure { margin: 0; }
.sheets figure img { width: 100%; image-rendering: pixelated; }
.sheets figcaption { font-size: 0.95rem; color: var(--ink); font-weight: 600; }
table.wide th, table.wide td { padding: 0.4rem 1.1rem 0.4rem 0.5rem; white-space: nowrap; }
table.wide td, table.wide thead th { text-align: right; }
table.wide th:first-child { position: sticky; left: 0; background: var(--page); text-align: left; }
td.best { font-weight: 700; color: var(--accent); }
td.alike { color: var(--accent); }
td.worse { color: var(--soft); }
td .error { color: var(--soft); font-weight: 400; font-size: 0.8em; }
td.notes { text-align: left !important; }
.bar { display: inline-block; height: 0.55rem; border-radius: 2px; margin-left: 0.6rem; vertical-align: middle; }
.key { color: var(--soft); font-size: 0.9rem; }
"""


def _cell(value: str, kind: str = "") -> str:
    shown = escape(value)
    number, separator, error = shown.partition(" ± ")
    if separator:
        shown = f'{number} <span class="error">± {error}</span>'
    return f'<td class="{kind}">{shown}</td>' if kind else f"<td>{shown}</td>"


def _wide_table(head: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]]) -> str:
    """Return a table; the cells are HTML."""
    top = "".join(f"<th>{escape(name)}</th>" for name in ("", *head))
    body = "".join(f"<tr><th>{escape(name)}</th>{''.join(cells)}</tr>\n" for name, cells in rows)
    return f'<div class="scroll"><table class="wide"><thead><tr>{top}</tr></thead>\n<tbody>{body}</tbody></table></div>\n'


def _metrics_table(c: Comparison) -> str:
    rows = []
    for row in c.rows():
        form, cells = HEADLINE_METRICS[row.key].form, list[str]()
        for k, score in enumerate(row.figures):
            kind = "best" if k == row.best else "worse" if k in row.worse else "alike" if row.has_errors else ""
            cells.append(_cell(format_score(score, form), kind) if score else _cell("\N{EN DASH}", "worse"))
        floor = next((score for score in row.figures if score and "floor" in score), None)
        cells.append(_cell(format_score(floor, form, "floor") if floor else "", "worse"))
        metric = HEADLINE_METRICS[row.key]
        better = {"low": "lower is better", "high": "higher is better", "floor": "nearer to real data is better"}[metric.better]
        rows.append((f"{metric.title} ({better})", cells))
    return _wide_table([*c.names, "real data"], rows)


def _likelihood(c: Comparison) -> str:
    figures = likelihoods(c)
    if not figures:
        return '<p class="missing">None of the runs has a likelihood.</p>\n'
    lowest, highest = min(float(row["value"]) for row in figures), max(float(row["value"]) for row in figures)
    shown, span = "", max(highest - lowest, 1e-9)
    kinds = [kind for kind in LIKELIHOOD_KINDS.values() if any(row["kind"] == kind for row in figures)]
    for number, kind in enumerate(kinds):
        colour = COLOURS[number % len(COLOURS)]
        rows = []
        for row in (row for row in figures if row["kind"] == kind):
            width = 0.5 + 14 * (float(row["value"]) - lowest) / span
            bar = f'<td class="notes"><span class="bar" style="width:{width:.2f}rem;background:{colour}"></span></td>'
            draws = f"{row['draws']} draws" if "draws" in row else ""
            cells = [_cell(format_score(row, ".3f")), _cell(str(row.get("unit", "")), "worse"), _cell(draws, "worse"), bar]
            rows.append((str(row["run"]), cells))
        shown += f"<h3>{escape(kind[0].upper() + kind[1:])}</h3>\n" + _wide_table(["NLL", "", "", "above the lowest"], rows)
    return shown


def _bytes(count: float) -> str:
    return f"{count / 2**20:,.1f} MiB" if count < 2**30 else f"{count / 2**30:,.2f} GiB"


def _costs_table(c: Comparison) -> str:
    rows: list[tuple[str, list[str]]] = []
    for competitor, e in zip(c.competitors, c.evaluations, strict=True):
        costs: Mapping[str, Any] = competitor.costs
        milliseconds = float(e.facts["processor_milliseconds_per_sample"])
        steps = f"{costs['steps']:,}" if "step_bytes" in costs else "fitted at once"
        best = f"{costs['best_at_step']:,}" if costs.get("kept") == "best" and "best_at_step" in costs else ""
        speed = f"{costs['steps'] / costs['seconds']:,.1f}" if "step_bytes" in costs and costs["seconds"] else ""
        memory = _bytes(costs["step_bytes"]) if "step_bytes" in costs else ""
        rows.append((competitor.name, [_cell(text) for text in (
            f"{costs['parameters']:,}", _bytes(costs["weights_bytes"]), steps, f"{costs['seconds']:,.1f} s", best, speed,
            memory, f"{milliseconds:.3g} ms", f"{1e3 / milliseconds:,.0f}" if milliseconds else "",
        )]))  # fmt: skip
    head = ["parameters", "size on disk", "steps", "training time", "best at step", "steps/s", "memory per step",
            "time per sample", "samples/s"]  # fmt: skip
    return _wide_table(head, rows)


def _capabilities_table(c: Comparison) -> str:
    head = list(c.competitors[0].capabilities)
    rows = [
        (e.name, [_cell(e.capabilities[key], "" if e.capabilities[key] != "no" else "worse") for key in head])
        for e in c.competitors
    ]
    return _wide_table(head, rows)


def _sheets(c: Comparison) -> str:
    if c.competitors:
        shown = {competitor.name: competitor.sheet for competitor in c.competitors}
    else:
        first = [[s.pictures for s in e.sections if s.name == "samples" and s.pictures] for e in c.evaluations]
        shown = {name: next(iter(p[0].values())) for name, p in zip(c.names, first, strict=True) if p}
    real = {"held-out data": c.truth} if c.truth is not None else {}
    return f'<div class="sheets">{"".join(picture(name, png) for name, png in {**real, **shown}.items())}</div>\n'


def _part(number: int, title: str, content: str, *notes: str) -> str:
    below = "".join(f'<p class="notes">{escape(line)}</p>\n' for line in notes)
    return f'<section id="part-{number}">\n<h2>{escape(title)}</h2>\n{content}{below}</section>\n'


def body(c: Comparison) -> str:
    """Return the report of a comparison below its title."""
    advice = "".join(f"<li>{escape(line)}</li>\n" for line in recommendations(c))
    facts = c.evaluations[0].facts
    counts = f"{facts['samples']:,} samples per run, seed {facts['seed']}; {c.significance}."
    parts: list[tuple[str, str, tuple[str, ...]]] = [
        ("Samples", _sheets(c), ("The first samples of the seed; with labels, each label in turn.",)),
        ("Metrics", _metrics_table(c), (
            "Bold: the best of a row. Coloured: not significantly worse. Grey: significantly worse.", counts,
        )),
        ("NLL of held-out data", _likelihood(c), (
            "Lower is better, within one kind. An upper bound (ELBO or dequantized) exceeds the exact NLL by an unknown gap, so"
            " it is ranked with an exact NLL only if it is lower. Importance weighting tightens upper bounds, with equally many"
            " draws for all of one kind. The flow of a diffusion is a different model from that of its ELBO; for images it is"
            " dequantized.",
        )),
    ]  # fmt: skip
    if c.competitors:
        clock = {str(e.costs["clock"]) for e in c.competitors}
        timed = "CPU time of all threads" if clock == {"processor"} else "by the clock of each run"
        parts += [
            ("Costs", _costs_table(c), (
                f"Training time is {timed}. Memory per step is that of its tensors in addition to the weights. Time per sample"
                " is CPU time, measured on the samples of this report.",
            )),
            ("Capabilities", _capabilities_table(c), ()),
        ]  # fmt: skip
    if c.failures:
        failed = "".join(f"<p><b>{escape(name)}</b>: {escape(why)}</p>\n" for name, why in c.failures.items())
        parts.append(("Failures", failed, ()))
    notes = "".join(f"<p>{escape(line)}</p>\n" for line in c.verdict()[:-1])
    parts.append(("Verdict", notes, ()))
    links = "".join(f'<a href="#part-{k}">{escape(title)}</a>\n' for k, (title, _, _) in enumerate(parts))
    shown = "".join(_part(k, title, content, *below) for k, (title, content, below) in enumerate(parts))
    return f'<div class="advice"><ol>\n{advice}</ol></div>\n<nav>\n{links}</nav>\n{shown}'
