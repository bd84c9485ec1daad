"""Batches of Gaussians with full, diagonal or low-rank plus diagonal covariances."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Normals:
    """K Gaussians x = mean + W z + sqrt(noise) e, z and e standard normal, with covariances W W^T + diag(noise).

    mean: (K, D); loadings W: (K, D, q); noise: (K, D); all float64.  q = 0: diagonal.  q = D: full, with the Cholesky factor W
    and no noise.  Otherwise the noise is positive, and no tensor is larger than D x q.
    """

    mean: Tensor
    loadings: Tensor
    noise: Tensor

    @property
    def full(self) -> bool:
        """Whether the covariances are full."""
        return self.loadings.shape[1] == self.loadings.shape[2]

    @property
    def parameters(self) -> int:
        """The number of free parameters of means and covariances; rotations of z are not counted."""
        count, size, rank = self.loadings.shape
        return count * (size * (1 if self.full else 2) + size * rank - rank * (rank - 1) // 2)

    def __getitem__(self, k: Tensor) -> Normals:
        """Return the Gaussians with these indices.  k: (J,) int64."""
        return Normals(self.mean[k], self.loadings[k], self.noise[k])

    def variance(self) -> Tensor:
        """Return the diagonals of the covariances: (K, D)."""
        return self.loadings.square().sum(2) + self.noise

    def product(self, b: Tensor) -> Tensor:
        """Return the covariances times b: (K, D, m).  b: (K or 1, D, m)."""
        return self.loadings @ (self.loadings.mT @ b) + self.noise[..., None] * b

    @cached_property
    def _factor(self) -> Tensor:
        """The Cholesky factor of M = I + W^T noise^-1 W: (K, q, q)."""
        eye = torch.eye(self.loadings.shape[2], dtype=self.loadings.dtype)
        factor: Tensor = torch.linalg.cholesky(eye + self.loadings.mT @ (self.loadings / self.noise[..., None]))
        return factor

    @cached_property
    def _inverse(self) -> tuple[Tensor, Tensor, float, Tensor]:
        """P, R, s and log det C, with C^-1 = diag(P) + s R^T R: (K, D), (K, q, D), 1 or -1, (K,).

        For W W^T + diag(noise) they follow from the Woodbury identity, R = M^-1/2 W^T noise^-1 and det C = det M prod noise.
        """
        if self.full:
            eye = torch.eye(self.loadings.shape[1], dtype=self.loadings.dtype).expand_as(self.loadings)
            root = torch.linalg.solve_triangular(self.loadings, eye, upper=False)
            return torch.zeros_like(self.noise), root, 1.0, _log_det(self.loadings)
        scaled = (self.loadings / self.noise[..., None]).mT
        root = torch.linalg.solve_triangular(self._factor, scaled, upper=False)
        return 1 / self.noise, root, -1.0, _log_det(self._factor) + self.noise.log().sum(1)

    @cached_property
    def solved(self) -> Tensor:
        """C^-1 W = noise^-1 W M^-1, for covariances that are not full: (K, D, q).  E[z | x] = (x - mean) C^-1 W."""
        return torch.cholesky_solve((self.loadings / self.noise[..., None]).mT, self._factor).mT

    def log_density(self, x: Tensor, noise_variance: float = 0.0) -> Tensor:
        """Return log N(x) = -(D log 2 pi + log det C + d^T C^-1 d) / 2, d = x - mean, for each Gaussian in nats: (B, K).

        x: (B, D) in float64.  noise_variance: of independent noise on each value of x, over which the log-density is averaged;
        it subtracts noise_variance trace(C^-1) / 2.
        """
        precision, root, sign, log_det = self._inverse
        centre = self.mean.mean(0)  # reduces cancellation in the squares below
        x, mean = x - centre, self.mean - centre
        squares = x.square() @ precision.T - 2 * x @ (precision * mean).T + (precision * mean.square()).sum(1)
        latent = (x @ root.flatten(0, 1).T).unflatten(1, root.shape[:2]) - (root @ mean[..., None])[..., 0]
        squares += sign * latent.square().sum(2)
        trace = precision.sum(1) + sign * root.square().sum((1, 2))
        return -0.5 * (x.shape[1] * math.log(2 * math.pi) + log_det + squares + noise_variance * trace)

    def mean_log_density(self, variance: Tensor, product: Tensor) -> Tensor:
        """Return the mean log-density of data around these means, for covariances that are not full: (K,) in nats.

        -(D log 2 pi + log det C + trace(C^-1 S)) / 2.  variance, product: diagonal of S and S C^-1 W, (K, D) and (K, D, q).
        """
        trace = (variance / self.noise).sum(1) - (self.loadings / self.noise[..., None] * product).sum((1, 2))
        return -0.5 * (variance.shape[1] * math.log(2 * math.pi) + self._inverse[3] + trace)


def start(mean: Tensor, variance: Tensor, rank: int, seed: int) -> Normals:
    """Return initial Gaussians with these means and variances; random factors have half of the variance.

    mean, variance: (K, D).
    """
    if rank == mean.shape[1]:
        return Normals(mean, variance.sqrt().diag_embed(), torch.zeros_like(mean))
    random = torch.randn(*mean.shape, rank, dtype=mean.dtype, generator=torch.Generator().manual_seed(seed))
    share = 0.5 if rank else 0.0
    return Normals(mean, random * (share * variance / max(1, rank)).sqrt()[..., None], (1 - share) * variance)


def _log_det(factor: Tensor) -> Tensor:
    """Return log det L L^T for lower triangular L: (K,).  factor: (K, q, q)."""
    return 2 * factor.diagonal(dim1=1, dim2=2).log().sum(1)


def maximize(current: Normals, mean: Tensor, variance: Tensor, product: Tensor, floor: Tensor) -> Normals:
    """Return Gaussians with at least the likelihood of `current` for data with these moments.

    mean, variance: (K, D), of the data and around that mean; product: their covariance S times C^-1 W of `current`, (K, D, q),
    or for full covariances S; floor: (D,), the smallest noise, or for full covariances C >= diag(floor).
    Full and diagonal covariances are maximized exactly.  Those of low rank take one EM step of factor analysis (Rubin and
    Thayer 1982), with B = C^-1 W:  W' = S B (I - W^T B + B^T S B)^-1,  noise' = diag(S - W' (S B)^T).
    Values below the floor are raised to it, which is the constrained maximum.
    """
    if current.full:
        scale = floor.sqrt()
        scaled = product / (scale[:, None] * scale)
        values, vectors = torch.linalg.eigh((scaled + scaled.mT) / 2)
        raised = vectors * values.clamp_min(1)[:, None] @ vectors.mT
        is_low = (values[:, :1] < 1)[..., None]
        factor = torch.linalg.cholesky(torch.where(is_low, (raised + raised.mT) / 2, scaled))
        return Normals(mean, scale[:, None] * factor, torch.zeros_like(mean))
    solved = current.solved
    eye = torch.eye(solved.shape[2], dtype=solved.dtype)
    second = eye - current.loadings.mT @ solved + solved.mT @ product  # the mean of E[z z^T | x]
    loadings = torch.linalg.solve((second + second.mT) / 2, product.mT).mT
    noise = (variance - (loadings * product).sum(2)).clamp_min(floor)
    return Normals(mean, loadings, noise)
