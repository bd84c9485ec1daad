"""Training for the likelihood: bits/dim of held-out images, and nats of points against the exact NLL.

    python -m benchmarks.likelihood --data-dir DIR      digits8 for 5 minutes, MNIST for 10, points; three seeds each
    python -m benchmarks.likelihood --data-dir DIR --only mnist --minutes 30 --seeds 0

The seed determines the split into training and held-out data, the initial weights and the noise.  With --steps, or with
--cpu-seconds of one thread, of which 110 are about a minute of two quiet cores, a busy machine gives the same figures.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import reverie
from benchmarks.colour import seconds_a_step
from benchmarks.measure import machine
from reverie.base.noise import image_seeds
from reverie.data import load_data
from reverie.diffusion.likelihood import mean_and_error
from reverie.runs.run import Run

MINUTES = {"digits8": 5.0, "mnist": 10.0}
IMAGES, POINTS, DRAWS, CHOOSING = 1000, 20_000, 64, 64
KNOWN = 100_000  # training points: with 10,000 a network of this size overfits


def _bits(run: Run, x: Tensor, labels: Tensor | None, end: float) -> Tensor:
    found = []
    for part in torch.arange(len(x)).split(100):
        cond = labels[part] if labels is not None else None
        found.append(run.diffusion.bound(x[part], cond, image_seeds(1, len(x))[part], draws=DRAWS, end=end).bits)
    return torch.cat(found)


def images(name: str, seed: int, place: Path, length: dict[str, Any], reading: dict[str, Any]) -> tuple[float, str]:
    """Train, and return the bound of held-out images in bits/dim, conditioned on labels, and a row of the table."""
    run = reverie.train(name, place / f"{name}-{seed}", purpose="likelihood", seed=seed, **length, **reading)
    train, held_out = load_data(name, seed=seed, **reading).split(seed)
    first, known = train.batch(torch.arange(min(CHOOSING, len(train))))
    end = run.diffusion.best_end(first, known, image_seeds(0, len(first)))
    x, labels = held_out.batch(torch.arange(min(IMAGES, len(held_out))))
    value, error = mean_and_error(_bits(run, x, labels, end))
    without, error_without = mean_and_error(_bits(run, x, None, end))
    trained = f"{length.get('minutes') or length['steps']} {'minutes' if 'minutes' in length else 'steps'}"
    figures = f"{value:.3f} ± {error or math.nan:.3f} | {without:.3f} ± {error_without or math.nan:.3f}"
    return value, f"| {name}, {trained} | {seed} | {len(x)} | {figures} |"


def points(seed: int, place: Path, length: dict[str, Any]) -> tuple[float, str]:
    """Train on eight Gaussians, and return the gap of the bound to the exact NLL of fresh points, in nats."""
    run = reverie.train("eight-gaussians", place / f"points-{seed}", points=KNOWN, purpose="likelihood", seed=seed, **length)
    x = load_data("eight-gaussians", points=POINTS, seed=seed + 1000).batch(torch.arange(POINTS))[0]
    angle = 2 * math.pi * torch.arange(8, dtype=torch.float64) / 8
    centres = 0.85 * torch.stack([angle.cos(), angle.sin()], -1)
    squared = (x.double()[:, None] - centres).square().sum(-1) / 0.06**2
    truth = -torch.logsumexp(-squared / 2, 1) + math.log(8 * 2 * math.pi * 0.06**2)
    bound = run.diffusion.bound(x, None, image_seeds(1, POINTS), draws=6 * DRAWS).nats
    gap, error = mean_and_error(bound - truth)
    row = f"| eight-gaussians | {seed} | {POINTS:,} | {float(bound.mean()):.3f} | {float(truth.mean()):.3f} |"
    return gap, f"{row} {gap:.3f} ± {error or math.nan:.3f} |"


def _with_mean(found: Iterator[tuple[float, str]]) -> None:
    values = []
    for value, row in found:
        values.append(value)
        print(row, flush=True)
    if len(values) > 1:
        error = statistics.stdev(values) / math.sqrt(len(values))
        print(f"\nmean {statistics.mean(values):.3f} ± {error:.3f} over {len(values)} seeds\n", flush=True)


def main() -> None:
    """Measure the selected cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data-dir", help="folder of the MNIST files")
    parser.add_argument("--only", choices=["digits8", "mnist", "points"])
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--cpu-seconds", type=float)
    parser.add_argument("--network", help="as for `reverie train`; default: the planned one")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--out", help="folder of the runs; default: a temporary one")
    args = parser.parse_args()
    seeds, network = [int(seed) for seed in args.seeds.split(",")], {"network": args.network} if args.network else {}
    if args.cpu_seconds:
        torch.set_num_threads(1)
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory() as aside:
        place = Path(args.out or aside)
        for name in ("digits8", "mnist"):
            if args.only not in (None, name) or (name == "mnist" and not args.data_dir):
                continue
            reading = {"data_dir": args.data_dir} if name == "mnist" else {}
            length = {"steps": args.steps} if args.steps else {"minutes": args.minutes or MINUTES[name]}
            if args.cpu_seconds:
                options = {"purpose": "likelihood", **network, **reading}
                length = {"steps": round(args.cpu_seconds / seconds_a_step(name, place / "timed", options))}
            print("\n| data | seed | held-out images | bound, bits/dim | without labels |\n|---|---|---|---|---|", flush=True)
            _with_mean(images(name, seed, place, length | network, reading) for seed in seeds)
        if args.only in (None, "points"):
            print("\n| data | seed | fresh points | bound, nats | exact | difference |\n|---|---|---|---|---|---|", flush=True)
            _with_mean(points(seed, place, {"steps": args.steps} if args.steps else {}) for seed in seeds)


if __name__ == "__main__":
    main()
