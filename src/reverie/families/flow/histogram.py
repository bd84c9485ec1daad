"""A piecewise linear monotone map of the unit interval: the distribution function of a histogram."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from reverie.base.distances import finest_dtype

MIN_MASS = 1e-6  # smallest mass of a bin, so that the map is invertible


def knots_of(shares: Tensor, bins: int) -> tuple[int, ...]:
    """Return the edges of bins between levels, from 0 to their number, by repeatedly halving the bin of greatest mass.

    shares: (levels,), the frequency of each level.  Few bins suffice if a few levels have most of the mass.
    """
    edges = [0, len(shares)]
    total = torch.cat([torch.zeros(1), shares.double().cpu().cumsum(0)]).tolist()
    while len(edges) <= min(bins, len(shares)):
        divisible = [pair for pair in pairwise(edges) if pair[1] - pair[0] > 1]
        a, b = max(divisible, key=lambda pair: total[pair[1]] - total[pair[0]])
        middle = (total[a] + total[b]) / 2
        edges = sorted([*edges, min(range(a + 1, b), key=lambda cut: abs(total[cut] - middle))])
    return tuple(edges)


class Histogram(nn.Module):
    """u = F(v), the distribution function of a piecewise constant density (arXiv:1808.03856, section 4.1).

    knots: edges of the bins in levels, rising from 0 to the number of levels; v in [0, 1), where level k is [k, k + 1) /
    levels.  The logits of the masses are (..., K).  With knots between levels, the density is constant within a level.
    """

    def __init__(self, knots: tuple[int, ...]) -> None:
        super().__init__()
        self.knots, self.bins, self.levels = knots, len(knots) - 1, knots[-1]
        edges = torch.tensor(knots).float() / self.levels
        self.edges = nn.Buffer(edges, persistent=False)
        self.log_widths = nn.Buffer(edges.diff().log(), persistent=False)

    def rank(self, v: Tensor) -> Tensor:
        """Return the level of v: (...) int64."""
        return (v * self.levels).long().clamp(0, self.levels - 1)

    def bin_of(self, v: Tensor) -> Tensor:
        """Return the bin of v: (...) int64."""
        return torch.bucketize(v.contiguous(), self.edges[1:-1], right=True)

    def log_density(self, logits: Tensor, v: Tensor) -> Tensor:
        """Return the log-density of v, log of the bin's mass over its width: (...).  logits: (..., K)."""
        k = self.bin_of(v)
        return self._log_masses(logits).gather(-1, k[..., None])[..., 0] - self.log_widths[k]

    def _log_masses(self, logits: Tensor) -> Tensor:
        mass = logits.softmax(-1)
        return (mass * (1 - MIN_MASS * self.bins) + MIN_MASS).log()

    def _steps(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return F at the edges, (..., K + 1), and the masses, in a precision that allows inversion."""
        mass = self._log_masses(logits).to(finest_dtype(logits)).exp()
        mass = mass / mass.sum(-1, keepdim=True)
        return torch.nn.functional.pad(mass.cumsum(-1), (1, 0)), mass

    def forward(self, logits: Tensor, v: Tensor) -> Tensor:
        """Return u = F(v): (...), in a precision that allows inversion."""
        below, mass = self._steps(logits)
        k = self.bin_of(v)[..., None]
        within = (v - self.edges[k[..., 0]]) / self.log_widths.exp()[k[..., 0]]
        return below.gather(-1, k)[..., 0] + mass.gather(-1, k)[..., 0] * within

    def inverse(self, logits: Tensor, u: Tensor) -> Tensor:
        """Return v with F(v) = u: (...)."""
        below, mass = self._steps(logits)
        u = u.to(below)
        k = torch.searchsorted(below[..., 1:-1].contiguous(), u[..., None].contiguous(), right=True)
        within = (u - below.gather(-1, k)[..., 0]) / mass.gather(-1, k)[..., 0]
        edge, width = self.edges[k[..., 0]], self.log_widths.exp()[k[..., 0]]
        v = edge + within.clamp(0, 1).to(edge) * width
        return torch.minimum(v, (edge + width).nextafter(edge))  # rounding must not change the bin

    def starting_logits(self, v: Tensor) -> Tensor:
        """Return the logits of the data's histogram at each position, smoothed by that of all positions: (..., K).

        v: (N, ...).
        """
        frequency = torch.nn.functional.one_hot(self.bin_of(v), self.bins).float().mean(0)
        overall = frequency.reshape(-1, self.bins).mean(0)
        smoothed = (frequency * len(v) + overall + 1e-3 / self.bins) / (len(v) + 1 + 1e-3)
        return smoothed.log()
