"""What another program costs a training: steps of the default image network, quiet and beside a process that spins."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

STEPS, LONGEST = 60, 20.0  # steps timed in a process, and the seconds after which fewer must do
ROUNDS = 5

# A fresh process each: the setting is read when torch is loaded, so it has no effect where that comes first.
CHILD = """
import time
{first}
import torch
from reverie.runs.folder import NETWORKS
from reverie.training.optimizer import muon
from reverie.diffusion.plan import PRESETS
from reverie.base.spec import build

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

for _ in range(3):
    step()
begun, done = time.perf_counter(), 0
while done < {steps} and time.perf_counter() - begun < {longest}:
    step()
    done += 1
print((time.perf_counter() - begun) / done)
"""
SPIN = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    pass"  # it ends when this process does
WAYS = {"threads sleep (set by reverie)": "import reverie", "threads spin (torch alone)": "import torch"}


def seconds_a_step(first: str) -> float:
    """Time the steps in a process of its own that begins with this import."""
    threads = os.cpu_count() or 1
    code = CHILD.format(first=first, threads=threads, steps=STEPS, longest=LONGEST)
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_", "KMP_", "MKL_"))}
    done = subprocess.run([sys.executable, "-c", code], env=plain, capture_output=True, text=True, check=True)
    return float(done.stdout)


def busy() -> list[str]:
    """Compare both ways on a quiet machine and beside one process that spins, in turn."""
    times: dict[tuple[str, bool], list[float]] = {(way, taken): [] for way in WAYS for taken in (False, True)}
    for _ in range(ROUNDS):
        for taken in (False, True):
            other = subprocess.Popen([sys.executable, "-c", SPIN]) if taken else None
            try:
                for way, first in WAYS.items():
                    times[way, taken].append(seconds_a_step(first))
            finally:
                if other is not None:
                    other.kill()
                    other.wait()
    middle = {key: statistics.median(found) for key, found in times.items()}
    sleeps, spins = WAYS
    lines = ["| waiting threads | quiet, ms a step | one core taken, ms a step | ratio |", "|---|---|---|---|"]
    for way in WAYS:
        quiet, beside = 1e3 * middle[way, False], 1e3 * middle[way, True]
        lines.append(f"| {way} | {quiet:.1f} | {beside:.1f} | {beside / quiet:.2f} |")
    cost = middle[sleeps, False] / middle[spins, False] - 1
    head = f"unet-tiny, batch 64, {os.cpu_count()} threads, medians of {ROUNDS} processes in turn: on a quiet machine sleeping"
    text = [
        f"{head} costs {cost:+.1%}; with one core taken it is {middle[spins, True] / middle[sleeps, True]:.1f} times as fast."
    ]
    print("\n".join([*lines, *text]), flush=True)
    return [*text, "", *lines]


if __name__ == "__main__":
    busy()
