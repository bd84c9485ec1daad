"""Importance-weighted bounds: several paths per datum, weighted by their likelihood ratio."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from reverie.base.errors import UserError
from reverie.base.noise import Noise
from reverie.diffusion.denoiser import Denoiser
from reverie.diffusion.likelihood.bound import by_joint_chain


@dataclass(frozen=True)
class Tightened:
    """The bound of each datum from K paths, (B,), and from one, (B,), in nats: truth <= nats <= single in expectation.

    Their difference converges to KL(q(x_1..T | x0) || p(x_1..T | x0)) with the number of paths.
    """

    nats: Tensor
    single: Tensor
    paths: int

    @property
    def gap(self) -> Tensor:
        """The improvement over one path: (B,) nats, never negative."""
        return self.single - self.nats


@torch.no_grad()
def importance_weighted(
    denoiser: Denoiser, x0: Tensor, grid: Tensor, noise: Noise, cond: Tensor | None = None, variance: str = "posterior",
    levels: int | None = None, paths: int = 16,
) -> Tightened:  # fmt: skip
    """Return -log 1/K sum_k p(x0, path_k) / q(path_k | x0) for K paths of the forward chain (arXiv:1509.00519, eq. 8).

    x0: (B, ...) in model units; grid, variance, levels: as in `bound`.
    """
    if paths < 1:
        raise UserError(f"the importance-weighted bound needs at least 1 path, got {paths}")
    nats = torch.stack([by_joint_chain(denoiser, x0, grid, noise, cond, variance, levels) for _ in range(paths)])
    return Tightened(math.log(paths) - (-nats).logsumexp(0), nats.mean(0), paths)
