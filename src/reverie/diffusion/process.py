"""The forward process: marginals, transitions, and its posterior."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import Tensor

from reverie.base.deprecations import deprecated_names
from reverie.base.noise import Noise
from reverie.base.scalar import Coefficient, Time, combine, expand, sqrt
from reverie.diffusion.pair import Pair
from reverie.diffusion.schedule import Schedule


def jump(schedule: Schedule, x0: Tensor, t: Time, noise: Noise) -> Tensor:
    """Sample x_t given clean data directly: x = alpha x0 + sigma eps.  x0: (B, ...); t: float or (B,)."""
    return Pair(x0, noise.like(x0)).mix(*schedule(t))


def transition(schedule: Schedule, s: Time, t: Time) -> tuple[Coefficient, Coefficient]:
    """Return the scale and std of q(x_t | x_s) = N(scale x_s, std² I) for s < t.

    scale = alpha_t / alpha_s,  std² = sigma_t² - scale² sigma_s².  For neighbours of a discrete chain
    scale² = 1 - beta_t and std² = beta_t (arXiv:2006.11239, eq. 2).
    """
    (alpha_s, sigma_s), (alpha_t, sigma_t) = schedule(s), schedule(t)
    scale = alpha_t / alpha_s
    return scale, sqrt(sigma_t**2 - scale**2 * sigma_s**2)


def chain(schedule: Schedule, x0: Tensor, grid: Tensor, noise: Noise) -> Iterator[Tensor]:
    """Sample the forward Markov chain q(x_t | x_s) along a grid and yield x at each time.

    x0: (B, ...); grid: (n,), ascending; the first time is reached from clean data in one jump.
    """
    times = grid.tolist()
    x, s = jump(schedule, x0, times[0], noise), times[0]
    yield x
    for t in times[1:]:
        scale, std = transition(schedule, s, t)
        x, s = Pair(x, noise.like(x)).mix(scale, std), t
        yield x


def gaussian_posterior(
    x: Tensor, scale: Coefficient, std: Coefficient, mean: Tensor, prior_std: Coefficient
) -> tuple[Tensor, Coefficient]:
    """Return the mean and the variance of y given x, where y ~ N(mean, prior_std² I) and x | y ~ N(scale y, std² I).

    1 / variance = scale² / std² + 1 / prior_std²,  mean of y | x = variance (scale x / std² + mean / prior_std²), in a form
    that allows one of std and prior_std to be 0.  The marginal of x is N(scale mean, scale² prior_std² + std²).
    x, mean: (B, ...); scale, std, prior_std, variance: float or (B,).
    """
    total = scale**2 * prior_std**2 + std**2
    return combine(scale * prior_std**2 / total, x, std**2 / total, mean), std**2 * prior_std**2 / total


def posterior(schedule: Schedule, x: Tensor, x0: Tensor, t: Time, s: Time) -> tuple[Tensor, Coefficient]:
    """Return the mean and the variance of q(x_s | x_t = x, x0) for s < t (arXiv:2006.11239, eq. 7).

    It is Bayes' rule for x_s ~ N(alpha_s x0, sigma_s²) and x_t | x_s ~ N(scale x_s, std²), where x_t has the variance sigma_t²:
    mean = (scale sigma_s² x + alpha_s std² x0) / sigma_t²,  variance = std² sigma_s² / sigma_t².
    x, x0: (B, ...); t, s, variance: float or (B,).
    """
    alpha_s, sigma_s = schedule(s)
    return gaussian_posterior(x, *transition(schedule, s, t), expand(alpha_s, x0) * x0, sigma_s)


if not TYPE_CHECKING:
    __getattr__ = deprecated_names(__name__)
