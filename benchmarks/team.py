"""Several processes: overhead of a team, gain of two processes, and of distributing the updates of Muon.

python -m benchmarks.team                # everything; wall times need two quiet cores
python -m benchmarks.team --one-core     # only CPU times, which hardly depend on the load
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from reverie.base.allocator import keep_freed_memory
from reverie.base.team import Instruction, StepInstruction, Team
from reverie.training.gradient import Gradients, distribute_muon, make_step
from reverie.training.optimizer import Matrices, Muon, distributed_updates, orthogonal_updates
from reverie.training.prepare import prepare
from reverie.training.trainer import Training

NETS = ("unet-tiny", "unet-small")
WARM = 2
SHAPE, COUNT, BATCH = (28, 28), 640, 64


def training_of(network: str) -> Training:
    """Return a training on random images of 28 x 28."""
    folder = Path(tempfile.mkdtemp())
    np.save(folder / "images.npy", np.random.default_rng(0).random((COUNT, *SHAPE), np.float32))
    options = {"batch": BATCH, "micro_batches": 2, "augment": "none", "device": "cpu"}
    return prepare(folder / "images.npy", folder / "run", steps=10**6, network=network, **options)  # type: ignore[arg-type]  # of many kinds


def medians(rounds: int, *functions: Callable[[], object], clock: Callable[[], float] = time.process_time) -> list[float]:
    """Return the median seconds of each function, run in turn."""
    found: list[list[float]] = [[] for _ in functions]
    for k in range(rounds + WARM):
        for function, kept in zip(functions, found, strict=True):
            start = clock()
            function()
            if k >= WARM:
                kept.append(clock() - start)
    return [statistics.median(kept) for kept in found]


def stepper(training: Training, team: Team | None) -> Callable[[], None]:
    """Return a function for one step of the training loop."""
    learner, settings = training.learner, training.run.config.training
    model = learner.model
    gradients = Gradients(model, training.train, settings, team)  # type: ignore[arg-type]  # a trained one
    gradients.go_to(0)
    if team is not None:
        distribute_muon(learner, settings, team)

    def step() -> None:
        instruction = StepInstruction(Instruction.STEP, learner.i, 0, 0.5, 1e-4)
        make_step(learner, gradients, instruction if team is None else team.broadcast(instruction))
        learner.i += 1

    return step


def child(what: str, network: str, rounds: int, threads: int) -> None:
    """Run as one of several processes, and print the measurements."""
    torch.set_num_threads(threads)
    keep_freed_memory()  # as in training
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    training = training_of(network)
    team = Team(rank, world, torch.device("cpu"))
    if what == "muon":
        optimizer = next(o for o in training.learner.optimizers if isinstance(o, Muon))
        ahead: Matrices = {}
        for p in optimizer.param_groups[0]["params"]:
            ahead.setdefault(optimizer.form(p), []).append(torch.randn_like(p))
        repeated, shared = medians(
            rounds,
            lambda: [orthogonal_updates(found, form) for form, found in ahead.items()],
            lambda: distributed_updates(ahead, team),
        )
        step = medians(2, stepper(training, team))[0]
        found = {"repeated": repeated, "shared": shared, "step": step}
    elif what == "overhead":
        alone, led = stepper(training, None), stepper(training, team)
        plain, with_team = medians(rounds, alone, led)
        found = {"plain": plain, "team": with_team}
    else:
        found = {"wall": medians(rounds, stepper(training, team if world > 1 else None), clock=time.perf_counter)[0]}
    training.close()
    print(json.dumps(found), flush=True)


def measured(what: str, network: str, world: int, rounds: int, threads: int = 1) -> list[dict[str, float]]:
    """Start processes and return the measurements of each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": str(threads)}
    call = [sys.executable, "-m", "benchmarks.team", "--child", what, network, str(rounds), str(threads)]
    started = [
        subprocess.Popen(call, env={**os.environ, **shared, "RANK": str(r)}, stdout=subprocess.PIPE, text=True)
        for r in range(world)
    ]
    outputs = [process.communicate()[0] for process in started]
    return [json.loads(text.strip().splitlines()[-1]) for text in outputs]


def in_processor_time(rounds: int = 10) -> list[str]:
    """Return the overhead of a team of one, and the gain of distributing Muon over two processes, in CPU time."""
    rows = ["A team of one process against none, processor milliseconds per step, batch 64, one thread:", ""]
    rows += ["| network | without | with | overhead |", "|---|---|---|---|"]
    for name in NETS:
        found = measured("overhead", name, 1, rounds)[0]
        plain, team = 1e3 * found["plain"], 1e3 * found["team"]
        rows.append(f"| {name} | {plain:.1f} | {team:.1f} | {team / plain - 1:+.1%} |")
    rows += [
        "",
        "Orthogonal updates of Muon on two processes of one thread, processor milliseconds of the slower one:",
        "",
    ]
    rows += ["| network | repeated by both | distributed, with communication | share of a step |", "|---|---|---|---|"]
    for name in NETS:
        each = measured("muon", name, 2, 2 * rounds)
        repeated, shared, step = (1e3 * max(found[key] for found in each) for key in ("repeated", "shared", "step"))
        rows.append(
            f"| {name} | {repeated:.1f} | {shared:.1f} | {(repeated - shared) / (step + repeated - shared):.1%} saved |"
        )
    return rows


def on_two_cores(rounds: int = 15) -> list[str]:
    """Return the wall-clock speed of two processes of one thread against one process of two threads."""
    rows = ["Steps of batch 64, wall-clock time, quiet machine:", ""]
    rows += ["| network | 1 process, 1 thread | 1 process, 2 threads | 2 processes, 1 thread | 2 processes against 2 threads |"]
    rows += ["|---|---|---|---|---|"]
    for name in NETS:
        one, threads, two = (
            1e3 * max(found["wall"] for found in measured("wall", name, world, rounds, each))
            for world, each in ((1, 1), (1, 2), (2, 1))
        )
        rows.append(f"| {name} | {one:.0f} ms | {threads:.0f} ms | {two:.0f} ms | {threads / two:.2f} x as fast |")
    return rows


def team() -> list[str]:
    """Return the section of `make bench`."""
    return [*in_processor_time(), "", *on_two_cores()]


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser()
    options.add_argument("--one-core", action="store_true")
    options.add_argument("--child", nargs=4)
    args = options.parse_args()
    if args.child:
        what, network, rounds, threads = args.child
        child(what, network, int(rounds), int(threads))
        return
    print("\n".join(in_processor_time() if args.one_core else team()))


if __name__ == "__main__":
    main()
