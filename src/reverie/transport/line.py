"""Transport on the line, where the optimal plan joins sorted values, and along many lines."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.base.distances import precise, root
from reverie.base.errors import UserError
from reverie.base.noise import Noise, image_seeds
from reverie.base.points import Weights, check_points, check_weights, tensor


def wasserstein_1d(x: Any, y: Any, a: Weights = None, b: Weights = None, p: float = 1.0) -> Tensor:
    """Return the distance W_p = (integral over u of |F^-1(u) - G^-1(u)|^p)^(1/p) of values on a line: (...).

    F and G are the cumulative weights.  p is 1 or more, infinity included.  x: (..., n); y: (..., m); a: (..., n); b: (..., m).
    """
    x, y = tensor(x), tensor(y)
    if x.ndim < 1 or y.ndim < 1 or x.shape[:-1] != y.shape[:-1]:
        raise UserError(
            f"two sets of values on the line are needed, or as many of each, got {tuple(x.shape)}, {tuple(y.shape)}"
        )
    check_points(x[..., None], "x")
    check_points(y[..., None], "y")
    dtype = torch.promote_types(x.dtype, y.dtype)
    x, y = x.to(precise(x)), y.to(precise(y))
    a, b = check_weights(a, x.shape, "a", x), check_weights(b, y.shape, "b", y)
    return _norm(*_moves(x, y, a, b), p).to(dtype)


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
        raise UserError(f"two sets of points (n, d) of one dimension are needed, got {tuple(x.shape)} and {tuple(y.shape)}")
    if directions < 1:
        raise UserError(f"directions must be at least 1, got {directions}")
    dtype = torch.promote_types(x.dtype, y.dtype)
    x, y = x.to(precise(x)), y.to(precise(y))
    u = Noise(image_seeds(seed, directions)).like(x.new_empty(directions, x.shape[1]))
    u = u / u.norm(dim=1, keepdim=True)
    a, b = check_weights(a, x.shape[:1], "a", x), check_weights(b, y.shape[:1], "b", y)
    gap, mass = _moves((x @ u.T).T, (y @ u.T).T, a.expand(directions, -1), b.expand(directions, -1))
    return _norm(gap.flatten(), mass.flatten() / directions, p).to(dtype)


def _moves(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return how far the pieces of the optimal plan go, and the mass of each: (..., k) both.

    The plan is a staircase: each piece ends where the cumulative weight of x or of y does.  Where two such ends meet, a piece
    has no mass but still its gap, the slope of the cost in the weights.
    """
    if not any(t.requires_grad for t in (x, y, a, b)) and all(bool((w == w[..., :1]).all()) for w in (a, b)):
        x, y = _in_order(x), _in_order(y)  # whichever goes where weighs the same
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
    ended = (order < n).long()  # 1 where a weight of x ends, 0 where one of y does
    i, j = ((e.cumsum(-1) - e).clamp(max=size - 1) for e, size in ((ended, n), (1 - ended, m)))
    return (x.gather(-1, i) - y.gather(-1, j)).abs(), mass


def _in_order(x: Tensor) -> Tensor:
    """Return values in order, without their gradient: (..., n).  NumPy, which tells no places, sorts ten times as fast."""
    return torch.from_numpy(np.sort(x.detach().numpy())) if x.device.type == "cpu" else x.sort(-1).values


def _norm(gap: Tensor, mass: Tensor, p: float) -> Tensor:
    """Return (sum mass gap^p)^(1/p), the largest gap with mass for infinite p: (...)."""
    if not p >= 1:
        raise UserError(f"p must be at least 1, got {p}")
    largest = torch.where(mass > 0, gap, 0.0).amax(-1)
    if math.isinf(p):
        return largest
    unit = torch.where(largest > 0, largest, 1.0).detach()  # powers of at most 1 do not overflow
    most = (torch.finfo(gap.dtype).max / 4) ** (1 / p)  # for pieces without mass, which may be longer
    return unit * root((mass * (gap / unit[..., None]).clamp(max=most) ** p).sum(-1), p)
