"""Codecs: invertible maps between user units and model units."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from reverie.base.errors import UserError


class Units(Protocol):
    """A map between user units and other units."""

    def encode(self, x: Tensor) -> Tensor:
        """Return data in these units."""

    def decode(self, z: Tensor) -> Tensor:
        """Return data in user units."""


class Codec(nn.Module, ABC):
    """A map between user units and model units.  x: (B, ...) in user units; z: (B, ...) in model units.

    levels: number of evenly spaced values in [-1, 1] of each number of z, None for real numbers; lossy: whether
    decode(encode(x)) only approximates x.
    """

    levels: int | None = None
    lossy = False

    def model_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of one datum in model units."""
        return shape

    @property
    def units(self) -> Codec:
        """The codec of the units of `picture`."""
        return self

    def picture(self, z: Tensor) -> Tensor:
        """Return the data to measure, in the units of `units`; a differentiable function of z."""
        return z

    def known_cells(self, seen: Tensor) -> Tensor:
        """Return which numbers of z are known, given which numbers of the data are.  seen: (...) bool, of one datum."""
        return seen

    def summary(self) -> dict[str, Any]:
        """Return properties worth reporting."""
        return {}

    def log_cell(self, shape: tuple[int, ...]) -> float:
        """Return the log-volume in model units of one datum's cell: a unit cube of user units, or the box of one level.

        log p(x) = log p(z) + log_cell; for levels, log p(x) is the probability of all values that are rounded to x.
        """
        raise UserError(
            f"the codec {type(self).__name__} does not track volumes, so it gives no likelihoods; use another codec"
        )

    @abstractmethod
    def encode(self, x: Tensor) -> Tensor:
        """Return z."""

    @abstractmethod
    def decode(self, z: Tensor) -> Tensor:
        """Return x."""


class Standard(Codec):
    """Points or time steps of series with mean 0 and standard deviation 1 in each coordinate: z = (x - mean) / std."""

    def __init__(self, mean: list[float], std: list[float]) -> None:
        super().__init__()
        if not mean or len(mean) != len(std) or min(std) <= 0:
            raise UserError("the standard codec needs equally many means and standard deviations, all above 0")
        self.mean, self.std = torch.tensor(mean), torch.tensor(std)

    def encode(self, x: Tensor) -> Tensor:
        """Return (x - mean) / std."""
        return (x - self.mean.to(x)) / self.std.to(x)

    def decode(self, z: Tensor) -> Tensor:
        """Return mean + std z."""
        return self.mean.to(z) + self.std.to(z) * z

    def log_cell(self, shape: tuple[int, ...]) -> float:
        """Return -sum log std, once for each time step of a series."""
        return -math.prod(shape[:-1]) * float(self.std.double().log().sum())


class Pixels(Codec):
    """Images: [0, 1] to [-1, 1] and back; values of samples outside [0, 1] are clipped."""

    levels = 256

    def __init__(self) -> None:
        super().__init__()

    def encode(self, x: Tensor) -> Tensor:
        """Return 2 x - 1."""
        return 2 * x - 1

    def decode(self, z: Tensor) -> Tensor:
        """Return (z + 1) / 2 within [0, 1]."""
        return ((z + 1) / 2).clamp(0, 1)

    def log_cell(self, shape: tuple[int, ...]) -> float:
        """Return D log(2 / 255)."""
        return math.prod(shape) * math.log(2 / (self.levels - 1))


class Levels(Codec):
    """Images with few of the 256 values: each becomes its rank among them, evenly spaced in [-1, 1].

    values: bytes, increasing.  Samples are rounded to the nearest level.
    """

    def __init__(self, values: list[int]) -> None:
        super().__init__()
        if len(values) < 2 or any(a >= b for a, b in pairwise(values)) or values[0] < 0 or values[-1] > 255:
            raise UserError("the codec of levels needs at least 2 increasing bytes")
        self.levels, self.values = len(values), torch.tensor(values)

    def encode(self, x: Tensor) -> Tensor:
        """Return -1 + 2 k / (K - 1) for the k-th of K values; bytes in between are rounded up."""
        rank = torch.searchsorted(self.values.to(x.device), (255 * x).round().long().contiguous()).clamp(max=self.count - 1)
        return 2 * rank.to(x.dtype) / (self.count - 1) - 1

    def decode(self, z: Tensor) -> Tensor:
        """Return the nearest level in [0, 1]."""
        rank = ((z + 1) * ((self.count - 1) / 2)).round().long().clamp(0, self.count - 1)
        return self.values.to(z.device)[rank].to(z.dtype) / 255

    @property
    def count(self) -> int:
        """The number of levels."""
        return len(self.values)

    def log_cell(self, shape: tuple[int, ...]) -> float:
        """Return D log(2 / (K - 1))."""
        return math.prod(shape) * math.log(2 / (self.count - 1))


def standard_spec(x: Tensor) -> dict[str, object]:
    """Return the spec of the codec that standardizes these points; constant coordinates are only shifted.  x: (N, D)."""
    mean, std = x.double().mean(0), x.double().std(0)
    return {"name": "standard", "mean": mean.tolist(), "std": torch.where(std > 0, std, 1.0).tolist()}


CODECS: dict[str, type[Codec]] = {"standard": Standard, "pixels": Pixels, "levels": Levels}
