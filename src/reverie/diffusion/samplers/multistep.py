"""Multistep samplers, which reuse earlier estimates: DPM-Solver++, UniPC, Adams-Bashforth.

DPM-Solver++ and UniPC work in l = log(alpha / sigma), where the probability flow between times t and s is

    x_s = (sigma_s / sigma_t) x + sigma_s * integral from l_t to l_s of e^l x0(l) dl      (arXiv:2211.01095, eq. 8)

and x0(l) is approximated by a polynomial through the estimates so far.  An estimate at alpha = 0 is at
l = -inf and is dropped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import Field
from torch import Tensor

from reverie.base.errors import UserError
from reverie.base.noise import Noise
from reverie.base.scalar import combine
from reverie.diffusion.denoiser import Denoiser
from reverie.diffusion.samplers.loop import Frame, Sampler
from reverie.diffusion.schedule import Schedule

Past = list[tuple[float, Tensor]]  # (position, estimate) of earlier frames, the latest first

# The maximum ratio of consecutive step lengths for linear and for quadratic extrapolation.  Longer steps, such as the
# last of a coarse uniform grid, use lower degrees.  Measured against the exact flow of a Gaussian and a mixture (four
# schedules, 5 to 50 uniform steps), errors are 3 to 10 times smaller on average.
GROWTH = (3.0, 1.5)


def half_log_snr(schedule: Schedule, t: float) -> float:
    """Return l = log(alpha / sigma), which increases as noise decreases; -inf where alpha = 0."""
    return -math.inf if schedule.is_pure_noise(t) else float(schedule.log_snr(t)) / 2


def remember(position: float, estimate: Tensor, past: Past, length: int) -> Past:
    """Prepend the newest estimate and keep the latest `length`, without those at infinite l."""
    return [(p, e) for p, e in [(position, estimate), *past][:length] if math.isfinite(p)]


def within_reach(position: float, h: float, past: Past) -> Past:
    """Return the earlier estimates that the polynomial of a step of length h interpolates."""
    return past[: sum(h <= growth * (position - past[0][0]) for growth in GROWTH)] if past else past


def trapezoid(denoise: Denoiser, now: Frame, s: float) -> Tensor:
    """Return x at time s to second order, by x0 at both ends and one evaluation: d(x / sigma) = x0 d(alpha / sigma).

    Third-order methods need such a first step, because a first-order step has a second-order error.
    """
    (alpha_t, sigma_t), (alpha_s, sigma_s) = denoise.schedule(now.t), denoise.schedule(s)
    ahead = denoise(now.pair.mix(alpha_s, sigma_s), s).x0
    weight = (alpha_s - alpha_t * sigma_s / sigma_t) / 2
    return combine(sigma_s / sigma_t, now.x, weight, now.x0 + ahead)


@dataclass(frozen=True)
class ExponentialStep:
    """The coefficients of one exponential-integrator step in l, of length h, with the fraction eta of the reverse noise.

    x_s = keep x + gain (x0 + ...) + noise_std z,  keep = sigma_s / sigma_t e^(-eta h),  gain = alpha_s (1 - e^(-(1 + eta) h)).
    """

    h: float
    keep: float
    gain: float
    noise_std: float
    alpha: float


def exponential_step(schedule: Schedule, t: float, s: float, eta: float = 0.0) -> ExponentialStep:
    """Return the coefficients of the step from t to s."""
    (_, sigma_t), (alpha_s, sigma_s) = schedule(t), schedule(s)
    h = half_log_snr(schedule, s) - half_log_snr(schedule, t)
    decay = math.exp(-eta * h) if eta else 1.0
    noise_std = float(sigma_s) * math.sqrt(-math.expm1(-2 * eta * h)) if eta else 0.0
    return ExponentialStep(
        h, float(sigma_s / sigma_t) * decay, -float(alpha_s) * math.expm1(-(1 + eta) * h), noise_std, float(alpha_s)
    )


class DPM2M(Sampler):
    """DPM-Solver++(2M): x0 extrapolated half a step ahead on a straight line in l (arXiv:2211.01095, algorithm 2).

    x_s = keep x + gain (x0 + (x0 - x0_before) h / (2 h_before)).  eta > 0 adds noise: see `dpm++sde`.
    """

    order: int | None = 2
    eta = 0.0

    def step(self, denoise: Denoiser, now: Frame, s: float, noise: Noise, memory: Past | None) -> tuple[Tensor, Past]:
        """Return x at time s and the estimates for the next step."""
        step, position, past = (
            exponential_step(denoise.schedule, now.t, s, self.eta),
            half_log_snr(denoise.schedule, now.t),
            memory or [],
        )
        x = combine(step.keep, now.x, step.gain, now.x0)
        if usable := within_reach(position, step.h, past):
            before, x0_before = usable[0]
            weight = step.gain * step.h / (2 * (position - before))
            x = x.add_(now.x0, alpha=weight).sub_(x0_before, alpha=weight)
        if self.eta:
            x = x.add_(noise.like(x), alpha=step.noise_std)
        return x, remember(position, now.x0, past, 1)


class DPMSDE(DPM2M):
    """DPM-Solver++ for the reverse stochastic equation, two-step (arXiv:2211.01095, section 4.4 and appendix A).

    As 2M, with keep, gain and noise of the reverse SDE.  eta scales the noise: 1 is the SDE (the first step is then DDPM's), 0
    is 2M.
    """

    def __init__(self, eta: float = 1.0) -> None:
        if not 0 <= eta <= 1:
            raise UserError(f"eta must lie in [0, 1], got {eta}")
        self.eta, self.order = eta, None if eta else 2


class DPM3M(Sampler):
    """DPM-Solver++(3M): a parabola in l through the last three estimates, integrated exactly (arXiv:2211.01095).

    x_s = keep x + gain x0 + alpha_s (m1 slope + m2 bend),  m1 = h - (1 - e^-h),  m2 = h² - 2 m1, where slope and bend are
    the first and half the second derivative of the parabola at l_t.  The first step is the trapezoid's.  The order holds
    if alpha > 0 at the start; from alpha = 0 the measured order is 2.5.
    """

    order = 3

    def extra_evaluations(self, first: bool) -> int:
        """Return one for the first step."""
        return int(first)

    def step(self, denoise: Denoiser, now: Frame, s: float, noise: Noise, memory: Past | None) -> tuple[Tensor, Past]:
        """Return x at time s and the estimates for the next step."""
        position, past = half_log_snr(denoise.schedule, now.t), memory or []
        stored = remember(position, now.x0, past, 2)
        if memory is None:
            return trapezoid(denoise, now, s), stored
        step = exponential_step(denoise.schedule, now.t, s)
        x = combine(step.keep, now.x, step.gain, now.x0)
        if usable := within_reach(position, step.h, past):
            slope, bend = _derivatives(position, now.x0, usable)
            m1 = step.h + math.expm1(-step.h)
            x = x.add_(slope, alpha=step.alpha * m1)
            if bend is not None:
                x = x.add_(bend, alpha=step.alpha * (step.h**2 - 2 * m1))
        return x, stored


def _derivatives(position: float, estimate: Tensor, past: Past) -> tuple[Tensor, Tensor | None]:
    """Return the slope and half the second derivative, at `position`, of the polynomial through up to three estimates."""
    d1 = position - past[0][0]
    first = (estimate - past[0][1]) / d1
    if len(past) == 1:
        return first, None
    d2 = past[0][0] - past[1][0]
    bend = (first - (past[0][1] - past[1][1]) / d2) / (d1 + d2)
    return first + bend * d1, bend


class UniPC(Sampler):
    """Predictor and corrector: the estimate at each prediction corrects it (arXiv:2302.04867, B(h) = e^h - 1).

    Each estimate is used twice, so the corrector needs no extra evaluations: a predictor of order p is corrected to order p +
    1. The first correction has order 2, which limits the order of the method to 3.
    """

    def __init__(self, order: Annotated[int, Field(ge=1, le=3)] = 2) -> None:
        if order not in (1, 2, 3):
            raise UserError(f"the order of unipc's predictor must be 1, 2 or 3, got {order}")
        self.predictor, self.order = order, min(order + 1, 3)

    def step(self, denoise: Denoiser, now: Frame, s: float, noise: Noise, memory: Any) -> tuple[Tensor, Any]:
        """Return x at time s, and the start and estimates that its correction needs."""
        schedule, x, past = denoise.schedule, now.x, []
        if memory is not None:
            before, x_before, x0_before, past = memory
            x = self._move(schedule, before, now.t, x_before, x0_before, past, now.x0)
            past = remember(half_log_snr(schedule, before), x0_before, past, self.predictor)
        used = past[: self.predictor - 1]
        return self._move(schedule, now.t, s, x, now.x0, used, None), (now.t, x, now.x0, used)

    def _move(self, schedule: Schedule, t: float, s: float, x: Tensor, x0: Tensor, past: Past, ahead: Tensor | None) -> Tensor:
        """Step from t to s with the estimates at t and before; for a correction, also with `ahead`, that at s."""
        step, position = exponential_step(schedule, t, s), half_log_snr(schedule, t)
        others = [((p - position) / step.h, e) for p, e in within_reach(position, step.h, past)]
        others += [(1.0, ahead)] if ahead is not None else []
        x = combine(step.keep, x, step.gain, x0)
        for (r, estimate), weight in zip(others, _weights(step.h, [r for r, _ in others]), strict=True):
            factor = step.gain * weight / r
            x = x.add_(estimate, alpha=factor).sub_(x0, alpha=factor)
        return x


def _weights(h: float, positions: list[float]) -> list[float]:
    """Return UniPC's weights a_k of (x0_k - x0) / r_k for K estimates at l_t + r_k h.

    sum_k a_k r_k^(n - 1) = m_n / m_0 for n = 1 .. K, where m_n is the integral of e^(l - l_s) ((l - l_t) / h)^n over the
    step and, by integration by parts, m_n = 1 - n m_{n-1} / h: powers of l are then integrated exactly.  A single weight is
    1/2 instead, which has the same order and is finite for infinite h.
    """
    if len(positions) <= 1:
        return [0.5] * len(positions)
    moments = [-math.expm1(-h)]
    for n in range(1, len(positions) + 1):
        moments.append(1 - n * moments[-1] / h)
    system = np.vander(positions, increasing=True).T
    return [float(a) for a in np.linalg.solve(system, np.array(moments[1:]) / moments[0])]


class AdamsBashforth(Sampler):
    """Integrate eps over u = sigma / alpha by a polynomial through the last estimates (PLMS, arXiv:2202.09778).

    d(x / alpha) = eps du, so x_s = alpha_s (x / alpha_t + sum_k w_k eps_k), where w_k are the integrals of the Lagrange
    polynomials from u_t to u_s: for evenly spaced u these are the classical coefficients.  With order 3 the first step is the
    trapezoid's; this order holds if alpha > 0 at the start, and from alpha = 0 the measured order is 2.4.
    """

    def __init__(self, order: Annotated[int, Field(ge=1, le=3)] = 3) -> None:
        if order not in (1, 2, 3):
            raise UserError(f"the order of adams-bashforth must be 1, 2 or 3, got {order}")
        self.terms = self.order = order

    def extra_evaluations(self, first: bool) -> int:
        """Return one for the first step of order 3."""
        return int(first and self.terms == 3)

    def step(self, denoise: Denoiser, now: Frame, s: float, noise: Noise, memory: Past | None) -> tuple[Tensor, Past]:
        """Return x at time s and the estimates for the next step."""
        (alpha_t, sigma_t), (alpha_s, sigma_s) = denoise.schedule(now.t), denoise.schedule(s)
        position, past = math.inf if denoise.schedule.is_pure_noise(now.t) else float(sigma_t / alpha_t), memory or []
        stored = remember(position, now.pair.eps, past, self.terms - 1)
        if memory is None and self.terms == 3:
            return trapezoid(denoise, now, s), stored
        x = now.pair.mix(alpha_s, sigma_s)
        if past:
            estimates = [(position, now.pair.eps), *past]
            gains = lagrange_integrals([p for p, _ in estimates], position, float(sigma_s / alpha_s))
            for (_, eps), gain in zip(estimates[1:], gains[1:], strict=True):
                factor = float(alpha_s) * gain  # the weights sum to u_s - u_t, which the DDIM step has applied to eps
                x = x.add_(eps, alpha=factor).sub_(now.pair.eps, alpha=factor)
        return x, stored


def lagrange_integrals(nodes: list[float], start: float, end: float) -> list[float]:
    """Return the integrals from start to end of the polynomials that are 1 at one node and 0 at the others."""
    width = end - start
    moments = [1 / (n + 1) for n in range(len(nodes))]  # of powers on [0, 1]
    system = np.vander([(node - start) / width for node in nodes], increasing=True).T
    return [width * float(w) for w in np.linalg.solve(system, moments)]
