"""Conditions as tensors: labels, (B,) whole numbers, or rows of real numbers, (B, R), see `reverie.data.conditions`.

Several for each datum, (B, K) or (B, K, R), are composed.  "No condition" is -1 for a label and NaN in a row.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

NULL = -1  # the label that stands for "no condition"


def nothing(cond: Tensor) -> Tensor:
    """Return "no condition" in the form of the given ones."""
    return torch.full_like(cond, math.nan if cond.is_floating_point() else NULL)


def apart(cond: Tensor) -> tuple[Tensor, ...]:
    """Return the conditions that are composed, each with one for each datum.  cond: (B,), (B, K), (B, R) or (B, K, R)."""
    own = cond.shape[-1:] if cond.is_floating_point() else ()
    return cond.reshape(len(cond), -1, *own).unbind(1)


def hidden(cond: Tensor, which: Tensor) -> Tensor:
    """Return conditions of which some are hidden.  cond: (B,) or (B, R); which: (B,) bool."""
    return torch.where(which.to(cond.device).reshape(-1, *[1] * (cond.ndim - 1)), nothing(cond), cond)
