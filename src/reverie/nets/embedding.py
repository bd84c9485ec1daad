"""Embeddings of positions, noise levels and labels."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from reverie.base.errors import UserError

LEVEL_SCALE = 20.0  # positions per unit of noise level: the fastest coordinate then has about three periods per unit
LEVEL_LIMIT = 14.0  # limit of the absolute noise level

Level = Literal["sinusoidal", "sinusoidal-inclusive", "sine", "learned"]  # the embedding of the noise level


class SinusoidalEmbedding(nn.Module):
    """Positions as points on circles (arXiv:1706.03762).

    SE(pos)[2i] = sin(w_i pos),  SE(pos)[2i+1] = cos(w_i pos),  w_i = base^(-2i/dim).  pos: (B,) -> (B, dim).
    inclusive: w_i = base^(-2i/(dim-2)) instead, so that the lowest frequency is 1/base.
    """

    def __init__(self, dim: int, base: float = 10000.0, inclusive: bool = False) -> None:
        super().__init__()
        if dim < 2 or dim % 2:
            raise UserError(f"a sinusoidal embedding needs an even dimension of at least 2, got {dim}")
        self.dim, self.base = dim, base
        self.exponent_dim = max(dim - 2, 1) if inclusive else dim  # for a single frequency the exponent is 0 in both cases

    def frequencies(self, like: Tensor) -> Tensor:
        """Return w_i, (dim/2,), in the dtype and on the device of `like`."""
        i = torch.arange(self.dim // 2, device=like.device, dtype=like.dtype)
        return torch.exp(i * (-2 * math.log(self.base) / self.exponent_dim))

    def forward(self, position: Tensor) -> Tensor:
        """Return the embedding of each position."""
        angle = position[..., None] * self.frequencies(position)
        return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)

    def period(self, coordinate: int) -> float:
        """Return the period of one coordinate, 2 pi / w_i with i = coordinate // 2."""
        return float(2 * math.pi * self.base ** (2 * (coordinate // 2) / self.exponent_dim))

    def smallest_gap(self, positions: Tensor) -> float:
        """Return the smallest distance between two embeddings; it is positive if no two positions coincide."""
        return float(torch.pdist(self(positions)).min())

    def distance(self, offset: Tensor) -> Tensor:
        """Return |SE(pos + offset) - SE(pos)| = sqrt(sum_i 2 - 2 cos(w_i offset)), which does not depend on pos."""
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
    """Sines only: SE(pos)[j] = sin(w_j pos),  w_j = base^(-2j/dim), j = 0..dim-1.  pos: (B,) -> (B, dim).

    Without cosines the distance of two embeddings depends on the positions, not only on their difference.
    """

    def __init__(self, dim: int, base: float = 10000.0) -> None:
        super().__init__()
        self.dim, self.base = dim, base

    def forward(self, position: Tensor) -> Tensor:
        """Return the embedding of each position."""
        j = torch.arange(self.dim, device=position.device, dtype=position.dtype)
        return (position[..., None] * torch.exp(j * (-2 * math.log(self.base) / self.dim))).sin()


def random_vectors(rows: int, dim: int) -> nn.Parameter:
    """Return a table of random vectors of length about 1, (rows, dim); uninitialized on the meta device.

    A random draw on the meta device would import torch's compiler, which takes a second.
    """
    table = torch.empty(rows, dim)
    return nn.Parameter(table if table.is_meta else table.normal_().div_(math.sqrt(dim)))


class LearnedEmbedding(nn.Module):
    """A table of vectors at evenly spaced positions with linear interpolation.  pos: (B,) -> (B, dim)."""

    def __init__(self, dim: int, low: float, high: float, rows: int = 40) -> None:
        super().__init__()
        self.low, self.high = low, high
        self.table = random_vectors(rows, dim)

    def forward(self, position: Tensor) -> Tensor:
        """Return the interpolated vectors; positions are clamped to [low, high]."""
        last = len(self.table) - 1
        index = ((position - self.low) / (self.high - self.low) * last).clamp(0, last)
        below = index.floor().clamp(max=last - 1)
        row = below.long()
        return torch.lerp(self.table[row], self.table[row + 1], (index - below)[:, None])


def level_embedding(name: Level, dim: int) -> nn.Module:
    """Return the embedding of noise levels times LEVEL_SCALE by its name: (B,) -> (B, dim)."""
    if name == "learned":
        return LearnedEmbedding(dim, -LEVEL_LIMIT * LEVEL_SCALE, LEVEL_LIMIT * LEVEL_SCALE)
    return SineEmbedding(dim) if name == "sine" else SinusoidalEmbedding(dim, inclusive=name == "sinusoidal-inclusive")


class LabelEmbedding(nn.Module):
    """A vector per label, and a null vector for label -1 or None.  (B,) -> (B, dim)."""

    def __init__(self, labels: int, dim: int) -> None:
        super().__init__()
        self.table = random_vectors(labels + 1, dim)

    def forward(self, cond: Tensor | None) -> Tensor:
        """Return the vectors; row 0 is the null vector, label c has row c + 1."""
        return self.table[:1] if cond is None else self.table[cond + 1]


def conditioning_projection(entries: int, dim: int) -> nn.Linear:
    """Return the projection of augmentation and cluster parameters: (B, entries) -> (B, dim).

    It has no bias and is initialized to zero, so that null parameters contribute nothing (arXiv:2206.00364, appendix F.2).
    """
    layer = nn.Linear(entries, dim, bias=False)
    nn.init.zeros_(layer.weight)
    return layer
