"""Sparse derivatives against dense ones, colouring of large patterns, and the four combinations of modes."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from scipy import sparse
from torch import Tensor, nn
from torch.nn import functional

from reverie.autodiff import Coloring, color, detect, divergence, measure, recorded_jacobian, sparse_hessian, sparse_jacobian
from reverie.autodiff.second import PASSES, PRODUCTS
from reverie.autodiff.sparse import ORDERS, check
from reverie.diffusion.denoiser import NetDenoiser
from reverie.diffusion.schedule import Linear

ROUNDS = 7


def in_turn(*runs: Callable[[], object], rounds: int = ROUNDS) -> list[float]:
    """Return the least seconds of each, run in turn after one warm-up round."""
    times: list[list[float]] = [[] for _ in runs]
    for k in range(rounds + 1):
        for run, durations in zip(runs, times, strict=True):
            start = time.perf_counter()
            run()
            if k:
                durations.append(time.perf_counter() - start)
    return [min(durations) for durations in times]


def tridiagonal(x: Tensor) -> Tensor:
    """Return numbers that depend on their neighbours only."""
    padded = functional.pad(x, (1, 1))
    return x**3 - padded[2:] * x + padded[:-2].sin()


def energy(x: Tensor) -> Tensor:
    """Return an energy whose Hessian couples the five points of a cross."""
    return x.diff(dim=0).square().cosh().sum() + x.diff(dim=1).square().cosh().sum() + x.exp().sum()


class Local(nn.Module):
    """Three 3 x 3 convolutions."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        sides = [(1, width), (width, width), (width, 1)]
        layers = [layer for i, o in sides for layer in (nn.Conv2d(i, o, 3, padding=1), nn.SiLU())]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, x: Tensor, level: Tensor, cond: Tensor | None) -> Tensor:
        """Return the output, (B, 1, H, W)."""
        out: Tensor = self.layers(x)
        return out


def _line(what: str, ours: float, peer: float, wanted: str, note: str) -> str:
    print(f"{what:<58} {ours * 1e3:9.2f} ms {peer * 1e3:9.2f} ms   x{peer / ours:.2f}", flush=True)
    return f"| {what} | {ours * 1e3:.2f} ms | {peer * 1e3:.2f} ms | {peer / ours:.2f} x | {note} |"


def repeated(run: Callable[[], object], count: int = 50) -> Callable[[], None]:
    """Return a function that runs another many times in a row, like repeated use of a plan."""

    def all_of_them() -> None:
        for _ in range(count):
            run()

    return all_of_them


def _three_products(x: Tensor) -> None:
    v = torch.ones_like(x)
    for _ in range(3):
        torch.func.jvp(tridiagonal, (x,), (v,))


def matrices() -> list[str]:
    """Time sparse Jacobians and Hessians with ready plans."""
    x, small, grid = torch.randn(10_000), torch.randn(2_000), torch.randn(200, 200) / 3
    plans = [color(detect(tridiagonal, each)) for each in (x, small)]
    start = time.perf_counter()
    plan = color(detect(energy, grid, "hessian"), "star")
    planning = time.perf_counter() - start
    tree = color(detect(energy, grid, "hessian"), "acyclic")
    jacobian, products = in_turn(lambda: sparse_jacobian(tridiagonal, x, plans[0]), lambda: _three_products(x), rounds=50)
    replay = recorded_jacobian(tridiagonal, small, plans[1])
    many, replayed, dense = in_turn(
        repeated(lambda: sparse_jacobian(tridiagonal, small, plans[1])),
        repeated(lambda: replay(small)),
        repeated(lambda: torch.func.jacrev(tridiagonal)(small), 5),
    )
    star, acyclic = in_turn(lambda: sparse_hessian(energy, grid, plan), lambda: sparse_hessian(energy, grid, tree))
    return [
        _line("tridiagonal Jacobian, n = 10,000", jacobian, products, "at least 0.20 x", "three J v in sequence"),
        _line("tridiagonal Jacobian, n = 2,000", many / 50, dense / 5, "at least 100 x", "torch.func.jacrev"),
        _line("the same with recorded operations", replayed / 50, dense / 5, "at least 100 x", "torch.func.jacrev"),
        _line("Hessian on a 200 x 200 grid", star, acyclic, "ours under 1 s",
              f"{plan.number} star colours against {tree.number} acyclic ones; detecting and colouring takes {planning:.1f} s"),
    ]  # fmt: skip


def trace() -> str:
    """Time the exact divergence of a convolutional denoiser."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        denoiser = NetDenoiser(Local(), Linear(), "x0").requires_grad_(False)
    x = torch.randn(1, 1, 28, 28, generator=torch.Generator().manual_seed(0))

    def f(x: Tensor) -> Tensor:
        return denoiser(x, 0.5).x0

    def dense() -> Tensor:
        jacobian: Tensor = torch.func.jacrev(f, chunk_size=98)(x)
        return jacobian.reshape(784, 784).trace()

    plan: Coloring = color(detect(f, x), "diagonal")
    ours, peer = in_turn(lambda: divergence(f, x, plan), dense)
    error = abs(float(divergence(f, x, plan)) / float(dense()) - 1)
    note = f"trace of torch.func.jacrev; {plan.number} products instead of 784, relative difference {error:.0e}"
    return _line("exact divergence, three 3 x 3 convolutions, 28 x 28", ours, peer, "at least 10 x", note)


def coloring() -> list[str]:
    """Time the colouring of 100,000 columns with five entries each, in every order."""
    n, random = 100_000, np.random.default_rng(0)
    places = (random.integers(0, n, 5 * n), np.repeat(np.arange(n), 5))
    pattern = sparse.csr_array((np.ones(5 * n, bool), places), shape=(n, n))
    lines = [
        "",
        "Colouring the columns of a random 100,000 x 100,000 pattern with five entries per column:",
        "",
    ]
    lines += ["| order | colours | seconds |", "|---|---|---|"]
    for order in ORDERS:
        start = time.perf_counter()
        found = color(pattern, order=order)
        seconds = time.perf_counter() - start
        check(found)
        print(f"colouring 100,000 columns, {order}: {found.number} colours, {seconds:.2f} s", flush=True)
        lines.append(f"| {order} | {found.number} | {seconds:.2f} |")
    return lines


def second_order() -> list[str]:
    """Measure one Hessian product in the four combinations."""
    sizes = (100, 1000, 4000)
    lines = ["", "One product H v of a two-layer network with 64 hidden units, time and peak memory:", ""]
    lines += ["| combination | passes | " + " | ".join(f"n = {n:,}" for n in sizes) + " |", "|---|---|" + "---|" * len(sizes)]
    for mode, product in PRODUCTS.items():
        cells = []
        for n in sizes:
            if mode == "forward-on-forward" and n > 1000:
                cells.append("n passes: not run")
                continue
            random = torch.Generator().manual_seed(0)
            w, u, x = (torch.randn(*s, generator=random) / n**0.5 for s in ((64, n), (64,), (n,)))
            cost = measure(lambda w=w, u=u, x=x, p=product: p(lambda y: u @ torch.tanh(w @ y), x, x), ROUNDS)  # type: ignore[misc]
            cells.append(f"{cost.seconds * 1e3:.2f} ms, {cost.peak_bytes / 1024:,.0f} kB")
        lines.append(f"| {mode.replace('-', ' ')} | {PASSES[mode]} | " + " | ".join(cells) + " |")
    return lines


def derivatives() -> list[str]:
    """Return the section of the page."""
    head = [
        "The fastest of several rounds, run in turn.",
        "",
        "| what | Reverie | peer | ratio | peer |",
        "|---|---|---|---|---|---|",
    ]
    return [*head, *matrices(), trace(), *coloring(), *second_order()]


if __name__ == "__main__":
    torch.set_num_threads(2)
    print("\n".join(derivatives()))
