"""Dequantization: noise that gives discrete levels a density, so that the probability flow has a likelihood.

For any noise u with a density q on the cell of a level x, log P(x) >= E_q[log p(x + u) - log q(u)], where P(x) is the mass of
the density p in the cell (Flow++, arXiv:1902.00275, eq. 11).  It is exact if q is proportional to p in the cell.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from reverie.base.noise import Noise
from reverie.diffusion.likelihood.normal import summed
from reverie.diffusion.schedule import Schedule

DEVIATIONS = 3.0  # standard deviations of the normal noise in half a step


@dataclass(frozen=True)
class Dequantised:
    """Dequantized data, (B, ...); log q(u) of the noise in nats, (B,); end: end time of the flow, None for its default."""

    x: Tensor
    log_q: Tensor
    end: float | None


def dequantise(x0: Tensor, noise: Noise, levels: int = 256) -> Tensor:
    """Return levels in [-1, 1] with uniform noise of half a step, so that they have a density.  x0: (B, ...).

    E log p(x0 + u) + D log h, h = 2 / (levels - 1), is at most the log of the mass of the level's box (arXiv:1511.01844).
    """
    u = noise.uniform(x0[0].numel(), x0.device)[0].to(x0.dtype).reshape(x0.shape)
    return x0 + (2 * u - 1) / (levels - 1)


def _uniform(schedule: Schedule, x0: Tensor, noise: Noise, levels: int) -> Dequantised:
    """Uniform noise: best for a density that does not model levels."""
    log_q = x0.new_full((len(x0),), -x0[0].numel() * math.log(2 / (levels - 1)))
    return Dequantised(dequantise(x0, noise, levels), log_q, None)


def _normal(schedule: Schedule, x0: Tensor, noise: Noise, levels: int) -> Dequantised:
    """Truncated normal noise, as in the diffusion: best for a model that has learned the levels.

    u ~ N(0, s²), truncated at half a step.  The flow stops at s = sigma / alpha, a third of half a step, where the training
    data are x0 + s eps (arXiv:2305.03935, section 4).  For a model that has learned the levels perfectly the bound is off by
    only D log erf(3 / sqrt(2)) = -0.0027 D nats.
    """
    half = 1 / (levels - 1)
    end = max(float(schedule.invert(2 * math.log(DEVIATIONS / half))), schedule.t_min)
    alpha, sigma = (float(c) for c in schedule(end))
    std = sigma / alpha
    limit = half / std
    mass = math.erf(limit / math.sqrt(2))
    u = noise.uniform(x0[0].numel(), x0.device)[0]
    z = torch.special.ndtri(0.5 + mass * (u - 0.5)).clamp(-limit, limit).to(x0.dtype).reshape(x0.shape)
    constant = x0[0].numel() * (math.log(2 * math.pi) / 2 + math.log(std) + math.log(mass))
    return Dequantised(x0 + std * z, -summed(z.square()) / 2 - constant, end)


DEQUANTISERS: dict[str, Callable[[Schedule, Tensor, Noise, int], Dequantised]] = {"uniform": _uniform, "normal": _normal}
