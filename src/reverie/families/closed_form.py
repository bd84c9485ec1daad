"""What the families of closed form share: Gaussians for each label, to draw from and to evaluate exactly."""

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
    """For each label a mixture of K Gaussians: p(x | l) = sum_k w_lk N(x; mean_lk, C_lk), and p(x) = sum_l p(l) p(x | l).

    shape: of one datum; labels: how many there are, 0 for none; rank: q of the covariances, see Normals; levels: how many
    evenly spaced values in [0, 1] each number has, 256 for 8-bit images, None for real numbers; floor: see `least`; shared:
    whether all labels have the same covariances.

    A level stands for the interval of one level around it.  Fitting averages over uniform noise of that width, which adds
    width² / 12 to each variance (arXiv:1511.01844).  All of the state is in buffers, in float64 on the CPU, and their shapes
    follow from the arguments.  A component of weight 0 is not used.
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
            raise UserError("a model of Gaussians needs 1 component or more, a rank of 0 or more and a floor between 0 and 1")
        self.rank, self.floor = rank, floor
        self.shape, self.size, self.labels, self.levels = tuple(shape), math.prod(shape), labels, levels
        self.cell = 1 / (levels - 1) if levels is not None else 1.0  # the width of a level
        self.noise_variance = self.cell**2 / 12 if levels is not None else 0.0  # the variance of uniform noise of that width
        groups, full = max(1, labels), rank == self.size
        blank = torch.eye(self.size, rank) if full else torch.zeros(self.size, rank)
        owners = 1 if shared else groups
        self.register_buffer("mean", torch.zeros(groups, components, self.size).double())
        self.register_buffer("loadings", blank.double().repeat(owners, components, 1, 1))
        self.register_buffer("noise", torch.full((owners, components, self.size), float(not full)).double())
        self.register_buffer("weights", torch.eye(1, components).double().repeat(groups, 1))
        self.register_buffer("frequency", torch.full((groups,), 1 / groups).double())

    @property
    def parameters_per_dimension(self) -> float:
        """How many free numbers a covariance has for each dimension, roughly: as many data are needed to tell them."""
        return (self.size + 1) / 2 if self.rank == self.size else self.rank + 1.0

    def units(self, variance: Tensor) -> Tensor:
        """Return the squared unit in which each number of a datum is measured: (D,).  variance: (D,) of all data.

        Levels share one, their mean variance.  Each coordinate of points has its own, its variance; a constant one is given
        a millionth of their mean.
        """
        mean = float(variance.mean())
        return torch.full_like(variance, mean) if self.levels is not None else variance.clamp_min(1e-6 * mean)

    def least(self, unit: Tensor, count: float) -> Tensor:
        """Return the least variance that a number may have: (D,).  unit: (D,), see units; count: how many data tell of it.

        For points it is a share of the unit, the floor.  For levels it is the unit over the count: a pixel that was the same
        in all of N images may be another in the next.
        """
        return unit * (self.floor if self.levels is None else 1 / count)

    def normals(self, label: int) -> tuple[Normals, Tensor]:
        """Return the Gaussians of a label that are used, and the logarithms of their weights: K and (K,)."""
        used = self.weights[label].nonzero()[:, 0]
        owner = min(label, len(self.loadings) - 1)
        found = Normals(self.mean[label][used], self.loadings[owner][used], self.noise[owner][used])
        return found, self.weights[label][used].log()

    def put(self, label: int, normals: Normals, weights: Tensor) -> None:
        """Make these the Gaussians of a label.  weights: (k,) for at most K components."""
        for buffer, value in ((self.mean, normals.mean), (self.loadings, normals.loadings), (self.noise, normals.noise)):
            buffer[min(label, len(buffer) - 1), : len(value)] = value
        self.weights[label] = 0.0
        self.weights[label, : len(weights)] = weights

    def sample(self, seeds: Tensor, cond: Tensor | None) -> Tensor:
        """Draw one datum for each seed, a function of that seed alone: (B, *shape), float32 in user units.

        seeds: (B,) int64; cond: (B,) labels, NULL or None for one that is drawn as often as the data have it.  The density of
        images has tails outside [0, 1]; they are not cut off here but where an image is decoded.
        """
        noise = Noise(seeds)
        first, second = (u[:, 0] for u in noise.uniform(1))
        label = self._condition(cond, len(seeds))
        label = torch.where(label == NULL, _drawn(self.frequency.expand(len(seeds), -1), first), label)
        component = _drawn(self.weights[label], second)
        z = noise.like(self.mean.new_empty(len(seeds), self.loadings.shape[3]))
        e = noise.like(self.mean.new_empty(len(seeds), self.size))
        x = torch.empty_like(e)
        for one, k in torch.stack([label, component], 1).unique(dim=0).tolist():
            rows, owner = (label == one) & (component == k), min(one, len(self.loadings) - 1)
            x[rows] = self.mean[one, k] + z[rows] @ self.loadings[owner, k].T + e[rows] * self.noise[owner, k].sqrt()
        return x.float().reshape(len(seeds), *self.shape)

    def log_density(self, x: Tensor, cond: Tensor | None) -> Tensor:
        """Return the log-density of data, for each unit of volume in user units, in nats: (B,) float64.

        x: (B, *shape); cond: (B,) labels, NULL or None for the mixture of all labels by their frequency.
        """
        return self._joint(x, cond, 0.0).logsumexp(1)

    def log_prob(self, x: Tensor, cond: Tensor | None, seeds: Tensor) -> Tensor:
        """Return the log-density of points, or the log-probability of levels, in nats: (B,) float64.

        That of levels is estimated from below, by uniform noise in the interval of each: E log p(x + u) + D log width is at
        most the log of the interval's mass.  seeds: (B,), one for each datum, of which the noise is a function.
        """
        if self.levels is None:
            return self.log_density(x, cond)
        z = 2 * x.double() - 1
        check_data(z, self.levels)
        return self.log_density((dequantise(z, Noise(seeds), self.levels) + 1) / 2, cond) + self.size * math.log(self.cell)

    def cost(self, x: Tensor, labels: Tensor | None) -> float:
        """Return -log p(x | label) / D in nats, averaged over data and over the noise within levels.  x: (N, *shape)."""
        return -float(self._joint(x, labels, self.noise_variance).logsumexp(1).mean()) / self.size - math.log(self.cell)

    def posterior(self, x: Tensor, cond: Tensor | None) -> Tensor:
        """Return p(label | x), which is 1 at a label that is given: (B, L) float64.  x: (B, *shape); cond: (B,)."""
        return self._joint(x, cond, 0.0).softmax(1)

    def _joint(self, x: Tensor, cond: Tensor | None, noise_variance: float) -> Tensor:
        """Return log p(x, label), or log p(x | label) and -inf elsewhere for those with a label: (B, L).

        It is averaged over independent noise of variance `spread` on each number.
        """
        x, cond = self._rows(x), self._condition(cond, len(x))
        joint = self.mean.new_full((len(x), len(self.mean)), -torch.inf)
        for label, share in enumerate(self.frequency.log()):
            normals, log_weights = self.normals(label)
            for part in row_blocks(len(x), self.size):
                chosen = ((cond[part] == NULL) | (cond[part] == label)).nonzero()[:, 0] + part.start
                density = (normals.log_density(x[chosen].double(), noise_variance) + log_weights).logsumexp(1)
                joint[chosen, label] = torch.where(cond[chosen] == NULL, density + share, density)
        return joint

    def _rows(self, x: Tensor) -> Tensor:
        """Return data as rows: (N, D)."""
        if tuple(x.shape[1:]) != self.shape:
            raise UserError(f"the model is of data of shape {self.shape}, got {tuple(x.shape[1:])}")
        return x.detach().cpu().reshape(len(x), self.size)

    def _condition(self, cond: Tensor | None, count: int) -> Tensor:
        """Return the label of each datum, NULL for none: (B,)."""
        if cond is None:
            return torch.full((count,), NULL)
        cond = cond.detach().cpu()
        if len(cond) != count or not ((cond == NULL) | ((cond >= 0) & (cond < self.labels))).all():
            raise UserError(f"the model has {self.labels} labels, numbered from 0, and takes one for each of {count} data")
        return cond

    def _training_data(self, x: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return data as rows, (N, D), and the label of each, (N,), or say why nothing can be fitted to them."""
        rows = self._rows(x)
        if not len(rows):
            raise UserError("there are no data to fit a model to")
        if not rows.isfinite().all():
            raise UserError("the data hold NaN or infinity; remove those first")
        if self.levels is None and bool((rows == rows[0]).all()):
            raise UserError("all the data are equal, so no density has them; a model needs data that differ")
        if bool(self.labels) != (labels is not None):
            needed = "with" if self.labels else "without"
            raise UserError(f"the model has {self.labels} labels, so it is fitted to data {needed} labels")
        group = self._condition(labels, len(rows)) if labels is not None else torch.zeros(len(rows), dtype=torch.int64)
        if (group == NULL).any():
            raise UserError("some of the training data have no label; leave those out")
        self.frequency.copy_(group.bincount(minlength=len(self.frequency)).double() / len(rows))
        return rows, group


def _drawn(weights: Tensor, u: Tensor) -> Tensor:
    """Return the place in each row of weights that a uniform number falls on: (B,) int64.  weights: (B, K); u: (B,)."""
    edges = weights.cumsum(1)
    return torch.searchsorted(edges / edges[:, -1:], u[:, None], right=True)[:, 0]


def rank_of(covariance: str, rank: int, shape: tuple[int, ...], full_up_to: int) -> int:
    """Return q of Normals for a form of covariance.

    auto: full for points of few dimensions, diagonal for those of more than full_up_to, and low rank plus diagonal for images,
    which have more dimensions than there are data as a rule.
    """
    size = math.prod(shape)
    automatic = size if size <= full_up_to else 0
    low = min(rank, size - 1)
    forms = {"auto": automatic if len(shape) == 1 else low, "full": size, "diagonal": 0, "low-rank": low}
    return pick(forms, covariance, "covariance")
