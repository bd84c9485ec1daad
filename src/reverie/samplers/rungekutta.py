"""Samplers that look ahead within a step: Heun's of EDM, and Runge-Kutta 4(5) with a tolerance."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from reverie.denoiser import Denoiser
from reverie.errors import UserError
from reverie.noise import Noise
from reverie.process import transition
from reverie.samplers.loop import Frame, Sampler
from reverie.samplers.multistep import trapezoid
from reverie.scalar import combine, expand
from reverie.schedule import Schedule

FAR = 1000.0  # sigma / alpha
MOST_CHURN = math.sqrt(2) - 1  # above it more noise would be added than there is (arXiv:2206.00364)


class Heun(Sampler):
    """Step in y = x / alpha, u = sigma / alpha by the mean of eps at both ends, with EDM's churn (arXiv:2206.00364).

    y_s = y + (u_s - u_t) (eps_t + eps_s) / 2.  churn: before each step, while low <= u <= high, u is raised to (1 + churn) u
    by fresh noise, `noise` times as strong as is exact; EDM's S_churn is churn times the number of steps.  Where u is
    above 1,000 or infinite a small error of eps would be multiplied by it, and the step is the trapezoid's in x / sigma.
    """

    def __init__(self, churn: float = 0.0, low: float = 0.0, high: float = 1e6, noise: float = 1.0) -> None:
        if not 0 <= churn <= MOST_CHURN:
            raise UserError(f"churn must lie between 0 and sqrt(2) - 1 = {MOST_CHURN:.3f}, got {churn}")
        if not (0 <= low < high and noise > 0):
            raise UserError(f"churn needs 0 <= low < high and noise > 0, got {low}, {high} and {noise}")
        self.churn, self.low, self.high, self.noise = churn, low, high, noise
        self.order = None if churn else 2

    def extra(self, first: bool) -> int:
        """Return one."""
        return 1

    def stir(self, schedule: Schedule, x: Tensor, t: float, noise: Noise) -> tuple[Tensor, float]:
        """Raise the noise level, as far as the schedule goes."""
        alpha, sigma = schedule(t)
        if not (self.churn and alpha > 0 and self.low <= sigma / alpha <= self.high):
            return x, t
        higher = float(schedule.invert(-2 * math.log(sigma / alpha * (1 + self.churn))))
        if higher <= t:
            return x, t
        scale, std = transition(schedule, t, higher)
        return combine(scale, x, self.noise * std, noise.like(x)), higher

    def step(self, denoise: Denoiser, now: Frame, s: float, noise: Noise, memory: None) -> tuple[Tensor, None]:
        """Return x at time s."""
        (alpha_t, sigma_t), (alpha_s, sigma_s) = denoise.schedule(now.t), denoise.schedule(s)
        if sigma_t > FAR * alpha_t:
            return trapezoid(denoise, now, s), None
        x = now.pair.mix(alpha_s, sigma_s)
        half = (sigma_s - alpha_s * sigma_t / alpha_t) / 2
        return combine(1.0, x, half, denoise(x, s).eps - now.pair.eps), None


# Dormand and Prince, "A family of embedded Runge-Kutta formulae" (1980): the last row is also the fifth-order solution.
ROWS = (
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
PLACES = (1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0, 1.0)
ERRORS = (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)  # fifth minus fourth order

FIRST_SHARE = 0.2  # of the interval, for the very first step
LEAST_SHARE = 1e-7  # of the interval: smaller steps cannot help any more


class RK45(Sampler):
    """Dormand-Prince Runge-Kutta 4(5), which chooses its own steps between the times of the grid.

    On the straight path y = x / (alpha + sigma), w = sigma / (alpha + sigma), dy/dw = eps - x0 is smooth up to alpha = 0 and
    the same for every schedule.  Each image has its own steps, so that it does not depend on its batch: a step is taken
    if the root mean square of error / (1 + |y|) is within the tolerance.
    """

    order = 5

    def __init__(self, tolerance: float = 1e-3) -> None:
        if not tolerance > 0:
            raise UserError(f"the tolerance must be above 0, got {tolerance}")
        self.tolerance = tolerance

    def extra(self, first: bool) -> None:
        """Return None: as many as the tolerance takes."""
        return

    def step(self, denoise: Denoiser, now: Frame, s: float, noise: Noise, memory: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return x at time s and the length of the next step of each image, (B,)."""
        (w, scale_t), (end, scale_s) = _straight(denoise.schedule, now.t), _straight(denoise.schedule, s)
        x = now.x / scale_t
        slope = now.pair.mix(-1.0, 1.0)
        place = torch.full((len(x),), w, dtype=torch.float64)
        stride = memory if memory is not None else torch.full_like(place, (w - end) * FIRST_SHARE)
        while (left := place - end).max() > 0:
            taken = torch.minimum(stride, left)
            ahead, next_slope, error = self._try(denoise, x, place, taken, slope)
            size = (error / (1 + torch.maximum(x.abs(), ahead.abs()))).flatten(1).square().mean(1).sqrt()
            ratio = (size.double().cpu() / self.tolerance).nan_to_num(nan=torch.inf)
            going = left > 0
            accepted = (ratio <= 1) & going
            keep = accepted.to(x.device).reshape(-1, *[1] * (x.ndim - 1))
            x, slope = torch.where(keep, ahead, x), torch.where(keep, next_slope, slope)
            place = torch.where(accepted, torch.where(taken == left, end, place - taken), place)
            factor = (0.9 * ratio.clamp(min=1e-12) ** -0.2).clamp(0.2, 5.0)
            # A last step that the end of the interval cut short says nothing against the longer one.
            cut = accepted & (taken < stride)
            stride = torch.where(going, torch.where(cut, torch.maximum(stride, taken * factor), taken * factor), stride)
            if float((stride / (w - end)).min()) < LEAST_SHARE:
                raise UserError(f"rk45 cannot reach the tolerance {self.tolerance:g} with this model; ask for a larger one")
        return scale_s * x, stride

    def _try(self, denoise: Denoiser, x: Tensor, place: Tensor, taken: Tensor, slope: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Try steps of the given lengths: return the ends, the slopes there, and the estimated errors."""
        slopes = [slope]
        for c, row in zip(PLACES, ROWS, strict=True):
            ahead = x - expand(taken, x) * _weighted(row, slopes)
            slopes.append(_slope(denoise, ahead, place - c * taken))
        return ahead, slopes[-1], expand(taken, x) * _weighted(ERRORS, slopes)


def _weighted(weights: Sequence[float], slopes: Sequence[Tensor]) -> Tensor:
    """Return the sum of the slopes with their weights."""
    total = weights[0] * slopes[0]
    for weight, slope in zip(weights[1:], slopes[1:], strict=True):
        total = total.add_(slope, alpha=weight) if weight else total
    return total


def _straight(schedule: Schedule, t: float) -> tuple[float, float]:
    """Return w = sigma / (alpha + sigma) and alpha + sigma at a time."""
    alpha, sigma = schedule(t)
    return float(sigma / (alpha + sigma)), float(alpha + sigma)


def _slope(denoise: Denoiser, y: Tensor, w: Tensor) -> Tensor:
    """Return eps - x0 at the place w of the straight path, for the time there is under the denoiser's schedule."""
    t = torch.as_tensor(denoise.schedule.invert(2 * (torch.log1p(-w) - torch.log(w))))
    alpha, sigma = denoise.schedule(t)
    return denoise(expand(alpha + sigma, y) * y, t).mix(-1.0, 1.0)
