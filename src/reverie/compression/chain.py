"""The chain that images are coded along: where it ends and how wide its steps back are, chosen for the images themselves."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from reverie.base.noise import Noise
from reverie.diffusion.likelihood.bound import prior_cost, reconstruction_cost
from reverie.diffusion.likelihood.normal import kl_normal, summed
from reverie.diffusion.likelihood.steps import even_times
from reverie.diffusion.pair import Pair
from reverie.diffusion.samplers.onestep import VARIANCES, ancestral, step_variance
from reverie.diffusion.schedule import Schedule
from reverie.families.diffusion.model import Diffusion

TIMES = 65_536  # parts of t in which a file says where a chain ends
PARTS = 254  # into which the way between the two variances is cut, for a byte to say it
OWN = 255  # in place of such a part: the variance of each number as the denoiser tells it


@dataclass(frozen=True)
class Chain:
    """So many steps down to the time `end` / 65,536.

    Their variances lie `between` / 254 of the way from the posterior's, which is exact for a single datum, to the forward one,
    exact for data N(0, I): the geometric mean with these weights.  If between is 255 they are the denoiser's own.
    """

    steps: int
    end: int
    between: int

    def grid(self, schedule: Schedule) -> Tensor:
        """Return its times, falling: (steps,)."""
        return even_times(schedule, self.steps, self.end / TIMES)

    def variance(self, schedule: Schedule, t: float, s: float, guess: Pair) -> float | Tensor:
        """Return the variance of p(z_s | z_t), one, or one of each number, where x0 is estimated as `guess`."""
        if self.between == OWN:
            return step_variance("learned", schedule, t, s, guess)
        posterior, forward = (math.log(float(VARIANCES[name](schedule, t, s))) for name in ("posterior", "forward"))
        return math.exp(posterior + self.between / PARTS * (forward - posterior))


@torch.no_grad()
def chosen_chain(model: Diffusion, x: Tensor, seeds: Tensor, steps: int, end: float | None = None) -> tuple[Chain, float]:
    """Return the chain of least cost for these images, and this cost in nats for an image.  x: (B, C, H, W) in user units.

    A step whose mean is wrong by |e|² costs |e|² / 2 v + D/2 (u / v - 1 - log(u / v)) nats with its variance v where the
    posterior's is u, so that the best v lies above u by the mean square of the error (arXiv:2201.06503).
    """
    end = model.best_end(x, None, seeds) if end is None else end
    kept = min(TIMES - 1, max(1, round(TIMES * end)))
    schedule, noise, z = model.denoiser.schedule, Noise(seeds), model.codec.encode(x)
    grid: list[float] = even_times(schedule, steps, kept / TIMES).tolist()
    errors, posterior, forward, own = [], [], [], 0.0 if model.denoiser.tells_variance else math.inf
    for t, s in pairwise(grid):
        truth, row = Pair(z, noise.like(z)), ancestral(schedule, t, s)
        guess = model.denoiser(truth.mix(*schedule(t)), t)
        squared = (guess.mix(*row) - truth.mix(*row)).square()
        errors.append(float(summed(squared).mean()))
        posterior.append(float(VARIANCES["posterior"](schedule, t, s)))
        if model.denoiser.tells_variance:
            own += float(kl_normal(squared, posterior[-1], step_variance("learned", schedule, t, s, guess)).mean())
        forward.append(float(VARIANCES["forward"](schedule, t, s)))
    size, error, low, high = math.prod(model.shape), np.array(errors), np.array(posterior), np.array(forward)

    def cost(between: int) -> float:
        ratio = (low / high) ** (between / PARTS)  # u / v
        return float((error * ratio / (2 * low) + size / 2 * (ratio - 1 - np.log(ratio))).sum())

    best = min(range(PARTS + 1), key=cost)
    spent = min(own, cost(best))
    decoding = reconstruction_cost(model.denoiser, Pair(z, noise.like(z)), grid[-1], None, model.codec.levels)
    rest = prior_cost(schedule, z, grid[0]) + decoding
    return Chain(steps, kept, OWN if own == spent else best), spent + float(rest.mean())
