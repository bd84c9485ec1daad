"""Variances of the steps of DDPM, and learned schedules for few steps, on digits of 8 x 8.

`python -m benchmarks.variational --steps 400 --seeds 3` runs only this benchmark.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import get_args
from unittest.mock import patch

import torch
from torch import Tensor

import reverie
from benchmarks.measure import machine
from reverie.base.noise import image_seeds
from reverie.data import Dataset, load_data
from reverie.diffusion.learned import Learned
from reverie.diffusion.likelihood import mean_and_error
from reverie.diffusion.samplers import GRIDS
from reverie.diffusion.samplers.onestep import Variance
from reverie.diffusion.schedules import SCHEDULES
from reverie.evaluation.metrics.frechet import frechet_distance
from reverie.runs.run import Run

DATA, NETWORK, STEPS, SEEDS = "digits8", "unet:widths=[16,32]", 400, 3
LENGTHS, SAMPLES = (10, 20, 50), 500
FEW = 16  # steps of the chain for which schedules are learned
STRAIGHT = "learned:bends=0,first=7.74,last=-7.5"  # where a learned schedule for 17 levels starts


def format_mean(values: Sequence[float], digits: int = 2) -> str:
    """Return the mean over seeds with its standard error."""
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    return f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values) / len(values) ** 0.5:.{digits}f}"


def split(run: Run) -> tuple[Dataset, Dataset]:
    """Return the training data and the held-out data of a run."""
    return load_data(DATA).split(run.config.data.seed)


def bits(run: Run, held: Dataset, grid: Tensor, variance: str, end: float | None = None) -> float:
    """Return the bound of the chain on a grid for held-out data, in bits/dim."""
    x, labels = held.batch(torch.arange(len(held)))
    error = run.mean_error() if variance == "optimal" else None
    found = run.diffusion.bound(x, labels, image_seeds(0, len(x)), grid, variance, end=end, error=error)
    return mean_and_error(found.bits)[0]


def of_variances(place: Path, steps: int, seeds: int) -> list[str]:
    """Train one run for each seed and measure it under every variance: bound and samples."""
    names = get_args(Variance)
    cost: dict[tuple[int, str], list[float]] = {(n, name): [] for n in LENGTHS for name in names}
    apart: dict[tuple[int, str], list[float]] = {(n, name): [] for n in LENGTHS for name in names}
    for seed in range(seeds):
        run = reverie.train(
            DATA, place / f"variance-{seed}", steps=steps, network=NETWORK, augment="none", variance="learned", seed=seed
        )
        train, held = split(run)
        x, labels = train.batch(torch.arange(64))
        end = run.diffusion.best_end(x, labels, image_seeds(seed, 64))
        real = load_data(DATA).subsample(2000).flatten(1)
        for n, name in cost:
            grid = GRIDS["uniform"]()(run.diffusion.denoiser.schedule, n)
            cost[n, name].append(bits(run, held, grid, name, end))
            made = run.sample(SAMPLES, sampler=f"ddpm:variance={name}", steps=n, autoguidance=1.0, seed=seed).x
            apart[n, name].append(frechet_distance(torch.from_numpy(made).flatten(1), real))
            print(seed, n, name, f"{cost[n, name][-1]:.3f} {apart[n, name][-1]:.3f}", flush=True)
    lines = [
        f"`reverie train {DATA} --network {NETWORK} --augment none --variance learned --steps {steps}`, seeds 0 to"
        f" {seeds - 1}:",
        "the bound of the chain on all held-out images, its end chosen on 64 training images, and the Fréchet distance of",
        f"{SAMPLES} samples to all real images in pixel space. One network under four variances; mean over seeds ±",
        "standard error.",
        "",
        "| steps | " + " | ".join(f"{name}, {unit}" for unit in ("bits/dim", "Fréchet") for name in names) + " |",
        "|---" * (1 + 2 * len(names)) + "|",
    ]
    for n in LENGTHS:
        row = [*(format_mean(cost[n, name]) for name in names), *(format_mean(apart[n, name], 3) for name in names)]
        lines.append(f"| {n} | {' | '.join(row)} |")
    return lines


class Fixed(Learned):
    """The straight line in the log-SNR, the initial value of a learned schedule."""

    def __init__(self, first: float, last: float, bends: int) -> None:
        super().__init__(first, last, bends)
        self.requires_grad_(requires_grad=False)


def of_schedules(place: Path, steps: int, seeds: int) -> list[str]:
    """Train for the bound of few steps with fixed schedules and with a learned one."""
    lines = [
        f"`reverie train {DATA} --purpose likelihood --network {NETWORK} --weight vlb:steps={FEW} --steps {steps}`, seeds 0 to"
        f" {seeds - 1}:",
        f"the bound of the {FEW} training steps, on all held-out images of 17 levels; mean over seeds ± standard",
        "error.",
        "",
        "| schedule | bits/dim, posterior variance | bits/dim, variance from the levels |",
        "|---|---|---|",
    ]
    schedules: dict[str, tuple[type[Learned], str]] = {
        "straight in the log-SNR, fixed": (Fixed, STRAIGHT),
        "straight, with learned ends": (Learned, STRAIGHT),
        "learned ends and shape": (Learned, STRAIGHT.replace("bends=0", "bends=32")),
    }
    for title, (kind, schedule) in schedules.items():
        found: dict[str, list[float]] = {"posterior": [], "learned": []}
        for seed in range(seeds):
            with patch.dict(SCHEDULES, {"learned": kind}):
                run = reverie.train(
                    DATA, place / f"{title}-{seed}", steps=steps, network=NETWORK, purpose="likelihood", schedule=schedule,
                    weight=f"vlb:steps={FEW}", seed=seed,
                )  # fmt: skip
            grid = GRIDS["uniform"]()(run.diffusion.denoiser.schedule, FEW + 1)
            for name, values in found.items():
                values.append(bits(run, split(run)[1], grid, name))
            print(title, seed, {name: round(values[-1], 3) for name, values in found.items()}, flush=True)
        lines.append(f"| {title} | {format_mean(found['posterior'])} | {format_mean(found['learned'])} |")
    return lines


def variational(steps: int = STEPS, seeds: int = SEEDS) -> list[str]:
    """Return the lines of the section."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        lines = [*of_variances(Path(folder), steps, seeds), "", *of_schedules(Path(folder), steps, seeds)]
    return [*lines, "", f"`python -m benchmarks.variational`; {(time.perf_counter() - start) / 60:.0f} minutes."]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    args = parser.parse_args()
    print(machine())
    print("\n".join(variational(args.steps, args.seeds)))
