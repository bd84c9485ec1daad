"""Measurements of clean data, y = A(x0) + noise: the forward operators of inverse problems.

A measurement is any differentiable function of a batch, (B, ...) -> (B, ...).  The named ones are linear and preserve
constants, so that they are the same in user units and in model units.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from reverie.base.errors import UserError

Measurement = Callable[[Tensor], Tensor]

LUMINANCE = (0.299, 0.587, 0.114)  # of red, green and blue, ITU-R BT.601: the grey of most image files


@dataclass(frozen=True)
class Keep:
    """Observation of a subset: A(x0) = x0 where known.  known: (...) bool, of one datum; y: (B, count)."""

    known: Tensor

    def __call__(self, x0: Tensor) -> Tensor:
        """Return the known numbers of each datum."""
        return x0[:, self.known.to(x0.device)]


class Degradation(ABC):
    """A named forward operator of images."""

    @abstractmethod
    def __call__(self, x0: Tensor) -> Tensor:
        """Return the measurement of clean images.  x0: (B, C, H, W)."""

    @abstractmethod
    def seen(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        """Return the shape of the measurement for images of this shape, (C, H, W); raise an error if there is none."""


@dataclass(frozen=True)
class Pool(Degradation):
    """Downsampling by average pooling over factor x factor pixels (arXiv:2201.11793)."""

    factor: Annotated[int, Field(ge=2, le=64)] = 4

    def __call__(self, x0: Tensor) -> Tensor:
        """Return the small images: (B, C, H / factor, W / factor)."""
        return functional.avg_pool2d(x0, self.factor)

    def seen(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        """Return (C, H / factor, W / factor)."""
        channels, height, width = shape
        if height % self.factor or width % self.factor:
            raise UserError(
                f"images of {height}x{width} are not made of squares of {self.factor} pixels; choose another factor"
            )
        return channels, height // self.factor, width // self.factor


@dataclass(frozen=True)
class Blur(Degradation):
    """Gaussian blur with replicated edges (arXiv:2201.11793); width is the std in pixels."""

    width: Annotated[float, Field(gt=0, le=100)] = 2.0

    def __call__(self, x0: Tensor) -> Tensor:
        """Return the blurred images: (B, C, H, W)."""
        rows, columns = (_blurring(size, self.width, x0) for size in x0.shape[-2:])
        return rows @ x0 @ columns.T

    def seen(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        """Return (C, H, W)."""
        channels, height, width = shape
        return channels, height, width


def _blurring(size: int, width: float, like: Tensor) -> Tensor:
    """Return the matrix (size, size) that blurs a line of pixels with replicated edges."""
    radius = max(1, round(4 * width))
    offsets = torch.arange(-radius, radius + 1, dtype=torch.float64)
    weights = (-(offsets**2) / (2 * width**2)).exp()
    indices = (torch.arange(size)[:, None] + offsets.long()).clamp(0, size - 1)
    matrix = torch.zeros(size, size, dtype=torch.float64).scatter_add_(1, indices, (weights / weights.sum()).expand(size, -1))
    return matrix.to(like)


@dataclass(frozen=True)
class Grey(Degradation):
    """Luminance, for colorization (arXiv:2201.11793)."""

    def __call__(self, x0: Tensor) -> Tensor:
        """Return the grey images: (B, 1, H, W)."""
        return torch.einsum("bchw,c->bhw", x0, x0.new_tensor(LUMINANCE))[:, None]

    def seen(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        """Return (1, H, W)."""
        channels, height, width = shape
        if channels != len(LUMINANCE):
            raise UserError(f"colorization needs images with 3 channels, got {channels}")
        return 1, height, width


MEASUREMENTS: dict[str, type[Degradation]] = {"upscale": Pool, "deblur": Blur, "colour": Grey}
