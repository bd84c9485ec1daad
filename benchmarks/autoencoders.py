"""Autoencoders with a likelihood: NLL of test data after equal CPU time, and sampling speed.

    REVERIE_DATA=DIR python -m benchmarks.autoencoders --cpu-seconds 600 --seeds 0,1,2 vae hvae

Ten minutes of one thread equal five of two cores.  Each family is trained for as many steps as take that time, measured
beforehand, so the load of the machine hardly matters.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import reverie
from benchmarks.colour import seconds_a_step
from benchmarks.measure import machine
from reverie.base.errors import UserError
from reverie.base.noise import image_seeds
from reverie.data import load_data
from reverie.data.named_datasets import BINARISED, data_folders
from reverie.diffusion.likelihood.normal import mean_and_error
from reverie.families.vae.variational import Variational
from reverie.runs.run import Run

MNIST, DIGITS = "binarized-mnist", "digits8"
DRAWS = 500  # latent samples per datum
GOALS = {MNIST: "<= 89 nats", DIGITS: "<= 1.90 bits/dim"}
SAMPLED, ROUNDS = 20_000, 3
HEAD = ["| data | model | seed | steps | seconds of one thread | NLL of test data, IWAE-500 | ELBO | samples/s |",
        "|---|---|---|---|---|---|---|---|---|"]  # fmt: skip


def test_images(data: str, run: Run, most: int) -> Tensor:
    """Return test images: Larochelle's test set, or the held-out images; (N, 1, H, W) in [0, 1]."""
    if data != MNIST:
        return load_data(data).split(run.config.data.seed)[1].subsample(most)
    folder = next(f for place in data_folders(None) for f in (place / MNIST, place) if (f / BINARISED).is_file())
    with np.load(folder / BINARISED, allow_pickle=False) as arrays:
        images = torch.from_numpy(arrays["test"].astype(np.float32)).reshape(-1, *run.config.data.shape)
    return images[torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:most]]


def samples_a_second(run: Run) -> float:
    """Return the samples per second, the best of a few rounds."""
    times = []
    for k in range(ROUNDS):
        start = time.perf_counter()
        run.sample(SAMPLED, seed=k)
        times.append(time.perf_counter() - start)
    return SAMPLED / min(times)


def row(data: str, family: str, seed: int, seconds: float, most: int, temporary: Path) -> str:
    """Train a family for a CPU time and return a row of the table."""
    options: dict[str, Any] = {"family": family, "labels": "none"}
    steps = max(1, round(seconds / seconds_a_step(data, temporary / "timed", options)))
    start = time.process_time()
    run = reverie.train(data, temporary / f"{data}-{family}-{seed}", steps=steps, seed=seed, progress=False, **options)
    elapsed = time.process_time() - start
    model, x = run.model, test_images(data, run, most)
    assert isinstance(model, Variational)
    weights = model.log_weights(x, None, image_seeds(0, len(x)), DRAWS)
    scale = 1.0 if data == MNIST else model.size * math.log(2)
    tight, error = mean_and_error((math.log(DRAWS) - weights.logsumexp(1)) / scale)
    unit, elbo = "nats" if data == MNIST else "bits/dim", -float(weights.mean()) / scale
    digits = 2 if data == MNIST else 3
    return (
        f"| {data} | {family} | {seed} | {steps:,} | {elapsed:.0f} | {tight:.{digits}f} ± {error or 0:.{digits}f} {unit} of"
        f" {len(x):,} | {elbo:.{digits}f} | {samples_a_second(run):,.0f} |"
    )


def autoencoders(
    families: tuple[str, ...] = ("vae", "hvae"), seconds: float = 600.0, seeds: tuple[int, ...] = (0,), most: int = 10_000,
    sets: tuple[str, ...] = (MNIST, DIGITS),
) -> list[str]:  # fmt: skip
    """Train every family on every data set and return the table; data sets that are not on this machine are named."""
    threads, lines, notes = torch.get_num_threads(), list(HEAD), list[str]()
    print(*HEAD, sep="\n", flush=True)
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as temporary:
            for data in sets:
                try:
                    load_data(data)
                except UserError as error:
                    notes += ["", f"{data}: not measured, because {error}."]
                    continue
                for seed in seeds:
                    for family in families:
                        lines.append(row(data, family, seed, seconds if data == MNIST else seconds / 5, most, Path(temporary)))
                        print(lines[-1], flush=True)
    finally:
        torch.set_num_threads(threads)
    about = [
        f"Each is trained for {seconds:g} seconds of one thread, on digits8 for a fifth of that, with default settings."
        " binarized-mnist is the static binarisation of Larochelle and Murray (2011): 50,000 images to train on, of which 5 %"
        " are held out, measured on its test set; digits8 is measured on the 5 % that are held out, without labels, as 17"
        " levels. ± is the standard error over test images; papers have for binarised MNIST 86.8 nats (VAE) and 81.7 (ladder).",
        "",
    ]
    return [*about, *lines, *notes]


def main() -> None:
    """Measure and print the selected cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("families", nargs="*", default=["vae", "hvae"], help="as for --family")
    parser.add_argument("--cpu-seconds", type=float, default=600.0)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--test", type=int, default=10_000, help="largest number of test images")
    parser.add_argument("--data", default=f"{MNIST},{DIGITS}")
    args = parser.parse_args()
    print(machine(), flush=True)
    seeds, sets = tuple(int(s) for s in args.seeds.split(",")), tuple(args.data.split(","))
    autoencoders(tuple(args.families), args.cpu_seconds, seeds, args.test, sets)


if __name__ == "__main__":
    main()
