"""Transport in one dimension, where the optimal plan matches sorted values, and the sliced Wasserstein distance."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.base.distances import finest_dtype, root
from reverie.base.errors import UserError
from reverie.base.noise import Noise, image_seeds
from reverie.base.validation import Weights, check_points, check_weights, tensor


def wasserstein_1d(x: Any, y: Any, a: Weights = None, b: Weights = None, p: float = 1.0) -> Tensor:
    """Return the one-dimensional Wasserstein distance W_p = (integral over u of |F^-1(u) - G^-1(u)|^p)^(1/p): (...).

    F and G are the cumulative distributions; 1 <= p <= infinity.  x: (..., n); y: (..., m); weights a: (..., n), b: (..., m).
    """
    x, y = tensor(x), tensor(y)
    if x.ndim < 1 or y.ndim < 1 or x.shape[:-1] != y.shape[:-1]:
        raise UserError(
            f"x and y must have shapes (..., n) and (..., m) with equal batch axes, got {tuple(x.shape)} and {tuple(y.shape)}"
        )
    check_points(x[..., None], "x")
    check_points(y[..., None], "y")
    dtype = torch.promote_types(x.dtype, y.dtype)
    x, y = x.to(finest_dtype(x)), y.to(finest_dtype(y))
    a, b = check_weights(a, x.shape, "a", x), check_weights(b, y.shape, "b", y)
    return _norm(*_staircase(x, y, a, b), p).to(dtype)


def sliced_wasserstein(
    x: Any, y: Any, a: Weights = None, b: Weights = None, p: float = 2.0, *, directions: int = 128, seed: int = 0
) -> Tensor:
    """Return (mean over random unit directions u of W_p(x u, y u)^p)^(1/p): (), an estimate of the mean over all directions.

    x: (n, d); y: (m, d) (Bonneel et al., doi:10.1007/s10851-014-0506-3).
    """
    x, y = tensor(x), tensor(y)
    for name, points in (("x", x), ("y", y)):
        check_points(points, name)
    if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[1]:
        raise UserError(f"x and y must have shapes (n, d) and (m, d), got {tuple(x.shape)} and {tuple(y.shape)}")
    if directions < 1:
        raise UserError(f"directions must be at least 1, got {directions}")
    dtype = torch.promote_types(x.dtype, y.dtype)
    x, y = x.to(finest_dtype(x)), y.to(finest_dtype(y))
    u = Noise(image_seeds(seed, directions)).like(x.new_empty(directions, x.shape[1]))
    u = u / u.norm(dim=1, keepdim=True)
    a, b = check_weights(a, x.shape[:1], "a", x), check_weights(b, y.shape[:1], "b", y)
    gap, mass = _staircase((x @ u.T).T, (y @ u.T).T, a.expand(directions, -1), b.expand(directions, -1))
    return _norm(gap.flatten(), mass.flatten() / directions, p).to(dtype)


def _staircase(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distance and the mass of each segment of the optimal plan: (..., k) both.

    The plan is a staircase: a segment ends at each step of either cumulative weight.  Where two steps coincide, a segment has
    no mass, but its distance is still the derivative of the cost with respect to the weights.
    """
    if not any(t.requires_grad for t in (x, y, a, b)) and all(bool((w == w[..., :1]).all()) for w in (a, b)):
        x, y = _sorted_values(x), _sorted_values(y)  # equal weights need no permutation
    else:
        (x, i), (y, j) = x.sort(-1), y.sort(-1)
        a, b = a.gather(-1, i), b.gather(-1, j)
    if not (a.requires_grad or b.requires_grad) and torch.equal(a, b):
        return (x - y).abs(), a
    n, m = x.shape[-1], y.shape[-1]
    ends, order = torch.cat([a.cumsum(-1), b.cumsum(-1)], -1).sort(dim=-1, stable=True)
    mass = ends.diff(dim=-1, prepend=torch.zeros_like(ends[..., :1]))
    rounding = min((n + m) * torch.finfo(mass.dtype).eps, 0.5 / max(n, m))
    mass = torch.where(mass > rounding, mass, mass - mass.detach())
    x_ended = (order < n).long()  # 1 where a weight of x ends, 0 where a weight of y ends
    i, j = ((e.cumsum(-1) - e).clamp(max=size - 1) for e, size in ((x_ended, n), (1 - x_ended, m)))
    return (x.gather(-1, i) - y.gather(-1, j)).abs(), mass


def _sorted_values(x: Tensor) -> Tensor:
    """Return sorted values without gradient: (..., n).  NumPy sorts ten times as fast as torch, which also returns indices."""
    return torch.from_numpy(np.sort(x.detach().numpy())) if x.device.type == "cpu" else x.sort(-1).values


def _norm(gap: Tensor, mass: Tensor, p: float) -> Tensor:
    """Return (sum mass gap^p)^(1/p), or for infinite p the largest gap with mass: (...)."""
    if not p >= 1:
        raise UserError(f"p must be at least 1, got {p}")
    largest = torch.where(mass > 0, gap, 0.0).amax(-1)
    if math.isinf(p):
        return largest
    unit = torch.where(largest > 0, largest, 1.0).detach()  # normalized, so that powers do not overflow
    max_ratio = (torch.finfo(gap.dtype).max / 4) ** (1 / p)  # for segments without mass, which may be longer
    return unit * root((mass * (gap / unit[..., None]).clamp(max=max_ratio) ** p).sum(-1), p)
