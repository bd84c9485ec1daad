"""The loss of a diffusion model by noise level, on data that are noised the same at every call."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from reverie.base.noise import mix_seed
from reverie.data import Dataset, evaluation_batch_size
from reverie.data.codec import Codec
from reverie.data.kind import Kind
from reverie.diffusion.denoiser import Denoiser, WithConditioning
from reverie.diffusion.lattice import LatticeDenoiser
from reverie.diffusion.likelihood.bound import prior_cost, reconstruction_cost
from reverie.diffusion.loss import SQUARED, Measure, Squared, loss, weight_of
from reverie.diffusion.oracle import DatasetDenoiser
from reverie.diffusion.pair import Pair

if TYPE_CHECKING:
    from reverie.families.diffusion.model import Diffusion

T_RANGES = 4  # the held-out loss is told for as many ranges of t
HELD_OUT_DRAWS: dict[Kind, int] = {"points": 2000, "images": 512}  # noised data of which the held-out loss is the mean
EVALUATION_BATCH = 256  # of these, at a time
LEVELS_AT_ONCE = 2**25  # numbers, one for each level of each number, that a denoiser of levels works on at a time
LARGE, LARGE_DRAWS = 1024, 256  # numbers in an image above which a check, which must be had often, makes fewer draws
ENCODED = 1024  # data at a time
# Numbers in an image above which it makes fewer still, at least so many: each of its draws takes long.
HUGE, HUGE_DRAWS = 3 * 128**2, 8
OPTIMUM_MOST = 10**8  # numbers in a training set, above which its optimum is not worked out


class NoisedBatch(NamedTuple):
    """Noised data: times (b,), data with noise, labels, what else a network is told of the data, and their kinds."""

    t: Tensor
    truth: Pair
    cond: Tensor | None
    told: Tensor | None
    kinds: Tensor | None


def _draws(model: Diffusion, data: Dataset, seed: int, draws: int) -> Iterator[NoisedBatch]:
    """Yield noised data: the same at every call, with as many times from each range of t."""
    schedule, device = model.denoiser.schedule, model.device
    random = torch.Generator().manual_seed(mix_seed(seed, -(2**40)))
    t = schedule.t_min + (1 - schedule.t_min) * (torch.randperm(draws, generator=random) + 0.5).double() / draws
    most, levels = EVALUATION_BATCH, model.codec.levels
    if levels and isinstance(model.denoiser, LatticeDenoiser):
        most = min(most, max(1, LEVELS_AT_ONCE // (math.prod(data.shape) * levels)))
    known: dict[int, Tensor] = {}
    for part in torch.arange(draws).split(evaluation_batch_size(data.shape, most)):
        x, labels = data.batch(part % len(data))
        x = x.to(device)
        encode = model.codec.encode
        z = _coded_once(encode, x, (part % len(data)).tolist(), known) if model.codec.lossy else encode(x)
        truth = Pair(z, torch.randn(z.shape, generator=random).to(device))
        cond = labels.to(device) if labels is not None else None
        yield NoisedBatch(t[part], truth, cond, model.conditioning_of(x), model.joint_labels(x, cond))


def _coded_once(encode: Callable[[Tensor], Tensor], x: Tensor, numbers: list[int], known: dict[int, Tensor]) -> Tensor:
    """Return the codes of data by an autoencoder, which takes longer than the network, so each datum is coded once.

    x: (b, ...) in user units; numbers: of these data; known: codes by number, to which new ones are added.
    """
    fresh = {number: k for k, number in enumerate(numbers) if number not in known}
    if fresh:
        known.update(zip(fresh, encode(x[list(fresh.values())]), strict=True))
    return torch.stack([known[number] for number in numbers])


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
    measure: Measure | None = None, by_kind: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return times, spread evenly over [t_min, 1], and the loss of noised data there: (n,) each.

    denoiser: one to be judged in place of the model's own; draws: how many, and always the same ones; measure: what an error
    costs, if not what it does in training; by_kind: whether the denoiser is told kinds, see `optimum`, instead of labels.
    """
    d, measure = model.denoiser, measure or model.measure
    times, losses = [], []
    for draw in _draws(model, data, seed, draws or HELD_OUT_DRAWS[data.kind]):
        times.append(draw.t)
        judged = denoiser or (d if draw.told is None else WithConditioning(d, draw.told))
        cond = draw.kinds if by_kind else draw.cond
        lost = loss(judged, draw.truth, draw.t, cond, d.target, model.weight, d.sigma_data, measure)
        losses.append(lost.double().cpu())
    return torch.cat(times), torch.cat(losses)


def check_draws(data: Dataset) -> int:
    """Return how many draws a check makes: a function of the data alone, so that checks of all runs on them compare."""
    numbers = math.prod(data.shape)
    if data.kind != "images" or numbers <= LARGE:
        return HELD_OUT_DRAWS[data.kind]
    return max(HUGE_DRAWS, min(LARGE_DRAWS, LARGE_DRAWS * HUGE // numbers))


@torch.no_grad()
def held_out_metrics(model: Diffusion, data: Dataset, seed: int) -> dict[str, Any]:
    """Return the loss on held-out data, whole and in four ranges of t, and the squared error of the noise in these ranges.

    For a model for the likelihood the whole is the bound, with its unit: bits/dim of images, nats of a point.
    """
    t, lost = noised_losses(model, data, seed, draws=check_draws(data))
    squared = lost
    if not isinstance(model.measure, Squared):
        _, squared = noised_losses(model, data, seed, draws=check_draws(data), measure=SQUARED)
    d = model.denoiser
    snr, vlb, own = (weight_of(w, d.schedule, t, d.target, d.sigma_data) for w in ("snr", "vlb", model.weight))
    found = {
        "held_out": float(lost.mean()), "held_out_levels": _levels(model, t, lost),
        "noise_error_levels": _levels(model, t, squared * snr / own),
    }  # fmt: skip
    if not model.likelihood:
        return found
    integral = (1 - d.schedule.t_min) * float((squared * vlb / own).mean())
    nats = integral * math.prod(data.shape) + _ends(model, data, seed)
    return found | in_unit(model.codec, model.shape, nats)


def in_unit(codec: Codec, shape: tuple[int, ...], nats: float) -> dict[str, Any]:
    """Return what a datum costs in the unit in which it is told: bits/dim of levels, nats of real numbers."""
    if codec.levels is None:
        return {"held_out": nats, "unit": "nats"}
    return {"held_out": nats / (math.prod(shape) * math.log(2)), "unit": "bits/dim"}


def _ends(model: Diffusion, data: Dataset, seed: int) -> float:
    """Return what prior and reconstruction of a datum cost on average, in nats; of points as a density in user units."""
    d, levels = model.denoiser, model.codec.levels
    costs = [
        prior_cost(d.schedule, draw.truth.x0, 1.0) + reconstruction_cost(d, draw.truth, d.schedule.t_min, draw.cond, levels)
        for draw in _draws(model, data, seed, max(1, check_draws(data) // 4))
    ]
    volume = model.codec.log_cell(model.shape) if levels is None else 0.0
    return float(torch.cat(costs).double().mean()) - volume


def optimum(model: Diffusion, data: Dataset) -> DatasetDenoiser | None:
    """Return the best possible model of a finite set; None where the set is too large to say, or another loss is taken.

    Its guesses are means, which are the best only where the error is squared.  It is told kinds, the labels of data and their
    clusters as one number, as the network is told both.
    """
    if not isinstance(model.measure, Squared) or not isinstance(data.x, Tensor) or data.x.numel() > OPTIMUM_MOST:
        return None
    device = model.device
    x = data.batch(torch.arange(len(data)))[0]
    z = torch.cat([model.codec.encode(part.to(device)) for part in x.split(ENCODED)])
    kinds = model.joint_labels(x.to(device), data.labels.to(device) if data.labels is not None else None)
    return DatasetDenoiser(model.denoiser.schedule, z, kinds)


def optimum_levels(model: Diffusion, data: Dataset, seed: int) -> tuple[float, ...]:
    """Return the loss, in four ranges of t, of the best possible model of a finite set on the set itself.

    Empty where that cannot be said; see `optimum`.
    """
    best = optimum(model, data)
    return _levels(model, *noised_losses(model, data, seed, best, check_draws(data), by_kind=True)) if best is not None else ()
