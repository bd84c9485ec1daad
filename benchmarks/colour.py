"""Colour images: which network, at which size, for which budget.

    python -m benchmarks.colour DATA --size 32 --cpu-seconds 120 NETWORK NETWORK ...

Every network is trained for as many steps as take the same time of the processor, measured beforehand, so a busy machine gives
nearly the same figures.  Ten minutes on two quiet cores are about 1,100 such seconds.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import machine
from benchmarks.small import HEAD, Bench, divided
from reverie.data import load_data
from reverie.families.model import TrainedModel
from reverie.training.learner import Learner
from reverie.training.loader import batches
from reverie.training.prepare import prepare

WARM, TIMED = 2, 6  # warm-up steps, and timed steps


def seconds_a_step(data: str, place: Path, options: dict[str, Any]) -> float:
    """Return the CPU time of a training step: loss, gradients, optimizer and average."""
    training = prepare(data, place, steps=1, overwrite=True, **options)
    learner: Learner = training.learner
    source = batches(training.train, training.run.config.training.batch, 0)
    for k in range(WARM + TIMED):
        if k == WARM:
            start = time.process_time()
        x, labels = next(source)
        assert isinstance(learner.model, TrainedModel)
        learner.model.loss(x, labels, k).mean().backward()
        for optimizer in learner.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        learner.average.update(k)
    return (time.process_time() - start) / TIMED


def main() -> None:
    """Train each network for the same time and print a row of figures on held-out images."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("data", help="folder of images")
    parser.add_argument("networks", nargs="+", help="as for --network")
    parser.add_argument("--size", default="32")
    parser.add_argument("--cpu-seconds", type=float, default=120.0)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--augment", default="none")
    parser.add_argument("--count", type=int, default=512, help="samples to measure")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(machine(), *HEAD, sep="\n", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        data = load_data(args.data, size=args.size)
        split = divided(data, len(data) * 9 // 10, Path(temporary) / Path(args.data).name)
        for network in args.networks:
            options = {"network": network, "batch": args.batch, "augment": args.augment}
            steps = max(1, round(args.cpu_seconds / seconds_a_step(str(split.folder), Path(temporary) / "timed", options)))
            Bench(Path(temporary), steps, args.count).trained(split, network, **options)


if __name__ == "__main__":
    main()
