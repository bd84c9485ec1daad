"""Non-leaking augmentation: changes of training images that the network is conditioned on.

Each change is a function of a vector that is zero for an unchanged image.  The network receives it with the noise level
(arXiv:2206.00364, section F.2) and samples with zero, so that samples do not show the changes.
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
PROBABILITY = 0.12  # probability of each change (arXiv:2206.00364, table 6)
SHIFT, DEGREES, ZOOM = 0.125, 10.0, 1.2  # default limits, which are also the units of the vector
BRIGHTNESS, CONTRAST, SATURATION, HUE = 0.1, 0.2, 0.4, 0.3  # offset, two log factors, an angle in radians


class Augmentation(ABC):
    """A random change of images.  conditioned: whether the network is conditioned on it; probability: how often it applies."""

    conditioned: bool = True
    probability: float

    @abstractmethod
    def entries(self, channels: int) -> tuple[str, ...]:
        """Return the names of the entries of the vector."""

    def values(self, u: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return the entries for uniforms u in [-1, 1): (B, entries).  shape: (C, H, W)."""
        return u


class Warp(Augmentation):
    """A geometric change."""

    @abstractmethod
    def source(self, values: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return the affine maps from positions in the changed image to positions in the image: (B, 3, 3).

        Positions are (x, y, 1) in pixels from the centre, x to the right and y down.
        """


class Repaint(Augmentation):
    """A change of pixel values, or an exact move of pixels."""

    @abstractmethod
    def change(self, x: Tensor, values: Tensor) -> Tensor:
        """Return the changed images.  x: (B, C, H, W) in [0, 1]."""


@dataclass(frozen=True)
class Flip(Repaint):
    """Horizontal flip (arXiv:2206.00364): one entry, 0 or 1.  Unconditioned, the network also generates mirrored images."""

    probability: Probability = 0.5
    conditioned: bool = True

    def entries(self, channels: int) -> tuple[str, ...]:
        """Return one name."""
        return ("flip",)

    def values(self, u: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return 1 for each image."""
        return torch.ones_like(u)

    def change(self, x: Tensor, values: Tensor) -> Tensor:
        """Return the flipped images."""
        return torch.where(values[:, :, None, None] > 0.5, x.flip(-1), x)


@dataclass(frozen=True)
class Shift(Warp):
    """Shift by whole pixels, at most this share of the width and height (arXiv:2206.00364)."""

    share: Annotated[float, Field(gt=0, le=0.5)] = SHIFT
    probability: Probability = PROBABILITY

    def entries(self, channels: int) -> tuple[str, ...]:
        """Return the names of the two directions."""
        return ("shift right", "shift down")

    def values(self, u: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return whole pixels as shares of the sides, in units of the default limit."""
        sides = torch.tensor([shape[2], shape[1]])
        return (u * (self.share * sides + 0.5)).round() / (sides * SHIFT)

    def source(self, values: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return the inverse shifts."""
        sides = torch.tensor([shape[2], shape[1]])
        maps = torch.eye(3).repeat(len(values), 1, 1)
        maps[:, :2, 2] = -values * SHIFT * sides
        return maps


@dataclass(frozen=True)
class Rotate(Warp):
    """Rotation about the centre by at most this angle in degrees either way (arXiv:2206.00364)."""

    degrees: Annotated[float, Field(gt=0, le=180)] = DEGREES
    probability: Probability = PROBABILITY

    def entries(self, channels: int) -> tuple[str, ...]:
        """Return one name."""
        return ("rotate",)

    def values(self, u: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return angles in units of the default limit."""
        return u * self.degrees / DEGREES

    def source(self, values: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return the inverse rotations."""
        angle = values[:, 0] * math.radians(DEGREES)
        maps = torch.eye(3).repeat(len(values), 1, 1)
        maps[:, 0, 0] = maps[:, 1, 1] = angle.cos()
        maps[:, 0, 1], maps[:, 1, 0] = angle.sin(), -angle.sin()
        return maps


@dataclass(frozen=True)
class Zoom(Warp):
    """Zoom about the centre, at most by this factor (arXiv:2206.00364)."""

    factor: Annotated[float, Field(gt=1, le=4)] = ZOOM
    probability: Probability = PROBABILITY

    def entries(self, channels: int) -> tuple[str, ...]:
        """Return one name."""
        return ("zoom",)

    def values(self, u: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return log factors in units of the default limit."""
        return u * math.log(self.factor) / math.log(ZOOM)

    def source(self, values: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return the inverse zooms."""
        maps = torch.eye(3).repeat(len(values), 1, 1)
        maps[:, :2, :2] *= torch.exp(-values * math.log(ZOOM))[:, :, None]
        return maps


@dataclass(frozen=True)
class Colour(Repaint):
    """Changes of brightness and contrast, for colour images also saturation and hue (arXiv:2206.00364).

    rgb - 1/2 -> exp(c) (G + exp(s) R_h (1 - G)) (rgb - 1/2) + b: G projects onto grey, R_h rotates about the grey axis by h.
    """

    strength: Annotated[float, Field(gt=0, le=5)] = 1.0
    probability: Probability = PROBABILITY

    def entries(self, channels: int) -> tuple[str, ...]:
        """Return two names for grey images, four for colour."""
        return ("brightness", "contrast") if channels == 1 else ("brightness", "contrast", "saturation", "hue")

    def values(self, u: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return entries in units of the default limit."""
        return u * self.strength

    def change(self, x: Tensor, values: Tensor) -> Tensor:
        """Return recoloured images; values may leave [0, 1] slightly, so that the change stays affine."""
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
    """Several augmentations of images of one shape: (x, seed) -> changed x and the conditioned entries.

    The images are a function of the vector, and the vector of the seed.
    """

    def __init__(self, parts: Sequence[Augmentation], shape: tuple[int, ...]) -> None:
        self.parts, self.shape = tuple(parts), shape
        counts = [len(part.entries(shape[0])) for part in self.parts]
        ends = [sum(counts[: k + 1]) for k in range(len(counts))]
        self.slices = [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]
        self.conditioned = [
            k
            for part, part_slice in zip(self.parts, self.slices, strict=True)
            if part.conditioned
            for k in _indices(part_slice)
        ]

    def draw(self, n: int, seed: int) -> Tensor:
        """Return the vectors of n images: (n, entries) on the CPU, zero where nothing changes."""
        random = torch.Generator().manual_seed(seed)
        entries = []
        for part, part_slice in zip(self.parts, self.slices, strict=True):
            u = torch.rand(n, 1 + len(_indices(part_slice)), generator=random)
            applied = u[:, :1] < part.probability
            entries.append(part.values(2 * u[:, 1:] - 1, self.shape) * applied + 0.0)  # + 0: no negative zeros
        return torch.cat(entries, 1)

    def apply(self, x: Tensor, vector: Tensor) -> Tensor:
        """Return images changed by the vectors; zero vectors leave them unchanged.  x: (B, C, H, W) in [0, 1]."""
        x, maps = x.clone(), torch.eye(3).repeat(len(x), 1, 1)
        for part, part_slice in zip(self.parts, self.slices, strict=True):
            chosen = vector[:, part_slice].any(1).nonzero()[:, 0]
            if not len(chosen):
                continue
            values = vector[chosen, part_slice]
            if isinstance(part, Warp):
                maps[chosen] = maps[chosen] @ part.source(values, self.shape)
            elif isinstance(part, Repaint):
                target = chosen.to(x.device)
                x[target] = part.change(x[target], values.to(x.device))
        warped = (maps != torch.eye(3)).flatten(1).any(1).nonzero()[:, 0]
        if len(warped):
            target = warped.to(x.device)
            x[target] = _resample(x[target], maps[warped].to(x.device))
        return x

    def __call__(self, x: Tensor, seed: int) -> tuple[Tensor, Tensor | None]:
        """Return changed images and the entries that the network is conditioned on, (B, entries), or None without any."""
        vector = self.draw(len(x), seed)
        # in full precision even under bfloat16 autocast, as pixel positions need it
        with torch.autocast("cpu", enabled=False), torch.autocast(x.device.type, enabled=False):
            changed = self.apply(x, vector)
        return changed, vector[:, self.conditioned].to(x.device) if self.conditioned else None


def _indices(entries: slice) -> range:
    return range(entries.start, entries.stop)


def _resample(x: Tensor, maps: Tensor) -> Tensor:
    """Return images resampled by the maps; beyond the edge the image is reflected."""
    height, width = x.shape[-2:]
    scale = torch.tensor([2 / width, 2 / height, 1.0], device=x.device)  # pixels from the centre to torch's units
    grid = functional.affine_grid((scale[:, None] * maps / scale)[:, :2], list(x.shape), align_corners=False)
    return functional.grid_sample(x, grid, padding_mode="reflection", align_corners=False)


def parse_augmentations(requested: str | Sequence[str | Spec]) -> tuple[Spec, ...]:
    """Parse `flip,shift:share=0.2,probability=0.3` into complete specs, in the order of the table."""
    requested_specs = re.split(r",(?!\s*\w+\s*=)", requested) if isinstance(requested, str) else requested
    specs = [complete(AUGMENTATIONS, one.strip() if isinstance(one, str) else one, "augmentation") for one in requested_specs]
    names = [spec["name"] for spec in specs]
    if duplicates := [name for name in AUGMENTATIONS if names.count(name) > 1]:
        raise UserError(f"the augmentation {duplicates[0]!r} is given twice; give it once")
    return tuple(sorted(specs, key=lambda spec: list(AUGMENTATIONS).index(spec["name"])))


def build_augment(specs: Sequence[Spec], shape: tuple[int, ...]) -> Augment | None:
    """Build the augmentation of specs for images of a shape; None without specs."""
    if specs and kind_of(shape) != "images":
        raise UserError("points cannot be augmented: augmentations are for images; leave --augment out")
    return Augment([build(AUGMENTATIONS, spec, "augmentation") for spec in specs], shape) if specs else None


def conditioned_entries(specs: Sequence[Spec], shape: tuple[int, ...]) -> tuple[str, ...]:
    """Return the names of the entries that the network is conditioned on."""
    parts = [build(AUGMENTATIONS, spec, "augmentation") for spec in specs]
    return tuple(name for part in parts if part.conditioned for name in part.entries(shape[0]))
