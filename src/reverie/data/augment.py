"""Augmentation: changes of training images of which the network is told, so that they do not show in what it draws.

Each change is a function of a vector that is zero where nothing was done.  The network gets the vector beside the noise level
(arXiv:2206.00364, section F.2); it samples with zero, where most of the images it learned from are unchanged.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from reverie.base.errors import UserError
from reverie.base.spec import Spec, build, complete
from reverie.data.kind import kind_of

Probability = Annotated[float, Field(gt=0, le=1)]
USED = 0.12  # how often each change is made (arXiv:2206.00364, table 6)
SHIFT, DEGREES, ZOOM = 0.125, 10.0, 1.2  # the usual limits, which are also the units in which the network is told
BRIGHTNESS, CONTRAST, SATURATION, HUE = 0.1, 0.2, 0.4, 0.3  # offset, two logarithms of factors, an angle in radians


class Augmentation(ABC):
    """A change of images.  conditioned: whether the network is conditioned on it; probability: how often it is made."""

    conditioned: bool = True
    probability: float

    @abstractmethod
    def entries(self, channels: int) -> tuple[str, ...]:
        """Return the names of the numbers that say what was done."""

    def values(self, u: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return these numbers for uniforms u in [-1, 1): (B, entries).  shape: (C, H, W)."""
        return u


class Warp(Augmentation):
    """A change of where things are."""

    @abstractmethod
    def source(self, values: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return the affine maps from places of the changed image to places of the image: (B, 3, 3).

        Places are (x, y, 1) in pixels from the centre, x to the right and y downwards.
        """


class Repaint(Augmentation):
    """A change that leaves every place where it is, or moves places exactly."""

    @abstractmethod
    def change(self, x: Tensor, values: Tensor) -> Tensor:
        """Return changed images.  x: (B, C, H, W) in [0, 1]."""


@dataclass(frozen=True)
class Flip(Repaint):
    """Left and right exchanged: one entry, 0 or 1.  Untold it teaches that a mirrored image is as good as the image."""

    probability: Probability = 0.5
    conditioned: bool = True

    def entries(self, channels: int) -> tuple[str, ...]:
        """Return one name."""
        return ("flip",)

    def values(self, u: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return one for each image that is mirrored."""
        return torch.ones_like(u)

    def change(self, x: Tensor, values: Tensor) -> Tensor:
        """Return the mirrored images."""
        return torch.where(values[:, :, None, None] > 0.5, x.flip(-1), x)


@dataclass(frozen=True)
class Shift(Warp):
    """Moved to the right and downwards by whole pixels, at most this share of the width and height."""

    share: Annotated[float, Field(gt=0, le=0.5)] = SHIFT
    probability: Probability = USED

    def entries(self, channels: int) -> tuple[str, ...]:
        """Return the names of the two directions."""
        return ("shift right", "shift down")

    def values(self, u: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return whole pixels as shares of the sides, in units of the usual limit."""
        sides = torch.tensor([shape[2], shape[1]])
        return (u * (self.share * sides + 0.5)).round() / (sides * SHIFT)

    def source(self, values: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return the maps that look as far to the left and up."""
        sides = torch.tensor([shape[2], shape[1]])
        maps = torch.eye(3).repeat(len(values), 1, 1)
        maps[:, :2, 2] = -values * SHIFT * sides
        return maps


@dataclass(frozen=True)
class Rotate(Warp):
    """Turned clockwise about the centre by at most so many degrees either way."""

    degrees: Annotated[float, Field(gt=0, le=180)] = DEGREES
    probability: Probability = USED

    def entries(self, channels: int) -> tuple[str, ...]:
        """Return one name."""
        return ("rotate",)

    def values(self, u: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return angles in units of the usual limit."""
        return u * self.degrees / DEGREES

    def source(self, values: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return the maps that turn back."""
        angle = values[:, 0] * math.radians(DEGREES)
        maps = torch.eye(3).repeat(len(values), 1, 1)
        maps[:, 0, 0] = maps[:, 1, 1] = angle.cos()
        maps[:, 0, 1], maps[:, 1, 0] = angle.sin(), -angle.sin()
        return maps


@dataclass(frozen=True)
class Zoom(Warp):
    """Made larger or smaller about the centre, at most by this factor."""

    factor: Annotated[float, Field(gt=1, le=4)] = ZOOM
    probability: Probability = USED

    def entries(self, channels: int) -> tuple[str, ...]:
        """Return one name."""
        return ("zoom",)

    def values(self, u: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return logarithms of factors in units of that of the usual limit."""
        return u * math.log(self.factor) / math.log(ZOOM)

    def source(self, values: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return the maps that shrink what was made larger."""
        maps = torch.eye(3).repeat(len(values), 1, 1)
        maps[:, :2, :2] *= torch.exp(-values * math.log(ZOOM))[:, :, None]
        return maps


@dataclass(frozen=True)
class Colour(Repaint):
    """Brightness and contrast, and for colour images saturation and hue; transparency stays.

    rgb - 1/2 -> exp(c) (G + exp(s) R_h (1 - G)) (rgb - 1/2) + b: G projects on grey, R_h turns about the axis of grey by h.
    """

    strength: Annotated[float, Field(gt=0, le=5)] = 1.0
    probability: Probability = USED

    def entries(self, channels: int) -> tuple[str, ...]:
        """Return two names for grey images and four for colour."""
        return ("brightness", "contrast") if channels == 1 else ("brightness", "contrast", "saturation", "hue")

    def values(self, u: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return numbers of which 1 is the usual limit."""
        return u * self.strength

    def change(self, x: Tensor, values: Tensor) -> Tensor:
        """Return images in other colours; they may leave [0, 1] by a little, so that the change stays affine."""
        factor = torch.exp(CONTRAST * values[:, 1])[:, None, None]
        offset = BRIGHTNESS * values[:, 0, None, None, None]
        if x.shape[1] == 1:
            return torch.addcmul(0.5 + offset, x - 0.5, factor[..., None])
        grey = torch.full((3, 3), 1 / 3, device=x.device)
        axis = torch.tensor([[0.0, -1, 1], [1, 0, -1], [-1, 1, 0]], device=x.device) / math.sqrt(3)  # v -> axis x v
        h, s = (HUE * values[:, 3])[:, None, None], torch.exp(SATURATION * values[:, 2])[:, None, None]
        matrix = factor * (grey + s * (h.cos() * (torch.eye(3, device=x.device) - grey) + h.sin() * axis))
        rgb = torch.einsum("bij,bjhw->bihw", matrix, x[:, :3] - 0.5) + (0.5 + offset)
        return torch.cat([rgb, x[:, 3:]], 1)


AUGMENTATIONS: dict[str, type[Augmentation]] = {
    "flip": Flip, "shift": Shift, "rotate": Rotate, "zoom": Zoom, "colour": Colour,
}  # fmt: skip


class Augment:
    """Several augmentations of images of one shape, made together: (x, seed) -> changed x and what the network is told.

    All is a function of the vector, and the vector is one of the seed.
    """

    def __init__(self, parts: Sequence[Augmentation], shape: tuple[int, ...]) -> None:
        self.parts, self.shape = tuple(parts), shape
        counts = [len(part.entries(shape[0])) for part in self.parts]
        ends = [sum(counts[: k + 1]) for k in range(len(counts))]
        self.places = [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]
        self.conditioned = [
            k for part, place in zip(self.parts, self.places, strict=True) if part.conditioned for k in _numbers(place)
        ]

    def draw(self, n: int, seed: int) -> Tensor:
        """Return what is to be done to n images: (n, entries) on the CPU, zero where nothing is."""
        random = torch.Generator().manual_seed(seed)
        found = []
        for part, place in zip(self.parts, self.places, strict=True):
            u = torch.rand(n, 1 + len(_numbers(place)), generator=random)
            used = u[:, :1] < part.probability
            found.append(part.values(2 * u[:, 1:] - 1, self.shape) * used + 0.0)  # + 0: no negative zeros
        return torch.cat(found, 1)

    def apply(self, x: Tensor, vector: Tensor) -> Tensor:
        """Return images changed as the vectors say; those of zero vectors are what they were.  x: (B, C, H, W) in [0, 1]."""
        x, maps = x.clone(), torch.eye(3).repeat(len(x), 1, 1)
        for part, place in zip(self.parts, self.places, strict=True):
            chosen = vector[:, place].any(1).nonzero()[:, 0]
            if not len(chosen):
                continue
            values = vector[chosen, place]
            if isinstance(part, Warp):
                maps[chosen] = maps[chosen] @ part.source(values, self.shape)
            elif isinstance(part, Repaint):
                there = chosen.to(x.device)
                x[there] = part.change(x[there], values.to(x.device))
        moved = (maps != torch.eye(3)).flatten(1).any(1).nonzero()[:, 0]
        if len(moved):
            there = moved.to(x.device)
            x[there] = _resample(x[there], maps[moved].to(x.device))
        return x

    def __call__(self, x: Tensor, seed: int) -> tuple[Tensor, Tensor | None]:
        """Return changed images and what the network is told, (B, told), or None where it is told nothing."""
        vector = self.draw(len(x), seed)
        # in full digits also within a step that is computed in bfloat16: places of pixels need them
        with torch.autocast("cpu", enabled=False), torch.autocast(x.device.type, enabled=False):
            changed = self.apply(x, vector)
        return changed, vector[:, self.conditioned].to(x.device) if self.conditioned else None


def _numbers(place: slice) -> range:
    return range(place.start, place.stop)


def _resample(x: Tensor, maps: Tensor) -> Tensor:
    """Return images whose places show what the maps point to; beyond the edge the image goes on mirrored."""
    height, width = x.shape[-2:]
    scale = torch.tensor([2 / width, 2 / height, 1.0], device=x.device)  # pixels from the centre to torch's units
    grid = functional.affine_grid((scale[:, None] * maps / scale)[:, :2], list(x.shape), align_corners=False)
    return functional.grid_sample(x, grid, padding_mode="reflection", align_corners=False)


def parse_augmentations(wished: str | Sequence[str | Spec]) -> tuple[Spec, ...]:
    """Read `flip,shift:share=0.2,probability=0.3` into specs with every option, in the order of the table."""
    named = re.split(r",(?!\s*\w+\s*=)", wished) if isinstance(wished, str) else wished
    specs = [complete(AUGMENTATIONS, one.strip() if isinstance(one, str) else one, "augmentation") for one in named]
    names = [spec["name"] for spec in specs]
    if twice := [name for name in AUGMENTATIONS if names.count(name) > 1]:
        raise UserError(f"the augmentation {twice[0]!r} is given twice")
    return tuple(sorted(specs, key=lambda spec: list(AUGMENTATIONS).index(spec["name"])))


def build_augment(specs: Sequence[Spec], shape: tuple[int, ...]) -> Augment | None:
    """Make what specs name for images of a shape; None where there are none."""
    if specs and kind_of(shape) != "images":
        raise UserError("points cannot be augmented: flips, shifts and colours are for images; leave --augment out")
    return Augment([build(AUGMENTATIONS, spec, "augmentation") for spec in specs], shape) if specs else None


def conditioned_entries(specs: Sequence[Spec], shape: tuple[int, ...]) -> tuple[str, ...]:
    """Return the names of the numbers that the network is told."""
    parts = [build(AUGMENTATIONS, spec, "augmentation") for spec in specs]
    return tuple(name for part in parts if part.conditioned for name in part.entries(shape[0]))
