"""The loss of a diffusion model by noise level, on data that are noised the same at every call."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from reverie.base.noise import mix_seed
from reverie.data import Dataset, evaluated_at_once
from reverie.data.kind import Kind
from reverie.diffusion.denoiser import Denoiser
from reverie.diffusion.loss import SQUARED, Measure, Squared, loss, weight_of
from reverie.diffusion.oracle import DatasetDenoiser
from reverie.diffusion.pair import Pair

if TYPE_CHECKING:
    from reverie.families.diffusion.model import Diffusion

T_RANGES = 4  # the held-out loss is told for as many ranges of t
HELD_OUT_DRAWS: dict[Kind, int] = {"points": 2000, "images": 512}  # noised data of which the held-out loss is the mean
LOOKED_AT = 256  # of these, at a time
LARGE, LARGE_DRAWS = 1024, 256  # numbers in an image above which a check, which must be had often, makes fewer draws
OPTIMUM_MOST = 10**8  # numbers in a training set, above which its optimum is not worked out


def _draws(model: Diffusion, data: Dataset, seed: int, draws: int) -> Iterator[tuple[Tensor, Pair, Tensor | None]]:
    """Yield times (b,), data with noise, and labels: the same at every call, with as many times from each range of t."""
    schedule, device = model.denoiser.schedule, model.device
    random = torch.Generator().manual_seed(mix_seed(seed, -(2**40)))
    t = schedule.t_min + (1 - schedule.t_min) * (torch.randperm(draws, generator=random) + 0.5).double() / draws
    for part in torch.arange(draws).split(evaluated_at_once(data.shape, LOOKED_AT)):
        x, labels = data.batch(part % len(data))
        z = model.codec.encode(x.to(device))
        truth = Pair(z, torch.randn(z.shape, generator=random).to(device))
        yield t[part], truth, labels.to(device) if labels is not None else None


def _levels(model: Diffusion, t: Tensor, loss: Tensor) -> tuple[float, ...]:
    """Return the mean loss in each of the ranges of t.  t, loss: (n,)."""
    place = level_of(model, t, T_RANGES)
    return tuple(float(loss[place == level].mean()) for level in range(T_RANGES))


def level_of(model: Diffusion, t: Tensor, levels: int) -> Tensor:
    """Return the number of the range that each time lies in, of so many equal ranges of [t_min, 1]: (n,) int64."""
    low = model.denoiser.schedule.t_min
    return ((t - low) / (1 - low) * levels).long()


@torch.no_grad()
def noised_losses(
    model: Diffusion, data: Dataset, seed: int, denoiser: Denoiser | None = None, draws: int | None = None,
    measure: Measure | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return times, spread evenly over [t_min, 1], and the loss of noised data there: (n,) each.

    denoiser: one to be judged in place of the model's own; draws: how many, and always the same ones; measure: what an error
    costs, if not what it does in training.
    """
    d, measure = model.denoiser, measure or model.measure
    times, losses = [], []
    for t, truth, cond in _draws(model, data, seed, draws or HELD_OUT_DRAWS[data.kind]):
        times.append(t)
        losses.append(loss(denoiser or d, truth, t, cond, d.target, model.weight, d.sigma_data, measure).double().cpu())
    return torch.cat(times), torch.cat(losses)


def check_draws(data: Dataset) -> int:
    """Return how many draws a check makes: a function of the data alone, so that checks of all runs on them compare."""
    return LARGE_DRAWS if data.kind == "images" and math.prod(data.shape) > LARGE else HELD_OUT_DRAWS[data.kind]


@torch.no_grad()
def held_out_loss(model: Diffusion, data: Dataset, seed: int) -> tuple[float, tuple[float, ...], tuple[float, ...]]:
    """Return the loss on held-out data, whole and in four ranges of t, and the squared error of the noise in these ranges."""
    t, lost = noised_losses(model, data, seed, draws=check_draws(data))
    squared = lost
    if not isinstance(model.measure, Squared):
        _, squared = noised_losses(model, data, seed, draws=check_draws(data), measure=SQUARED)
    d = model.denoiser
    shares = [weight_of(weight, d.schedule, t, d.target, d.sigma_data) for weight in ("snr", model.weight)]
    return float(lost.mean()), _levels(model, t, lost), _levels(model, t, squared * shares[0] / shares[1])


def optimum(model: Diffusion, data: Dataset) -> DatasetDenoiser | None:
    """Return the best possible model of a finite set; None where the set is too large to say, or another loss is taken.

    Its guesses are means, which are the best only where the error is squared.
    """
    if not isinstance(model.measure, Squared) or not isinstance(data.x, Tensor) or data.x.numel() > OPTIMUM_MOST:
        return None
    device = model.device
    z = model.codec.encode(data.batch(torch.arange(len(data)))[0].to(device))
    return DatasetDenoiser(model.denoiser.schedule, z, data.labels.to(device) if data.labels is not None else None)


def optimum_levels(model: Diffusion, data: Dataset, seed: int) -> tuple[float, ...]:
    """Return the loss, in four ranges of t, of the best possible model of a finite set on the set itself.

    Empty where that cannot be said; see `optimum`.
    """
    best = optimum(model, data)
    return _levels(model, *noised_losses(model, data, seed, best, check_draws(data))) if best is not None else ()
