"""Closed-form densities: Gaussian mixtures per label with exact sampling and evaluation."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from reverie.base.distances import row_blocks
from reverie.base.errors import UserError, pick
from reverie.base.noise import Noise
from reverie.diffusion.condition import NULL
from reverie.diffusion.likelihood.bound import check_data
from reverie.diffusion.likelihood.dequantisation import dequantise
from reverie.families.density import Density
from reverie.families.normals import Normals

Covariance = Literal["auto", "full", "diagonal", "low-rank"]


class ClosedForm(Density):
    """A mixture of K Gaussians per label: p(x | l) = sum_k w_lk N(x; mean_lk, C_lk), and p(x) = sum_l p(l) p(x | l).

    shape: of one datum; labels: number of labels, 0 for none; rank: q of the covariances, see `Normals`; levels: number of
    evenly spaced values in [0, 1], 256 for 8-bit images, None for continuous data; floor: see `least`; shared: whether all
    labels share their covariances.

    A level is treated as uniform on its interval: fitting adds the variance of that noise, width² / 12, to each value
    (arXiv:1511.01844).  All state is in float64 buffers on the CPU with shapes that follow from the arguments.  Components of
    weight 0 are unused.
    """

    mean: Tensor  # (L, K, D)
    loadings: Tensor  # (L or 1, K, D, q)
    noise: Tensor  # (L or 1, K, D)
    weights: Tensor  # (L, K)
    frequency: Tensor  # (L,), of the labels in the training data

    def __init__(
        self, shape: tuple[int, ...], labels: int, components: int, rank: int, levels: int | None, floor: float,
        shared: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        if components < 1 or rank < 0 or not 0 < floor < 1:
            raise UserError("a Gaussian model needs at least 1 component, a rank of at least 0 and a floor between 0 and 1")
        self.rank, self.floor = rank, floor
        self.shape, self.size, self.labels, self.levels = tuple(shape), math.prod(shape), labels, levels
        self.cell = 1 / (levels - 1) if levels is not None else 1.0  # the width of a level
        self.noise_variance = self.cell**2 / 12 if levels is not None else 0.0  # of uniform noise of that width
        groups, full = max(1, labels), rank == self.size
        initial = torch.eye(self.size, rank) if full else torch.zeros(self.size, rank)
        covariances = 1 if shared else groups
        self.register_buffer("mean", torch.zeros(groups, components, self.size).double())
        self.register_buffer("loadings", initial.double().repeat(covariances, components, 1, 1))
        self.register_buffer("noise", torch.full((covariances, components, self.size), float(not full)).double())
        self.register_buffer("weights", torch.eye(1, components).double().repeat(groups, 1))
        self.register_buffer("frequency", torch.full((groups,), 1 / groups).double())

    @property
    def parameters_per_dimension(self) -> float:
        """The approximate number of covariance parameters per dimension, and of data needed to estimate them."""
        return (self.size + 1) / 2 if self.rank == self.size else self.rank + 1.0

    def units(self, variance: Tensor) -> Tensor:
        """Return the variance that serves as unit of each value: (D,).  variance: (D,) of all data.

        Levels share the mean variance.  Each coordinate of points has its own variance, at least a millionth of the mean.
        """
        mean = float(variance.mean())
        return torch.full_like(variance, mean) if self.levels is not None else variance.clamp_min(1e-6 * mean)

    def least(self, unit: Tensor, count: float) -> Tensor:
        """Return the smallest variance of each value: (D,).  unit: (D,), see `units`; count: number of data.

        For points it is `floor` times the unit.  For levels it is the unit over the count: a pixel that is equal in all of N
        images may differ in the next.
        """
        return unit * (self.floor if self.levels is None else 1 / count)

    def normals(self, label: int) -> tuple[Normals, Tensor]:
        """Return the Gaussians of a label with positive weight, and the logarithms of the weights: K and (K,)."""
        used = self.weights[label].nonzero()[:, 0]
        index = min(label, len(self.loadings) - 1)
        normals = Normals(self.mean[label][used], self.loadings[index][used], self.noise[index][used])
        return normals, self.weights[label][used].log()

    def put(self, label: int, normals: Normals, weights: Tensor) -> None:
        """Set the Gaussians of a label.  weights: (k,) for at most K components."""
        for buffer, value in ((self.mean, normals.mean), (self.loadings, normals.loadings), (self.noise, normals.noise)):
            buffer[min(label, len(buffer) - 1), : len(value)] = value
        self.weights[label] = 0.0
        self.weights[label, : len(weights)] = weights

    def sample(self, seeds: Tensor, cond: Tensor | None) -> Tensor:
        """Sample one datum per seed, a function of that seed only: (B, *shape), float32 in user units.

        seeds: (B,) int64; cond: (B,) labels; NULL or None samples the label by its frequency.  Values of images may lie outside
        [0, 1]; decoding clamps them.
        """
        noise = Noise(seeds)
        first, second = (u[:, 0] for u in noise.uniform(1))
        label = self._condition(cond, len(seeds))
        label = torch.where(label == NULL, _sample_index(self.frequency.expand(len(seeds), -1), first), label)
        component = _sample_index(self.weights[label], second)
        z = noise.like(self.mean.new_empty(len(seeds), self.loadings.shape[3]))
        e = noise.like(self.mean.new_empty(len(seeds), self.size))
        x = torch.empty_like(e)
        for group, k in torch.stack([label, component], 1).unique(dim=0).tolist():
            rows, index = (label == group) & (component == k), min(group, len(self.loadings) - 1)
            x[rows] = self.mean[group, k] + z[rows] @ self.loadings[index, k].T + e[rows] * self.noise[index, k].sqrt()
        return x.float().reshape(len(seeds), *self.shape)

    def log_density(self, x: Tensor, cond: Tensor | None) -> Tensor:
        """Return the log-density of data in user units, in nats: (B,) float64.

        x: (B, *shape); cond: (B,) labels, NULL or None for the mixture of all labels by their frequency.
        """
        return self._joint(x, cond, 0.0).logsumexp(1)

    def log_prob(self, x: Tensor, cond: Tensor | None, seeds: Tensor) -> Tensor:
        """Return the log-density of points, or the log-probability of levels, in nats: (B,) float64.

        For levels it is a lower bound by uniform dequantisation: E log p(x + u) + D log width.  seeds: (B,), one per datum.
        """
        if self.levels is None:
            return self.log_density(x, cond)
        z = 2 * x.double() - 1
        check_data(z, self.levels)
        return self.log_density((dequantise(z, Noise(seeds), self.levels) + 1) / 2, cond) + self.size * math.log(self.cell)

    def cost(self, x: Tensor, labels: Tensor | None) -> float:
        """Return the mean of -log p(x | label) / D in nats, over data and the noise within levels.  x: (N, *shape)."""
        return -float(self._joint(x, labels, self.noise_variance).logsumexp(1).mean()) / self.size - math.log(self.cell)

    def posterior(self, x: Tensor, cond: Tensor | None) -> Tensor:
        """Return p(label | x), 1 for a given label: (B, L) float64.  x: (B, *shape); cond: (B,)."""
        return self._joint(x, cond, 0.0).softmax(1)

    def _joint(self, x: Tensor, cond: Tensor | None, noise_variance: float) -> Tensor:
        """Return log p(x, label); for data with a label, log p(x | label) in its column and -inf elsewhere: (B, L).

        The log-density is averaged over independent noise of variance `noise_variance` on each value.
        """
        x, cond = self._rows(x), self._condition(cond, len(x))
        joint = self.mean.new_full((len(x), len(self.mean)), -torch.inf)
        for label, log_frequency in enumerate(self.frequency.log()):
            normals, log_weights = self.normals(label)
            for part in row_blocks(len(x), self.size):
                rows = ((cond[part] == NULL) | (cond[part] == label)).nonzero()[:, 0] + part.start
                density = (normals.log_density(x[rows].double(), noise_variance) + log_weights).logsumexp(1)
                joint[rows, label] = torch.where(cond[rows] == NULL, density + log_frequency, density)
        return joint

    def _rows(self, x: Tensor) -> Tensor:
        """Return flattened data: (N, D)."""
        if tuple(x.shape[1:]) != self.shape:
            raise UserError(f"the model needs data of shape {self.shape}, got {tuple(x.shape[1:])}")
        return x.detach().cpu().reshape(len(x), self.size)

    def _condition(self, cond: Tensor | None, count: int) -> Tensor:
        """Return the label of each datum, NULL for none: (B,)."""
        if cond is None:
            return torch.full((count,), NULL)
        cond = cond.detach().cpu()
        if len(cond) != count or not ((cond == NULL) | ((cond >= 0) & (cond < self.labels))).all():
            raise UserError(f"the model needs one label from 0 to {self.labels - 1} for each of {count} data")
        return cond

    def _training_data(self, x: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return flattened data, (N, D), and labels, (N,); raise a UserError for data that cannot be fitted."""
        rows = self._rows(x)
        if not len(rows):
            raise UserError("there are no training data; give at least two that differ")
        if not rows.isfinite().all():
            raise UserError("the data contain NaN or infinity; remove those data")
        if self.levels is None and bool((rows == rows[0]).all()):
            raise UserError("all data are equal, so they have no density; give data that differ")
        if bool(self.labels) != (labels is not None):
            needed = "with" if self.labels else "without"
            raise UserError(f"the model has {self.labels} labels; fit it to data {needed} labels")
        group = self._condition(labels, len(rows)) if labels is not None else torch.zeros(len(rows), dtype=torch.int64)
        if (group == NULL).any():
            raise UserError("some training data have no label; remove them")
        self.frequency.copy_(group.bincount(minlength=len(self.frequency)).double() / len(rows))
        return rows, group


def _sample_index(weights: Tensor, u: Tensor) -> Tensor:
    """Return the index in each row of weights by inversion of a uniform number: (B,) int64.  weights: (B, K); u: (B,)."""
    edges = weights.cumsum(1)
    return torch.searchsorted(edges / edges[:, -1:], u[:, None], right=True)[:, 0]


def rank_of(covariance: str, rank: int, shape: tuple[int, ...], full_up_to: int) -> int:
    """Return the rank q of a covariance setting, see `Normals`.

    auto: full for points of at most `full_up_to` dimensions, diagonal for more, and low rank plus diagonal for images.
    """
    size = math.prod(shape)
    auto_rank = size if size <= full_up_to else 0
    low_rank = min(rank, size - 1)
    ranks = {"auto": auto_rank if len(shape) == 1 else low_rank, "full": size, "diagonal": 0, "low-rank": low_rank}
    return pick(ranks, covariance, "covariance")
