"""The U-Net for images."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from reverie.base.errors import UserError
from reverie.nets.condition import ConditionEncoder, ImageChannels, Length, Numbers, TextCrossAttention, Words
from reverie.nets.embedding import LEVEL_SCALE, LabelEmbedding, Level, conditioning_projection, level_embedding
from reverie.nets.sdpa import scaled_dot_product_attention

Width = Annotated[int, Field(ge=4, le=1024)]
Exponent = Annotated[int, Field(ge=0, le=12)]


def group_norm(channels: int, groups: int, affine: bool = True) -> nn.GroupNorm:
    """Return a group normalization whose number of groups is the largest divisor of the channels up to `groups`."""
    return nn.GroupNorm(next(g for g in range(min(groups, channels), 0, -1) if channels % g == 0), channels, affine=affine)


def zero_init(layer: nn.Conv2d) -> nn.Conv2d:
    """Initialize a layer to zero, so that its branch contributes nothing initially."""
    nn.init.zeros_(layer.weight)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer


class ResidualBlock(nn.Module):
    """Two convolutions with a residual connection, conditioned on the noise level.

    scale-shift: h = conv(silu(norm(x))), then x + conv(silu(norm(h) (1 + scale) + shift)), with scale and shift from e.
    add: the projection of e is added to the input.  x: (B, in, H, W); e: (B, E).
    """

    def __init__(self, inputs: int, outputs: int, embedding: int, groups: int, conditioning: str, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout
        self.scales = conditioning == "scale-shift"
        self.first_norm, self.first = group_norm(inputs, groups), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.second_norm = group_norm(outputs, groups, affine=not self.scales)
        self.second = zero_init(nn.Conv2d(outputs, outputs, 3, padding=1))
        self.tell = nn.Linear(embedding, 2 * outputs if self.scales else inputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, e: Tensor) -> Tensor:
        """Return (B, out, H, W)."""
        condition = self.tell(e)[..., None, None]
        if self.scales:
            scale, shift = condition.chunk(2, dim=1)
            h = self.first(functional.silu(self.first_norm(x)))
            h = torch.addcmul(shift, self.second_norm(h), 1 + scale)
        else:
            x = x + condition
            h = self.second_norm(self.first(functional.silu(self.first_norm(x))))
        h = functional.silu(h)
        if self.dropout:
            h = functional.dropout(h, self.dropout, self.training)
        out: Tensor = self.shortcut(x) + self.second(h)
        return out


class SpatialSelfAttention(nn.Module):
    """Self-attention over all positions of a feature map, with a residual connection.  x: (B, C, H, W)."""

    def __init__(self, channels: int, groups: int, head: int = 32) -> None:
        super().__init__()
        self.heads = max(1, channels // head)
        while channels % self.heads:
            self.heads -= 1
        self.norm = group_norm(channels, groups)
        self.qkv = nn.Conv2d(channels, 3 * channels, 1)
        self.out = zero_init(nn.Conv2d(channels, channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return x plus the attention output."""
        b, c, h, w = x.shape
        qkv = self.qkv(self.norm(x)).reshape(b, 3, self.heads, c // self.heads, h * w).transpose(-1, -2)
        q, k, v = qkv.contiguous().unbind(1)  # non-contiguous inputs select a kernel that stores the attention matrix
        attended = scaled_dot_product_attention(q, k, v)
        out: Tensor = x + self.out(attended.transpose(-1, -2).reshape(b, c, h, w))
        return out


class UNet(nn.Module):
    """A U-Net: residual blocks at several resolutions, with skip connections (arXiv:1505.04597, arXiv:2006.11239).

    stem: side of the pixel squares folded into channels first (1: none).  widths: channels at each resolution, each half as
    large as the previous.  inputs, outputs: per number of the data.  fourier: exponents n of the features sin(2^n pi x) and
    cos(2^n pi x), which resolve the last bits of x (arXiv:2107.00630, appendix C).  dropout: rate in each block.  vocabulary,
    length, numbers, cond_channels: of condition vectors, see `ConditionEncoder`; text_layers: of its encoder; attends: whether
    to use cross-attention to the text.  x: (B, C inputs, H, W); level: (B,); cond: (B,) labels, (B, R) condition vectors or
    None; conditioning: (B, K), further parameters (augmentation, cluster) or None.
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
        cond_dim: Annotated[int, Field(ge=0, le=2048)] = 0,
        embedding: Level = "sinusoidal",
        inputs: Annotated[int, Field(ge=1, le=4)] = 1,
        outputs: Annotated[int, Field(ge=1, le=256)] = 1,
        fourier: Annotated[tuple[Exponent, ...], Field(max_length=8)] = (),
        dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0,
        vocabulary: Words = 0,
        length: Length = 0,
        numbers: Numbers = 0,
        cond_channels: ImageChannels = 0,
        text_layers: Annotated[int, Field(ge=0, le=12)] = 2,
        attends: bool = False,
    ) -> None:
        super().__init__()
        unit = stem * 2 ** (len(widths) - 1)
        if height % unit or width % unit:
            nearest = "x".join(str(max(1, round(side / unit)) * unit) for side in (height, width))
            raise UserError(
                f"this U-Net needs a height and width divisible by {unit}, got {height}x{width};"
                f" the nearest valid size is {nearest}"
            )
        self.stem, self.dropout = stem, dropout
        self.embed = level_embedding(embedding, 64)
        self.tell = nn.Sequential(nn.Linear(64, embedding_dim), nn.SiLU(), nn.Linear(embedding_dim, embedding_dim))
        self.label = LabelEmbedding(labels, embedding_dim) if labels else None
        self.told = conditioning_projection(cond_dim, embedding_dim) if cond_dim else None
        condition_sizes = vocabulary, length, numbers, cond_channels
        self.condition = (
            ConditionEncoder(*condition_sizes, (height, width), embedding_dim, text_layers) if any(condition_sizes) else None
        )

        def block(inputs: int, outputs: int) -> ResidualBlock:
            return ResidualBlock(inputs, outputs, embedding_dim, groups, conditioning, dropout)

        folded_channels = channels * stem**2
        self.fourier = fourier
        extra_channels = (cond_channels + 1) * stem**2 if cond_channels else 0
        self.enter = nn.Conv2d(folded_channels * inputs * (1 + 2 * len(fourier)) + extra_channels, widths[0], 3, padding=1)
        self.down, self.shrink = nn.ModuleList(), nn.ModuleList()
        for k, stage_width in enumerate(widths[:-1]):
            self.down.append(nn.ModuleList(block(stage_width, stage_width) for _ in range(blocks)))
            self.shrink.append(nn.Conv2d(stage_width, widths[k + 1], 2, stride=2))
        lowest = widths[-1]
        self.middle = nn.ModuleList(block(lowest, lowest) for _ in range(2 * blocks))
        self.attention = SpatialSelfAttention(lowest, groups) if attention else None
        self.cross = TextCrossAttention(lowest, self.condition.dim) if self.condition and vocabulary and attends else None
        self.grow, self.up = nn.ModuleList(), nn.ModuleList()
        for k in range(len(widths) - 2, -1, -1):
            stage_width = widths[k]
            self.grow.append(nn.ConvTranspose2d(widths[k + 1], stage_width, 2, stride=2))
            self.up.append(nn.ModuleList(block(2 * stage_width if i == 0 else stage_width, stage_width) for i in range(blocks)))
        self.leave_norm = group_norm(widths[0], groups)
        self.leave = zero_init(nn.Conv2d(widths[0], folded_channels * outputs, 3, padding=1))

    def forward(self, x: Tensor, level: Tensor, cond: Tensor | None = None, conditioning: Tensor | None = None) -> Tensor:
        """Return the output, (B, C outputs, H, W)."""
        e = self.tell(self.embed(level * LEVEL_SCALE))
        if self.label is not None:
            e = e + self.label(cond)
        if self.told is not None and conditioning is not None:
            e = e + self.told(conditioning)
        inputs = [x, *(function(2**n * math.pi * x) for n in self.fourier for function in (torch.sin, torch.cos))]
        text = None
        if self.condition is not None:
            vector, text, image = self.condition(cond, x)
            e, inputs = e + vector, [*inputs, *([] if image is None else [image])]
        e = functional.silu(e)
        h = self.enter(functional.pixel_unshuffle(torch.cat(inputs, 1) if inputs[1:] else x, self.stem))
        skips: list[Tensor] = []
        for stage, shrink in zip(self.down, self.shrink, strict=True):
            assert isinstance(stage, nn.ModuleList)
            for block in stage:
                h = block(h, e)
            skips.append(h)
            h = shrink(h)
        half = len(self.middle) // 2
        for k, block in enumerate(self.middle):
            h = block(h, e)
            if self.attention is not None and k + 1 == half:
                h = self.attention(h)
            if self.cross is not None and text is not None and k + 1 == half:
                h = self.cross.forward_map(h, *text)
        for stage, grow in zip(self.up, self.grow, strict=True):
            assert isinstance(stage, nn.ModuleList)
            h = torch.cat([grow(h), skips.pop()], dim=1)
            for block in stage:
                h = block(h, e)
        h = self.leave(functional.silu(self.leave_norm(h)))
        return functional.pixel_shuffle(h, self.stem)
