"""Divergences between distributions on finitely many states, in nats.  p, q: (..., n)."""

from __future__ import annotations

import torch
from torch import Tensor


def _cross(p: Tensor, q: Tensor) -> Tensor:
    """Return sum p log(p/q), where 0 log 0 = 0 and p log(p/0) is infinite."""
    there = p > 0  # asked before the logarithm, whose gradient would be NaN
    logs = torch.where(there, p, 1.0).log() - torch.where(there, q, 1.0).log()
    return (p * logs).sum(-1)


def kl(p: Tensor, q: Tensor, order: float) -> Tensor:
    """Return sum p log(p/q)."""
    return _cross(p, q)


def reverse_kl(p: Tensor, q: Tensor, order: float) -> Tensor:
    """Return sum q log(q/p)."""
    return _cross(q, p)


def jensen_shannon(p: Tensor, q: Tensor, order: float) -> Tensor:
    """Return the mean of KL(p | m) and KL(q | m), m = (p + q)/2; at most log 2."""
    return (_cross(p, (p + q) / 2) + _cross(q, (p + q) / 2)) / 2


def total_variation(p: Tensor, q: Tensor, order: float) -> Tensor:
    """Return sum |p - q| / 2; at most 1."""
    return (p - q).abs().sum(-1) / 2


def renyi(p: Tensor, q: Tensor, order: float) -> Tensor:
    """Return log(sum p^order q^(1 - order)) / (order - 1), and KL at order 1."""
    if order == 1:
        return _cross(p, q)
    there = (p > 0) if order > 1 else (p > 0) & (q > 0)
    logs = order * torch.where(there, p, 1.0).log() + (1 - order) * torch.where(there, q, 1.0).log()
    return torch.where(there, logs, -torch.inf).logsumexp(-1) / (order - 1)


def fisher(p: Tensor, q: Tensor, order: float) -> Tensor:
    """Return sum_i (p_i + p_i+1)/2 (log(p_i+1/q_i+1) - log(p_i/q_i))², for states in a row.

    On a grid of spacing h it is h² times the Fisher divergence of the densities, up to O(h²) of itself.
    """
    between = (p[..., 1:] + p[..., :-1]) / 2
    there = (p > 0) & (q > 0)
    logs = torch.where(there, p, 1.0).log() - torch.where(there, q, 1.0).log()
    steps = torch.where(there[..., 1:] & there[..., :-1], logs.diff(dim=-1), 0.0)
    apart = ((p > 0) & (q == 0)).any(-1)
    return torch.where(apart, torch.inf, (between * steps**2).sum(-1))
