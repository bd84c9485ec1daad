"""Quality against network evaluations for every sampler and grid, and speed against diffusers at equal quality."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.images import Mnist, mnist
from benchmarks.measure import side_by_side
from reverie.base.spec import build
from reverie.diffusion.denoiser import Denoiser, NetDenoiser
from reverie.diffusion.samplers import GRIDS, SAMPLERS, affordable
from reverie.diffusion.schedule import Linear
from reverie.runs.run import Run

BUDGETS = (5, 10, 20, 50)
COUNT = 1000  # samples for each figure, with equal seeds
TOLERANCES = (1e-1, 3e-2, 1e-2, 1e-3)
MISSING = ["MNIST was not found; set REVERIE_DATA."]


class Counter:
    """A context that counts the evaluations of a denoiser and the time spent in its network."""

    def __init__(self, denoiser: NetDenoiser) -> None:
        self.net, self.calls, self.seconds = denoiser.net, 0, 0.0

    def __enter__(self) -> Counter:
        self.handles = (self.net.register_forward_pre_hook(self._begin), self.net.register_forward_hook(self._end))
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self.handles:
            handle.remove()

    def _begin(self, *_: object) -> None:
        self.start = time.perf_counter()

    def _end(self, *_: object) -> None:
        self.calls += 1
        self.seconds += time.perf_counter() - self.start


def _cell(known: Mnist, sampler: str, grid: str, column: int) -> str:
    """Return the distance at a budget, with the number of evaluations where it differs."""
    run, spec = known.run, sampler
    schedule = run.diffusion.denoiser.schedule
    steps = affordable(build(SAMPLERS, sampler, "sampler"), build(GRIDS, grid, "grid"), schedule, BUDGETS[column])
    if steps is None:
        spec, steps = f"{sampler}:tolerance={TOLERANCES[column]}", 2
    with Counter(run.diffusion.denoiser) as counter:
        x = run.sample(COUNT, label="all", sampler=spec, steps=steps, grid=grid).x
    batches = len(range(0, COUNT, run.batch_size()))
    spent = round(counter.calls / batches)
    return f"{known.distance(x):.1f}" + ("" if spent == BUDGETS[column] else f" ({spent})")


def _table(known: Mnist, pairs: list[tuple[str, str]]) -> list[str]:
    head = ["| sampler | grid | " + " | ".join(map(str, BUDGETS)) + " |", "|---|---|" + "---|" * len(BUDGETS)]
    for line in head:
        print(line, flush=True)
    rows = []
    for sampler, grid in pairs:
        cells = [_cell(known, sampler, grid, column) for column in range(len(BUDGETS))]
        rows.append(f"| {sampler} | {grid} | {' | '.join(cells)} |")
        print(rows[-1], flush=True)
    return head + rows


def evaluations() -> list[str]:
    """Measure every sampler on the default grid, and every grid under the default sampler."""
    known = mnist()
    if known is None:
        return MISSING
    usual, _, spacing = known.run.chosen_sampling({})
    every = [(name, spacing) for name in dict.fromkeys((usual, *SAMPLERS))]
    grids = [(usual, grid) for grid in ("uniform", "quadratic", "trailing", "karras", "log-snr") if grid != spacing]
    steady = [(name, "log-snr") for name in ("dpm++2m", "dpm++3m", "dpm++sde", "unipc")]  # where their steps are even
    return [
        f"Fréchet distance (as above, {COUNT:,} samples, seed 0) at 5, 10, 20 and 50 network evaluations; a different number"
        " of evaluations is in brackets. The first row is the default.",
        "",
        *_table(known, every + grids + steady),
    ]


class Scaled(nn.Module):
    """The network with the interface of diffusers: x and the index of a step in, noise out."""

    def __init__(self, inner: NetDenoiser, cond: Tensor | None) -> None:
        super().__init__()
        self.denoise: Denoiser = NetDenoiser(inner.net, Linear(), inner.target, inner.sigma_data)
        self.cond = cond

    def forward(self, x: Tensor, index: int) -> Tensor:
        """Return the noise estimate at step index of the linear chain of 1,000."""
        return self.denoise(x, (index + 1) / 1000, self.cond).eps


@torch.no_grad()
def their_ddim(run: Run, n: int, steps: int = 50) -> np.ndarray:
    """Sample with the DDIMScheduler of diffusers and its defaults: linear betas, leading times, clipped estimates."""
    import diffusers

    make: Any = diffusers.DDIMScheduler
    peer = make(num_train_timesteps=1000)
    peer.set_timesteps(steps)
    random, parts = torch.Generator().manual_seed(0), []
    for first in range(0, n, run.batch_size()):
        count = min(run.batch_size(), n - first)
        net = Scaled(run.diffusion.denoiser, run.labels("all", count, 0, first))
        x = torch.randn(count, *run.diffusion.shape, generator=random)
        for index in peer.timesteps:
            x = peer.step(net(x, int(index)), index, x).prev_sample
        parts.append(run.diffusion.codec.decode(x)[:, 0].numpy())
    return np.concatenate(parts)


CHILD = """
import resource, sys, time
from reverie import api
run, count, out = sys.argv[1], int(sys.argv[2]), sys.argv[3]
start = time.perf_counter()
api.sample_to(run, count, out, device="cpu", steps=5)
print(time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def streaming() -> list[str]:
    """Write 1,000 and 10,000 images to an array on disk, each in a process of its own, and compare time and memory."""
    known = mnist()
    if known is None:
        return MISSING
    lines = ["| images, 5 steps, to .npy | seconds | peak memory |", "|---|---|---|"]
    with tempfile.TemporaryDirectory() as place:
        for count in (1000, 10_000):
            words = [sys.executable, "-c", CHILD, str(known.run.path), str(count), f"{place}/x.npy"]
            done = subprocess.run(words, capture_output=True, text=True, check=True)
            seconds, memory = map(float, done.stdout.split())
            lines.append(f"| {count:,} | {seconds:.1f} | {memory:.0f} MiB |")
    print("\n".join(lines), flush=True)
    return lines


def precision() -> list[str]:
    """Compare sampling in bfloat16 and float32: speed of a batch, and distance with equal seeds."""
    known = mnist()
    if known is None:
        return MISSING
    run = known.run
    n = run.batch_size()
    row = side_by_side(
        "a batch in bfloat16", lambda: run.sample(n, precision="bf16"), lambda: run.sample(n, precision="fp32"), "", rounds=2
    )
    distances = [known.distance(run.sample(COUNT, label="all", precision=name).x) for name in ("fp32", "bf16")]
    lines = [
        f"{n} images with the default sampler: {n / row.peer:.0f} images/s in fp32, {n / row.ours:.0f} in bf16:"
        f" **{row.ratio:.2f} x**.  Distance ({COUNT:,} samples, the same seeds): {distances[0]:.2f} and {distances[1]:.2f}.",
    ]
    print("\n".join(lines), flush=True)
    return lines


def against_diffusers() -> list[str]:
    """Find the fewest steps with which the default sampler reaches the distance of DDIM-50 in diffusers; compare the speed."""
    known = mnist()
    if known is None:
        return MISSING
    run = known.run
    wanted = known.distance(their_ddim(run, COUNT))
    sampler, _, grid = run.chosen_sampling({})
    for steps in range(3, 51):
        distance = known.distance(run.sample(COUNT, label="all", steps=steps).x)
        if distance <= wanted:
            break
    n = 2 * run.batch_size()
    row = side_by_side(
        "images at equal distance", lambda: run.sample(n, label="all", steps=steps), lambda: their_ddim(run, n), "", rounds=3
    )
    ours, theirs = n / row.ours, n / row.peer
    with Counter(run.diffusion.denoiser) as counter:
        start = time.perf_counter()
        run.sample(n, label="all")
        share = counter.seconds / (time.perf_counter() - start)
    lines = [
        f"diffusers DDIMScheduler, 50 steps, the same network: distance {wanted:.2f}, {theirs:.1f} images/s.",
        f"Reverie, {sampler} on the {grid} grid, {steps} steps: distance {distance:.2f}, {ours:.1f} images/s:"
        f" **{ours / theirs:.1f} x** at equal or better distance ({COUNT:,} samples).",
        f"With all default settings {share:.1%} of the time is spent inside the network.",
    ]
    print("\n".join(lines), flush=True)
    return lines
