"""The diffusion transformer for images."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from reverie.base.errors import UserError
from reverie.nets.condition import ConditionEncoder, ImageChannels, Length, Numbers, TextCrossAttention, Words
from reverie.nets.embedding import (
    LEVEL_SCALE,
    LabelEmbedding,
    Level,
    SinusoidalEmbedding,
    conditioning_projection,
    level_embedding,
)
from reverie.nets.sdpa import scaled_dot_product_attention

MAX_PATCHES = 2**16  # attention is quadratic in the number of patches


def places(height: int, width: int, dim: int) -> Tensor:
    """Return 2-D sinusoidal position embeddings, half of each for the row and half for the column: (height width, dim)."""
    if (table := torch.empty(height * width, dim)).is_meta:
        return table
    embed = SinusoidalEmbedding(dim // 2)
    rows, columns = embed(torch.arange(height).float()), embed(torch.arange(width).float())
    grid = torch.cat([rows[:, None].expand(-1, width, -1), columns[None].expand(height, -1, -1)], dim=-1)
    return grid.reshape(height * width, dim)


class DiTBlock(nn.Module):
    """A transformer block with adaLN-zero: attention and an MLP, each with scale, shift and a gate that is initially zero.

    x: (B, L, D); e: (B, D).
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.tell = nn.Linear(dim, 6 * dim)
        nn.init.zeros_(self.tell.weight)
        nn.init.zeros_(self.tell.bias)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.dense = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(approximate="tanh"), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor, e: Tensor) -> Tensor:
        """Return (B, L, D)."""
        shift1, scale1, gate1, shift2, scale2, gate2 = self.tell(e)[:, None].chunk(6, dim=-1)
        b, length, dim = x.shape
        h = torch.addcmul(shift1, functional.layer_norm(x, (dim,)), 1 + scale1)
        q, k, v = self.qkv(h).reshape(b, length, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, length, dim)
        x = torch.addcmul(x, gate1, self.out(attended))
        h = torch.addcmul(shift2, functional.layer_norm(x, (dim,)), 1 + scale2)
        return torch.addcmul(x, gate2, self.dense(h))


class Transformer(nn.Module):
    """A diffusion transformer on image patches, conditioned on the noise level in every layer (DiT, arXiv:2212.09748).

    inputs, outputs: per number of the data; vocabulary, length, numbers, cond_channels, text_layers, attends: as in `UNet`.
    x: (B, C inputs, H, W); level: (B,); cond: (B,) labels, (B, R) condition vectors or None; conditioning: (B, K) or None.
    """

    def __init__(
        self,
        channels: Annotated[int, Field(ge=1, le=64)] = 1,
        height: Annotated[int, Field(ge=1, le=1024)] = 28,
        width: Annotated[int, Field(ge=1, le=1024)] = 28,
        patch: Annotated[int, Field(ge=1, le=64)] = 4,
        dim: Annotated[int, Field(ge=8, le=2048)] = 128,
        layers: Annotated[int, Field(ge=1, le=64)] = 4,
        heads: Annotated[int, Field(ge=1, le=64)] = 4,
        labels: Annotated[int, Field(ge=0, le=100_000)] = 0,
        cond_dim: Annotated[int, Field(ge=0, le=2048)] = 0,
        embedding: Level = "sinusoidal",
        inputs: Annotated[int, Field(ge=1, le=4)] = 1,
        outputs: Annotated[int, Field(ge=1, le=256)] = 1,
        vocabulary: Words = 0,
        length: Length = 0,
        numbers: Numbers = 0,
        cond_channels: ImageChannels = 0,
        text_layers: Annotated[int, Field(ge=0, le=12)] = 2,
        attends: bool = False,
    ) -> None:
        super().__init__()
        if height % patch or width % patch:
            nearest = "x".join(str(max(1, round(side / patch)) * patch) for side in (height, width))
            raise UserError(
                f"this transformer needs a height and width divisible by its patch of {patch}, got {height}x{width};"
                f" the nearest valid size is {nearest}"
            )
        if (height // patch) * (width // patch) > MAX_PATCHES:
            raise UserError(
                f"{height}x{width} images have {(height // patch) * (width // patch):,} patches of {patch}x{patch}, and a"
                f" transformer supports at most {MAX_PATCHES:,}; use a larger patch"
            )
        if dim % (4 * heads):
            raise UserError(f"the transformer's dim must be divisible by 4 times its heads, got {dim} and {heads} heads")
        self.patch, self.rows, self.columns = patch, height // patch, width // patch
        self.places = places(self.rows, self.columns, dim)
        self.embed = level_embedding(embedding, 64)
        self.tell = nn.Sequential(nn.Linear(64, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.label = LabelEmbedding(labels, dim) if labels else None
        self.told = conditioning_projection(cond_dim, dim) if cond_dim else None
        condition_sizes = vocabulary, length, numbers, cond_channels
        self.condition = ConditionEncoder(*condition_sizes, (height, width), dim, text_layers) if any(condition_sizes) else None
        self.enter = nn.Linear((channels * inputs + (cond_channels + 1 if cond_channels else 0)) * patch**2, dim)
        self.layers = nn.ModuleList(DiTBlock(dim, heads) for _ in range(layers))
        text_dim = self.condition.dim if self.condition is not None and vocabulary and attends else 0
        self.cross = nn.ModuleList(TextCrossAttention(dim, text_dim) for _ in range(layers)) if text_dim else None
        self.leave_tell = nn.Linear(dim, 2 * dim)
        self.leave = nn.Linear(dim, channels * outputs * patch**2)
        for layer in (self.leave_tell, self.leave):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor, level: Tensor, cond: Tensor | None = None, conditioning: Tensor | None = None) -> Tensor:
        """Return the output, (B, C outputs, H, W)."""
        e = self.tell(self.embed(level * LEVEL_SCALE))
        if self.label is not None:
            e = e + self.label(cond)
        if self.told is not None and conditioning is not None:
            e = e + self.told(conditioning)
        text = None
        if self.condition is not None:
            vector, text, image = self.condition(cond, x)
            e, x = e + vector, x if image is None else torch.cat([x, image], 1)
        e = functional.silu(e)
        tokens = functional.pixel_unshuffle(x, self.patch).flatten(2).transpose(1, 2)
        h = self.enter(tokens) + self.places.to(x)
        for k, layer in enumerate(self.layers):
            h = layer(h, e)
            if self.cross is not None and text is not None:
                h = self.cross[k](h, *text)
        shift, scale = self.leave_tell(e)[:, None].chunk(2, dim=-1)
        h = self.leave(torch.addcmul(shift, functional.layer_norm(h, h.shape[-1:]), 1 + scale))
        return functional.pixel_shuffle(h.transpose(1, 2).unflatten(2, (self.rows, self.columns)), self.patch)
