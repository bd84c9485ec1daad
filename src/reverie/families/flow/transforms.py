"""Invertible maps from data to noise: those of zuko for points and small images, and what all of them must do."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reverie.base.errors import UserError

EDGE = 0.01  # of the unit interval at each end, which the logit of levels leaves free
BEGIN_DATA = 4096  # training data, at most, that the first weights are told by
LOG_NORMAL = -0.5 * math.log(2 * math.pi)
Activation = Callable[[], nn.Module]


def zuko() -> Any:
    """Return the package of flows, which this family alone needs."""
    try:
        import zuko
    except ImportError:
        raise UserError("the family flow needs the package zuko: pip install 'reverie[flow]'") from None
    return zuko


def without_masks(module: nn.Module) -> nn.Module:
    """Let masks and orders, which follow from the settings, be left out of what is kept of a module, and return it."""
    for part in list(module.modules()):
        for name, buffer in list(part.named_buffers(recurse=False)):
            part.register_buffer(name, buffer, persistent=False)
    return module


class FlowTransform(nn.Module, ABC):
    """An invertible map z = f(x | label) and log |det df/dx|.  x: (B, ...), levels as numbers in [0, 1); z: the same shape.

    uniform: whether z is uniform on the unit cube, and not standard normal.
    """

    uniform = False

    def initialize(self, x: Tensor) -> None:
        """Set first weights by training data.  x: (N, ...) as `forward` takes them."""
        return

    @abstractmethod
    def forward(self, x: Tensor, cond: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return z and log |det df/dx|: (B, ...) and (B,)."""

    @abstractmethod
    def inverse(self, z: Tensor, cond: Tensor | None) -> Tensor:
        """Return x."""

    def log_density(self, x: Tensor, cond: Tensor | None) -> Tensor:
        """Return log p(x) = log p(z) + log |det df/dx|: (B,)."""
        z, volume = self(x, cond)
        total: Tensor = volume if self.uniform else (LOG_NORMAL - z.square() / 2).flatten(1).sum(1) + volume
        return total


class DenseFlow(FlowTransform):
    """A flow of zuko over all numbers of a datum, after they are standardised; levels are brought to real numbers by the logit.

    made: features, context -> a flow of zuko; shape: of a datum; labels: how many, told as one-hot vectors; levels: whether
    numbers lie in [0, 1).
    """

    def __init__(
        self, made: Callable[[int, int], Any], shape: tuple[int, ...], labels: int, levels: bool, dropout: float = 0.0
    ) -> None:
        super().__init__()
        size = math.prod(shape)
        self.labels, self.levels, self.dropout = labels, levels, dropout
        self.flow = without_masks(made(size, labels).transform)
        self.mean, self.scale = nn.Buffer(torch.zeros(size)), nn.Buffer(torch.ones(size))

    @torch.no_grad()
    def initialize(self, x: Tensor) -> None:
        """Take the mean and the deviation of each number of the data."""
        y, _ = self._real(x.flatten(1))
        self.mean.copy_(y.mean(0))
        self.scale.copy_(y.std(0).clamp_min(1e-3))

    def _real(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return y = logit(edge + (1 - 2 edge) x) and the log of its slope, or points as they are."""
        if not self.levels:
            return x, torch.zeros_like(x)
        inside = EDGE + (1 - 2 * EDGE) * x
        return inside.logit(), math.log(1 - 2 * EDGE) - inside.log() - (-inside).log1p()

    def _context(self, cond: Tensor | None) -> Tensor | None:
        return F.one_hot(cond, self.labels).float() if self.labels and cond is not None else None

    def forward(self, x: Tensor, cond: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return z and log |det df/dx|."""
        y, slope = self._real(x.flatten(1))
        z, volume = self.flow(self._context(cond)).call_and_ladj((y - self.mean) / self.scale)
        return z.reshape(x.shape), volume + slope.sum(1) - self.scale.log().sum()

    def inverse(self, z: Tensor, cond: Tensor | None) -> Tensor:
        """Return x."""
        y: Tensor = self.mean + self.scale * self.flow(self._context(cond)).inv(z.flatten(1))
        x = (y.sigmoid() - EDGE) / (1 - 2 * EDGE) if self.levels else y
        return x.reshape(z.shape)


def activation(dropout: float) -> Activation:
    """Return the layers between dense ones."""
    return lambda: nn.Sequential(nn.SiLU(), nn.Dropout(dropout)) if dropout else nn.SiLU()


def coupling(layers: int, hidden: int, bins: int, dropout: float) -> Callable[[int, int], Any]:
    """RealNVP (arXiv:1605.08803): half of the numbers scale and shift the other half, in turn; quick both ways."""
    wide = {"transforms": layers, "hidden_features": (hidden, hidden), "activation": activation(dropout)}
    return lambda size, labels: zuko().flows.NICE(size, labels, **wide)


def autoregressive(layers: int, hidden: int, bins: int, dropout: float) -> Callable[[int, int], Any]:
    """MAF (arXiv:1705.07057): each number is scaled and shifted by those before it; drawing takes a pass for each number."""
    wide = {"transforms": layers, "hidden_features": (hidden, hidden), "activation": activation(dropout)}
    return lambda size, labels: zuko().flows.MAF(size, labels, **wide)


def spline(layers: int, hidden: int, bins: int, dropout: float) -> Callable[[int, int], Any]:
    """Neural splines (arXiv:1906.04032), autoregressive: each number goes along a monotone curve told by those before it."""
    wide = {"transforms": layers, "hidden_features": (hidden, hidden), "activation": activation(dropout), "bins": bins}
    return lambda size, labels: zuko().flows.NSF(size, labels, **wide)


DENSE: dict[str, Callable[[int, int, int, float], Callable[[int, int], Any]]] = {
    "realnvp": coupling, "maf": autoregressive, "spline": spline,
}  # fmt: skip
