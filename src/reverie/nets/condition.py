"""What a network is told of a datum besides a label: a row of numbers that holds a caption, real numbers and an image."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from reverie.nets.embedding import vectors
from reverie.nets.sdpa import attended

MOST_WORDS, MOST_LENGTH, MOST_NUMBERS = 100_000, 256, 64
Words = Annotated[int, Field(ge=0, le=MOST_WORDS)]
Length = Annotated[int, Field(ge=0, le=MOST_LENGTH)]
Numbers = Annotated[int, Field(ge=0, le=MOST_NUMBERS)]
Seen = Annotated[int, Field(ge=0, le=64)]
WAVES = 6  # of a number that is told: sin and cos of 2^k pi v / 4, k = 0 .. 5, for values v of unit spread


class TextLayer(nn.Module):
    """Attention of every word to every other, then a dense part, each around a shortcut and after a norm.  x: (B, L, D)."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.dense = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(approximate="tanh"), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor, there: Tensor) -> Tensor:
        """Return (B, L, D).  there: (B, L), false after the end of a text."""
        b, length, dim = x.shape
        q, k, v = self.qkv(self.first(x)).reshape(b, length, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        gathered = attended(q, k, v, there[:, None, None])
        x = x + self.out(gathered.transpose(1, 2).reshape(b, length, dim))
        out: Tensor = x + self.dense(self.second(x))
        return out


class TextEncoder(nn.Module):
    """A small transformer over the tokens of a text (arXiv:1706.03762), with a place of its own before the first.

    tokens: (B, L), -1 after the end -> (B, L + 1, D) and which of them are there, (B, L + 1).  Row 0 of the table is that
    first place, which stands alone where there is no text at all.
    """

    def __init__(self, words: int, length: int, dim: int, layers: int, heads: int = 4) -> None:
        super().__init__()
        self.table, self.places = vectors(words + 1, dim), vectors(length + 1, dim)
        self.layers = nn.ModuleList(TextLayer(dim, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return what each token came to mean, and which of them are there."""
        rows = functional.pad(tokens + 1, (1, 0))
        there = functional.pad(tokens >= 0, (1, 0), value=True)
        x = self.table[rows] + self.places
        for layer in self.layers:
            x = layer(x, there)
        return self.norm(x), there


class CrossAttention(nn.Module):
    """What each place of a map gathers from the words of a text, around a shortcut (arXiv:2112.10752, section 3.3).

    x: (B, P, C); words: (B, L, D); there: (B, L).  Its last layer begins at zero.
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

    def forward(self, x: Tensor, words: Tensor, there: Tensor) -> Tensor:
        """Return x with what was gathered."""
        b, count, channels = x.shape
        q = self.query(self.norm(x)).unflatten(2, (self.heads, -1)).transpose(1, 2)
        k, v = self.known(words).unflatten(2, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        gathered = attended(q, k, v, there[:, None, None])
        out: Tensor = x + self.out(gathered.transpose(1, 2).reshape(b, count, channels))
        return out

    def over_map(self, h: Tensor, words: Tensor, there: Tensor) -> Tensor:
        """Return the same of a map.  h: (B, C, H, W)."""
        gathered: Tensor = self(h.flatten(2).transpose(1, 2), words, there)
        return gathered.transpose(1, 2).reshape(h.shape)


class ConditionEncoder(nn.Module):
    """Takes a row apart: `length` tokens, then `numbers` real numbers of unit spread, then `seen` channels of an image.

    What is not told is NaN; a condition of None tells nothing.  vector: (B or 1, dim), the mean of the words and what the
    numbers add; words: what each word means; image: `seen` channels in [-1, 1], zero where none is told, and one that says so.
    """

    def __init__(self, words: int, length: int, numbers: int, seen: int, size: tuple[int, int], dim: int, layers: int) -> None:
        super().__init__()
        self.length, self.numbers, self.seen, self.size = length if words else 0, numbers, seen, size
        inner = max(32, dim // 32 * 32)
        self.dim = inner
        self.text = TextEncoder(words, length, inner, layers) if words else None
        self.pool = nn.Linear(inner, dim) if words else None
        self.number = nn.ModuleList(nn.Linear(2 * WAVES + 2, dim) for _ in range(numbers))

    @property
    def width(self) -> int:
        """How many numbers a row has."""
        return self.length + self.numbers + self.seen * math.prod(self.size)

    def _rows(self, cond: Tensor | None, like: Tensor) -> Tensor:
        if cond is None:
            return torch.full((len(like), self.width), torch.nan, device=like.device)
        return cond

    def forward(self, cond: Tensor | None, like: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor] | None, Tensor | None]:
        """Return vector, words and image of rows (B, width), or of nothing for as many as x, `like`, are."""
        rows = self._rows(cond, like)
        vector, words, at = torch.zeros(1, 1, device=like.device), None, self.length
        if self.text is not None and self.pool is not None:
            words, there = self.text(rows[:, :at].nan_to_num(-1.0).long())
            share = there.to(words) / there.sum(1, keepdim=True)
            vector, words = self.pool((share[:, None] @ words)[:, 0]), (words, there)
        for k, tell in enumerate(self.number):
            vector = vector + tell(_waves(rows[:, at + k]))
        at += self.numbers
        if not self.seen:
            return vector, words, None
        image = 2 * rows[:, at:].unflatten(1, (self.seen, *self.size)) - 1
        told = ~image.isnan().flatten(1).any(1)
        flag = told.to(like)[:, None, None, None].expand(-1, 1, *self.size)
        return vector, words, torch.cat([torch.where(flag > 0, image, 0.0), flag], 1)


def _waves(v: Tensor) -> Tensor:
    """Return what a number is told by: itself, whether it is told, and waves of it.  (B,) -> (B, 2 WAVES + 2)."""
    told = ~v.isnan()
    v = v.nan_to_num(0.0).clamp(-10, 10)
    angle = v[:, None] * (2.0 ** torch.arange(WAVES, device=v.device, dtype=v.dtype)) * (math.pi / 4)
    return torch.cat([v[:, None], torch.ones_like(v)[:, None], angle.sin(), angle.cos()], 1) * told[:, None]
