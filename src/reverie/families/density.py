"""The interface of densities that are fitted in closed form; their parameters are buffers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn


class Density(nn.Module, ABC):
    """A density over data of one shape, fitted to all data at once."""

    @abstractmethod
    def fit(self, x: Tensor, labels: Tensor | None, seed: int) -> Iterator[float]:
        """Fit and yield after each pass the mean negative log-likelihood -log p(x | label) / D of the training data, in nats.

        x: (N, ...) in user units; labels: (N,) int64, None for a model without labels.
        """

    def facts(self) -> dict[str, Any]:
        """Return fitted values for `reverie inspect`."""
        return {}

    @abstractmethod
    def sample(self, seeds: Tensor, cond: Tensor | None) -> Tensor:
        """Sample one datum per seed, a function of that seed only: (B, ...) in user units.  cond: (B,) labels or None."""

    @abstractmethod
    def log_prob(self, x: Tensor, cond: Tensor | None, seeds: Tensor) -> Tensor:
        """Return the log-density of points, or the log-probability of the levels of images, in nats: (B,)."""
