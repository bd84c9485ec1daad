"""Divergences between Gaussians, in nats."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from scipy.integrate import quad
from scipy.special import ndtr
from torch import Tensor

from reverie.base.errors import UserError


@dataclass(frozen=True, eq=False)
class Normal:
    """A Gaussian.  mean: (d,); covariance: (d, d)."""

    mean: Tensor
    covariance: Tensor

    @property
    def singular(self) -> bool:
        """Whether the covariance is singular, so that there is no density."""
        values = torch.linalg.eigvalsh(self.covariance.detach())
        return bool(values[0] <= len(values) * torch.finfo(values.dtype).eps * values[-1])


def _log_det(matrix: Tensor) -> Tensor:
    sign_and_log: tuple[Tensor, Tensor] = torch.linalg.slogdet(matrix)
    return sign_and_log[1]


def _solve(matrix: Tensor, right: Tensor) -> Tensor:
    solved: Tensor = torch.linalg.solve(matrix, right)
    return solved


def kl(p: Normal, q: Normal, order: float) -> Tensor:
    """Return (tr(Cq^-1 Cp) - d + (mq - mp)^T Cq^-1 (mq - mp) + log det Cq / det Cp) / 2."""
    gap = q.mean - p.mean
    solved = _solve(q.covariance, torch.cat([p.covariance, gap[:, None]], 1))
    mahalanobis = gap @ solved[:, -1]
    return (solved[:, :-1].trace() - len(gap) + mahalanobis + _log_det(q.covariance) - _log_det(p.covariance)) / 2


def reverse_kl(p: Normal, q: Normal, order: float) -> Tensor:
    """Return KL(q | p)."""
    return kl(q, p, order)


def renyi(p: Normal, q: Normal, order: float) -> Tensor:
    """Return order/2 gap^T S^-1 gap - log(det S / (det Cp^(1 - order) det Cq^order)) / (2 (order - 1)).

    S = (1 - order) Cp + order Cq; infinite where S is not positive definite (Gil et al., doi:10.1016/j.ins.2013.06.018).
    """
    if order == 1:
        return kl(p, q, order)
    mixed = (1 - order) * p.covariance + order * q.covariance
    if torch.linalg.cholesky_ex(mixed.detach()).info:
        return mixed.new_tensor(torch.inf)
    gap = q.mean - p.mean
    logs = _log_det(mixed) - (1 - order) * _log_det(p.covariance) - order * _log_det(q.covariance)
    return order / 2 * (gap @ _solve(mixed, gap)) - logs / (2 * (order - 1))


def fisher(p: Normal, q: Normal, order: float) -> Tensor:
    """Return E_p |grad log p - grad log q|² = tr(A Cp A) + |Cq^-1 (mp - mq)|², A = Cq^-1 - Cp^-1."""
    identity = torch.eye(len(p.mean)).to(p.mean)
    inverse_p, inverse_q = _solve(p.covariance, identity), _solve(q.covariance, identity)
    difference = inverse_q - inverse_p
    return (difference @ p.covariance @ difference).trace() + (inverse_q @ (p.mean - q.mean)).square().sum()


def total_variation(p: Normal, q: Normal, order: float) -> Tensor:
    """Return the integral of |p - q| / 2: for d = 1 from the crossings of the densities, else 2 Phi(gap/2) - 1 for equal C."""
    gap, ratio = _on_a_line(p, q, "total variation")
    roots = _crossings(gap, ratio)
    edges = [-math.inf, *roots, math.inf]
    masses = [
        (ndtr(high) - ndtr(low)) - (ndtr((high - gap) / ratio) - ndtr((low - gap) / ratio)) for low, high in pairwise(edges)
    ]
    return p.mean.new_tensor(sum(abs(mass) for mass in masses) / 2)


def jensen_shannon(p: Normal, q: Normal, order: float) -> Tensor:
    """Return the Jensen-Shannon divergence for d = 1 by quadrature to 1e-9; it has no closed form."""
    gap, ratio = _on_a_line(p, q, "Jensen-Shannon divergence")

    def log_p(x: float) -> float:
        return -x * x / 2 - math.log(2 * math.pi) / 2

    def log_q(x: float) -> float:
        return log_p((x - gap) / ratio) - math.log(ratio)

    def integrand(first: Callable[[float], float], second: Callable[[float], float]) -> Callable[[float], float]:
        # p log(p/m) with log(p/m) = log 2 - log(1 + q/p)
        return lambda x: math.exp(first(x)) * (math.log(2) - _softplus(second(x) - first(x)))

    cutoff = 39.0  # standard deviations; beyond them a density is 0 in float64
    breakpoints = sorted({0.0, gap, *_crossings(gap, ratio)})
    p_part = quad(
        integrand(log_p, log_q), -cutoff, cutoff, points=[x for x in breakpoints if abs(x) < cutoff], limit=500, epsabs=1e-11
    )[0]
    q_range = gap - cutoff * ratio, gap + cutoff * ratio
    inside = [x for x in breakpoints if q_range[0] < x < q_range[1]]
    q_part = quad(integrand(log_q, log_p), *q_range, points=inside, limit=500, epsabs=1e-11)[0]
    return p.mean.new_tensor((p_part + q_part) / 2)


def _softplus(x: float) -> float:
    """Return log(1 + e^x)."""
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def _on_a_line(p: Normal, q: Normal, what: str) -> tuple[float, float]:
    """Return the mean and std of q on the line on which p is standard normal: d = 1, or along the gap for equal covariances."""
    gap = q.mean - p.mean
    if len(gap) == 1:
        deviation = float(p.covariance[0, 0].sqrt())
        return float(gap[0]) / deviation, float(q.covariance[0, 0].sqrt()) / deviation
    if (p.covariance - q.covariance).abs().max() > 1e-9 * p.covariance.abs().max():
        raise UserError(
            f"the {what} of Gaussians with different covariances in {len(gap)} dimensions has no closed form;"
            " estimate it from samples"
        )
    return float((gap @ _solve(p.covariance, gap)).clamp(min=0).sqrt()), 1.0


def _crossings(gap: float, ratio: float) -> list[float]:
    """Return the sorted points where N(0, 1) and N(gap, ratio²) are equal: (1 - r²) x² - 2 g x + g² + 2 r² log r = 0."""
    square, constant = 1 - ratio**2, gap**2 + 2 * ratio**2 * math.log(ratio)
    if abs(square) < 1e-12:
        return [gap / 2] if gap else []
    root = math.sqrt(max(0.0, gap**2 - square * constant))
    return sorted(((gap - root) / square, (gap + root) / square))
