"""Schedule coefficients: a Python float for one time, a float64 tensor (B,) on the CPU for a batch of times.

Sampling uses one time per step, and for single numbers Python arithmetic is forty times faster than tensors.  With these
functions one formula serves both.
"""

from __future__ import annotations

import math
from typing import TypeVar

import torch
from torch import Tensor

Coefficient = Tensor | float
Time = Tensor | float
C = TypeVar("C", Tensor, float, Tensor | float)


def as_time(t: Time) -> Time:
    """Return a single time as a float, and a batch of times as float64 on the CPU."""
    if not isinstance(t, Tensor):
        return float(t)
    return t.to(device="cpu", dtype=torch.float64) if t.ndim else float(t)


def log(a: C) -> C:
    """Return log a, which is -inf at 0."""
    return a.log() if isinstance(a, Tensor) else math.log(a) if a > 0 else -math.inf


def exp(a: C) -> C:
    """Return e^a."""
    return a.exp() if isinstance(a, Tensor) else math.exp(a)


def expm1(a: C) -> C:
    """Return e^a - 1 without cancellation."""
    return a.expm1() if isinstance(a, Tensor) else math.expm1(a)


def sqrt(a: C) -> C:
    """Return the square root; values that rounding made slightly negative count as 0."""
    return (a.clamp(min=0) + 0.0).sqrt() if isinstance(a, Tensor) else math.sqrt(max(0.0, a))


def expand(a: Coefficient, x: Tensor) -> Coefficient:
    """Broadcast a coefficient to data: a batch gets x's dtype, device and trailing axes, (B,) -> (B, 1, ..., 1)."""
    if not isinstance(a, Tensor):
        return a
    return a.to(device=x.device, dtype=x.dtype).reshape(-1, *[1] * (x.ndim - 1))


def combine(a: Coefficient, x: Tensor, b: Coefficient, y: Tensor) -> Tensor:
    """Return a x + b y.  a, b: float or (B,); x, y: (B, ...)."""
    if isinstance(b, Tensor):
        return expand(a, x) * x + expand(b, y) * y
    return torch.add(expand(a, x) * x, y, alpha=b)
