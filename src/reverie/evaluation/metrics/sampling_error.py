"""How much a figure differs by chance: with other samples, and between sets that are alike."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Figure = Callable[[Tensor], float]
Figures = Callable[[Tensor], Tensor | float]  # that of many sets at once too: (B, n, ...) to (B,)


def swapped(figure: Figures, x: Tensor, y: Tensor, times: int, random: torch.Generator, *, at_once: bool = False) -> Tensor:
    """Return the figure of both sets after their members were dealt out anew between them: (times, 2) float64.

    If x and y are of one law, so are these and the figures themselves, whatever the figure is.  at_once: it takes many sets.
    """
    both = torch.cat([x, y])
    orders = [torch.randperm(len(both), generator=random) for _ in range(times)]

    def of(part: slice) -> Tensor:
        sets = (both[order[part]] for order in orders)
        found = figure(torch.stack([*sets])) if at_once else [float(figure(one)) for one in sets]
        return torch.as_tensor(found, dtype=torch.float64)

    return torch.stack([of(slice(len(x))), of(slice(len(x), None))], 1)


def variance(pairs: Tensor) -> float:
    """Return E (a - b)² / 2: the variance of a figure, from pairs of independent ones.  pairs: (times, 2)."""
    return float((pairs[:, 0] - pairs[:, 1]).square().mean() / 2)


def with_other_samples(halves: float, alike: float, alike_halves: float, share: float) -> float:
    """Return the deviation of a squared distance from one set of samples to the next, with the set it is taken to as it is.

    Near the truth its error is quadratic in that of the samples and its variance falls with n²; far from it, linear and with n.
    halves: the variance at a smaller count, of the samples; alike, alike_halves: what samples like real data have at both
    counts; share: smaller count / count.  What the samples have more is linear.
    """
    found: float = max(alike + (halves - alike_halves) * share, min(alike, halves * share**2), 0.0)
    return math.sqrt(found)


def alike_at(n: int, m: int) -> float:
    """Return 2/n² + 4/(n m), to which the variance is proportional for sets of one law: n samples, to m data as they are.

    The variance with both drawn anew is as 2 (1/n + 1/m)².
    """
    return 2 / n**2 + 4 / (n * m)


def chance(
    figure: Figures, x: Tensor, fresh: Tensor, against: int, times: int, random: torch.Generator, *, squared: bool = True,
    at_once: bool = False,
) -> tuple[float, float]:  # fmt: skip
    """Return the deviation of figure(x) from one set of samples to the next, and what it is for real data.

    x, fresh: as many samples and real data, the figure being their distance to so many others (`against`).  It is a squared
    distance; a distance or a mean, whose variance falls with n near the truth and far from it, is not `squared`.  at_once: see
    `swapped`.
    """
    half, usual = len(x) // 2, variance(swapped(figure, x, fresh, times, random, at_once=at_once))
    if half < 2:
        return usual**0.5, usual**0.5
    halves = variance(swapped(figure, x[:half], x[half : 2 * half], times, random, at_once=at_once))
    if not squared:
        return (halves * half / len(x)) ** 0.5, usual**0.5
    alike_halves = usual * alike_at(half, against) / alike_at(len(x), against)
    return with_other_samples(halves, usual, alike_halves, half / len(x)), usual**0.5
