"""The optimal end time of the continuous-time bound: below some noise level further integration increases the bound."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from reverie.base.noise import Noise
from reverie.diffusion.denoiser import Denoiser
from reverie.diffusion.likelihood.bound import MIN_LOG_SNR, check_data, reconstruction_nll
from reverie.diffusion.likelihood.normal import summed
from reverie.diffusion.pair import Pair
from reverie.diffusion.samplers.rungekutta import straight, straight_time

END_TIMES = 48  # times at which the bound may end


@torch.no_grad()
def best_end(
    denoiser: Denoiser, x0: Tensor, noise: Noise, cond: Tensor | None = None, levels: int | None = None, count: int = END_TIMES
) -> float:
    """Return the end time that minimizes the bound of these data, of `count` evenly spaced in tau = log(1 + alpha / sigma).

    Every end time gives a valid bound for data other than those that selected it.  All candidates share their noise levels, so
    that their differences are more accurate than their values.  x0: (B, ...) in model units.
    """
    check_data(x0, levels)
    schedule = denoiser.schedule
    start = float(schedule.invert(MIN_LOG_SNR))
    low, high = (-math.log(straight(schedule, t)[0]) for t in (start, schedule.t_min))
    width, integral = (high - low) / count, torch.zeros((), dtype=torch.float64)
    best, minimum = schedule.t_min, math.inf
    for k in range(count):
        offset = noise.uniform(1)[0][:, 0].cpu().double()
        w = torch.exp(-(low + width * (k + offset)))
        t, truth = straight_time(schedule, w), Pair(x0, noise.like(x0))
        squared = summed((denoiser(truth.mix(*schedule(t)), t, cond).eps - truth.eps).square())
        integral = integral + (squared.cpu().double() * width / (1 - w)).mean()
        end = float(straight_time(schedule, torch.exp(torch.tensor([-(low + width * (k + 1))], dtype=torch.float64))))
        end = max(end, schedule.t_min)
        decoding = reconstruction_nll(denoiser, Pair(x0, noise.like(x0)), end, cond, levels)
        if (nats := float(integral) + float(decoding.double().mean())) < minimum:
            best, minimum = end, nats
    return best
