"""Validation of points, weights and Gaussians."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.base.distances import finest_dtype
from reverie.base.errors import UserError

Weights = Tensor | None


def tensor(values: Any) -> Tensor:
    """Return numbers as a tensor; arrays may have any strides, and lists become float64."""
    if isinstance(values, Tensor):
        return values
    array = np.array(values)
    return torch.from_numpy(array if isinstance(values, np.ndarray) or array.dtype.kind not in "biu" else array.astype(float))


def real_dtype(values: Tensor) -> torch.dtype:
    """Return the dtype of results: that of the values, or the default dtype for integers and booleans."""
    return values.dtype if values.is_floating_point() else torch.get_default_dtype()


def check_points(points: Tensor, name: str) -> None:
    """Refuse anything but points (..., n, d) of finite numbers."""
    if points.ndim < 2 or 0 in points.shape:
        raise UserError(f"{name} must be points of shape (n, d) with at least one point, got {tuple(points.shape)}")
    if not points.is_floating_point():
        raise UserError(f"{name} must hold real numbers, got {points.dtype}")
    if not points.isfinite().all():
        raise UserError(f"{name} holds NaN or infinity; remove those points first")


def check_weights(weights: Weights, shape: tuple[int, ...], name: str, like: Tensor) -> Tensor:
    """Return weights normalized to sum 1 along the last axis; None gives equal weights, and a mask becomes weights."""
    if weights is None:
        return like.new_full(shape, 1 / shape[-1])
    weights = tensor(weights).to(like)
    fits = all(w in (1, s) for w, s in zip(reversed(weights.shape), reversed(shape), strict=False))
    if weights.shape[-1:] != shape[-1:] or weights.ndim > len(shape) or not fits:
        raise UserError(f"the weights {name} have the shape {tuple(weights.shape)}; expected {tuple(shape)}")
    if not weights.isfinite().all() or (weights < 0).any():
        raise UserError(f"the weights {name} contain negative numbers or NaN; weights must be 0 or more")
    total = weights.sum(-1, keepdim=True)
    if (total == 0).any():
        raise UserError(f"all weights {name} of a set are 0; at least one must be positive")
    return (weights / total).expand(shape)


def check_gaussian(mean: Any, covariance: Any) -> tuple[Tensor, Tensor]:
    """Return mean (D,) and covariance (D, D) in float64; raise UserError if they are invalid."""
    mean, covariance = tensor(mean), tensor(covariance)
    mean, covariance = mean.to(finest_dtype(mean)), covariance.to(finest_dtype(covariance))
    if mean.ndim != 1 or covariance.shape != (len(mean), len(mean)) or not len(mean):
        raise UserError(
            f"a Gaussian has a mean (d,) and a covariance (d, d), got {tuple(mean.shape)}, {tuple(covariance.shape)}"
        )
    if not mean.isfinite().all() or not covariance.isfinite().all():
        raise UserError("the mean or covariance of a Gaussian holds NaN or infinity")
    size = covariance.abs().max()
    if (covariance - covariance.T).abs().max() > 1e-6 * size:
        raise UserError("the covariance of a Gaussian is not symmetric")
    if torch.linalg.eigvalsh(covariance.detach())[0] < -1e-6 * size:
        raise UserError("the covariance of a Gaussian has a negative eigenvalue")
    return mean, (covariance + covariance.T) / 2
