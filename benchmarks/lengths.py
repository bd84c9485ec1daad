"""EMA lengths, chosen after training: `python -m benchmarks.lengths RUN` trains MNIST once with an average of each length.

What EDM2 rebuilds from two averages and their snapshots (arXiv:2312.02696) is kept here as it is: every length is an average of
its own, updated at each step, so that none is an approximation.  The run is an ordinary one, with the usual length.  Distances
are Fréchet distances of LeNet features.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.steps import drawn, judge_of
from reverie.api import load, train
from reverie.training.learner import Average, M

SHARES = (0.01, 0.02, 0.05, 0.1, 0.15, 0.25)  # of the steps so far
DRAWN_BY = (("dpm++sde", 12), ("ddpm", 40), ("ddim", 20))


class Averages(Average[M]):
    """The usual average, and beside it one of each other length."""

    last: Averages[Any]

    def __init__(self, model: M, share: float) -> None:
        super().__init__(model, share)
        self.others = {other: Average(model, other) for other in SHARES}
        Averages.last = self

    def update(self, updates: int) -> None:
        """Move all of them."""
        super().update(updates)
        for other in self.others.values():
            other.update(updates)


def main() -> None:
    """Train once, and print the distances for each length of the average."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("run", type=Path, help="the run to make")
    asked.add_argument("--minutes", type=float, default=9.17, help="of one thread")
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("-n", type=int, default=2000)
    given = asked.parse_args()
    torch.set_num_threads(1)
    with patch("reverie.training.learner.Average", Averages):
        train("mnist", given.run, minutes=given.minutes, clock="processor", seed=given.seed, device="cpu")
    run, judge = load(given.run, "cpu"), judge_of(str(given.run))
    names = " | ".join(f"{name}, {steps}" for name, steps in DRAWN_BY)
    print(f"| EMA over | {names} |\n|---{'|---' * len(DRAWN_BY)}|", flush=True)
    for share, average in Averages.last.others.items():
        run.model.load_state_dict(average.model.state_dict())
        found = []
        for sampler, steps in DRAWN_BY:
            with torch.no_grad():
                x, _ = drawn(run, given.n, 0, sampler=sampler, steps=steps, autoguidance=1.0)
            found.append(f"{judge(x)[0]:.2f}")
        print(f"| {share:.0%} | {' | '.join(found)} |", flush=True)


if __name__ == "__main__":
    main()
