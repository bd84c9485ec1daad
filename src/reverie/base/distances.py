"""Pairwise distances between two sets of points, and block-wise iteration over large matrices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

TILE = 2**20  # numbers per block: 8 MB in float64, which fits into the CPU cache


def finest_dtype(x: Tensor) -> torch.dtype:
    """Return the highest-precision dtype of x's device: float64 if supported."""
    return torch.float32 if x.device.type == "mps" else torch.float64


def attainable_tolerance(tolerance: float, dtype: torch.dtype, size: float = 1.0) -> float:
    """Return the tolerance, or the rounding error of a sum of terms of this size if that is larger."""
    return max(tolerance, 16 * torch.finfo(dtype).eps * size)


def root(power: Tensor, p: float = 2.0) -> Tensor:
    """Return power^(1/p), with gradient 0 at 0, where it is undefined."""
    positive = power > 0
    return torch.where(positive, torch.where(positive, power, 1.0) ** (1 / p), 0.0)


def row_blocks(rows: int, width: int, size: int = TILE) -> Iterator[slice]:
    """Split the rows of a (rows, width) matrix into blocks of at most `size` numbers, or of one row."""
    step = max(1, size // max(1, width))
    for start in range(0, rows, step):
        yield slice(start, min(rows, start + step))


def squared_factors(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return [-2x, |x|², 1] and [y, 1, |y|²], whose inner products are |x_i - y_j|², for points near the origin.

    x: (..., n, d); y: (..., m, d).
    """
    xx, yy = (x * x).sum(-1, keepdim=True), (y * y).sum(-1, keepdim=True)
    return torch.cat([-2 * x, xx, torch.ones_like(xx)], -1), torch.cat([y, torch.ones_like(yy), yy], -1)


def squared(x: Tensor, y: Tensor) -> Tensor:
    """Return |x_i - y_j|² by one matrix product: (..., n, m).  x: (..., n, d); y: (..., m, d).

    Points are centered at the mean of y first, because far from the origin the squares lose their digits.
    """
    centre = y.detach().mean(-2, keepdim=True)
    left, right = squared_factors(x - centre, y - centre)
    return left @ right.mT


def euclidean(x: Tensor, y: Tensor) -> Tensor:
    """Return |x_i - y_j|, exact for close points: (..., n, m).  x: (..., n, d); y: (..., m, d)."""
    return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")


def manhattan(x: Tensor, y: Tensor) -> Tensor:
    """Return the L1 distances |x_i - y_j|: (..., n, m).  x: (..., n, d); y: (..., m, d)."""
    return torch.cdist(x, y, p=1.0)


def nearest(z: Tensor, blocks: Iterable[Tensor], beyond: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return the root-mean-square distance of each z to its nearest neighbour in the blocks, (n,), and its index, (n,).

    beyond: neighbours at this distance or closer are ignored.
    """
    flat = z.flatten(1)
    best, index = flat.new_full((len(z),), torch.inf), torch.zeros(len(z), dtype=torch.int64, device=z.device)
    norms, offset = flat.square().sum(1, keepdim=True), 0
    for block in blocks:
        y = block.flatten(1).to(flat)
        squares = torch.addmm(y.square().sum(1), flat, y.T, alpha=-2).add_(norms).clamp_min_(0)
        if beyond:
            squares.masked_fill_(squares <= beyond**2 * flat.shape[1], torch.inf)
        closest, position = squares.min(1)
        index = torch.where(closest < best, position + offset, index)
        best = torch.minimum(best, closest)
        offset += len(block)
    return (best / flat.shape[1]).sqrt(), index


def energy_distance(x: Tensor, y: Tensor) -> float:
    """Return 2 E|x - y| - E|x - x'| - E|y - y'|, zero only for equal distributions (Székely and Rizzo 2013).

    The estimate is unbiased at any count and divided by the root of the dimension.  x: (N, ...); y: (M, ...).
    """
    x, y = x.flatten(1), y.flatten(1)

    def within(z: Tensor) -> Tensor:
        return torch.cdist(z, z).sum() / max(1, len(z) * (len(z) - 1))

    return float(2 * torch.cdist(x, y).mean() - within(x) - within(y)) / math.sqrt(x.shape[1])
