"""Posterior means over levels, computed in chunks without storing all probabilities."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

CHUNK = {"cpu": 400_000}  # number of probabilities: fits in the cache of a core
CHUNK_ELSEWHERE = 2**26  # on other devices


def _chunks(features: Tensor, levels: int) -> Iterator[slice]:
    """Yield ranges of positions to process together."""
    batch, positions = features.shape[:2]
    size = max(1, CHUNK.get(features.device.type, CHUNK_ELSEWHERE) // max(1, batch * levels))
    for first in range(0, positions, size):
        yield slice(first, first + size)


def _probabilities(features: Tensor, to_levels: Tensor, prior: Tensor, part: slice) -> Tensor:
    return (features[:, part] @ to_levels).add(prior[part]).softmax(-1)


class _RecomputedMean(torch.autograd.Function):
    """The posterior mean with probabilities recomputed in the backward pass: d x0 / d logit_v = p_v (v - x0)."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, to_levels: Tensor, prior: Tensor, values: Tensor) -> Tensor:
        """Return x0."""
        x0 = _mean(features, to_levels, prior, values)
        ctx.save_for_backward(features, to_levels, prior, values, x0)
        return x0

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """Return the gradients with respect to features, matrix and prior."""
        features, to_levels, prior, values, x0 = ctx.saved_tensors
        by_features, by_matrix, by_prior = torch.empty_like(features), torch.zeros_like(to_levels), torch.empty_like(prior)
        for part in _chunks(features, len(values)):
            by_logits = _probabilities(features, to_levels, prior, part)
            by_logits *= values - x0[:, part, None]
            by_logits *= gradients[0][:, part, None]
            by_features[:, part] = by_logits @ to_levels.mT
            by_matrix.addmm_(features[:, part].flatten(0, 1).mT, by_logits.flatten(0, 1))
            by_prior[part] = by_logits.sum(0)
        return by_features, by_matrix, by_prior, None


def _mean(features: Tensor, to_levels: Tensor, prior: Tensor, values: Tensor) -> Tensor:
    means = [_probabilities(features, to_levels, prior, part) @ values for part in _chunks(features, len(values))]
    return torch.cat(means, 1)


def posterior_mean(features: Tensor, to_levels: Tensor, prior: Tensor, values: Tensor, *, recompute: bool) -> Tensor:
    """Return x0 = sum_v v softmax(features to_levels + prior)_v: (B, D).

    features: (B, D, F); to_levels: (F, K); prior: (D, K); values: (K,), or (K, M) without recompute, for (B, D, M).  recompute:
    recompute the B D K probabilities in the backward pass instead of storing them; supports first derivatives only.
    """
    if not recompute:
        return _mean(features, to_levels, prior, values)
    mean: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] = _RecomputedMean.apply
    return mean(features, to_levels, prior, values)
