"""The Gaussian of maximum likelihood for each label: the simplest baseline."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from reverie.families.closed_form import ClosedForm, Covariance, rank_of
from reverie.families.normals import Normals, maximize, start
from reverie.families.scatter import Scatter, group_means

FULL_UP_TO = 1024  # dimensions of points up to which the covariance is full
STEPS = 500  # of factor analysis, at most


class GaussianModel(ClosedForm):
    """N(mean, C) by maximum likelihood for each label.

    covariance: full, diagonal, or low-rank, which is factor analysis with `rank` factors and diagonal noise, fitted by EM.
    auto: full for points of up to 1,024 dimensions, diagonal for more, low-rank for images.  floor: smallest variance of a
    coordinate of points relative to that of all data; for levels see `least`.

    The covariance of a label is shrunk towards that of all data, with a weight of its number of parameters per
    dimension, (D + 1) / 2, 1 or rank + 1, so a label with one datum has a proper density.  A full covariance is, for no more
    data than dimensions, shrunk towards its diagonal in the same way.
    tolerance: smallest gain of a step of factor analysis, in nats per dimension, for at most 500 steps.
    """

    def __init__(
        self, shape: tuple[int, ...], labels: int = 0, covariance: Covariance = "auto", rank: int = 32,
        levels: int | None = None, floor: float = 1e-6, tolerance: float = 1e-5,
    ) -> None:  # fmt: skip
        super().__init__(shape, labels, 1, rank_of(covariance, rank, shape, FULL_UP_TO), levels, floor)
        self.tolerance = tolerance

    def fit(self, x: Tensor, labels: Tensor | None, seed: int) -> Iterator[float]:
        """Fit in one pass; see `Density.fit`.  The seed only initializes factor analysis."""
        rows, group = self._training_data(x, labels)
        for label, normals in enumerate(label_gaussians(self, rows, group, seed, self.tolerance)):
            self.put(label, normals, torch.ones(1))
        yield self.cost(x, labels)


def label_gaussians(model: ClosedForm, rows: Tensor, group: Tensor, seed: int, tolerance: float) -> Iterator[Normals]:
    """Yield the Gaussian of each label, one `Normals` each.  rows: (N, D); group: (N,)."""
    size, rank, weight = model.size, model.rank, model.parameters_per_dimension
    mean = group_means(rows, torch.zeros_like(group), 1)
    scatter = Scatter(rows, mean, noise_variance=model.noise_variance)
    unit = model.units(scatter.variance)
    floor = model.least(unit, len(rows))
    if rank == size and len(rows) <= size:
        diagonal = Normals(mean, torch.zeros(1, size, 0).double(), scatter.variance.maximum(floor)[None])
        scatter = Scatter(rows, mean, noise_variance=model.noise_variance, target=diagonal, weight=weight)
    pooled = fitted(scatter, mean, rank, floor, seed, tolerance)
    if len(model.mean) == 1:
        yield pooled
        return
    for label, mean in enumerate(group_means(rows, group, len(model.mean))[:, None]):
        label_rows = rows[group == label]
        scatter = Scatter(label_rows, mean, noise_variance=model.noise_variance, target=pooled, weight=weight)
        yield fitted(scatter, mean, rank, model.least(unit, len(label_rows) + weight), seed, tolerance)


def fitted(scatter: Scatter, mean: Tensor, rank: int, floor: Tensor, seed: int, tolerance: float) -> Normals:
    """Return the maximum-likelihood Gaussian of data with this mean and covariance.  mean: (1, D); floor: (D,)."""
    variance = scatter.variance[None]
    current = start(mean, variance.maximum(floor), rank, seed)
    if rank in (0, len(floor)):
        product = scatter @ torch.eye(len(floor), rank).double()
        return maximize(current, mean, variance, product[None], floor)
    if scatter.target is None:
        current.loadings[..., (len(scatter.x) - 1) // 2 :] = 0.0  # more factors would leave no noise; EM keeps these at 0
    before = -torch.inf
    for _ in range(STEPS):
        product = (scatter @ current.solved[0])[None]
        objective = float(current.mean_log_density(variance, product)) / len(floor)
        if objective - before < tolerance:
            break
        before, current = objective, maximize(current, mean, variance, product, floor)
    return current
