"""One step of the bound, KL(q(x_s | x_t, x0) || p(x_s | x_t)) with DDPM's posterior variance, in its three forms.

They are equal, one per prediction target (arXiv:2107.00630, section 4; arXiv:2208.11970, eqs 108, 130, 148).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from reverie.base.errors import pick
from reverie.base.scalar import Coefficient, Time, exp, expm1
from reverie.diffusion.denoiser import Denoiser
from reverie.diffusion.likelihood.normal import summed
from reverie.diffusion.pair import Pair, row
from reverie.diffusion.schedule import Schedule

NO_SIGNAL = -12.0  # log-SNR below which the signal is negligible


def _by_x0(schedule: Schedule, t: Time, s: Time) -> Coefficient:
    """1/2 (SNR(s) - SNR(t)), of |x0 - x0_hat|²."""
    at_s, at_t = schedule.log_snr(s), schedule.log_snr(t)
    return -exp(at_s) * expm1(at_t - at_s) / 2


def _by_noise(schedule: Schedule, t: Time, s: Time) -> Coefficient:
    """1/2 (SNR(s) / SNR(t) - 1), of |eps - eps_hat|²."""
    return expm1(schedule.log_snr(s) - schedule.log_snr(t)) / 2


def _by_score(schedule: Schedule, t: Time, s: Time) -> Coefficient:
    """1/2 (SNR(s) / SNR(t) - 1) sigma_t², of |score - score_hat|²."""
    return _by_noise(schedule, t, s) * schedule(t)[1] ** 2


FORMS: dict[str, Callable[[Schedule, Time, Time], Coefficient]] = {"x0": _by_x0, "eps": _by_noise, "score": _by_score}


def step_weight(schedule: Schedule, t: Time, s: Time, form: str = "x0") -> Coefficient:
    """Return the weight of the squared error in one of the forms, for a step from t to s < t: float or (B,)."""
    return pick(FORMS, form, "form of the bound")(schedule, t, s)


def step_end(schedule: Schedule, t: Tensor, steps: int) -> Tensor:
    """Return the end of a step from t in a chain of `steps` equal steps from 1 to t_min: (B,)."""
    return (t - (1 - schedule.t_min) / steps).clamp(min=schedule.t_min)


def even_times(schedule: Schedule, steps: int, end: float) -> Tensor:
    """Return times from no signal to `end`, decreasing and evenly spaced in the log-SNR: (steps,)."""
    first, last = max(float(schedule.log_snr(1.0)), NO_SIGNAL), float(schedule.log_snr(end))
    times = schedule.invert(torch.linspace(first, last, steps, dtype=torch.float64))
    assert isinstance(times, Tensor)
    return times


def step_kl(denoiser: Denoiser, truth: Pair, t: float, s: float, cond: Tensor | None = None, form: str = "x0") -> Tensor:
    """Return the KL of a step from t to s at x_t = alpha x0 + sigma eps, with the posterior variance, in nats: (B,)."""
    alpha, sigma = denoiser.schedule(t)
    guess = denoiser(truth.mix(alpha, sigma), t, cond)
    a, b = row(form, alpha, sigma)
    squared = summed((guess.mix(a, b) - truth.mix(a, b)).square())
    weight = step_weight(denoiser.schedule, t, s, form)
    return squared * (weight.to(squared) if isinstance(weight, Tensor) else weight)
