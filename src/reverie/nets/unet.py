"""The U-Net for images."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from reverie.base.errors import UserError
from reverie.nets.condition import ConditionEncoder, CrossAttention, Length, Numbers, Seen, Words
from reverie.nets.embedding import LEVEL_SCALE, LabelEmbedding, Level, level_embedding, map_of_told
from reverie.nets.sdpa import attended

Width = Annotated[int, Field(ge=4, le=1024)]
Exponent = Annotated[int, Field(ge=0, le=12)]


def norm(channels: int, groups: int, affine: bool = True) -> nn.GroupNorm:
    """Return a group normalisation with about as many groups as wished for, a divisor of the channels."""
    return nn.GroupNorm(next(g for g in range(min(groups, channels), 0, -1) if channels % g == 0), channels, affine=affine)


def silent(layer: nn.Conv2d) -> nn.Conv2d:
    """Set a layer's weights to zero, so that what it feeds starts as if the layer were not there."""
    nn.init.zeros_(layer.weight)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer


class Block(nn.Module):
    """Two convolutions around a shortcut, told of the noise level.

    scale-shift: h = conv(silu(norm(x))), then x + conv(silu(norm(h) (1 + scale) + shift)), scale and shift from e.
    add: the projection of e is added to the block's input, as in the teaching U-Net.  x: (B, in, H, W); e: (B, E).
    """

    def __init__(self, inputs: int, outputs: int, embedding: int, groups: int, conditioning: str, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout
        self.scales = conditioning == "scale-shift"
        self.first_norm, self.first = norm(inputs, groups), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.second_norm = norm(outputs, groups, affine=not self.scales)
        self.second = silent(nn.Conv2d(outputs, outputs, 3, padding=1))
        self.tell = nn.Linear(embedding, 2 * outputs if self.scales else inputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, e: Tensor) -> Tensor:
        """Return (B, out, H, W)."""
        told = self.tell(e)[..., None, None]
        if self.scales:
            scale, shift = told.chunk(2, dim=1)
            h = self.first(functional.silu(self.first_norm(x)))
            h = torch.addcmul(shift, self.second_norm(h), 1 + scale)
        else:
            x = x + told
            h = self.second_norm(self.first(functional.silu(self.first_norm(x))))
        h = functional.silu(h)
        if self.dropout:
            h = functional.dropout(h, self.dropout, self.training)
        out: Tensor = self.shortcut(x) + self.second(h)
        return out


class Attention(nn.Module):
    """Self-attention over all places of a small map, around a shortcut.  x: (B, C, H, W)."""

    def __init__(self, channels: int, groups: int, head: int = 32) -> None:
        super().__init__()
        self.heads = max(1, channels // head)
        while channels % self.heads:
            self.heads -= 1
        self.norm = norm(channels, groups)
        self.qkv = nn.Conv2d(channels, 3 * channels, 1)
        self.out = silent(nn.Conv2d(channels, channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return x plus what each place has gathered from all others."""
        b, c, h, w = x.shape
        qkv = self.qkv(self.norm(x)).reshape(b, 3, self.heads, c // self.heads, h * w).transpose(-1, -2)
        q, k, v = qkv.contiguous().unbind(1)  # else torch takes a way that holds the whole table of pairs
        gathered = attended(q, k, v)
        out: Tensor = x + self.out(gathered.transpose(-1, -2).reshape(b, c, h, w))
        return out


class UNet(nn.Module):
    """Residual blocks on maps that shrink and grow again, with shortcuts between equal sizes (arXiv:1505.04597, 2006.11239).

    stem: side of the squares of pixels folded into channels before anything else (1 is none).  widths: channels at each
    resolution, each half as fine as the one before.  inputs, outputs: for each number of the data.  fourier: exponents n of
    sin(2^n pi x) and cos(2^n pi x), which are put beside x, so that its last bits can be seen (arXiv:2107.00630, appendix C).
    dropout: share of each block's numbers that are hidden in training.  words, length, numbers, seen: of a condition that is a
    row, see `ConditionEncoder`; text_layers: of its encoder; attends: whether maps attend to its words (cross-attention).
    x: (B, C inputs, H, W); level: (B,); cond: (B,) labels, (B, R) rows or None; told: (B, K) or None.
    """

    def __init__(
        self,
        channels: Annotated[int, Field(ge=1, le=64)] = 1,
        height: Annotated[int, Field(ge=1, le=1024)] = 28,
        width: Annotated[int, Field(ge=1, le=1024)] = 28,
        widths: Annotated[tuple[Width, ...], Field(min_length=1, max_length=8)] = (32, 64),
        blocks: Annotated[int, Field(ge=1, le=16)] = 1,
        stem: Annotated[int, Field(ge=1, le=8)] = 2,
        attention: bool = True,
        groups: Annotated[int, Field(ge=1, le=64)] = 8,
        embedding_dim: Width = 96,
        conditioning: Literal["scale-shift", "add"] = "scale-shift",
        labels: Annotated[int, Field(ge=0, le=100_000)] = 0,
        told: Annotated[int, Field(ge=0, le=2048)] = 0,
        embedding: Level = "sinusoidal",
        inputs: Annotated[int, Field(ge=1, le=4)] = 1,
        outputs: Annotated[int, Field(ge=1, le=256)] = 1,
        fourier: Annotated[tuple[Exponent, ...], Field(max_length=8)] = (),
        dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0,
        words: Words = 0,
        length: Length = 0,
        numbers: Numbers = 0,
        seen: Seen = 0,
        text_layers: Annotated[int, Field(ge=0, le=12)] = 2,
        attends: bool = False,
    ) -> None:
        super().__init__()
        unit = stem * 2 ** (len(widths) - 1)
        if height % unit or width % unit:
            legal = "x".join(str(max(1, round(side / unit)) * unit) for side in (height, width))
            raise UserError(
                f"this U-Net needs a height and width divisible by {unit}, got {height}x{width};"
                f" the nearest legal size is {legal}"
            )
        self.stem, self.dropout = stem, dropout
        self.embed = level_embedding(embedding, 64)
        self.tell = nn.Sequential(nn.Linear(64, embedding_dim), nn.SiLU(), nn.Linear(embedding_dim, embedding_dim))
        self.label = LabelEmbedding(labels, embedding_dim) if labels else None
        self.told = map_of_told(told, embedding_dim) if told else None
        row = words, length, numbers, seen
        self.condition = ConditionEncoder(*row, (height, width), embedding_dim, text_layers) if any(row) else None

        def block(inputs: int, outputs: int) -> Block:
            return Block(inputs, outputs, embedding_dim, groups, conditioning, dropout)

        folded = channels * stem**2
        self.fourier = fourier
        beside = (seen + 1) * stem**2 if seen else 0
        self.enter = nn.Conv2d(folded * inputs * (1 + 2 * len(fourier)) + beside, widths[0], 3, padding=1)
        self.down, self.shrink = nn.ModuleList(), nn.ModuleList()
        for k, wide in enumerate(widths[:-1]):
            self.down.append(nn.ModuleList(block(wide, wide) for _ in range(blocks)))
            self.shrink.append(nn.Conv2d(wide, widths[k + 1], 2, stride=2))
        low = widths[-1]
        self.middle = nn.ModuleList(block(low, low) for _ in range(2 * blocks))
        self.attention = Attention(low, groups) if attention else None
        self.cross = CrossAttention(low, self.condition.dim) if self.condition and words and attends else None
        self.grow, self.up = nn.ModuleList(), nn.ModuleList()
        for k in range(len(widths) - 2, -1, -1):
            wide = widths[k]
            self.grow.append(nn.ConvTranspose2d(widths[k + 1], wide, 2, stride=2))
            self.up.append(nn.ModuleList(block(2 * wide if i == 0 else wide, wide) for i in range(blocks)))
        self.leave_norm = norm(widths[0], groups)
        self.leave = silent(nn.Conv2d(widths[0], folded * outputs, 3, padding=1))

    def forward(self, x: Tensor, level: Tensor, cond: Tensor | None = None, told: Tensor | None = None) -> Tensor:
        """Return the output, (B, C outputs, H, W)."""
        e = self.tell(self.embed(level * LEVEL_SCALE))
        if self.label is not None:
            e = e + self.label(cond)
        if self.told is not None and told is not None:
            e = e + self.told(told)
        entering = [x, *(wave(2**n * math.pi * x) for n in self.fourier for wave in (torch.sin, torch.cos))]
        text = None
        if self.condition is not None:
            vector, text, image = self.condition(cond, x)
            e, entering = e + vector, [*entering, *([] if image is None else [image])]
        e = functional.silu(e)
        h = self.enter(functional.pixel_unshuffle(torch.cat(entering, 1) if entering[1:] else x, self.stem))
        kept: list[Tensor] = []
        for stage, shrink in zip(self.down, self.shrink, strict=True):
            assert isinstance(stage, nn.ModuleList)
            for block in stage:
                h = block(h, e)
            kept.append(h)
            h = shrink(h)
        half = len(self.middle) // 2
        for k, block in enumerate(self.middle):
            h = block(h, e)
            if self.attention is not None and k + 1 == half:
                h = self.attention(h)
            if self.cross is not None and text is not None and k + 1 == half:
                h = self.cross.over_map(h, *text)
        for stage, grow in zip(self.up, self.grow, strict=True):
            assert isinstance(stage, nn.ModuleList)
            h = torch.cat([grow(h), kept.pop()], dim=1)
            for block in stage:
                h = block(h, e)
        h = self.leave(functional.silu(self.leave_norm(h)))
        return functional.pixel_shuffle(h, self.stem)
