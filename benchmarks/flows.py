"""Flows and the Sinkhorn generator: what test data cost, and how like the data samples are, after a time of the processor.

    REVERIE_DATA=DIR python -m benchmarks.flows --seeds 0,1,2

Ten minutes of one thread are five of two cores.  A busy machine gives nearly the same figures.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import reverie
from benchmarks.measure import machine
from reverie.base.errors import UserError
from reverie.data import load_data
from reverie.evaluation.density import density_section
from reverie.families.flow.model import Flow
from reverie.runs.run import Run

EVALUATIONS = 4  # draws of samples whose divergence from data is a figure
HEAD = ["| data | model | seed | steps | seconds of one thread | measured | goal | ms there, back |",
        "|---|---|---|---|---|---|---|---|"]  # fmt: skip


@dataclass(frozen=True)
class Goal:
    """A family on data for so many seconds of one thread; figure: what is measured; options: of training."""

    data: str
    family: str
    seconds: float
    figure: str
    goal: str


GOALS = (
    Goal("mnist", "flow", 600, "dequantised, one draw", "<= 1.57 bits/dim"),
    Goal("digits8", "flow:transform=spline", 120, "dequantised", "<= 1.96 bits/dim"),
    Goal("digits8", "flow:transform=maf", 120, "dequantised", "<= 2.07 bits/dim"),
    Goal("digits8", "flow", 120, "dequantised", "none"),
    Goal("spiral", "sinkhorn", 120, "sinkhorn", "<= 1.5 times that of training data"),
    Goal("digits8", "sinkhorn", 120, "diversity", ">= 0.8"),
)


def measured(run: Run, goal: Goal) -> str:
    """Return the figure of a goal: a cost of data that were not trained on, or one of an evaluation, beside its floor."""
    if isinstance(run.model, Flow):
        held = load_data(goal.data, labels="none").split(run.config.data.seed)[1]
        x, labels = held.batch(torch.arange(min(len(held), 2048)))
        found = density_section(run, x, labels).figures[goal.figure]
        draws = f", {found['draws']} draws" if "draws" in found else ", 1 draw"
        return f"{found['value']:.3f} ± {found['error']:.3f} {found['unit']} of {found['n']:,}{draws}"
    # A floor is the divergence of one draw of data from another, and varies as much as what it is compared with.
    found = [reverie.evaluate(run, 2048, seed=seed, progress=False) for seed in range(EVALUATIONS)]
    value, floor = (statistics.fmean(e[f"{goal.figure}{part}"] for e in found) for part in ("", "_floor"))
    error = statistics.stdev(e[goal.figure] for e in found) / math.sqrt(EVALUATIONS)
    return f"{goal.figure} {value:.4g} ± {error:.2g}, of real data {floor:.4g}, {EVALUATIONS} draws of each"


def row(goal: Goal, seed: int, aside: Path, share: float) -> str:
    """Train for a share of the goal's time, by the processor's clock, and return a line of figures."""
    minutes = share * goal.seconds / 60
    options: dict[str, Any] = {"family": goal.family, "minutes": minutes, "clock": "processor", "keep": "best", "seed": seed}
    where = aside / f"{goal.data}-{goal.family.replace(':', '-')}-{seed}"
    run = reverie.train(goal.data, where, labels="none", progress=False, **options)
    last = run.metrics()[-1]
    ways = ""
    if isinstance(run.model, Flow):
        ways = ", ".join(f"{1e3 * seconds:.2g}" for seconds in run.model.seconds_each_way())
    figures = f"{last['i']:,} | {last['seconds']:.0f} | {measured(run, goal)}"
    return f"| {goal.data} | {goal.family} | {seed} | {figures} | {goal.goal} | {ways} |"


def flows(seeds: tuple[int, ...] = (0,), share: float = 1.0, only: str = "") -> list[str]:
    """Train for every goal and return the table; a set that is not on this machine is left out and told."""
    threads, lines, notes = torch.get_num_threads(), list(HEAD), list[str]()
    print(*HEAD, sep="\n", flush=True)
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as aside:
            for goal in (goal for goal in GOALS if only in f"{goal.data} {goal.family}"):
                try:
                    load_data(goal.data)
                except UserError as error:
                    notes += ["", f"{goal.data}: not measured, because {error}."]
                    continue
                for seed in seeds:
                    lines.append(row(goal, seed, Path(aside), share))
                    print(lines[-1], flush=True)
    finally:
        torch.set_num_threads(threads)
    about = [
        "Each is trained for that time of one thread, without labels, with nothing chosen by hand, and the weights are kept"
        " that are best on held-out data, which are those that are measured: 5 % of the set. mnist is 8-bit; digits8 has 17"
        " levels. One draw is uniform dequantisation, more are importance-weighted. ± is the standard error over data.",
        "",
    ]
    return [*about, *lines, *notes]


def main() -> None:
    """Measure what is asked for and print it."""
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    asked.add_argument("only", nargs="?", default="", help="goals whose data and family hold these words")
    asked.add_argument("--seeds", default="0")
    asked.add_argument("--share", type=float, default=1.0, help="of each goal's time")
    given = asked.parse_args()
    print(machine(), flush=True)
    flows(tuple(int(s) for s in given.seeds.split(",")), given.share, given.only)


if __name__ == "__main__":
    main()
