"""The forward process in one jump and as a Markov chain, and its posterior."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from reverie.base.noise import Noise
from reverie.base.scalar import Coefficient, Time, combine, sqrt
from reverie.diffusion.pair import Pair
from reverie.diffusion.schedule import Schedule


def jump(schedule: Schedule, x0: Tensor, t: Time, noise: Noise) -> Tensor:
    """Draw x at time t given clean data, in one jump: x = alpha x0 + sigma eps.  x0: (B, ...); t: float or (B,)."""
    return Pair(x0, noise.like(x0)).mix(*schedule(t))


def transition(schedule: Schedule, s: Time, t: Time) -> tuple[Coefficient, Coefficient]:
    """Return the scale and the standard deviation of q(x_t | x_s) = N(scale x_s, std² I) for s < t.

    scale = alpha_t / alpha_s,  std² = sigma_t² - scale² sigma_s².  For neighbours of a discrete chain
    scale² = 1 - beta_t and std² = beta_t (arXiv:2006.11239, eq. 2).
    """
    (alpha_s, sigma_s), (alpha_t, sigma_t) = schedule(s), schedule(t)
    scale = alpha_t / alpha_s
    return scale, sqrt(sigma_t**2 - scale**2 * sigma_s**2)


def chain(schedule: Schedule, x0: Tensor, grid: Tensor, noise: Noise) -> Iterator[Tensor]:
    """Walk the Markov chain q(x_t | x_s) upwards along a grid and yield x at each of its times.

    x0: (B, ...); grid: (n,), ascending; the first time is reached from clean data in one jump.
    """
    times = grid.tolist()
    x, s = jump(schedule, x0, times[0], noise), times[0]
    yield x
    for t in times[1:]:
        scale, std = transition(schedule, s, t)
        x, s = Pair(x, noise.like(x)).mix(scale, std), t
        yield x


def posterior(schedule: Schedule, x: Tensor, x0: Tensor, t: Time, s: Time) -> tuple[Tensor, Coefficient]:
    """Return the mean and the variance of q(x_s | x_t = x, x0) for s < t (arXiv:2006.11239, eq. 7).

    mean = (scale sigma_s² x + alpha_s std² x0) / sigma_t²,  variance = std² sigma_s² / sigma_t²,
    with scale and std of q(x_t | x_s).  x, x0: (B, ...); t, s, variance: float or (B,).
    """
    (alpha_s, sigma_s), (_, sigma_t) = schedule(s), schedule(t)
    scale, std = transition(schedule, s, t)
    mean = combine(scale * sigma_s**2 / sigma_t**2, x, alpha_s * std**2 / sigma_t**2, x0)
    return mean, std**2 * sigma_s**2 / sigma_t**2
