"""Embeddings of a position or noise level, and of a label."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from reverie.base.errors import UserError

LEVEL_SCALE = 20.0  # positions per unit of noise level: the quickest coordinate then turns about three times a unit
LEVEL_LIMIT = 14.0  # noise levels lie within +-this

Level = Literal["sinusoidal", "sinusoidal-inclusive", "sine", "learned"]  # how a network is told of the noise level


class SinusoidalEmbedding(nn.Module):
    """Positions as points on circles (arXiv:1706.03762).

    SE(pos)[2i] = sin(w_i pos),  SE(pos)[2i+1] = cos(w_i pos),  w_i = base^(-2i/dim).  pos: (B,) -> (B, dim).
    inclusive: w_i = base^(-2i/(dim-2)) instead, so that the last circle is as slow as base itself.
    """

    def __init__(self, dim: int, base: float = 10000.0, inclusive: bool = False) -> None:
        super().__init__()
        if dim < 2 or dim % 2:
            raise UserError(f"a sinusoidal embedding needs an even dimension of at least 2, got {dim}")
        self.dim, self.base = dim, base
        self.spread = max(dim - 2, 1) if inclusive else dim  # with a single circle its exponent is 0 either way

    def frequencies(self, like: Tensor) -> Tensor:
        """Return w_i, (dim/2,), in the dtype and on the device of the given tensor."""
        i = torch.arange(self.dim // 2, device=like.device, dtype=like.dtype)
        return torch.exp(i * (-2 * math.log(self.base) / self.spread))

    def forward(self, position: Tensor) -> Tensor:
        """Return the embedding of each position."""
        angle = position[..., None] * self.frequencies(position)
        return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)

    def period(self, coordinate: int) -> float:
        """Return the period of one coordinate, 2 pi / w_i with i = coordinate // 2."""
        return float(2 * math.pi * self.base ** (2 * (coordinate // 2) / self.spread))

    def smallest_gap(self, positions: Tensor) -> float:
        """Return the least distance between the embeddings of any two of the positions: above 0 means no two coincide."""
        return float(torch.pdist(self(positions)).min())

    def distance(self, offset: Tensor) -> Tensor:
        """Return |SE(pos + offset) - SE(pos)|, which is the same for every pos: sqrt(sum_i 2 - 2 cos(w_i offset))."""
        angle = offset[..., None] * self.frequencies(offset)
        return (4 * (angle / 2).sin().square()).sum(-1).sqrt()  # 2 - 2 cos(a) = 4 sin²(a/2), without cancellation

    def rotation(self, offset: Tensor) -> Tensor:
        """Return the block-diagonal rotation M with M SE(pos) = SE(pos + offset) for every pos.  offset: () -> (dim, dim).

        Block i is [[cos w_i k, sin w_i k], [-sin w_i k, cos w_i k]].
        """
        angle = offset * self.frequencies(offset)
        cos, sin = angle.cos(), angle.sin()
        blocks = torch.stack([torch.stack([cos, sin], -1), torch.stack([-sin, cos], -1)], -2)
        rotation: Tensor = torch.block_diag(*blocks)
        return rotation


class SineEmbedding(nn.Module):
    """Sines alone: SE(pos)[j] = sin(w_j pos),  w_j = base^(-2j/dim), j = 0..dim-1.  pos: (B,) -> (B, dim).

    Without the cosines there are no circles, and the distance of two embeddings depends on more than how far they are apart.
    """

    def __init__(self, dim: int, base: float = 10000.0) -> None:
        super().__init__()
        self.dim, self.base = dim, base

    def forward(self, position: Tensor) -> Tensor:
        """Return the embedding of each position."""
        j = torch.arange(self.dim, device=position.device, dtype=position.dtype)
        return (position[..., None] * torch.exp(j * (-2 * math.log(self.base) / self.dim))).sin()


def vectors(rows: int, dim: int) -> nn.Parameter:
    """Return a table of random vectors of length about 1, (rows, dim); on the device "meta", which only plans, an empty one.

    torch would load its compiler, a second of work, to plan a random draw.
    """
    table = torch.empty(rows, dim)
    return nn.Parameter(table if table.is_meta else table.normal_().div_(math.sqrt(dim)))


class LearnedEmbedding(nn.Module):
    """A table of vectors at evenly spaced positions, linear between them.  pos: (B,) -> (B, dim)."""

    def __init__(self, dim: int, low: float, high: float, rows: int = 40) -> None:
        super().__init__()
        self.low, self.high = low, high
        self.table = vectors(rows, dim)

    def forward(self, position: Tensor) -> Tensor:
        """Return the interpolated vectors; a position outside [low, high] takes the nearer end."""
        last = len(self.table) - 1
        place = ((position - self.low) / (self.high - self.low) * last).clamp(0, last)
        below = place.floor().clamp(max=last - 1)
        row = below.long()
        return torch.lerp(self.table[row], self.table[row + 1], (place - below)[:, None])


def level_embedding(name: Level, dim: int) -> nn.Module:
    """Return the embedding of noise levels times LEVEL_SCALE by its name: (B,) -> (B, dim)."""
    if name == "learned":
        return LearnedEmbedding(dim, -LEVEL_LIMIT * LEVEL_SCALE, LEVEL_LIMIT * LEVEL_SCALE)
    return SineEmbedding(dim) if name == "sine" else SinusoidalEmbedding(dim, inclusive=name == "sinusoidal-inclusive")


class LabelEmbedding(nn.Module):
    """A vector per label, and a row of its own for "no label": -1, or None for the whole batch.  (B,) -> (B, dim)."""

    def __init__(self, labels: int, dim: int) -> None:
        super().__init__()
        self.table = vectors(labels + 1, dim)

    def forward(self, cond: Tensor | None) -> Tensor:
        """Return the vectors; row 0 is the null row, label c has row c + 1."""
        return self.table[:1] if cond is None else self.table[cond + 1]


def map_of_told(entries: int, dim: int) -> nn.Linear:
    """Return the map of what was done to each image: (B, entries) -> (B, dim).

    Without a bias and zero at first, so that nothing done, and nothing learned of it yet, adds nothing (arXiv:2206.00364, F.2).
    """
    made = nn.Linear(entries, dim, bias=False)
    nn.init.zeros_(made.weight)
    return made
