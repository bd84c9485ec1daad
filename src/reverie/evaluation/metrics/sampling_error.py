"""Sampling errors of a figure: over new samples, and under the hypothesis that both sets have the same distribution."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Figure = Callable[[Tensor], float]
Figures = Callable[[Tensor], Tensor | float]  # also of a batch of sets: (B, n, ...) to (B,)


def permuted_figures(
    figure: Figures, x: Tensor, y: Tensor, times: int, random: torch.Generator, *, batched: bool = False
) -> Tensor:
    """Return the figures of both sets after random permutations of their union: (times, 2) float64.

    If x and y have the same distribution, so do these and the original figures.  batched: the figure takes (B, n, ...).
    """
    union = torch.cat([x, y])
    orders = [torch.randperm(len(union), generator=random) for _ in range(times)]

    def figures_of(part: slice) -> Tensor:
        sets = (union[order[part]] for order in orders)
        values = figure(torch.stack([*sets])) if batched else [float(figure(one)) for one in sets]
        return torch.as_tensor(values, dtype=torch.float64)

    return torch.stack([figures_of(slice(len(x))), figures_of(slice(len(x), None))], 1)


def variance(pairs: Tensor) -> float:
    """Return E (a - b)² / 2, the variance of a figure from pairs of independent values.  pairs: (times, 2)."""
    return float((pairs[:, 0] - pairs[:, 1]).square().mean() / 2)


def error_with_new_samples(halves: float, null: float, null_halves: float, share: float) -> float:
    """Return the standard deviation of a squared distance over new samples, with the other set fixed.

    For nearly equal distributions the variance decreases as 1/n², for others as 1/n.  halves: the variance at share * n
    samples; null, null_halves: the variances of real data at n and at share * n.  The excess over them is assumed linear
    in 1 / n.
    """
    squared: float = max(null + (halves - null_halves) * share, min(null, halves * share**2), 0.0)
    return math.sqrt(squared)


def null_variance(n: int, m: int) -> float:
    """Return 2/n² + 4/(n m), proportional to the variance for n samples and m fixed data of the same distribution.

    With new samples on both sides the variance is proportional to 2 (1/n + 1/m)².
    """
    return 2 / n**2 + 4 / (n * m)


def sampling_errors(
    figure: Figures, x: Tensor, fresh: Tensor, against: int, times: int, random: torch.Generator, *, squared: bool = True,
    batched: bool = False,
) -> tuple[float, float]:  # fmt: skip
    """Return the standard deviation of figure(x) over new samples, and that of real data.

    x, fresh: samples and real data, of the same size; the figure is their distance to `against` other data.  squared: it is a
    squared distance; otherwise its variance decreases as 1/n.  batched: see `permuted_figures`.
    """
    half, null = len(x) // 2, variance(permuted_figures(figure, x, fresh, times, random, batched=batched))
    if half < 2:
        return null**0.5, null**0.5
    halves = variance(permuted_figures(figure, x[:half], x[half : 2 * half], times, random, batched=batched))
    if not squared:
        return (halves * half / len(x)) ** 0.5, null**0.5
    null_halves = null * null_variance(half, against) / null_variance(len(x), against)
    return error_with_new_samples(halves, null, null_halves, half / len(x)), null**0.5
