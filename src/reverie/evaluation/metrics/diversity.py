"""Diversity of a set: its mean pairwise distance, which blur and mode collapse decrease."""

from __future__ import annotations

import torch
from torch import Tensor

from reverie.base.distances import euclidean, row_blocks


def mean_distance(x: Tensor) -> tuple[float, float]:
    """Return the mean pairwise distance and its standard error, 2 std_i(mean_j |x_i - x_j|) / sqrt(n).  x: (n, ...)."""
    flat = x.flatten(1)
    sums = torch.cat([euclidean(flat[rows], flat).sum(1) for rows in row_blocks(len(flat), len(flat))]).double()
    row_means = sums / (len(flat) - 1)
    return float(row_means.mean()), 2 * float(row_means.std()) / len(flat) ** 0.5
