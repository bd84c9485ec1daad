"""The page docs/leaderboard.md, made by `reverie compare`: families side by side on data of each kind.

    python -m benchmarks.leaderboard [--minutes 2] [--runs FOLDER] [--quick] [spiral digits8]

A second call goes on where the first was stopped.
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
SHOWN = ("kid", "frechet", "sliced_wasserstein", "sinkhorn", "precision", "recall", "coverage", "diversity", "copies")


def table(found: Comparison) -> list[str]:
    """Return the figures of a comparison as a table of Markdown, a family in each row."""
    rows = [row for row in found.rows() if row.key in SHOWN]
    costs = {name: [] for name in found.names}  # type: dict[str, list[str]]
    for told in likelihoods(found):
        costs[str(told["run"])].append(f"{format_score(told, '.3f')} {told.get('unit', '')} ({told['kind'].split(',')[0]})")
    head = [
        "family",
        *(HEADLINE_METRICS[row.key].title for row in rows),
        "cost of held-out data",
        "numbers",
        "trained",
        "a sample",
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
                  f"{steps}{competitor.costs['seconds']:.0f} s", f"{each:.2g} ms"]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Compare what is asked for and write the page."""
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    asked.add_argument("data", nargs="*", default=["spiral", "digits8"])
    asked.add_argument("--minutes", type=float, default=2.0)
    asked.add_argument("--runs", type=Path, default=Path("runs/leaderboard"))
    asked.add_argument("-n", type=int, default=None)
    asked.add_argument("--quick", action="store_true")
    given = asked.parse_args()
    torch.set_num_threads(1)
    lines = [
        "# Leaderboard",
        "",
        f"Made by `python -m benchmarks.leaderboard {' '.join(given.data)} --minutes {given.minutes:g}"
        f"{' --quick' if given.quick else ''}{f' -n {given.n}' if given.n else ''}`, which calls `reverie compare`: each family"
        f" has {60 * given.minutes:g} seconds of one thread of the processor, and keeps the weights that are best on held-out"
        " data. Times this short rank what learns quickly, not what is best in the end.",
        "Bold is the best of a column, ~ is as good within noise. Costs of different kinds (exact, dequantised, a bound, by the"
        " flow of a diffusion) are not ranked with each other. Bits/dim are those of the bytes of an image: a family that takes"
        " 256 levels for granted (gaussian, pca, diffusion for pictures) pays for those that digits8, with 17, never has.",
        "",
        machine(),
    ]
    for data in given.data:
        found = api.compare_families(
            data, FAMILIES[data], runs=given.runs / data, minutes=given.minutes, n=given.n, quick=given.quick, progress=True
        )
        found.save(given.runs / f"{data}.html")
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
    others = [name for name in FAMILIES if name not in given.data]
    if others:
        lines += [
            "",
            "## Others",
            "",
            "Not measured here; with the data at hand (`REVERIE_DATA`), these commands do it:",
            "",
        ]
        calls = [f"reverie compare {name} --families {FAMILIES[name]} --minutes 10 --out {name}.html" for name in others]
        lines += ["```", *calls, "```"]
    lines.append("")
    with atomic(PAGE) as aside:
        aside.write_text("\n".join(lines), encoding="utf-8")
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
