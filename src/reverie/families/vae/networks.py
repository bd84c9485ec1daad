"""Encoders and decoders: dense layers for small data, convolutions for larger images."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from reverie.base.errors import UserError
from reverie.nets.embedding import LabelEmbedding
from reverie.nets.unet import ResidualBlock, group_norm, zero_init

GROUPS, MAP_GROUPS = 8, 4  # of group normalisation
LABEL_WIDTH = 32  # of a label's embedding in convolutional networks


class DenseResidual(nn.Module):
    """h + W2 SiLU(W1 norm(h)), initially h.  h: (B, width)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.first, self.second = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)
        nn.init.zeros_(self.second.weight)
        nn.init.zeros_(self.second.bias)

    def forward(self, h: Tensor) -> Tensor:
        """Return (B, width)."""
        out: Tensor = h + self.second(functional.silu(self.first(self.norm(h))))
        return out


class ResidualMLP(nn.Module):
    """Dense layers around residual blocks, conditioned on labels: (B, *inputs) -> (B, *outputs)."""

    def __init__(self, inputs: tuple[int, ...], outputs: tuple[int, ...], hidden: int, blocks: int, labels: int) -> None:
        super().__init__()
        self.outputs = outputs
        self.label = LabelEmbedding(labels, hidden) if labels else None
        self.enter = nn.Linear(math.prod(inputs), hidden)
        self.blocks = nn.Sequential(*(DenseResidual(hidden) for _ in range(blocks)))
        self.leave = nn.Linear(hidden, math.prod(outputs))

    def forward(self, x: Tensor, cond: Tensor | None = None) -> Tensor:
        """Return (B, *outputs).  cond: (B,) labels or None."""
        h = self.enter(x.flatten(1))
        if self.label is not None:
            h = h + self.label(cond)
        out: Tensor = self.leave(functional.silu(self.blocks(functional.silu(h)))).unflatten(1, self.outputs)
        return out


class Linear(nn.Module):
    """One affine map: (B, *inputs) -> (B, *outputs)."""

    def __init__(self, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> None:
        super().__init__()
        self.outputs = outputs
        self.map = nn.Linear(math.prod(inputs), math.prod(outputs))

    def forward(self, x: Tensor, cond: Tensor | None = None) -> Tensor:
        """Return (B, *outputs); `cond` is ignored."""
        out: Tensor = self.map(x.flatten(1)).unflatten(1, self.outputs)
        return out


class MapResidual(nn.Module):
    """h + conv(SiLU(conv(SiLU(norm(h))))), initially h.  h: (B, width, H, W)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.first = group_norm(width, MAP_GROUPS), nn.Conv2d(width, width, 3, padding=1)
        self.second = zero_init(nn.Conv2d(width, width, 3, padding=1))

    def forward(self, h: Tensor) -> Tensor:
        """Return (B, width, H, W)."""
        out: Tensor = h + self.second(functional.silu(self.first(functional.silu(self.norm(h)))))
        return out


@dataclass(frozen=True)
class Patches:
    """Sizes of the networks for images in patches: a feature map of patches, downsampled by two, and dense layers.

    patch: pixels on a side; width: channels of the map; hidden: width of dense layers; blocks: residual blocks of the map.
    """

    patch: int
    width: int
    hidden: int
    blocks: int

    def map_of(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        """Return the shape of the map of an image; raise a UserError if there is none."""
        if len(shape) != 3:
            raise UserError(f"layers=patches needs images, and these are points of {shape[0]} coordinates; give layers=dense")
        if shape[1] % (2 * self.patch) or shape[2] % (2 * self.patch):
            raise UserError(f"images of {shape[1]}x{shape[2]} have no pairs of patches of {self.patch} pixels; give"
                            " another patch, or layers=dense")  # fmt: skip
        return self.width, shape[1] // (2 * self.patch), shape[2] // (2 * self.patch)


class PatchEncoder(nn.Module):
    """Convolutions over the patches of an image, and dense layers: (B, C, H, W) -> (B, outputs)."""

    def __init__(self, shape: tuple[int, ...], outputs: int, size: Patches, labels: int) -> None:
        super().__init__()
        width, self.patch = size.width, size.patch
        self.enter = nn.Conv2d(shape[0] * size.patch**2, width // 2, 3, padding=1)
        self.halve = nn.Conv2d(width // 2, width, 3, stride=2, padding=1)
        self.blocks = nn.Sequential(*(MapResidual(width) for _ in range(size.blocks)))
        self.flat = nn.Linear(math.prod(size.map_of(shape)), size.hidden)
        self.label = LabelEmbedding(labels, size.hidden) if labels else None
        self.leave = nn.Linear(size.hidden, outputs)

    def forward(self, x: Tensor, cond: Tensor | None = None) -> Tensor:
        """Return (B, outputs).  cond: (B,) labels or None."""
        folded = functional.pixel_unshuffle(x, self.patch).contiguous(memory_format=torch.channels_last)  # faster on a CPU
        h = self.halve(functional.silu(self.enter(folded)))
        h = self.flat(functional.silu(self.blocks(h)).flatten(1))
        if self.label is not None:
            h = h + self.label(cond)
        out: Tensor = self.leave(functional.silu(h))
        return out


class PatchDecoder(nn.Module):
    """The inverse direction: (B, inputs) -> (B, C, H, W, parameters)."""

    def __init__(self, inputs: int, shape: tuple[int, ...], parameters: int, size: Patches, labels: int) -> None:
        super().__init__()
        width, self.map, self.patch, self.parameters_each = size.width, size.map_of(shape), size.patch, parameters
        self.enter = nn.Linear(inputs, size.hidden)
        self.label = LabelEmbedding(labels, size.hidden) if labels else None
        self.widen = nn.Linear(size.hidden, math.prod(self.map))
        self.blocks = nn.Sequential(*(MapResidual(width) for _ in range(size.blocks)))
        self.twice = nn.Conv2d(width, 2 * width, 1)  # four channels become four pixels
        self.leave = nn.Conv2d(width // 2, shape[0] * parameters * size.patch**2, 5, padding=2)

    def forward(self, z: Tensor, cond: Tensor | None = None) -> Tensor:
        """Return the parameters of each pixel value.  cond: (B,) labels or None."""
        h = self.enter(z)
        if self.label is not None:
            h = h + self.label(cond)
        h = self.widen(functional.silu(h)).unflatten(1, self.map).contiguous(memory_format=torch.channels_last)
        h = functional.pixel_shuffle(self.twice(functional.silu(self.blocks(h))), 2)
        y: Tensor = functional.pixel_shuffle(self.leave(functional.silu(h)), self.patch).unflatten(
            1, (-1, self.parameters_each)
        )
        return y.movedim(2, -1)


class ConvEncoder(nn.Module):
    """Convolutions that halve an image between widths: (B, C, H, W) -> (B, outputs, H / 2^n, W / 2^n) for n + 1 widths."""

    def __init__(self, channels: int, outputs: int, widths: tuple[int, ...], labels: int) -> None:
        super().__init__()
        self.label = LabelEmbedding(labels, LABEL_WIDTH)
        self.enter = nn.Conv2d(channels, widths[0], 3, padding=1)
        self.blocks = nn.ModuleList(_block(width) for width in widths)
        self.halve = nn.ModuleList(nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in pairwise(widths))
        self.norm, self.leave = group_norm(widths[-1], GROUPS), nn.Conv2d(widths[-1], outputs, 3, padding=1)

    def forward(self, x: Tensor, cond: Tensor | None = None) -> Tensor:
        """Return the feature map.  cond: (B,) labels or None."""
        h, e = self.enter(x), self.label(cond)
        for k, block in enumerate(self.blocks):
            h = block(self.halve[k - 1](h) if k else h, e)
        out: Tensor = self.leave(functional.silu(self.norm(h)))
        return out


class ConvDecoder(nn.Module):
    """The inverse direction: (B, inputs, h, w) -> (B, C, 2^n h, 2^n w, parameters)."""

    def __init__(self, inputs: int, channels: int, parameters: int, widths: tuple[int, ...], labels: int) -> None:
        super().__init__()
        self.parameters_each, widths_up = parameters, widths[::-1]
        self.label = LabelEmbedding(labels, LABEL_WIDTH)
        self.enter = nn.Conv2d(inputs, widths_up[0], 3, padding=1)
        self.blocks = nn.ModuleList(_block(width) for width in widths_up)
        self.twice = nn.ModuleList(nn.Conv2d(a, 4 * b, 1) for a, b in pairwise(widths_up))  # four channels become four pixels
        self.norm, self.leave = group_norm(widths_up[-1], GROUPS), nn.Conv2d(widths_up[-1], channels * parameters, 3, padding=1)

    def forward(self, z: Tensor, cond: Tensor | None = None) -> Tensor:
        """Return the parameters of each pixel value.  cond: (B,) labels or None."""
        h, e = self.enter(z), self.label(cond)
        for k, block in enumerate(self.blocks):
            h = block(functional.pixel_shuffle(self.twice[k - 1](h), 2) if k else h, e)
        out: Tensor = self.leave(functional.silu(self.norm(h))).unflatten(1, (-1, self.parameters_each))
        return out.movedim(2, -1)


def _block(width: int) -> ResidualBlock:
    return ResidualBlock(width, width, LABEL_WIDTH, GROUPS, "scale-shift")


def conv_latent(shape: tuple[int, ...], latent: int, widths: tuple[int, ...]) -> tuple[int, int, int]:
    """Return the shape of the latent of convolutions; raise a UserError if there is none."""
    if len(shape) != 3:
        raise UserError(f"layers=conv needs images, and these are points of {shape[0]} coordinates; give layers=dense")
    factor = 2 ** (len(widths) - 1)
    if shape[1] % factor or shape[2] % factor:
        raise UserError(f"these convolutions halve an image {len(widths) - 1} times, so its sides must be multiples of"
                        f" {factor}, got {shape[1]}x{shape[2]}; give another --size or fewer widths")  # fmt: skip
    return latent, shape[1] // factor, shape[2] // factor
