"""Steering on MNIST: illusions that a classifier recognises, and the cost of guidance."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from benchmarks.images import mnist
from reverie.diffusion.condition import NULL
from reverie.diffusion.guidance import ClassifierFree
from reverie.nets.lenet import LeNet
from reverie.runs.run import Run
from reverie.steering.illusion import Illusions, illusion

TRIES, VIEWS, LABELS = 64, "identity,rotate180", "6,9"


@torch.no_grad()
def recognised(net: LeNet, made: Illusions, labels: tuple[int, ...]) -> torch.Tensor:
    """Return for which images a classifier recognises the right label in every view, (N,)."""
    seen = [torch.from_numpy(made.in_view(k))[:, None].float() for k in range(len(labels))]
    return torch.stack([net(x)[1].argmax(1) == label for x, label in zip(seen, labels, strict=True)]).all(0)


@torch.no_grad()
def guidance_cost(run: Run, n: int = 32, rounds: int = 7) -> tuple[float, float, float]:
    """Return the seconds of one guided estimate: scale 1, both halves in one batch, and in two calls; the least of seven."""
    denoise, cond = run.diffusion.denoiser, torch.arange(n) % 10
    x = torch.randn(n, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    none = torch.full_like(cond, NULL)
    plain, guided = ClassifierFree(denoise, 1.0), ClassifierFree(denoise, 3.0)
    methods: tuple[Callable[[], object], ...] = (
        lambda: plain(x, 0.5, cond),
        lambda: guided(x, 0.5, cond),
        lambda: torch.lerp(denoise(x, 0.5, none).x0, denoise(x, 0.5, cond).x0, 3.0),
    )
    least = [float("inf")] * 3
    for _ in range(rounds):
        for k, method in enumerate(methods):
            start = time.perf_counter()
            method()
            least[k] = min(least[k], time.perf_counter() - start)
    return least[0], least[1], least[2]


def steering() -> list[str]:
    """Return the lines of the section."""
    known = mnist()
    if known is None:
        return ["MNIST was not found, set REVERIE_DATA."]
    return measure(known.run, known.net, known.accuracy)


def measure(run: Run, net: LeNet, accuracy: float) -> list[str]:
    """Count the illusions that a LeNet recognises, and time guidance."""
    lines = [
        f"`reverie illusion RUN --views {VIEWS} --labels {LABELS} -n {TRIES}` with the run above: a LeNet trained on"
        f" clean digits (test accuracy {accuracy:.2%}) recognises this number as a 6 and, upside down, as a 9:",
        "",
        "| guidance | seed 0 | seed 1 |",
        "|---|---|---|",
    ]
    for scale in (1.0, 2.0, 3.0):
        made = [illusion(run, VIEWS, LABELS, TRIES, seed=seed, guidance=scale) for seed in (0, 1)]
        counts = [f"{int(recognised(net, pictures, (6, 9)).sum())} of {TRIES}" for pictures in made]
        lines.append(f"| {scale:g}{' (the default)' if scale == 3 else ''} | {' | '.join(counts)} |")
    once, batch, calls = guidance_cost(run)
    lines += [
        "",
        f"An estimate of 32 images takes {once * 1e3:.1f} ms at scale 1 (no guidance), {batch * 1e3:.1f} ms with both"
        f" halves in one batch, {calls * 1e3:.1f} ms in two calls ({calls / batch:.2f} x).",
    ]
    print("\n".join(lines), flush=True)
    return lines
