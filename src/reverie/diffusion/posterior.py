"""The mean of a posterior over levels, for many numbers at once, without holding all probabilities."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

AT_ONCE = {"cpu": 400_000}  # probabilities: as many as a core's cache holds; elsewhere as many as fit easily
AT_ONCE_ELSEWHERE = 2**26


def _parts(features: Tensor, levels: int) -> Iterator[slice]:
    """Yield ranges of places that are worked on together."""
    data, places = features.shape[:2]
    size = max(1, AT_ONCE.get(features.device.type, AT_ONCE_ELSEWHERE) // max(1, data * levels))
    for first in range(0, places, size):
        yield slice(first, first + size)


def _shares(features: Tensor, to_levels: Tensor, prior: Tensor, part: slice) -> Tensor:
    return (features[:, part] @ to_levels).add(prior[part]).softmax(-1)


class _Frugal(torch.autograd.Function):
    """The mean, with probabilities worked out again for its gradient: d x0 / d logit_v = p_v (v - x0)."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, to_levels: Tensor, prior: Tensor, values: Tensor) -> Tensor:
        """Return x0."""
        x0 = _plain(features, to_levels, prior, values)
        ctx.save_for_backward(features, to_levels, prior, values, x0)
        return x0

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """Return the gradients by features, matrix and prior."""
        features, to_levels, prior, values, x0 = ctx.saved_tensors
        by_features, by_matrix, by_prior = torch.empty_like(features), torch.zeros_like(to_levels), torch.empty_like(prior)
        for part in _parts(features, len(values)):
            by_logits = _shares(features, to_levels, prior, part)
            by_logits *= values - x0[:, part, None]
            by_logits *= gradients[0][:, part, None]
            by_features[:, part] = by_logits @ to_levels.mT
            by_matrix.addmm_(features[:, part].flatten(0, 1).mT, by_logits.flatten(0, 1))
            by_prior[part] = by_logits.sum(0)
        return by_features, by_matrix, by_prior, None


def _plain(features: Tensor, to_levels: Tensor, prior: Tensor, values: Tensor) -> Tensor:
    means = [_shares(features, to_levels, prior, part) @ values for part in _parts(features, len(values))]
    return torch.cat(means, 1)


def posterior_mean(features: Tensor, to_levels: Tensor, prior: Tensor, values: Tensor, *, frugal: bool) -> Tensor:
    """Return x0 = sum_v v softmax(features to_levels + prior)_v: (B, D).

    features: (B, D, F); to_levels: (F, K); prior: (D, K); values: (K,), or (K, M) where not frugal, for (B, D, M).  frugal: a
    first gradient is all that will be taken of it, and then the B D K probabilities are never held together; otherwise any
    derivative may be.
    """
    if not frugal:
        return _plain(features, to_levels, prior, values)
    mean: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] = _Frugal.apply
    return mean(features, to_levels, prior, values)
