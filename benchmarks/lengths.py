"""EMA lengths, chosen after training: `python -m benchmarks.lengths RUN` trains MNIST once with an average of each length.

EDM2 reconstructs averages of any length from two averages and their snapshots (arXiv:2312.02696); here every length has its own
average, updated at each step, without approximation.  The run is an ordinary one, with the default length.  Distances
are Fréchet distances of LeNet features.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.steps import metric_for, sample_all_labels
from reverie.api import load, train
from reverie.training.learner import Average, M

SHARES = (0.01, 0.02, 0.05, 0.1, 0.15, 0.25)  # of the steps so far
SAMPLINGS = (("dpm++sde", 12), ("ddpm", 40), ("ddim", 20))


class Averages(Average[M]):
    """The default average, and one of each other length."""

    last: Averages[Any]

    def __init__(self, model: M, share: float) -> None:
        super().__init__(model, share)
        self.others = {other: Average(model, other) for other in SHARES}
        Averages.last = self

    def update(self, updates: int) -> None:
        """Update all averages."""
        super().update(updates)
        for other in self.others.values():
            other.update(updates)


def main() -> None:
    """Train once, and print the distances for each length of the average."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="folder of the new run")
    parser.add_argument("--minutes", type=float, default=9.17, help="minutes of one thread")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-n", type=int, default=2000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with patch("reverie.training.learner.Average", Averages):
        train("mnist", args.run, minutes=args.minutes, clock="processor", seed=args.seed, device="cpu")
    run, metric = load(args.run, "cpu"), metric_for(str(args.run))
    names = " | ".join(f"{name}, {steps}" for name, steps in SAMPLINGS)
    print(f"| EMA over | {names} |\n|---{'|---' * len(SAMPLINGS)}|", flush=True)
    for share, average in Averages.last.others.items():
        run.model.load_state_dict(average.model.state_dict())
        found = []
        for sampler, steps in SAMPLINGS:
            with torch.no_grad():
                x, _ = sample_all_labels(run, args.n, 0, sampler=sampler, steps=steps, autoguidance=1.0)
            found.append(f"{metric(x)[0]:.2f}")
        print(f"| {share:.0%} | {' | '.join(found)} |", flush=True)


if __name__ == "__main__":
    main()
