"""The loss of a diffusion model by noise level, on data noised with fixed seeds."""

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
from reverie.diffusion.likelihood.bound import prior_kl, reconstruction_nll
from reverie.diffusion.loss import SQUARED, Measure, Squared, loss, weight_of
from reverie.diffusion.oracle import DatasetDenoiser
from reverie.diffusion.pair import Pair

if TYPE_CHECKING:
    from reverie.families.diffusion.model import Diffusion

T_RANGES = 4  # ranges of t for which the held-out loss is reported
HELD_OUT_DRAWS: dict[Kind, int] = {"points": 2000, "images": 512}  # noised data for the held-out loss
EVALUATION_BATCH = 256
LEVELS_AT_ONCE = 2**25  # values times levels in one evaluation of a level denoiser
LARGE, LARGE_DRAWS = 1024, 256  # values in an image above which held-out metrics use fewer noised data, and how many
ENCODING_BATCH = 1024
# Values in an image above which the number decreases further, and its minimum.
HUGE, HUGE_DRAWS = 3 * 128**2, 8
OPTIMUM_MOST = 10**8  # values in a training set above which the optimum is not computed


class NoisedBatch(NamedTuple):
    """Noised data: times (b,), data with noise, labels, further conditioning, and joint labels of label and cluster."""

    t: Tensor
    truth: Pair
    cond: Tensor | None
    conditioning: Tensor | None
    joint_labels: Tensor | None


def _batches(model: Diffusion, data: Dataset, seed: int, draws: int) -> Iterator[NoisedBatch]:
    """Yield noised data, identical at every call, with times stratified over [t_min, 1]."""
    schedule, device = model.denoiser.schedule, model.device
    random = torch.Generator().manual_seed(mix_seed(seed, -(2**40)))
    t = schedule.t_min + (1 - schedule.t_min) * (torch.randperm(draws, generator=random) + 0.5).double() / draws
    batch_size, levels = EVALUATION_BATCH, model.codec.levels
    if levels and isinstance(model.denoiser, LatticeDenoiser):
        batch_size = min(batch_size, max(1, LEVELS_AT_ONCE // (math.prod(data.shape) * levels)))
    codes: dict[int, Tensor] = {}
    for part in torch.arange(draws).split(evaluation_batch_size(data.shape, batch_size)):
        x, labels = data.batch(part % len(data))
        x = x.to(device)
        encode = model.codec.encode
        z = _encode_once(encode, x, (part % len(data)).tolist(), codes) if model.codec.lossy else encode(x)
        truth = Pair(z, torch.randn(z.shape, generator=random).to(device))
        cond = labels.to(device) if labels is not None else None
        yield NoisedBatch(t[part], truth, cond, model.conditioning_of(x), model.joint_labels(x, cond))


def _encode_once(encode: Callable[[Tensor], Tensor], x: Tensor, indices: list[int], codes: dict[int, Tensor]) -> Tensor:
    """Return autoencoder codes, encoding each datum once, because the encoder is slower than the network.

    x: (b, ...) in user units; indices: of these data; codes: by index, extended by this call.
    """
    missing = {index: k for k, index in enumerate(indices) if index not in codes}
    if missing:
        codes.update(zip(missing, encode(x[list(missing.values())]), strict=True))
    return torch.stack([codes[index] for index in indices])


def _levels(model: Diffusion, t: Tensor, loss: Tensor) -> tuple[float, ...]:
    """Return the mean loss in each range of t.  t, loss: (n,)."""
    index = level_of(model, t, T_RANGES)
    return tuple(float(loss[index == level].mean()) for level in range(T_RANGES))


def level_of(model: Diffusion, t: Tensor, levels: int) -> Tensor:
    """Return the index of the range of each time, for equal ranges of [t_min, 1]: (n,) int64."""
    low = model.denoiser.schedule.t_min
    return ((t - low) / (1 - low) * levels).long()


@torch.no_grad()
def noised_losses(
    model: Diffusion, data: Dataset, seed: int, denoiser: Denoiser | None = None, draws: int | None = None,
    measure: Measure | None = None, by_kind: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return times, evenly spaced over [t_min, 1], and the loss of noised data there: (n,) each.

    denoiser: replaces the model's own; draws: number of noised data, identical at every call; measure: replaces the error
    measure of training; by_kind: whether the condition is the joint label, see `optimum`, instead of the label.
    """
    d, measure = model.denoiser, measure or model.measure
    times, losses = [], []
    for batch in _batches(model, data, seed, draws or HELD_OUT_DRAWS[data.kind]):
        times.append(batch.t)
        evaluated = denoiser or (d if batch.conditioning is None else WithConditioning(d, batch.conditioning))
        cond = batch.joint_labels if by_kind else batch.cond
        values = loss(evaluated, batch.truth, batch.t, cond, d.target, model.weight, d.sigma_data, measure)
        losses.append(values.double().cpu())
    return torch.cat(times), torch.cat(losses)


def check_draws(data: Dataset) -> int:
    """Return the number of noised data for held-out metrics, a function of the data only, so that runs are comparable."""
    size = math.prod(data.shape)
    if data.kind != "images" or size <= LARGE:
        return HELD_OUT_DRAWS[data.kind]
    return max(HUGE_DRAWS, min(LARGE_DRAWS, LARGE_DRAWS * HUGE // size))


@torch.no_grad()
def held_out_metrics(model: Diffusion, data: Dataset, seed: int) -> dict[str, Any]:
    """Return the held-out loss, in total and in four ranges of t, and the squared error of the noise in these ranges.

    For a model trained for the likelihood the total is the bound with its unit: bits/dim of images, nats of points.
    """
    t, losses = noised_losses(model, data, seed, draws=check_draws(data))
    squared = losses
    if not isinstance(model.measure, Squared):
        _, squared = noised_losses(model, data, seed, draws=check_draws(data), measure=SQUARED)
    d = model.denoiser
    snr, vlb, training = (weight_of(w, d.schedule, t, d.target, d.sigma_data) for w in ("snr", "vlb", model.weight))
    metrics = {
        "held_out": float(losses.mean()), "held_out_levels": _levels(model, t, losses),
        "noise_error_levels": _levels(model, t, squared * snr / training),
    }  # fmt: skip
    if not model.likelihood:
        return metrics
    integral = (1 - d.schedule.t_min) * float((squared * vlb / training).mean())
    nats = integral * math.prod(data.shape) + _ends(model, data, seed)
    return metrics | in_unit(model.codec, model.shape, nats)


def in_unit(codec: Codec, shape: tuple[int, ...], nats: float) -> dict[str, Any]:
    """Return a negative log-likelihood with its unit: bits/dim of levels, nats of continuous values."""
    if codec.levels is None:
        return {"held_out": nats, "unit": "nats"}
    return {"held_out": nats / (math.prod(shape) * math.log(2)), "unit": "bits/dim"}


def _ends(model: Diffusion, data: Dataset, seed: int) -> float:
    """Return the mean prior and reconstruction terms of the bound in nats; of points as a density in user units."""
    d, levels = model.denoiser, model.codec.levels
    terms = [
        prior_kl(d.schedule, batch.truth.x0, 1.0) + reconstruction_nll(d, batch.truth, d.schedule.t_min, batch.cond, levels)
        for batch in _batches(model, data, seed, max(1, check_draws(data) // 4))
    ]
    volume = model.codec.log_cell(model.shape) if levels is None else 0.0
    return float(torch.cat(terms).double().mean()) - volume


def optimum(model: Diffusion, data: Dataset) -> DatasetDenoiser | None:
    """Return the optimal denoiser of a finite dataset; None for large datasets and losses other than squared error.

    Its estimates are posterior means, which minimize the squared error.  Its condition is label and cluster as one integer.
    """
    if not isinstance(model.measure, Squared) or not isinstance(data.x, Tensor) or data.x.numel() > OPTIMUM_MOST:
        return None
    device = model.device
    x = data.batch(torch.arange(len(data)))[0]
    z = torch.cat([model.codec.encode(part.to(device)) for part in x.split(ENCODING_BATCH)])
    joint_labels = model.joint_labels(x.to(device), data.labels.to(device) if data.labels is not None else None)
    return DatasetDenoiser(model.denoiser.schedule, z, joint_labels)


def optimum_levels(model: Diffusion, data: Dataset, seed: int) -> tuple[float, ...]:
    """Return the loss of the optimal denoiser of a dataset on the dataset itself, in four ranges of t.

    Empty where `optimum` is None.
    """
    best = optimum(model, data)
    return _levels(model, *noised_losses(model, data, seed, best, check_draws(data), by_kind=True)) if best is not None else ()
