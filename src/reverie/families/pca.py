"""Probabilistic principal component analysis: a linear autoencoder with an exact likelihood (Tipping and Bishop 1999)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from reverie.base.errors import UserError
from reverie.families.closed_form import ClosedForm
from reverie.families.scatter import Scatter, group_means

MAX_DIMENSION = 64  # largest latent dimension of auto


class PCAModel(ClosedForm):
    """x = mean + W z + sigma e with z, e standard normal: W has `latent` columns, and the noise is isotropic.

    Maximum likelihood has a closed form.  With the eigenvalues l_1 >= l_2 >= ... and eigenvectors u_i of the data's
    covariance, W = [u_i sqrt(l_i - sigma²)] and sigma² is the mean of the discarded eigenvalues.

    latent: number of dimensions, at most (N - L) / 2 for N data, so that some noise remains; auto: the number up to 64 with
    the lowest BIC.  Each label has its own mean; all labels share W and sigma², so z has the same meaning for all.
    floor: smallest sigma² as a share of the mean variance.
    """

    def __init__(
        self, shape: tuple[int, ...], labels: int = 0, latent: int | Literal["auto"] = "auto", levels: int | None = None,
        floor: float = 1e-6,
    ) -> None:  # fmt: skip
        max_latent = min(MAX_DIMENSION if latent == "auto" else latent, math.prod(shape) - 1)
        super().__init__(shape, labels, 1, max_latent, levels, floor, shared=True)
        self.latent = latent

    def fit(self, x: Tensor, labels: Tensor | None, seed: int) -> Iterator[float]:
        """Fit in one pass; see `Density.fit`.  The result does not depend on the seed."""
        rows, group = self._training_data(x, labels)
        means = group_means(rows, group, len(self.mean))
        scatter = Scatter(rows, means, group, self.noise_variance)
        if not scatter.variance.any():
            raise UserError("all data of each label are equal, so they have no density; train without labels")
        total, latent = float(scatter.variance.sum()), min(self.rank, (len(rows) - len(group.unique())) // 2)
        values, vectors = scatter.leading(latent)
        if self.latent == "auto":
            latent = best_latent(values, total, len(rows), self.size)
        discarded = (total - float(values[:latent].sum())) / (self.size - latent)
        noise = max(discarded, self.floor * float(scatter.variance.mean()))
        self.loadings.zero_()
        self.loadings[0, 0, :, :latent] = vectors[:, :latent] * (values[:latent] - noise).clamp_min(0).sqrt()
        self.noise.fill_(noise)
        self.mean[:, 0] = means
        yield self.cost(x, labels)

    def encode(self, x: Tensor, cond: Tensor | None = None) -> Tensor:
        """Return E[z | x] = W^T (W W^T + sigma² I)^-1 (x - mean): (B, latent), float32.

        x: (B, *shape); cond: (B,) labels, NULL or None for the posterior mean over labels.
        """
        expected = self.posterior(x, cond) @ self.mean[:, 0]
        return ((self._rows(x).double() - expected) @ self.normals(0)[0].solved[0]).float()

    def decode(self, z: Tensor, cond: Tensor | None = None) -> Tensor:
        """Return E[x | z] = mean + W z: (B, *shape), float32.  cond: (B,) labels, NULL or None for the mean over all labels."""
        label = self._condition(cond, len(z))
        label_weights = torch.where((label < 0)[:, None], self.frequency, torch.eye(len(self.mean)).double()[label])
        return (label_weights @ self.mean[:, 0] + z.cpu().double() @ self.loadings[0, 0].T).float().reshape(len(z), *self.shape)


def best_latent(values: Tensor, total: float, count: int, size: int) -> int:
    """Return the latent dimension with the lowest BIC = -2 log p(data) + parameters log N.

    -2 log p(data) = N (sum_i<=q log l_i + (D - q) log sigma² + constant), and W has D q - q (q - 1) / 2 parameters.
    values: (m,), the largest eigenvalues; total: the sum of all.
    """
    criteria = []
    for q in range(len(values) + 1):
        noise = max(total - float(values[:q].sum()), 1e-12 * total) / (size - q)
        fit = float(values[:q].log().sum()) + (size - q) * math.log(noise)
        criteria.append(count * fit + (size * q - q * (q - 1) / 2) * math.log(count))
    return min(range(len(criteria)), key=criteria.__getitem__)
