"""What a density must do to be a model; its parameters are buffers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn


class Density(nn.Module, ABC):
    """A density over data of one shape, fitted to all of them at once."""

    @abstractmethod
    def fit(self, x: Tensor, labels: Tensor | None, seed: int) -> Iterator[float]:
        """Fit to data and yield after each round what a training datum costs: -log p(x | label) / D, in nats.

        x: (N, ...) in user units; labels: (N,) int64, None where the model has none.
        """

    def facts(self) -> dict[str, Any]:
        """Return plain facts of what was fitted, for `reverie inspect`."""
        return {}

    @abstractmethod
    def draw(self, seeds: Tensor, cond: Tensor | None) -> Tensor:
        """Draw one datum for each seed, a function of that seed alone: (B, ...) in user units.  cond: (B,) labels or None."""

    @abstractmethod
    def log_prob(self, x: Tensor, cond: Tensor | None, seeds: Tensor) -> Tensor:
        """Return the log-density of points, or the log-probability of the levels of images, in nats: (B,)."""
