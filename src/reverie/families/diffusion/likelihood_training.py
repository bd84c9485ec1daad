"""Training for the likelihood: default settings, and the bound's terms at the ends of a learned schedule."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from reverie.base.scalar import expand
from reverie.base.spec import Spec
from reverie.data import Dataset, LazyImages
from reverie.diffusion.learned import Learned
from reverie.diffusion.pair import Pair

MAX_LEVELS = 64  # distinct values up to which the codec has exactly the levels of the images
FEATURES = 32  # network outputs per value from which the levels are computed
NEIGHBOURS = 4  # neighbouring levels on each side in the reconstruction term
LAST_LOG_SNR, FIRST_LOG_SNR_OF_POINTS = -7.5, 10.0  # initial ends of the learned schedule
NETWORK_OF_POINTS: Spec = {"name": "mlp", "hidden": 128, "layers": 4}
MANY_PASSES, DROPOUT = 40, 0.2  # passes over the data above which a network without dropout memorizes them


def values_of(data: Dataset) -> list[int]:
    """Return the byte values that occur in images, ascending."""
    occurs = torch.zeros(256, dtype=torch.bool)
    for part in torch.arange(len(data)).split(1024):
        occurs[(255 * data.batch(part)[0]).round().long().unique()] = True
    return [int(k) for k in occurs.nonzero()[:, 0]]


def codec_of(data: Dataset) -> Spec:
    """Return the codec of images for the likelihood: the levels that occur if these are few, else all 256."""
    if isinstance(data.x, LazyImages) and not data.x.decoded:
        return {"name": "pixels"}  # a subset of the images would not show all values
    values = values_of(data)
    return {"name": "levels", "values": values} if 2 <= len(values) <= MAX_LEVELS else {"name": "pixels"}


def schedule_of(levels: int | None) -> Spec:
    """Return the initial learned schedule, with noise of a sixth of the distance between levels."""
    first = FIRST_LOG_SNR_OF_POINTS if levels is None else 2 * math.log(3 * (levels - 1))
    return {"name": "learned", "first": round(first, 2), "last": LAST_LOG_SNR}


def for_likelihood(levels: int | None) -> dict[str, Any]:
    """Return the default settings of training for the likelihood."""
    target = "v" if levels is None else "levels"
    return {"target": target, "weight": "vlb", "times": "stratified", "schedule": schedule_of(levels)}


def augment_for_likelihood(passes: float) -> str:
    """Return the default augmentation: whole-pixel shifts, which keep levels, for images seen many times."""
    return "shift" if passes > MANY_PASSES else "none"


def end_costs(schedule: Learned, truth: Pair, levels: int | None) -> Tensor:
    """Return prior and reconstruction terms in nats per dimension, (B,), differentiable in the ends of the schedule.

    prior = 1/2 (alpha² x0² + sigma² - 1 - log sigma²) at t = 1.  The reconstruction at t = 0 uses the noised value only: for
    levels, the probability exp(-(x - alpha v)² / (2 sigma²)) of level v normalised over its neighbours (arXiv:2107.00630,
    eq. 13 and appendix); for continuous values, the normal around x / alpha.  The network could only improve on it.
    """
    x0, ends = truth.x0, schedule(torch.tensor([0.0, 1.0], dtype=torch.float64))
    (alpha, alpha_1), (sigma, sigma_1) = (torch.as_tensor(c).to(x0).unbind() for c in ends)
    prior = ((alpha_1 * x0).square().flatten(1).mean(1) + sigma_1**2 - 1 - 2 * sigma_1.log()) / 2
    if levels is None:
        return prior + truth.eps.square().flatten(1).mean(1) / 2 + math.log(2 * math.pi) / 2 + (sigma / alpha).log()
    h, shifts = 2 / (levels - 1), torch.arange(-NEIGHBOURS, NEIGHBOURS + 1).to(x0)
    # x - alpha (v + k h) = sigma eps - alpha k h
    log_density = -(truth.eps[..., None] - expand(alpha / sigma, x0) * h * shifts).square() / 2
    value = x0[..., None] + h * shifts
    log_density = log_density.masked_fill((value < -1 - h / 2) | (value > 1 + h / 2), -torch.inf)
    return prior - log_density.log_softmax(-1)[..., NEIGHBOURS].flatten(1).mean(1)
