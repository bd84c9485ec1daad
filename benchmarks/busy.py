"""Training on a busy machine: steps of the default image network, alone and beside a process that spins."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

STEPS, LONGEST = 100, 20.0  # steps timed in a process, and the time limit in seconds
ROUNDS = 3
BLOCKS, OF = 15, 20  # of the comparison on a quiet machine: blocks of each mode, and steps in a block

# One process each, because the waiting mode of threads is fixed when torch is loaded.
CHILD = """
import time
import torch
from reverie.base.busy import few_threads_when_busy
from reverie.base.spec import build
from reverie.diffusion.plan import PRESETS
from reverie.nets import NETWORKS
from reverie.training.optimizer import muon

torch.set_num_threads({threads})
net = build(NETWORKS, {{**PRESETS["unet-tiny"], "labels": 10}}, "network")
optimizers = muon(net, 1e-4, 0.0)
x, level = torch.randn(64, 1, 28, 28), torch.randn(64)

def step():
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)
    (net(x, level, None) - x).square().mean().backward()
    for optimizer in optimizers:
        optimizer.step()

def seconds(steps, adapts):
    start, done = time.perf_counter(), 0
    while done < steps and time.perf_counter() - start < {longest}:
        step()
        done += 1
        if adapts:
            check()
    return (time.perf_counter() - start) / done

with few_threads_when_busy() as check:
    seconds(5, False)
    print(*({what}))
"""
SPIN = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    pass"  # ends with this process
ADAPTS, SPINS, SLEEPS = (
    "one thread when busy (reverie)",
    "threads spin (torch alone)",
    "threads sleep (OMP_WAIT_POLICY=PASSIVE)",
)


def child(mode: str, what: str) -> list[float]:
    """Return the measurements of a child process."""
    code = CHILD.format(threads=os.cpu_count() or 1, longest=LONGEST, what=what)
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_", "KMP_", "MKL_"))}
    policy = {"OMP_WAIT_POLICY": "PASSIVE"} if mode == SLEEPS else {}
    done = subprocess.run([sys.executable, "-c", code], env={**plain, **policy}, capture_output=True, text=True, check=True)
    return [float(number) for number in done.stdout.split()]


def quiet_cost() -> tuple[float, float]:
    """Return the relative cost of adapting on a quiet machine, with its error: blocks of both modes in turn."""
    found = child(ADAPTS, f"seconds({OF}, k % 2 == 1) for k in range({2 * BLOCKS})")
    ratios = [with_it / without for without, with_it in zip(found[::2], found[1::2], strict=True)]
    return statistics.median(ratios) - 1, 1.25 * statistics.stdev(ratios) / BLOCKS**0.5  # the error of a median of normals


def busy() -> list[str]:
    """Compare the modes on a quiet machine and beside one spinning process, in turn."""
    modes = (ADAPTS, SPINS, SLEEPS)
    times: dict[tuple[str, bool], list[float]] = {(mode, taken): [] for mode in modes for taken in (False, True)}
    for _ in range(ROUNDS):
        for taken in (False, True):
            other = subprocess.Popen([sys.executable, "-c", SPIN]) if taken else None
            try:
                for mode in modes:
                    times[mode, taken] += child(mode, f"[seconds({STEPS}, {mode == ADAPTS})]")
            finally:
                if other is not None:
                    other.kill()
                    other.wait()
    middle = {key: statistics.median(found) for key, found in times.items()}
    lines = ["| threads | quiet, ms per step | one core taken, ms per step | ratio |", "|---|---|---|---|"]
    for mode in modes:
        quiet, beside = 1e3 * middle[mode, False], 1e3 * middle[mode, True]
        lines.append(f"| {mode} | {quiet:.1f} | {beside:.1f} | {beside / quiet:.2f} |")
    cost, error = quiet_cost()
    text = [
        f"unet-tiny, batch 64, {os.cpu_count()} threads, medians of {ROUNDS} processes in turn, {STEPS} steps or {LONGEST:g} s"
        f" each: with one core taken, adapting is {middle[SPINS, True] / middle[ADAPTS, True]:.1f} times as fast as spinning.",
        f"On a quiet machine adapting costs {cost:+.1%} ± {error:.1%} ({BLOCKS} pairs of blocks of {OF} steps in one process).",
    ]
    print("\n".join([*lines, *text]), flush=True)
    return [*text, "", *lines]


if __name__ == "__main__":
    busy()
