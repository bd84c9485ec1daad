"""The Fréchet distance between two sets of features, with bootstrap errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.base.errors import UserError
from reverie.base.noise import check_seed
from reverie.base.validation import check_points, tensor


def _features(x: Any, name: str) -> Tensor:
    points = tensor(x).double()
    check_points(points, name)
    if points.ndim != 2 or len(points) < 2:
        raise UserError(f"the Fréchet distance needs at least two features (n, d) in {name}, got {tuple(points.shape)}")
    return points


def _moments(x: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the weighted mean (D,) and a factor F (D, K) of the covariance F F^T."""
    if weights is None:
        weights = x.new_ones(len(x))
    total = weights.sum()
    mean = weights @ x / total
    factor = ((x - mean) * (weights / (total - 1)).sqrt()[:, None]).T
    if factor.shape[1] > factor.shape[0]:  # a triangular factor is smaller
        triangle, singular = torch.linalg.cholesky_ex(factor @ factor.T)
        factor = torch.linalg.qr(factor.T, mode="r").R.T if singular else triangle
    return mean, factor


def _squared(moments_x: tuple[Tensor, Tensor], moments_y: tuple[Tensor, Tensor]) -> float:
    """Return |m_x - m_y|² + tr(C_x + C_y) - 2 |F_x^T F_y|_1, with the nuclear norm |.|_1."""
    (mean_x, x), (mean_y, y) = moments_x, moments_y
    separable = (mean_x - mean_y).square().sum() + x.square().sum() + y.square().sum()
    return max(0.0, float(separable - 2 * torch.linalg.svdvals(x.T @ y).sum()))


def frechet_distance(x: Any, y: Any) -> float:
    """Return the squared 2-Wasserstein distance between Gaussians fitted to two sets of features.  x: (N, D); y: (M, D).

    |m_x - m_y|² + tr(C_x + C_y - 2 (C_x C_y)^1/2) (arXiv:1706.08500).
    """
    return _squared(_moments(_features(x, "x")), _moments(_features(y, "y")))


def frechet_to(y: Any) -> Callable[[Tensor], float]:
    """Return the distance to y as a function of x, with the moments of y computed once."""
    moments_y = _moments(_features(y, "y"))
    return lambda x: _squared(_moments(_features(x, "x")), moments_y)


def frechet_bootstrap(x: Any, y: Any, resamples: int = 100, seed: int = 0) -> tuple[float, tuple[float, float]]:
    """Return the bootstrap standard error and 95% interval of the distance, resampling both sets.

    The interval is shifted by the bootstrap bias: fewer distinct points increase the distance.  It covers new samples of the
    same count, not the limit of infinitely many.  Near the floor both are about twice too large: the distance is
    quadratic in the errors of the moments, and resampling adds its own errors.
    """
    x, y = _features(x, "x"), _features(y, "y")
    random = np.random.default_rng(check_seed(seed))
    centre = frechet_distance(x, y)
    values = []
    for _ in range(resamples):
        counts = [torch.from_numpy(random.multinomial(len(z), np.full(len(z), 1 / len(z)))).double() for z in (x, y)]
        values.append(_squared(_moments(x, counts[0]), _moments(y, counts[1])))
    low, high = np.quantile(values, [0.025, 0.975]) - np.mean(values) + centre
    return float(np.std(values, ddof=1)), (float(max(low, 0.0)), float(high))
