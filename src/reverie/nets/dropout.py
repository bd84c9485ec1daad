"""Dropout that is a function of a seed, so that a resumed training drops the same units."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def seeded_dropout(net: nn.Module, seed: int) -> Iterator[None]:
    """Seed the dropout of a network in training; networks without dropout are not affected."""
    rate: float | None = getattr(net, "dropout", None)
    if not (net.training and rate):
        yield
        return
    device = next(net.parameters()).device
    with torch.random.fork_rng([] if device.type == "cpu" else [device]):
        torch.manual_seed(seed)
        yield
