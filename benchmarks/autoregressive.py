"""Autoregressive models: exact NLL of test data after equal CPU time, and the gain of cached keys.

    REVERIE_DATA=DIR python -m benchmarks.autoregressive --only nade@binarized-mnist --seeds 0

Ten minutes of one thread equal five of two cores.  Each is trained for as many steps as take its time,
measured beforehand, so the load of the machine hardly matters.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import reverie
from benchmarks.autoencoders import DIGITS, MNIST, test_images
from benchmarks.colour import seconds_a_step
from benchmarks.measure import machine
from reverie.base.errors import UserError
from reverie.base.noise import image_seeds
from reverie.data import load_data
from reverie.diffusion.likelihood.normal import mean_and_error
from reverie.families import FAMILIES
from reverie.families.autoregressive.sequence import SequenceModel
from reverie.families.model import SamplingInputs

# Family and data, seconds of training on one thread, and the expected NLL.
JOBS = {
    f"fvsbn@{MNIST}": (360.0, "<= 98 nats"), f"nade@{MNIST}": (600.0, "<= 92 nats"),
    f"transformer@{DIGITS}": (120.0, "<= 2.02 bits/dim"), f"nade@{DIGITS}": (120.0, "<= 2.16 bits/dim"),
    f"lstm@{DIGITS}": (120.0, ""), f"rnn@{DIGITS}": (120.0, ""), f"fvsbn@{DIGITS}": (120.0, ""),
}  # fmt: skip
HEAD = ["| data | model | seed | steps | seconds of one thread | NLL of test data | samples/s, 64 at once |",
        "|---|---|---|---|---|---|---|---|"]  # fmt: skip
DRAWN = 64
LONG = (1, 28, 28)  # images that are sampled with and without cached keys


def row(job: str, seed: int, seconds: float, goal: str, temporary: Path) -> str:
    """Train a family for a CPU time and return a row of the table."""
    family, _, data = job.rpartition("@")
    options: dict[str, Any] = {"family": family, "labels": "none"}
    steps = max(1, round(seconds / seconds_a_step(data, temporary / "timed", options)))
    start = time.process_time()
    run = reverie.train(data, temporary / f"run-{seed}", steps=steps, seed=seed, progress=False, overwrite=True, **options)
    elapsed = time.process_time() - start
    x = test_images(data, run, 10_000)
    found = run.model.log_prob(x, None, image_seeds(0, len(x)))
    unit, scale, digits = ("nats", 1.0, 2) if data == MNIST else ("bits/dim", found.size * math.log(2), 3)
    cost, error = mean_and_error(-found.nats / scale)
    start = time.process_time()
    run.sample(DRAWN)
    speed = DRAWN / (time.process_time() - start)
    return (
        f"| {data} | {family} | {seed} | {steps:,} | {elapsed:.0f} | {cost:.{digits}f} ± {error or 0:.{digits}f} {unit} of"
        f" {len(x):,} | {speed:,.1f} |"
    )


@torch.no_grad()
def cached_keys(count: int = 4) -> str:
    """Return a sentence with the time in which a transformer samples images of 784 pixels with cached keys and without."""
    family = FAMILIES["transformer"]
    table = {"name": "transformer", "codec": {"name": "levels", "values": [0, 255]}, "decoder": "bernoulli"}
    model = family.build(family.settings.model_validate(table), LONG, 0, 0).eval()
    assert isinstance(model, SequenceModel)
    start = time.process_time()
    *_, last = model.frames(SamplingInputs(image_seeds(0, count)))
    cached = time.process_time() - start
    z = last.x0.flatten(1)
    start = time.process_time()
    for i in range(0, model.size, 16):  # every sixteenth pixel, by the whole sequence so far
        x = torch.cat([model.start_input(count, None), model.embedded(z[:, :i], None)], 1)
        model.head(model.net(x)[0][:, -1])
    whole = 16 * (time.process_time() - start)
    return (f"A transformer samples {count} images of {model.size} pixels in {cached:.2f} s of one thread with cached keys, and"
            f" would take {whole:.1f} s without: {whole / cached:.0f} times as long.")  # fmt: skip


def autoregressive(jobs: tuple[str, ...] = tuple(JOBS), seeds: tuple[int, ...] = (0,), share: float = 1.0) -> list[str]:
    """Train each and return the table; data sets that are not on this machine are named.  share: of the default time."""
    threads, lines, notes = torch.get_num_threads(), list(HEAD), list[str]()
    torch.set_num_threads(1)
    try:
        print(*HEAD, sep="\n", flush=True)
        with tempfile.TemporaryDirectory() as temporary:
            for job in jobs:
                seconds, goal = JOBS.get(job) or JOBS.get(f"{job.split(':')[0]}@{job.rpartition('@')[2]}", (120.0, ""))
                try:
                    load_data(job.rpartition("@")[2])
                except UserError as error:
                    notes += ["", f"{job}: not measured, because {error}."]
                    continue
                for seed in seeds:
                    lines.append(row(job, seed, share * seconds, goal, Path(temporary)))
                    print(lines[-1], flush=True)
        notes += ["", cached_keys()]
        print(notes[-1], flush=True)
    finally:
        torch.set_num_threads(threads)
    about = [
        "Exact likelihoods, with default settings: binarized-mnist is the static binarisation of Larochelle and Murray"
        " (2011), 95 % of 50,000 images to train on, measured on its test set; digits8 on the held-out 5 %, without labels,"
        " as 17 levels. ± is the standard error over test images. Published for binarised MNIST: 97.5 nats"
        " (FVSBN) and 88.3 (NADE).",
        "",
    ]
    return [*about, *lines, *notes]


def main() -> None:
    """Measure and print the selected cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="*", default=list(JOBS), help="FAMILY@DATA, the family as for --family")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--share", type=float, default=1.0, help="share of the default time")
    args = parser.parse_args()
    print(machine(), flush=True)
    autoregressive(tuple(args.only), tuple(int(s) for s in args.seeds.split(",")), args.share)


if __name__ == "__main__":
    main()
