"""Flows and the Sinkhorn generator: NLL of test data and similarity of samples after equal CPU time.

    REVERIE_DATA=DIR python -m benchmarks.flows --seeds 0,1,2

Ten minutes of one thread equal five of two cores.
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

EVALUATIONS = 4  # sets of samples whose divergence from data is measured
HEAD = ["| data | model | seed | steps | seconds of one thread | result | ms to noise, back |",
        "|---|---|---|---|---|---|---|---|"]  # fmt: skip


@dataclass(frozen=True)
class Goal:
    """A family on data for so many seconds of one thread; figure: the measured quantity; options: of training."""

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
    """Return the figure of a case: the NLL of held-out data, or a figure of an evaluation with its floor."""
    if isinstance(run.model, Flow):
        held = load_data(goal.data, labels="none").split(run.config.data.seed)[1]
        x, labels = held.batch(torch.arange(min(len(held), 2048)))
        found = density_section(run, x, labels).figures[goal.figure]
        draws = f", {found['draws']} draws" if "draws" in found else ", 1 draw"
        return f"{found['value']:.3f} ± {found['error']:.3f} {found['unit']} of {found['n']:,}{draws}"
    # A floor is the divergence of two sets of data, and varies as much as the figure.
    found = [reverie.evaluate(run, 2048, seed=seed, progress=False) for seed in range(EVALUATIONS)]
    value, floor = (statistics.fmean(e[f"{goal.figure}{part}"] for e in found) for part in ("", "_floor"))
    error = statistics.stdev(e[goal.figure] for e in found) / math.sqrt(EVALUATIONS)
    return f"{goal.figure} {value:.4g} ± {error:.2g}, of real data {floor:.4g}, {EVALUATIONS} draws of each"


def row(goal: Goal, seed: int, temporary: Path, share: float) -> str:
    """Train for a share of the case's CPU time and return a row of the table."""
    minutes = share * goal.seconds / 60
    options: dict[str, Any] = {"family": goal.family, "minutes": minutes, "clock": "processor", "keep": "best", "seed": seed}
    where = temporary / f"{goal.data}-{goal.family.replace(':', '-')}-{seed}"
    run = reverie.train(goal.data, where, labels="none", progress=False, **options)
    last = run.metrics()[-1]
    times = ""
    if isinstance(run.model, Flow):
        times = ", ".join(f"{1e3 * seconds:.2g}" for seconds in run.model.seconds_per_direction())
    figures = f"{last['i']:,} | {last['seconds']:.0f} | {measured(run, goal)}"
    return f"| {goal.data} | {goal.family} | {seed} | {figures} | {times} |"


def flows(seeds: tuple[int, ...] = (0,), share: float = 1.0, only: str = "") -> list[str]:
    """Train for every goal and return the table; data sets that are not on this machine are named."""
    threads, lines, notes = torch.get_num_threads(), list(HEAD), list[str]()
    print(*HEAD, sep="\n", flush=True)
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as temporary:
            for goal in (goal for goal in GOALS if only in f"{goal.data} {goal.family}"):
                try:
                    load_data(goal.data)
                except UserError as error:
                    notes += ["", f"{goal.data}: not measured, because {error}."]
                    continue
                for seed in seeds:
                    lines.append(row(goal, seed, Path(temporary), share))
                    print(lines[-1], flush=True)
    finally:
        torch.set_num_threads(threads)
    about = [
        "Each is trained for that time of one thread, without labels, with default settings, and keeps the weights"
        " with the best held-out loss; the held-out 5 % are measured. mnist is 8-bit; digits8 has 17"
        " levels. One sample is uniform dequantisation, more are importance-weighted. ± is the standard error over data.",
        "",
    ]
    return [*about, *lines, *notes]


def main() -> None:
    """Measure and print the selected cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("only", nargs="?", default="", help="cases whose data and family contain these words")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--share", type=float, default=1.0, help="share of each case's time")
    args = parser.parse_args()
    print(machine(), flush=True)
    flows(tuple(int(s) for s in args.seeds.split(",")), args.share, args.only)


if __name__ == "__main__":
    main()
