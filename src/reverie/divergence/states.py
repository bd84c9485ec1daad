"""Divergences between distributions on a finite set of states, in nats.  p, q: (..., n)."""

from __future__ import annotations

import torch
from torch import Tensor


def _relative_entropy(p: Tensor, q: Tensor) -> Tensor:
    """Return sum p log(p/q), where 0 log 0 = 0 and p log(p/0) is infinite."""
    support = p > 0  # masked before the logarithm, so that no gradient is NaN
    logs = torch.where(support, p, 1.0).log() - torch.where(support, q, 1.0).log()
    return (p * logs).sum(-1)


def kl(p: Tensor, q: Tensor, order: float) -> Tensor:
    """Return sum p log(p/q)."""
    return _relative_entropy(p, q)


def reverse_kl(p: Tensor, q: Tensor, order: float) -> Tensor:
    """Return sum q log(q/p)."""
    return _relative_entropy(q, p)


def jensen_shannon(p: Tensor, q: Tensor, order: float) -> Tensor:
    """Return the mean of KL(p | m) and KL(q | m), m = (p + q)/2; at most log 2."""
    return (_relative_entropy(p, (p + q) / 2) + _relative_entropy(q, (p + q) / 2)) / 2


def total_variation(p: Tensor, q: Tensor, order: float) -> Tensor:
    """Return sum |p - q| / 2; at most 1."""
    return (p - q).abs().sum(-1) / 2


def renyi(p: Tensor, q: Tensor, order: float) -> Tensor:
    """Return log(sum p^order q^(1 - order)) / (order - 1), and KL at order 1."""
    if order == 1:
        return _relative_entropy(p, q)
    support = (p > 0) if order > 1 else (p > 0) & (q > 0)
    logs = order * torch.where(support, p, 1.0).log() + (1 - order) * torch.where(support, q, 1.0).log()
    return torch.where(support, logs, -torch.inf).logsumexp(-1) / (order - 1)


def fisher(p: Tensor, q: Tensor, order: float) -> Tensor:
    """Return sum_i (p_i + p_i+1)/2 (log(p_i+1/q_i+1) - log(p_i/q_i))², for ordered states.

    On a grid with spacing h this is h² times the Fisher divergence of the densities, up to a relative error O(h²).
    """
    between = (p[..., 1:] + p[..., :-1]) / 2
    support = (p > 0) & (q > 0)
    logs = torch.where(support, p, 1.0).log() - torch.where(support, q, 1.0).log()
    steps = torch.where(support[..., 1:] & support[..., :-1], logs.diff(dim=-1), 0.0)
    outside = ((p > 0) & (q == 0)).any(-1)
    return torch.where(outside, torch.inf, (between * steps**2).sum(-1))
