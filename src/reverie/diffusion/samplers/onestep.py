"""One-step samplers: DDIM, DDPM, the sigma-space sampler, Euler and Euler-Maruyama."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from reverie.base.errors import UserError, pick
from reverie.base.noise import Noise
from reverie.base.scalar import Coefficient, combine, sqrt
from reverie.diffusion.denoiser import Denoiser
from reverie.diffusion.pair import Pair, Row
from reverie.diffusion.samplers.loop import Frame, Sampler
from reverie.diffusion.schedule import Schedule


def _resampled(schedule: Schedule, t: float, s: float) -> Coefficient:
    """Return the fraction of sigma_s² that q(x_s | x_t, x0) resamples: 1 - (alpha_t sigma_s / (alpha_s sigma_t))²."""
    (alpha_t, sigma_t), (alpha_s, sigma_s) = schedule(t), schedule(s)
    return max(0.0, 1 - (alpha_t * sigma_s / (alpha_s * sigma_t)) ** 2)


class DDIM(Sampler):
    """Step by mixing the estimated noise with fresh noise (arXiv:2010.02502).

    x_s = alpha_s x0 + sigma_s (sqrt(1 - k) eps + sqrt(k) z),  k = eta² (1 - (alpha_t sigma_s / (alpha_s sigma_t))²)
    eta=0 is deterministic and of first order, eta=1 is DDPM.
    """

    def __init__(self, eta: float = 0.0) -> None:
        if not 0 <= eta <= 1:
            raise UserError(f"eta must lie in [0, 1], got {eta}")
        self.eta, self.order = eta, None if eta else 1

    def step(self, denoise: Denoiser, now: Frame, s: float, noise: Noise, memory: Any) -> tuple[Tensor, Any]:
        """Return x at time s."""
        alpha_s, sigma_s = denoise.schedule(s)
        if self.eta == 0:  # deterministic: draws no noise
            return now.pair.mix(alpha_s, sigma_s), None
        k = self.eta**2 * _resampled(denoise.schedule, now.t, s)
        x = now.pair.mix(alpha_s, sigma_s * sqrt(1 - k))
        return combine(1.0, x, sigma_s * sqrt(k), noise.like(x)), None


VARIANCES: dict[str, Callable[[Schedule, float, float], Coefficient]] = {
    "posterior": lambda schedule, t, s: schedule(s)[1] ** 2 * _resampled(schedule, t, s),
    "forward": lambda schedule, t, s: _forward(schedule(t), schedule(s)),
}


def _forward(at_t: Row, at_s: Row) -> Coefficient:
    r_t, r_s = at_t[0] ** 2 + at_t[1] ** 2, at_s[0] ** 2 + at_s[1] ** 2
    return r_s * (1 - (at_t[0] / at_s[0]) ** 2 * r_s / r_t)


def ancestral(schedule: Schedule, t: float, s: float) -> Row:
    """Return a, b such that the mean of q(x_s | x_t, x0) is a x0 + b eps: alpha_s and sigma_s sqrt(1 - k), k as in DDIM."""
    alpha_s, sigma_s = schedule(s)
    return alpha_s, sigma_s * sqrt(1 - _resampled(schedule, t, s))


Variance = Literal["posterior", "forward", "optimal", "learned"]


def step_variance(name: str, schedule: Schedule, t: float, s: float, guess: Pair) -> float | Tensor:
    """Return the variance of p(x_s | x_t) for an estimate of x0: a number, or a tensor with one per number of the data.

    q(x_s | x_t, x0) has the variance sigma_s² k and its mean depends on x0 with factor alpha_s k, k as in DDIM, so if x0 given
    x_t has the variance v, x_s has sigma_s² k + (alpha_s k)² v.  "posterior" is v = 0 and "forward" v = sigma² / (alpha² +
    sigma²); "optimal" and "learned" take v from the estimate (arXiv:2201.06503, theorem 1; arXiv:2206.07309).
    """
    if name in VARIANCES:
        return float(VARIANCES[name](schedule, t, s))
    if guess.variance is None:
        raise UserError(
            f"the variance {name!r} needs an estimate with a variance, and this one has none; use variance=posterior"
            " or forward" + (", or train with --variance learned" if name == "learned" else " where you steer")
        )
    k, (alpha_s, sigma_s) = _resampled(schedule, t, s), schedule(s)
    return guess.variance * float((alpha_s * k) ** 2) + float(sigma_s**2 * k)


class DDPM(Sampler):
    """Ancestral sampling (arXiv:2006.11239): the mean of q(x_s | x, x0) plus noise of one of four variances.

    posterior: sigma_s² k with k as in DDIM (beta-tilde, exact for a single data point);
    forward: r_s² (1 - (alpha_t r_s / (alpha_s r_t))²), r² = alpha² + sigma² (beta, exact for data N(0, I));
    optimal: from the mean squared error of x0 on training data, the optimum shared by all numbers (arXiv:2201.06503);
    learned: per number, estimated by the network (arXiv:2102.09672), after training with --variance learned.
    """

    def __init__(self, variance: Variance = "posterior") -> None:
        pick(dict.fromkeys(get_args(Variance)), variance, "variance")
        self.variance = variance

    def step(self, denoise: Denoiser, now: Frame, s: float, noise: Noise, memory: Any) -> tuple[Tensor, Any]:
        """Return x at time s."""
        mean = now.pair.mix(*ancestral(denoise.schedule, now.t, s))
        variance = step_variance(self.variance, denoise.schedule, now.t, s, now.pair)
        if isinstance(variance, Tensor):
            return torch.addcmul(mean, variance.sqrt(), noise.like(mean)), None
        return combine(1.0, mean, sqrt(variance), noise.like(mean)), None


class SigmaSpace(Sampler):
    """Step in y = x / alpha, u = sigma / alpha, with momentum gamma and a fraction mu of fresh noise (arXiv:2306.04848).

    y_s = y + (u' - u_t) e + sqrt(u_s² - u'²) z,  u_s = u_t^mu u'^(1 - mu),  e = gamma eps + (1 - gamma) eps_before
    mu=0, gamma=1 is DDIM.  mu=1/2, gamma=1 has u' = u_s² / u_t and is DDPM with the posterior variance.
    """

    def __init__(self, mu: float = 0.0, gamma: float = 1.0) -> None:
        if not 0 <= mu < 1:
            raise UserError(f"mu must lie in [0, 1), got {mu}")
        if not gamma >= 1:
            raise UserError(f"gamma must be at least 1, got {gamma}")
        self.mu, self.gamma, self.order = mu, gamma, None if mu else 1

    def step(self, denoise: Denoiser, now: Frame, s: float, noise: Noise, memory: Any) -> tuple[Tensor, Any]:
        """Return x at time s and the noise estimate for the next step."""
        (alpha_t, sigma_t), (alpha_s, sigma_s) = denoise.schedule(now.t), denoise.schedule(s)
        u_s = sigma_s / alpha_s
        target = u_s * (alpha_t * u_s / sigma_t) ** (self.mu / (1 - self.mu))  # u', with 1 / u_t finite for alpha = 0
        x = now.pair.mix(alpha_s, alpha_s * target)
        if memory is not None and self.gamma > 1 and not denoise.schedule.is_pure_noise(now.t):
            weight = alpha_s * (target - sigma_t / alpha_t) * (self.gamma - 1)
            x = combine(1.0, x, weight, now.pair.eps - memory)
        if self.mu:
            x = combine(1.0, x, alpha_s * sqrt(u_s**2 - target**2), noise.like(x))
        return x, now.pair.eps


class Euler(Sampler):
    """Step along the probability-flow velocity: x_s = x + (s - t) v,  v = alpha' x0 + sigma' eps (arXiv:2011.13456)."""

    order = 1

    def step(self, denoise: Denoiser, now: Frame, s: float, noise: Noise, memory: Any) -> tuple[Tensor, Any]:
        """Return x at time s."""
        velocity = now.pair.mix(*denoise.schedule.rates(now.t))
        return combine(1.0, now.x, s - now.t, velocity), None


class EulerMaruyama(Sampler):
    """Step along the reverse stochastic differential equation (arXiv:2011.13456, eq. 6).

    x_s = x + (s - t) (alpha' x0 + (2 sigma' - f sigma) eps) + g sqrt(t - s) z,  f = alpha' / alpha,
    g² = 2 sigma (sigma' - f sigma).  Where alpha = 0, f is infinite and the step is DDPM's.
    """

    def step(self, denoise: Denoiser, now: Frame, s: float, noise: Noise, memory: Any) -> tuple[Tensor, Any]:
        """Return x at time s."""
        alpha, sigma = denoise.schedule(now.t)
        if denoise.schedule.is_pure_noise(now.t):
            return DDPM().step(denoise, now, s, noise, None)
        d_alpha, d_sigma = denoise.schedule.rates(now.t)
        drift = d_alpha / alpha * sigma
        x = combine(1.0, now.x, s - now.t, now.pair.mix(d_alpha, 2 * d_sigma - drift))
        return combine(1.0, x, sqrt(2 * sigma * (d_sigma - drift) * (now.t - s)), noise.like(x)), None
