"""The Markov chain that codes images: its end time and its reverse variances, optimized for the images."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from reverie.base.noise import Noise
from reverie.diffusion.likelihood.bound import prior_kl, reconstruction_nll
from reverie.diffusion.likelihood.normal import kl_normal, summed
from reverie.diffusion.likelihood.steps import even_times
from reverie.diffusion.pair import Pair
from reverie.diffusion.samplers.onestep import VARIANCES, ancestral, step_variance
from reverie.diffusion.schedule import Schedule
from reverie.families.diffusion.model import Diffusion

TIME_UNITS = 65_536  # units of the end time
VARIANCE_STEPS = 254  # steps of the interpolation between two variances
LEARNED_VARIANCE = 255  # value of `between` for the learned variance of the denoiser


@dataclass(frozen=True)
class Chain:
    """A chain of `steps` steps down to the time `end` / 65,536.

    Its log-variances are interpolated, `between` / 254, from the posterior variance (optimal for a single datum) to the forward
    variance (optimal for data N(0, I)).  If between is 255, they are the learned variances of the denoiser.
    """

    steps: int
    end: int
    between: int

    def grid(self, schedule: Schedule) -> Tensor:
        """Return the times, decreasing: (steps,)."""
        return even_times(schedule, self.steps, self.end / TIME_UNITS)

    def variance(self, schedule: Schedule, t: float, s: float, guess: Pair) -> float | Tensor:
        """Return the variance of p(z_s | z_t) given the estimate of x0: a number, or one per number of the data."""
        if self.between == LEARNED_VARIANCE:
            return step_variance("learned", schedule, t, s, guess)
        posterior, forward = (math.log(float(VARIANCES[name](schedule, t, s))) for name in ("posterior", "forward"))
        return math.exp(posterior + self.between / VARIANCE_STEPS * (forward - posterior))


@torch.no_grad()
def choose_chain(model: Diffusion, x: Tensor, seeds: Tensor, steps: int, end: float | None = None) -> tuple[Chain, float]:
    """Return the chain of lowest cost for these images, and its cost in nats per image.  x: (B, C, H, W) in user units.

    A step whose mean has the error |e|² costs |e|² / 2 v + D/2 (u / v - 1 - log(u / v)) nats for its variance v and the
    posterior variance u, so the optimal v exceeds u by the mean squared error (arXiv:2201.06503).
    """
    end = model.best_end(x, None, seeds) if end is None else end
    end_index = min(TIME_UNITS - 1, max(1, round(TIME_UNITS * end)))
    schedule, noise, z = model.denoiser.schedule, Noise(seeds), model.codec.encode(x)
    grid: list[float] = even_times(schedule, steps, end_index / TIME_UNITS).tolist()
    errors, posterior, forward, learned_cost = [], [], [], 0.0 if model.denoiser.has_variance else math.inf
    for t, s in pairwise(grid):
        truth, row = Pair(z, noise.like(z)), ancestral(schedule, t, s)
        guess = model.denoiser(truth.mix(*schedule(t)), t)
        squared = (guess.mix(*row) - truth.mix(*row)).square()
        errors.append(float(summed(squared).mean()))
        posterior.append(float(VARIANCES["posterior"](schedule, t, s)))
        if model.denoiser.has_variance:
            learned_cost += float(kl_normal(squared, posterior[-1], step_variance("learned", schedule, t, s, guess)).mean())
        forward.append(float(VARIANCES["forward"](schedule, t, s)))
    dimension, error, low, high = math.prod(model.shape), np.array(errors), np.array(posterior), np.array(forward)

    def cost(between: int) -> float:
        ratio = (low / high) ** (between / VARIANCE_STEPS)  # u / v
        return float((error * ratio / (2 * low) + dimension / 2 * (ratio - 1 - np.log(ratio))).sum())

    best = min(range(VARIANCE_STEPS + 1), key=cost)
    cost_of_steps = min(learned_cost, cost(best))
    decoding = reconstruction_nll(model.denoiser, Pair(z, noise.like(z)), grid[-1], None, model.codec.levels)
    rest = prior_kl(schedule, z, grid[0]) + decoding
    return Chain(steps, end_index, LEARNED_VARIANCE if learned_cost == cost_of_steps else best), cost_of_steps + float(
        rest.mean()
    )
