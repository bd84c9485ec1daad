"""The covariance of data as a linear operator, which avoids large matrices."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import torch
from torch import Tensor

from reverie.base.distances import row_blocks
from reverie.families.normals import Normals

MAX_CACHED = 2**22  # values of data that are cached in float64: 32 MB
HELD_UP_TO = 4096  # dimensions up to which the covariance may be a matrix
EXACT_UP_TO = 1024  # dimensions up to which all eigenvalues are computed


def group_means(x: Tensor, group: Tensor, groups: int) -> Tensor:
    """Return the mean of each group, for empty groups that of all data: (L, D) float64.  x: (N, D); group: (N,)."""
    sums = torch.zeros(groups, x.shape[1], dtype=torch.float64)
    for part in row_blocks(len(x), x.shape[1]):
        sums.index_add_(0, group[part], x[part].double())
    counts = group.bincount(minlength=groups)[:, None]
    return torch.where(counts > 0, sums / counts.clamp_min(1), sums.sum(0) / len(x))


class Scatter:
    """The covariance of data, S = sum_i (x_i - mean)(x_i - mean)^T / N + noise_variance I, optionally shrunk to a target.

    x: (N, D) of any dtype; mean: (L, D) with group: (N,), the index of each datum's mean, or (1, D) without.
    target: one Gaussian with covariance T, which counts as `weight` data: (N S + weight T) / (N + weight).
    """

    def __init__(
        self, x: Tensor, mean: Tensor, group: Tensor | None = None, noise_variance: float = 0.0, target: Normals | None = None,
        weight: float = 0.0,
    ) -> None:  # fmt: skip
        self.x, self.mean, self.group, self.noise_variance = x, mean, group, noise_variance
        self.target, self.share = target, weight / (len(x) + weight) if target is not None else 0.0
        size = x.shape[1]
        squares = sum((rows.square().sum(0) for rows in self._centred()), torch.zeros(size).double())
        self.variance = self._shrunk(squares, torch.ones(size).double(), None if target is None else target.variance()[0])

    @cached_property
    def _matrix(self) -> Tensor | None:
        """N S without the noise, if it is small and products with it are cheaper than with the data."""
        size = self.x.shape[1]
        if size > min(HELD_UP_TO, 2 * len(self.x)):
            return None
        return sum((rows.T @ rows for rows in self._centred()), torch.zeros(size, size).double())

    def __matmul__(self, b: Tensor) -> Tensor:
        """Return the covariance times b: (D, m).  b: (D, m)."""
        if self._matrix is not None:
            product = self._matrix @ b
        else:
            product = sum((rows.T @ (rows @ b) for rows in self._centred()), torch.zeros_like(b))
        return self._shrunk(product, b, None if self.target is None else self.target.product(b[None])[0])

    def leading(self, count: int) -> tuple[Tensor, Tensor]:
        """Return the largest eigenvalues, descending, (count,), and their eigenvectors in columns, (D, count)."""
        size = self.x.shape[1]
        if size <= max(EXACT_UP_TO, count + 1):
            values, vectors = torch.linalg.eigh(self @ torch.eye(size).double())
        else:
            from scipy.sparse.linalg import LinearOperator, eigsh

            def times(b):  # type: ignore[no-untyped-def]
                return (self @ torch.from_numpy(b.reshape(size, -1))).numpy().reshape(b.shape)

            start = torch.rand(size, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).numpy()
            pairs = eigsh(LinearOperator((size, size), matvec=times, dtype=start.dtype), count, v0=start)
            values, vectors = (torch.from_numpy(a) for a in pairs)
        return values.flip(0)[:count], vectors.flip(1)[:, :count]

    @cached_property
    def _cached(self) -> Tensor | None:
        """The centred data, cached for small datasets."""
        return torch.cat([self.x[:0].double(), *self._blocks()]) if self.x.numel() <= MAX_CACHED else None

    def _centred(self) -> Iterator[Tensor]:
        return self._blocks() if self._cached is None else iter([self._cached])

    def _blocks(self) -> Iterator[Tensor]:
        for part in row_blocks(len(self.x), self.x.shape[1]):
            yield self.x[part].double() - (self.mean if self.group is None else self.mean[self.group[part]])

    def _shrunk(self, total: Tensor, b: Tensor, target: Tensor | None) -> Tensor:
        """Return the shrunk covariance times b, from N S b without the noise, and T b."""
        covariance = total / max(1, len(self.x)) + self.noise_variance * b
        return covariance if target is None else (1 - self.share) * covariance + self.share * target
