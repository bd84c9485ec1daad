"""Encoders of condition vectors, which contain a caption, numbers and an image."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from reverie.base.deprecations import deprecated_names
from reverie.nets.embedding import random_vectors
from reverie.nets.sdpa import scaled_dot_product_attention

MAX_WORDS, MAX_LENGTH, MAX_NUMBERS = 100_000, 256, 64
Words = Annotated[int, Field(ge=0, le=MAX_WORDS)]
Length = Annotated[int, Field(ge=0, le=MAX_LENGTH)]
Numbers = Annotated[int, Field(ge=0, le=MAX_NUMBERS)]
ImageChannels = Annotated[int, Field(ge=0, le=64)]
FREQUENCIES = 6  # of a number v of unit variance: sin and cos of 2^k pi v / 4, k = 0 .. 5


class TextEncoderLayer(nn.Module):
    """A pre-norm transformer encoder layer: self-attention and an MLP with residual connections.  x: (B, L, D)."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.dense = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(approximate="tanh"), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return (B, L, D).  mask: (B, L), false after the end of a text."""
        b, length, dim = x.shape
        q, k, v = self.qkv(self.first(x)).reshape(b, length, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(q, k, v, mask[:, None, None])
        x = x + self.out(attended.transpose(1, 2).reshape(b, length, dim))
        out: Tensor = x + self.dense(self.second(x))
        return out


class TextEncoder(nn.Module):
    """A small transformer encoder of text tokens (arXiv:1706.03762) with a leading class token.

    tokens: (B, L), -1 after the end -> (B, L + 1, D) and their mask (B, L + 1).  Row 0 of the table is the class token, which
    is the only token of a missing text.
    """

    def __init__(self, words: int, length: int, dim: int, layers: int, heads: int = 4) -> None:
        super().__init__()
        self.table, self.places = random_vectors(words + 1, dim), random_vectors(length + 1, dim)
        self.layers = nn.ModuleList(TextEncoderLayer(dim, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the encoded tokens and their mask."""
        rows = functional.pad(tokens + 1, (1, 0))
        mask = functional.pad(tokens >= 0, (1, 0), value=True)
        x = self.table[rows] + self.places
        for layer in self.layers:
            x = layer(x, mask)
        return self.norm(x), mask


class TextCrossAttention(nn.Module):
    """Cross-attention of a feature map to the tokens of a text, with a residual connection (arXiv:2112.10752, section 3.3).

    x: (B, P, C); words: (B, L, D); mask: (B, L).  The last layer is initialized to zero.
    """

    def __init__(self, channels: int, dim: int, head: int = 32) -> None:
        super().__init__()
        self.heads = max(1, channels // head)
        while channels % self.heads:
            self.heads -= 1
        self.norm = nn.LayerNorm(channels)
        self.query, self.known = nn.Linear(channels, channels), nn.Linear(dim, 2 * channels)
        self.out = nn.Linear(channels, channels)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x: Tensor, words: Tensor, mask: Tensor) -> Tensor:
        """Return x plus the attention output."""
        b, count, channels = x.shape
        q = self.query(self.norm(x)).unflatten(2, (self.heads, -1)).transpose(1, 2)
        k, v = self.known(words).unflatten(2, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(q, k, v, mask[:, None, None])
        out: Tensor = x + self.out(attended.transpose(1, 2).reshape(b, count, channels))
        return out

    def forward_map(self, h: Tensor, words: Tensor, mask: Tensor) -> Tensor:
        """Apply to a feature map.  h: (B, C, H, W)."""
        attended: Tensor = self(h.flatten(2).transpose(1, 2), words, mask)
        return attended.transpose(1, 2).reshape(h.shape)


class ConditionEncoder(nn.Module):
    """Encodes condition vectors: `length` tokens, then `numbers` real numbers of unit variance, then `seen` image channels.

    Missing entries are NaN; None means that all are missing.  Outputs: vector (B or 1, dim), the mean of the encoded tokens
    plus the encoded numbers; words, the encoded tokens; image, `seen` channels in [-1, 1] (0 if missing) and a channel that is
    1 if given.
    """

    def __init__(self, words: int, length: int, numbers: int, seen: int, size: tuple[int, int], dim: int, layers: int) -> None:
        super().__init__()
        self.length, self.numbers, self.seen, self.size = length if words else 0, numbers, seen, size
        inner = max(32, dim // 32 * 32)
        self.dim = inner
        self.text = TextEncoder(words, length, inner, layers) if words else None
        self.pool = nn.Linear(inner, dim) if words else None
        self.number = nn.ModuleList(nn.Linear(2 * FREQUENCIES + 2, dim) for _ in range(numbers))

    @property
    def width(self) -> int:
        """Number of entries of a condition vector."""
        return self.length + self.numbers + self.seen * math.prod(self.size)

    def _condition_vectors(self, cond: Tensor | None, like: Tensor) -> Tensor:
        if cond is None:
            return torch.full((len(like), self.width), torch.nan, device=like.device)
        return cond

    def forward(self, cond: Tensor | None, like: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor] | None, Tensor | None]:
        """Return vector, words and image of condition vectors (B, width); `like` has the batch size of a null condition."""
        rows = self._condition_vectors(cond, like)
        vector, words, offset = torch.zeros(1, 1, device=like.device), None, self.length
        if self.text is not None and self.pool is not None:
            words, mask = self.text(rows[:, :offset].nan_to_num(-1.0).long())
            weights = mask.to(words) / mask.sum(1, keepdim=True)
            vector, words = self.pool((weights[:, None] @ words)[:, 0]), (words, mask)
        for k, project in enumerate(self.number):
            vector = vector + project(_number_features(rows[:, offset + k]))
        offset += self.numbers
        if not self.seen:
            return vector, words, None
        image = 2 * rows[:, offset:].unflatten(1, (self.seen, *self.size)) - 1
        is_given = ~image.isnan().flatten(1).any(1)
        flag = is_given.to(like)[:, None, None, None].expand(-1, 1, *self.size)
        return vector, words, torch.cat([torch.where(flag > 0, image, 0.0), flag], 1)


def _number_features(v: Tensor) -> Tensor:
    """Return the features of numbers: value, flag of presence, Fourier features.  (B,) -> (B, 2 FREQUENCIES + 2)."""
    is_given = ~v.isnan()
    v = v.nan_to_num(0.0).clamp(-10, 10)
    angle = v[:, None] * (2.0 ** torch.arange(FREQUENCIES, device=v.device, dtype=v.dtype)) * (math.pi / 4)
    return torch.cat([v[:, None], torch.ones_like(v)[:, None], angle.sin(), angle.cos()], 1) * is_given[:, None]


if not TYPE_CHECKING:
    __getattr__ = deprecated_names(__name__)
