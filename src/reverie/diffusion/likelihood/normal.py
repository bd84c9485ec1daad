"""Normal log-densities and divergences of a batch, and means with standard errors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from reverie.base.distances import finest_dtype


def summed(values: Tensor) -> Tensor:
    """Return the sum over each datum in the widest dtype: (B,).  values: (B, ...)."""
    return values.flatten(1).to(finest_dtype(values)).sum(1)


def log_normal(x: Tensor, mean: Tensor | float, variance: float | Tensor) -> Tensor:
    """Return log N(x; mean, variance) of each datum in nats: (B,).  x, mean: (B, ...); variance: one, or one per number."""
    if isinstance(variance, Tensor):
        variance = variance.to(finest_dtype(x)).expand_as(x)
        return -summed((x - mean).square() / variance + (2 * math.pi * variance).log()) / 2
    size = x[0].numel()
    return -summed((x - mean).square()) / (2 * variance) - size / 2 * math.log(2 * math.pi * variance)


def kl_normal(squared: Tensor, of: float, to: float | Tensor) -> Tensor:
    """Return KL(N(a, of I) || N(b, to)) of each datum in nats: (B,).

    squared: (a - b)² of each number, (B, ...); to: one variance, or one per number.
    """
    if isinstance(to, Tensor):
        squared, to = squared.to(finest_dtype(squared)), to.to(finest_dtype(squared)).expand_as(squared)
        return summed((squared + of) / to - 1 - (of / to).log()) / 2
    ratio = of / to
    return summed(squared) / (2 * to) + squared[0].numel() / 2 * (ratio - 1 - math.log(ratio))


@dataclass(frozen=True)
class Diagonal:
    """Independent normals with means and the logarithms of their standard deviations: (B, ...) each, or broadcastable."""

    mean: Tensor
    log_std: Tensor

    def at(self, eps: Tensor) -> Tensor:
        """Return the reparametrized sample mean + std eps (arXiv:1312.6114, section 2.4).  eps: (..., B, ...)."""
        return torch.addcmul(self.mean, self.log_std.exp(), eps)

    def log_density(self, z: Tensor) -> Tensor:
        """Return log N(z; mean, std²) of each number in nats, of z's shape."""
        return -((z - self.mean) * torch.exp(-self.log_std)).square() / 2 - self.log_std - math.log(2 * math.pi) / 2

    def kl(self, to: Diagonal | None = None) -> Tensor:
        """Return KL(this || to) of each number in nats; to: N(0, 1) if not given.

        log(s2 / s1) + (s1² + (m1 - m2)²) / (2 s2²) - 1/2 (arXiv:1312.6114, appendix B).
        """
        if to is None:
            return (self.mean.square() + torch.exp(2 * self.log_std) - 1) / 2 - self.log_std
        log_ratio = to.log_std - self.log_std
        squared = ((self.mean - to.mean) * torch.exp(-to.log_std)).square()
        return log_ratio + (torch.exp(-2 * log_ratio) + squared - 1) / 2


def discretised(x: Tensor, mean: Tensor, variance: float, levels: int = 256) -> Tensor:
    """Return the log-probability of each datum's levels under a discretised Gaussian in nats: (B,).

    Each number of x is one of the levels -1, -1 + h, ..., 1 with h = 2 / (levels - 1) with the mass of
    N(mean, variance) within h / 2 of it; the outermost two include the tails, so that the sum over all levels is 1
    (arXiv:2006.11239, eq. 13).  x, mean: (B, ...).
    """
    x, mean = x.to(finest_dtype(x)), mean.to(finest_dtype(x))
    half, std = 1 / (levels - 1), math.sqrt(variance)
    low, high = (x - half - mean) / std, (x + half - mean) / std
    low = torch.where(x < -1 + half, -torch.inf, low)
    high = torch.where(x > 1 - half, torch.inf, high)
    # By symmetry the mass of [low, high] is that of [-high, -low]; in the tails only the lower one is accurate.
    mirrored = low + high > 0
    low, high = torch.where(mirrored, -high, low), torch.where(mirrored, -low, high)
    top, bottom = torch.special.log_ndtr(high), torch.special.log_ndtr(low)
    return summed(top + torch.log(-torch.expm1(bottom - top)))


def mean_and_error(values: Tensor) -> tuple[float, float | None]:
    """Return the mean over data and its standard error, None for a single datum.  values: (B,)."""
    values = values.double()
    error = float(values.std() / math.sqrt(len(values))) if len(values) > 1 else None
    return float(values.mean()), error
