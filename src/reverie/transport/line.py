"""Transport on the line, where the optimal plan joins sorted values, and along many lines."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from reverie.distances import precise
from reverie.errors import UserError
from reverie.inputs import Weights, check_points, check_weights, tensor
from reverie.noise import Noise, image_seeds


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
    return _root(_power(x, y, a, b, p), p).to(dtype)


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
    power = _power((x @ u.T).T, (y @ u.T).T, a.expand(directions, -1), b.expand(directions, -1), p)
    return _root(power.amax() if math.isinf(p) else power.mean(), p).to(dtype)


def _power(x: Tensor, y: Tensor, a: Tensor, b: Tensor, p: float) -> Tensor:
    """Return W_p^p, or W_inf: (...)."""
    if not p >= 1:
        raise UserError(f"p must be at least 1, got {p}")
    (x, i), (y, j) = x.sort(-1), y.sort(-1)
    a, b = a.gather(-1, i), b.gather(-1, j)
    if x.shape == y.shape and bool((a == b).all()):
        gap, mass = (x - y).abs(), a
    else:
        ends_x, ends_y = a.cumsum(-1), b.cumsum(-1)
        ends = torch.cat([ends_x, ends_y], -1).sort(-1).values
        mass = ends.diff(dim=-1, prepend=torch.zeros_like(ends[..., :1]))
        middle = (ends - mass / 2).detach()
        gap = (_quantile(x, ends_x.detach(), middle) - _quantile(y, ends_y.detach(), middle)).abs()
    if math.isinf(p):
        return torch.where(mass > 1e-14, gap, 0.0).amax(-1)
    return (mass * gap**p).sum(-1)


def _quantile(values: Tensor, ends: Tensor, at: Tensor) -> Tensor:
    """Return the value whose piece of cumulative weight holds each position."""
    index = torch.searchsorted(ends.contiguous(), at.contiguous()).clamp(max=values.shape[-1] - 1)
    return values.gather(-1, index)


def _root(power: Tensor, p: float) -> Tensor:
    """Return power^(1/p), with the gradient 0 at 0, where there is none."""
    if p == 1 or math.isinf(p):
        return power
    positive = power > 0
    return torch.where(positive, torch.where(positive, power, 1.0) ** (1 / p), 0.0)
