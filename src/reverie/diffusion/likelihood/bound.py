"""The variational bound: of the T-step model as its parts, in two derivations, and in continuous time.

The T-step model starts at N(0, (alpha² + sigma²) I), takes DDPM's ancestral steps along a grid of times, and ends with a normal
around the last estimate of x0 of variance sigma² / (alpha² + sigma²), which is DDPM's beta_1 and exact for data N(0, I).
8-bit data use the discretized normal instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, get_args

import torch
from torch import Tensor

from reverie.base.deprecations import deprecated_names
from reverie.base.errors import UserError, pick
from reverie.base.noise import Noise
from reverie.diffusion.denoiser import Denoiser
from reverie.diffusion.lattice import LatticeDenoiser
from reverie.diffusion.likelihood.normal import discretised, kl_normal, log_normal, summed
from reverie.diffusion.pair import Pair
from reverie.diffusion.process import chain, transition
from reverie.diffusion.samplers.onestep import Variance, ancestral, step_variance
from reverie.diffusion.samplers.rungekutta import straight, straight_time
from reverie.diffusion.schedule import Schedule

MIN_LOG_SNR = -13.8  # lowest log-SNR of the integral


@dataclass(frozen=True)
class Bound:
    """The variational bound on the NLL of B data, split into its terms, in nats.

    prior: KL(q(x_1 | x0) || p(x_1)), (B,); denoising: KL(q(x_s | x_t, x0) || p(x_s | x_t)) of each step, or the strata of
    the integral over the log-SNR, (B, K), at log_snr, (B, K); reconstruction: -log p(x0 | x_s) at the
    last time, (B,); size: numbers in a datum.
    """

    prior: Tensor
    denoising: Tensor
    reconstruction: Tensor
    log_snr: Tensor
    size: int

    @property
    def nats(self) -> Tensor:
        """The bound on -log p(x0): (B,)."""
        return self.prior + self.denoising.sum(1) + self.reconstruction

    @property
    def bits(self) -> Tensor:
        """The bound in bits/dim: (B,)."""
        return self.nats / (self.size * math.log(2))

    def parts(self) -> dict[str, Tensor]:
        """Return the three terms by name, (B,) each."""
        return {"prior": self.prior, "denoising": self.denoising.sum(1), "reconstruction": self.reconstruction}


def prior_kl(schedule: Schedule, x0: Tensor, t: float) -> Tensor:
    """Return KL(q(x_t | x0) || N(0, (alpha² + sigma²) I)), the prior term: (B,)."""
    alpha, sigma = (float(c) for c in schedule(t))
    return kl_normal(alpha**2 * x0.square(), sigma**2, alpha**2 + sigma**2)


def reconstruction_nll(denoiser: Denoiser, truth: Pair, t: float, cond: Tensor | None, levels: int | None) -> Tensor:
    """Return -log p(x0 | x_t) of the last step, the reconstruction term: (B,).  levels: 256 for 8-bit data, None for reals."""
    alpha, sigma = (float(c) for c in denoiser.schedule(t))
    return -log_decoded(denoiser, truth.x0, truth.mix(alpha, sigma), t, cond, levels)


def log_decoded(denoiser: Denoiser, x0: Tensor, x: Tensor, t: float, cond: Tensor | None, levels: int | None) -> Tensor:
    """Return log p(x0 | x_t): by the denoiser's own posterior over levels, or by a normal around its x0, (B,)."""
    if isinstance(denoiser, LatticeDenoiser):
        return denoiser.log_level(x0, x, t, cond)
    alpha, sigma = (float(c) for c in denoiser.schedule(t))
    mean, variance = denoiser(x, t, cond).x0, sigma**2 / (alpha**2 + sigma**2)
    return log_normal(x0, mean, variance) if levels is None else discretised(x0, mean, variance, levels)


def denoising_kl(denoiser: Denoiser, truth: Pair, t: float, s: float, cond: Tensor | None, variance: str) -> Tensor:
    """Return KL(q(x_s | x_t, x0) || p(x_s | x_t)) at x_t = alpha x0 + sigma eps, between two normals: (B,)."""
    schedule = denoiser.schedule
    guess = denoiser(truth.mix(*schedule(t)), t, cond)
    a, b = ancestral(schedule, t, s)
    of, to = (step_variance(name, schedule, t, s, guess) for name in ("posterior", variance))
    return kl_normal((guess.mix(a, b) - truth.mix(a, b)).square(), float(of), to)


def _check(x0: Tensor, grid: Tensor, variance: str, levels: int | None) -> list[float]:
    """Return the times of a grid; raise an error if the grid or the data are invalid."""
    pick(dict.fromkeys(get_args(Variance)), variance, "variance")
    check_data(x0, levels)
    times: list[float] = grid.tolist()
    if len(times) < 2 or any(t <= s for t, s in pairwise(times)):
        raise UserError("the bound of a chain needs a grid of at least 2 decreasing times")
    return times


def check_data(x0: Tensor, levels: int | None) -> None:
    """Raise an error unless data are a finite batch on the expected levels."""
    if not len(x0) or not x0.numel():
        raise UserError("the likelihood needs at least one datum")
    if not x0.isfinite().all():
        raise UserError("the data contain NaN or infinity, which have no likelihood; remove those first")
    if levels is not None:
        level = (x0 + 1) * (levels - 1) / 2
        if (level - level.round()).abs().max() > 1e-2 or level.min() < -0.5 or level.max() > levels - 0.5:
            raise UserError(f"the data are not {levels} evenly spaced levels of [-1, 1], so bits/dim are not defined")


@torch.no_grad()
def bound(
    denoiser: Denoiser,
    x0: Tensor,
    grid: Tensor,
    noise: Noise,
    cond: Tensor | None = None,
    variance: str = "posterior",
    levels: int | None = None,
) -> Bound:
    """Return the bound of the T-step model in its posterior form, from one sample of x_t per step and datum.

    -log p(x0) <= KL(q(x_T | x0) || p(x_T)) + sum_k E KL(q(x_s | x_t, x0) || p(x_s | x_t)) - E log p(x0 | x_1)
    (arXiv:2006.11239, eq. 5).  x0: (B, ...) in model units; grid: (T,), decreasing; variance: of DDPM's steps, as in `DDPM`;
    levels: 256 for 8-bit data in [-1, 1].
    """
    times = _check(x0, grid, variance, levels)
    terms = [denoising_kl(denoiser, Pair(x0, noise.like(x0)), t, s, cond, variance) for t, s in pairwise(times)]
    return Bound(
        prior_kl(denoiser.schedule, x0, times[0]),
        torch.stack(terms, 1),
        reconstruction_nll(denoiser, Pair(x0, noise.like(x0)), times[-1], cond, levels),
        torch.as_tensor(denoiser.schedule.log_snr(grid[:-1])).expand(len(x0), -1),
        x0[0].numel(),
    )


@torch.no_grad()
def by_joint_chain(
    denoiser: Denoiser,
    x0: Tensor,
    grid: Tensor,
    noise: Noise,
    cond: Tensor | None = None,
    variance: str = "posterior",
    levels: int | None = None,
) -> Tensor:
    """Return the same bound in its joint form, from one path x_1, ..., x_T per datum: (B,) nats.

    -log p(x0) <= E_q[log q(x_1..T | x0) - log p(x_0..T)] (arXiv:2006.11239, eq. 3).  It has the same expectation as `bound`,
    but a different variance.
    """
    schedule, times = denoiser.schedule, _check(x0, grid, variance, levels)
    path = zip(times[::-1], chain(schedule, x0, grid.flip(0), noise), strict=True)
    t, x = next(path)
    alpha, sigma = schedule(t)
    total = log_normal(x, alpha * x0, float(sigma**2)) - log_decoded(denoiser, x0, x, t, cond, levels)
    for later, x_later in path:
        scale, std = transition(schedule, t, later)
        guess = denoiser(x_later, later, cond)
        mean = guess.mix(*ancestral(schedule, later, t))
        total += log_normal(x_later, scale * x, float(std**2))
        total -= log_normal(x, mean, step_variance(variance, schedule, later, t, guess))
        t, x = later, x_later
    alpha, sigma = schedule(t)
    return total - log_normal(x, 0.0, float(alpha**2 + sigma**2))


@torch.no_grad()
def continuous_bound(
    denoiser: Denoiser,
    x0: Tensor,
    noise: Noise,
    cond: Tensor | None = None,
    draws: int = 16,
    levels: int | None = None,
    start: float = 1.0,
    end: float | None = None,
) -> Bound:
    """Return the continuous-time bound, the limit of infinitely many steps, for any schedule.

    The denoising term is 1/2 E integral |eps - eps_hat|² d log_snr (arXiv:2107.00630, eq. 17), integrated over tau = -log w,
    w = sigma / (alpha + sigma): d log_snr = 2 d tau / (1 - w).  For schedules that end in pure noise the integral starts at
    log-SNR -13.8, because any error of eps would make it infinite there; the prior term is evaluated at the same
    time, so that the result remains a bound.  Each datum has one sample in each of `draws` equal strata of tau, with its own
    offset.  end: default t_min.
    """
    check_data(x0, levels)
    if draws < 1:
        raise UserError(f"the continuous-time bound needs at least 1 draw, got {draws}")
    schedule = denoiser.schedule
    end = schedule.t_min if end is None else end
    if not 0 <= end < start <= 1 or not schedule(end)[1] > 0:
        raise UserError(f"the bound needs 0 <= end < start <= 1 and some noise at the end, got {start} and {end}")
    start = max(min(start, float(schedule.invert(MIN_LOG_SNR))), end)
    low, high = (-math.log(straight(schedule, t)[0]) for t in (start, end))
    offset = noise.uniform(1)[0][:, 0].cpu().double()
    terms, log_snrs = [], []
    for k in range(draws):
        w = torch.exp(-(low + (high - low) * (k + offset) / draws))
        t = straight_time(schedule, w)
        alpha, sigma = schedule(t)
        truth = Pair(x0, noise.like(x0))
        squared = summed((denoiser(truth.mix(alpha, sigma), t, cond).eps - truth.eps).square())
        terms.append(squared * ((high - low) / draws / (1 - w)).to(squared))
        log_snrs.append(torch.as_tensor(schedule.log_snr(t)))
    return Bound(
        prior_kl(schedule, x0, start),
        torch.stack(terms, 1),
        reconstruction_nll(denoiser, Pair(x0, noise.like(x0)), end, cond, levels),
        torch.stack(log_snrs, 1),
        x0[0].numel(),
    )


if not TYPE_CHECKING:
    __getattr__ = deprecated_names(__name__)
