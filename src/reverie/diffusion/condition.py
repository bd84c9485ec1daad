"""Conditions as tensors: labels, (B,) int64, or condition vectors, (B, R) floats, see `reverie.data.conditions`.

Several conditions per datum, (B, K) or (B, K, R), are composed.  The null condition is -1 for a label and NaN in a vector.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

NULL = -1  # the null label


def null_condition(cond: Tensor) -> Tensor:
    """Return the null condition in the shape of the given conditions."""
    return torch.full_like(cond, math.nan if cond.is_floating_point() else NULL)


def split_conditions(cond: Tensor) -> tuple[Tensor, ...]:
    """Split composed conditions into single ones.  cond: (B,), (B, K), (B, R) or (B, K, R)."""
    vector_shape = cond.shape[-1:] if cond.is_floating_point() else ()
    return cond.reshape(len(cond), -1, *vector_shape).unbind(1)


def drop_conditions(cond: Tensor, dropped: Tensor) -> Tensor:
    """Replace some conditions by the null condition.  cond: (B,) or (B, R); dropped: (B,) bool."""
    return torch.where(dropped.to(cond.device).reshape(-1, *[1] * (cond.ndim - 1)), null_condition(cond), cond)
