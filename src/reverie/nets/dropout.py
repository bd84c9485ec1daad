"""Dropout that is a function of a seed, so that a training that is gone on with hides the same numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def repeatable_dropout(net: nn.Module, seed: int) -> Iterator[None]:
    """Draw what a network hides in training from this seed; nothing is done to networks that hide nothing."""
    hides: float | None = getattr(net, "dropout", None)
    if not (net.training and hides):
        yield
        return
    device = next(net.parameters()).device
    with torch.random.fork_rng([] if device.type == "cpu" else [device]):
        torch.manual_seed(seed)
        yield
