"""Invertible maps from data to noise: their interface, and zuko's flows for points and small images."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reverie.base.errors import UserError

EDGE = 0.01  # margin at both ends of the unit interval before the logit of levels
BEGIN_DATA = 4096  # maximum number of training data for initialization
LOG_NORMAL = -0.5 * math.log(2 * math.pi)
Activation = Callable[[], nn.Module]


def zuko() -> Any:
    """Return the package zuko, which only this family needs."""
    try:
        import zuko
    except ImportError:
        raise UserError("the family flow needs the package zuko; run pip install 'reverie[flow]'") from None
    return zuko


def without_masks(module: nn.Module) -> nn.Module:
    """Exclude masks and orders, which follow from the settings, from a module's state dict, and return the module."""
    for part in list(module.modules()):
        for name, buffer in list(part.named_buffers(recurse=False)):
            part.register_buffer(name, buffer, persistent=False)
    return module


class FlowTransform(nn.Module, ABC):
    """An invertible map z = f(x | label) and log |det df/dx|.  x: (B, ...), levels as values in [0, 1); z: the same shape.

    uniform: whether z is uniform on the unit cube, else standard normal.
    """

    uniform = False

    def initialize(self, x: Tensor) -> None:
        """Initialize weights from training data.  x: (N, ...) as in `forward`."""
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
    """A flow of zuko over all values of a datum, which are standardised; levels are mapped to real numbers by the logit.

    make_flow: (features, context) -> flow of zuko; shape: of a datum; labels: number of labels, the context is one-hot; levels:
    whether values are in [0, 1).
    """

    def __init__(
        self, make_flow: Callable[[int, int], Any], shape: tuple[int, ...], labels: int, levels: bool, dropout: float = 0.0
    ) -> None:
        super().__init__()
        size = math.prod(shape)
        self.labels, self.levels, self.dropout = labels, levels, dropout
        self.flow = without_masks(make_flow(size, labels).transform)
        self.mean, self.scale = nn.Buffer(torch.zeros(size)), nn.Buffer(torch.ones(size))

    @torch.no_grad()
    def initialize(self, x: Tensor) -> None:
        """Set mean and standard deviation of each value."""
        y, _ = self._to_real(x.flatten(1))
        self.mean.copy_(y.mean(0))
        self.scale.copy_(y.std(0).clamp_min(1e-3))

    def _to_real(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return y = logit(edge + (1 - 2 edge) x) and the log of its derivative; points unchanged."""
        if not self.levels:
            return x, torch.zeros_like(x)
        scaled = EDGE + (1 - 2 * EDGE) * x
        return scaled.logit(), math.log(1 - 2 * EDGE) - scaled.log() - (-scaled).log1p()

    def _context(self, cond: Tensor | None) -> Tensor | None:
        return F.one_hot(cond, self.labels).float() if self.labels and cond is not None else None

    def forward(self, x: Tensor, cond: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return z and log |det df/dx|."""
        y, slope = self._to_real(x.flatten(1))
        z, volume = self.flow(self._context(cond)).call_and_ladj((y - self.mean) / self.scale)
        return z.reshape(x.shape), volume + slope.sum(1) - self.scale.log().sum()

    def inverse(self, z: Tensor, cond: Tensor | None) -> Tensor:
        """Return x."""
        y: Tensor = self.mean + self.scale * self.flow(self._context(cond)).inv(z.flatten(1))
        x = (y.sigmoid() - EDGE) / (1 - 2 * EDGE) if self.levels else y
        return x.reshape(z.shape)


def activation(dropout: float) -> Activation:
    """Return the activation between dense layers."""
    return lambda: nn.Sequential(nn.SiLU(), nn.Dropout(dropout)) if dropout else nn.SiLU()


def coupling(layers: int, hidden: int, bins: int, dropout: float) -> Callable[[int, int], Any]:
    """RealNVP (arXiv:1605.08803): half of the values scale and shift the other half; fast in both directions."""
    options = {"transforms": layers, "hidden_features": (hidden, hidden), "activation": activation(dropout)}
    return lambda size, labels: zuko().flows.NICE(size, labels, **options)


def autoregressive(layers: int, hidden: int, bins: int, dropout: float) -> Callable[[int, int], Any]:
    """MAF (arXiv:1705.07057): each value is scaled and shifted given those before it; sampling needs one pass per value."""
    options = {"transforms": layers, "hidden_features": (hidden, hidden), "activation": activation(dropout)}
    return lambda size, labels: zuko().flows.MAF(size, labels, **options)


def spline(layers: int, hidden: int, bins: int, dropout: float) -> Callable[[int, int], Any]:
    """Neural spline flow (arXiv:1906.04032), autoregressive: a monotone spline of each value given those before it."""
    options = {"transforms": layers, "hidden_features": (hidden, hidden), "activation": activation(dropout), "bins": bins}
    return lambda size, labels: zuko().flows.NSF(size, labels, **options)


DENSE: dict[str, Callable[[int, int, int, float], Callable[[int, int], Any]]] = {
    "realnvp": coupling, "maf": autoregressive, "spline": spline,
}  # fmt: skip
