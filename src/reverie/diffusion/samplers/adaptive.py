"""Adaptive Runge-Kutta 4(5) with a step size per batch element, for sampling and likelihoods."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from reverie.base.scalar import expand

Slope = Callable[[Tensor, Tensor], Tensor]  # of x, (B, ...), at positions (B,) float64 on the CPU

# Dormand and Prince, "A family of embedded Runge-Kutta formulae" (1980): the last row is also the fifth-order solution.
ROWS = (
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
STAGE_TIMES = (1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0, 1.0)
ERRORS = (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)  # fifth minus fourth order

FIRST_SHARE = 0.2  # fraction of the interval for the first step
MIN_SHARE = 1e-7  # fraction of the interval: with smaller steps, rounding errors dominate


class TooStiffError(ArithmeticError):
    """The step size became too small."""


def mean_size(error: Tensor, x: Tensor, ahead: Tensor) -> Tensor:
    """Return the root mean square of error / (1 + |x|) of each batch element: (B,)."""
    return (error / (1 + torch.maximum(x.abs(), ahead.abs()))).flatten(1).square().mean(1).sqrt()


def integrate(
    slope: Slope,
    x: Tensor,
    first: Tensor,
    start: float,
    end: float,
    tolerance: float,
    stride: Tensor | None = None,
    size: Callable[[Tensor, Tensor, Tensor], Tensor] = mean_size,
) -> tuple[Tensor, Tensor]:
    """Integrate dx/du = slope(x, u) from start to end; return x and the length of the next step.

    A step is accepted if size(error, x, ahead) is within the tolerance.  Each batch element has its own steps, so that it does
    not depend on its batch.  first: the slope at the start; stride: initial step lengths, (B,), positive.
    """
    direction = 1.0 if end > start else -1.0
    length = abs(end - start)
    position = torch.full((len(x),), start, dtype=torch.float64)
    stride = stride if stride is not None else torch.full_like(position, length * FIRST_SHARE)
    while (remaining := (end - position) * direction).max() > 0:
        step = torch.minimum(stride, remaining)
        ahead, next_slope, error = _try(slope, x, position, step * direction, first)
        ratio = (size(error, x, ahead).double().cpu() / tolerance).nan_to_num(nan=torch.inf)
        unfinished = remaining > 0
        accepted = (ratio <= 1) & unfinished
        keep = accepted.to(x.device).reshape(-1, *[1] * (x.ndim - 1))
        x, first = torch.where(keep, ahead, x), torch.where(keep, next_slope, first)
        position = torch.where(accepted, torch.where(step == remaining, end, position + direction * step), position)
        factor = (0.9 * ratio.clamp(min=1e-12) ** -0.2).clamp(0.2, 5.0)
        # keep the longer step size if the end of the interval shortened the last step
        shortened = accepted & (step < stride)
        stride = torch.where(unfinished, torch.where(shortened, torch.maximum(stride, step * factor), step * factor), stride)
        if float((stride / length).min()) < MIN_SHARE:
            raise TooStiffError
    return x, stride


def _try(slope: Slope, x: Tensor, position: Tensor, step: Tensor, first: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Try steps of the given signed lengths: return the ends, the slopes there, and the estimated errors."""
    slopes = [first]
    for c, row in zip(STAGE_TIMES, ROWS, strict=True):
        ahead = x + expand(step, x) * _weighted(row, slopes)
        slopes.append(slope(ahead, position + c * step))
    return ahead, slopes[-1], expand(step, x) * _weighted(ERRORS, slopes)


def _weighted(weights: Sequence[float], slopes: Sequence[Tensor]) -> Tensor:
    """Return the weighted sum of the slopes."""
    total = weights[0] * slopes[0]
    for weight, slope in zip(weights[1:], slopes[1:], strict=True):
        total = total.add_(slope, alpha=weight) if weight else total
    return total
