"""Write docs/leaderboard.md by `reverie compare`: families side by side on data of each kind.

    python -m benchmarks.leaderboard [--minutes 2] [--runs FOLDER] [--quick] [spiral digits8]

A second call resumes the first.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from benchmarks.measure import machine
from reverie import api
from reverie.base.files import atomic
from reverie.evaluation.compare import Comparison, likelihoods, recommendations
from reverie.evaluation.scores import HEADLINE_METRICS, format_score

PAGE = Path(__file__).parent.parent / "docs" / "leaderboard.md"
FAMILIES = {
    "spiral": "gaussian,mixture,vae,flow,sinkhorn,diffusion",
    "digits8": "gaussian,pca,vae,nade,transformer,flow,flow:transform=spline,sinkhorn,diffusion",
    "mnist": "gaussian,pca,vae,nade,flow,sinkhorn,diffusion",
    "binarized-mnist": "vae,hvae,fvsbn,nade,diffusion",
    "hoda": "gaussian,pca,vae,nade,flow,sinkhorn,diffusion",
}
SHOWN = ("kid", "sliced_wasserstein", "precision", "recall", "coverage")


def table(found: Comparison) -> list[str]:
    """Return the figures of a comparison as a Markdown table, a family in each row."""
    rows = [row for row in found.rows() if row.key in SHOWN]
    costs = {name: [] for name in found.names}  # type: dict[str, list[str]]
    for nll in likelihoods(found):
        costs[str(nll["run"])].append(f"{format_score(nll, '.3f')} {nll.get('unit', '')} ({nll['kind'].split(',')[0]})")
    head = [
        "family",
        *(HEADLINE_METRICS[row.key].title for row in rows),
        "NLL of held-out data",
        "parameters",
        "training",
        "ms per sample",
    ]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for k, (competitor, evaluation) in enumerate(zip(found.competitors, found.evaluations, strict=True)):
        cells = [competitor.name]
        for row in rows:
            figure = row.figures[k]
            text = format_score(figure, HEADLINE_METRICS[row.key].form) if figure else ""
            cells.append(
                f"**{text}**" if k == row.best else f"{text} ~" if figure and row.has_errors and k not in row.worse else text
            )
        each = float(evaluation.facts["processor_milliseconds_per_sample"])
        steps = f"{competitor.costs['steps']:,} steps, " if "step_bytes" in competitor.costs else ""
        cells += ["; ".join(costs[competitor.name]), f"{competitor.costs['parameters']:,}",
                  f"{steps}{competitor.costs['seconds']:.0f} s", f"{each:.2g}"]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Compare families on the requested data and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("data", nargs="*", default=["spiral", "digits8"])
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--runs", type=Path, default=Path("runs/leaderboard"))
    parser.add_argument("-n", type=int, default=None)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = [
        "# Leaderboard",
        "",
        "Which family of models gives the best samples and likelihoods in the same short time?"
        f" `python -m benchmarks.leaderboard {' '.join(options.data)} --minutes {options.minutes:g}"
        f"{' --quick' if options.quick else ''}{f' -n {options.n}' if options.n else ''}` calls `reverie compare`: each family"
        f" is trained for {60 * options.minutes:g} seconds of one thread and keeps the weights with the best held-out loss."
        " This ranks families by learning speed, not by final quality.",
        "**Bold** is the best of a column, ~ equal within noise. NLLs of different types (exact, dequantised, bound, by the"
        " probability flow) are not ranked against each other. Bits/dim refer to the bytes of an image: families that assume"
        " 256 levels (`gaussian`, `pca`, `diffusion` trained for samples) have larger values on digits8 with its 17 levels.",
        "",
        machine(),
    ]
    for data in options.data:
        found = api.compare_families(
            data,
            FAMILIES[data],
            runs=options.runs / data,
            minutes=options.minutes,
            n=options.n,
            quick=options.quick,
            progress=True,
        )
        found.save(options.runs / f"{data}.html")
        lines += [
            "",
            f"## {data}",
            "",
            *(f"{line}\n" for line in recommendations(found)),
            *table(found),
            "",
            found.significance.capitalize() + ".",
        ]
        lines += [f"\n{name} failed: {why}." for name, why in found.failures.items()]
    others = [name for name in FAMILIES if name not in options.data]
    if others:
        lines += [
            "",
            "## Not measured",
            "",
            "With the data in `REVERIE_DATA`:",
            "",
        ]
        calls = [f"reverie compare {name} --families {FAMILIES[name]} --minutes 10 --out {name}.html" for name in others]
        lines += ["```", *calls, "```"]
    lines.append("")
    with atomic(PAGE) as temporary:
        temporary.write_text("\n".join(lines), encoding="utf-8")
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
