"""Exact log-probability by the probability flow.

A model's density is that of x / alpha at the end time of sampling, for noise N(0, (alpha² + sigma²) I) transported by the
flow.  On the straight path y = x / (alpha + sigma), w = sigma / (alpha + sigma), with tau = -log w,

    dy/dtau = w (x0 - eps),   d log p(y) / dtau = -div of it   (arXiv:1810.01367, eq. 8)

is finite at both ends of every schedule and the same for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from reverie.base.distances import finest_dtype
from reverie.base.errors import UserError, pick
from reverie.base.noise import Noise
from reverie.base.scalar import expand
from reverie.diffusion.denoiser import Denoiser
from reverie.diffusion.likelihood.bound import check_data
from reverie.diffusion.likelihood.normal import log_normal
from reverie.diffusion.samplers.adaptive import TooStiffError, integrate, mean_size
from reverie.diffusion.samplers.rungekutta import straight, straight_slope, straight_time

if TYPE_CHECKING:
    from reverie.autodiff.sparse import Coloring

EXACT = "exact"
MAX_EXACT = 16  # dimensions up to which the divergence is exact by default


def _signs(noise: Noise, x: Tensor) -> Tensor:
    return (2 * (noise.bits(x[0].numel(), x.device) >> 63) + 1).to(x.dtype).reshape(x.shape)


# distributions of probes; signs have the least variance (Hutchinson 1990)
PROBES: dict[str, Callable[[Noise, Tensor], Tensor]] = {"rademacher": _signs, "gaussian": lambda noise, x: noise.like(x)}


@dataclass(frozen=True)
class LogProb:
    """The log-probability of each datum in nats, (B,).

    error: the standard error due to the estimated divergence, (B,): 0 if it is exact, NaN for one probe; evaluations: of the
    network and its derivative; divergence: the method; size: numbers in a datum.
    """

    nats: Tensor
    error: Tensor
    evaluations: int
    divergence: str
    size: int

    @property
    def bits(self) -> Tensor:
        """Return bits/dim: -log2 p / D, (B,)."""
        return -self.nats / (self.size * math.log(2))


@torch.no_grad()
def log_prob(
    denoiser: Denoiser,
    x0: Tensor,
    noise: Noise,
    cond: Tensor | None = None,
    divergence_by: str | None = None,
    probes: int = 1,
    tolerance: float = 1e-5,
    plan: Coloring | None = None,
    end: float | None = None,
    prior: Callable[[Tensor], Tensor] | None = None,
) -> LogProb:
    """Return the log-density of data in model units, (B, ...), under the flow that stops at `end` (default t_min).

    divergence_by: "exact", "rademacher" or "gaussian" (Hutchinson's estimator, with constant probes along the path); by default
    exact up to 16 dimensions.  plan: a colouring that speeds up the exact divergence.  tolerance: per step, of the RMS error of
    y and of the error of the log-density in nats/dim.  prior: the log-density of x at t = 1, (B,), if it differs from that of
    sampling.
    """
    from reverie.autodiff.sparse import (  # half a second of scipy, which sampling does not need
        divergence,
        value_and_trace_probes,
    )

    check_data(x0, None)
    if not 0 < tolerance < 1 or probes < 1:
        raise UserError(f"log-probability needs a tolerance in (0, 1) and at least 1 probe, got {tolerance} and {probes}")
    size, schedule = x0[0].numel(), denoiser.schedule
    method = EXACT if plan is not None else divergence_by or (EXACT if size <= MAX_EXACT else "rademacher")
    if method == EXACT:
        units = torch.eye(size, dtype=x0.dtype, device=x0.device).reshape(size, 1, *x0.shape[1:])
        vectors = units.expand(size, *x0.shape)
    else:
        vectors = torch.stack([pick(PROBES, method, "divergence")(noise, x0) for _ in range(probes)])
    calls = 0

    def slope(state: Tensor, tau: Tensor) -> Tensor:
        """Return the slopes of y, (B, D), and of each estimate of the log-density's change over D: (B, D + P)."""
        nonlocal calls
        calls += 1
        w = torch.exp(-tau)
        t = straight_time(schedule, w)
        y = state[:, :size].reshape(x0.shape).to(x0.dtype)

        def flow(y: Tensor) -> Tensor:
            return expand(-w, y) * straight_slope(denoiser, y, t, cond)

        if plan is None:
            value, traces = value_and_trace_probes(flow, y, vectors)
            traces = traces.sum(0, keepdim=True) if method == EXACT else traces
        else:
            value, traces = flow(y), divergence(flow, y, plan)[None]
        return torch.cat([value.flatten(1), traces.T / size], 1).to(state.dtype)

    def error_size(error: Tensor, old: Tensor, new: Tensor) -> Tensor:
        change = error[:, size:].abs().amax(1)
        return torch.maximum(mean_size(error[:, :size], old[:, :size], new[:, :size]), change)

    (first, _), (last, scale) = straight(schedule, schedule.t_min if end is None else end), straight(schedule, 1.0)
    y = ((1 - first) * x0.to(finest_dtype(x0))).flatten(1)
    state = torch.cat([y, y.new_zeros(len(y), 1 if method == EXACT else probes)], 1)
    start = torch.full((len(y),), -math.log(first), dtype=torch.float64)
    try:
        state, _ = integrate(slope, state, slope(state, start), float(start[0]), -math.log(last), tolerance, size=error_size)
    except TooStiffError:
        raise UserError(f"the flow solver cannot reach the tolerance {tolerance:g} with this model; use a larger one") from None
    x = (scale * state[:, :size]).reshape(x0.shape)
    alpha, sigma = (float(c) for c in schedule(1.0))
    log_p = log_normal(x, 0.0, alpha**2 + sigma**2) if prior is None else prior(x)
    log_p = log_p + size * (math.log(scale) + math.log1p(-first))  # from x to y to x / alpha
    estimates = log_p[:, None] + size * state[:, size:]  # (B, P)
    count = estimates.shape[1]
    error = (
        torch.zeros_like(log_p) if method == EXACT else estimates.std(1) / math.sqrt(count) if count > 1 else log_p * math.nan
    )
    return LogProb(
        estimates.mean(1), error, calls, method if method == EXACT else f"{method}, {probes} probe{'s' * (probes > 1)}", size
    )
