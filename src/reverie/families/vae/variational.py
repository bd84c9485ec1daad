"""Models with latent variables: training by the variational bound, evaluation by importance weighting, sampling."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from reverie.base.deadline import Deadline
from reverie.base.errors import UserError
from reverie.base.noise import Noise, image_seeds
from reverie.data import Dataset, chunk_size
from reverie.data.codec import Codec
from reverie.diffusion.likelihood.bound import check_data
from reverie.diffusion.likelihood.flow import LogProb
from reverie.diffusion.likelihood.normal import Diagonal, summed
from reverie.diffusion.pair import Pair
from reverie.diffusion.samplers import Frame
from reverie.families.diffusion.noise_levels import in_unit
from reverie.families.model import SamplingInputs, TrainedModel, check_labelled, check_one_label
from reverie.families.vae.observation import Observation

RandnLike = Callable[[Tensor], Tensor]  # returns standard normal noise of a tensor's shape, dtype and device
METRIC_DATA = 1024  # maximum number of data for held-out metrics
BEGIN_DATA = 4096  # maximum number of training data for initialization
DEFAULT_DRAWS = 128  # samples of the latent per evaluated datum
NUMBERS_AT_ONCE = 2**22  # decoder outputs per evaluated batch
ACTIVE = 0.01  # mean KL in nats above which a latent dimension counts as active


@dataclass(frozen=True)
class LatentLevel:
    """A latent of a batch: posterior by the encoder, prior by the model, and a sample of the posterior.  z: (B, ...)."""

    posterior: Diagonal
    prior: Diagonal | None  # None for N(0, 1)
    z: Tensor

    def kl(self) -> Tensor:
        """Return KL(q || p) of each value, in closed form: (B, ...)."""
        return self.posterior.kl(self.prior)

    def cost(self, free_bits: float) -> Tensor:
        """Return each value's contribution to the loss, at least `free_bits` nats: (B, ...)."""
        return self.kl().clamp_min(free_bits)

    def log_ratio(self) -> Tensor:
        """Return log p(z) - log q(z), whose mean over samples is minus the KL: (B,)."""
        prior = Diagonal(torch.zeros_like(self.z), torch.zeros_like(self.z)) if self.prior is None else self.prior
        return summed(prior.log_density(self.z) - self.posterior.log_density(self.z))


def importance_bound(log_weights: Tensor) -> Tensor:
    """Return log 1/K sum_k w_k, a bound that rises with K (arXiv:1509.00519, eq. 8): (B,).  log_weights: (B, K)."""
    return log_weights.logsumexp(1) - math.log(log_weights.shape[1])


class Variational(TrainedModel):
    """p(x) = integral of p(x | z) p(z), with q(z | x) to bound it: log p(x) >= E_q [log p(x | z) + log p(z) - log q(z | x)].

    observation: p(x | z), with `bias`, (..., P), added to decoder outputs; beta: weight of the KL; free_bits: KL in nats that
    is not penalized for each latent value, if the KL has a closed form; kl_warmup: share of the training in which the KL
    weight rises to beta; importance: samples per datum in training; several train the importance-weighted bound.
    centre: the mean of the training data.
    """

    def __init__(
        self, observation: Observation, codec: Codec, shape: tuple[int, ...], labels: int, beta: float = 1.0,
        free_bits: float = 0.0, kl_warmup: float = 0.0, importance: int = 1,
    ) -> None:  # fmt: skip
        super().__init__()
        self.observation, self.codec, self.shape, self.label_count = observation, codec, shape, labels
        self.beta, self.free_bits, self.kl_warmup, self.importance = beta, free_bits, kl_warmup, importance
        self.centre = nn.Buffer(torch.zeros(shape))
        self.bias = nn.Parameter(torch.zeros(*shape, observation.parameters))
        self.size, self.done = math.prod(shape), 1.0

    @abstractmethod
    def infer(self, x: Tensor, cond: Tensor | None, randn: RandnLike, copies: int = 1) -> tuple[Sequence[LatentLevel], Tensor]:
        """Sample the latents of data, `copies` times each, and return them with the decoder output: (B copies, ..., P).

        x: (B, ...) in model units; copies of a datum are adjacent.
        """

    @abstractmethod
    def generate(self, count: int, cond: Tensor | None, randn: RandnLike) -> Tensor:
        """Sample latents from the prior and return the decoder output: (count, ..., P)."""

    def encode(self, x: Tensor) -> Tensor:
        """Return data in model units, by the codec."""
        return self.codec.encode(x)

    def decode(self, z: Tensor) -> Tensor:
        """Return data in user units, by the codec."""
        return self.codec.decode(z)

    @torch.no_grad()
    def initialize(self, data: Dataset, deadline: Deadline | None = None) -> None:
        """Set `centre` to the mean of the data, and `bias` to the parameters that fit the data without z."""
        x = self.codec.encode(data.subsample(BEGIN_DATA))
        self.centre.copy_(x.mean(0))
        self.bias.copy_(self.observation.initial_parameters(x).to(self.bias))

    def set_progress(self, fraction: float) -> None:
        """Set the completed fraction of the training, on which the KL weight depends."""
        self.done = fraction

    def bound(self, x: Tensor, cond: Tensor | None, randn: RandnLike, copies: int = 1) -> tuple[Tensor, Sequence[LatentLevel]]:
        """Return log p(x | z) of each sample, (B, copies), and the latents.  x: (B, ...) in model units."""
        check_labelled(self.label_count, cond, len(x))
        levels, y = self.infer(x, cond, randn, copies)
        log_p = summed(self.observation.log_prob(x.repeat_interleave(copies, 0), y))
        return log_p.unflatten(0, (-1, copies)), levels

    def loss(self, x: Tensor, cond: Tensor | None, seed: int) -> Tensor:
        """Return the bound on the negative log-likelihood in nats per dimension, (B,); sampling is a function of the seed."""
        z = self.codec.encode(x)
        random = torch.Generator(z.device).manual_seed(seed)

        def randn(like: Tensor) -> Tensor:
            return torch.randn(like.shape, generator=random, device=like.device, dtype=like.dtype)

        log_likelihood, levels = self.bound(z, cond, randn, self.importance)
        weight = self.beta * min(1.0, self.done / self.kl_warmup) if self.kl_warmup else self.beta
        if self.importance == 1:
            kl = sum((summed(level.cost(self.free_bits)) for level in levels), log_likelihood.new_zeros(len(x)))
            return (weight * kl - log_likelihood[:, 0]) / self.size
        return -importance_bound(log_likelihood + weight * self._log_ratio(levels, self.importance)) / self.size

    @property
    def _log_cell(self) -> float:
        """The log volume that converts a density of points from model to user units; 0 for levels."""
        return 0.0 if self.codec.levels is not None else self.codec.log_cell(self.shape)

    def _log_ratio(self, levels: Sequence[LatentLevel], copies: int) -> Tensor:
        """Return log p(z) - log q(z | x) of each sample: (B, copies)."""
        log_ratio: Tensor = torch.stack([level.log_ratio() for level in levels]).sum(0).unflatten(0, (-1, copies))
        return log_ratio

    @torch.no_grad()
    def log_weights(self, x: Tensor, cond: Tensor | None, seeds: Tensor, draws: int) -> Tensor:
        """Return log p(x, z) - log q(z | x) of samples z ~ q(z | x), in nats: (B, draws).  x: (B, ...) in user units."""
        if draws < 1:
            raise UserError(f"the importance-weighted bound needs at least 1 draw, got {draws}")
        z = self.codec.encode(x)
        check_data(z, self.codec.levels)
        rows, numbers = [], self.size * self.observation.parameters
        batch_size = max(1, NUMBERS_AT_ONCE // (numbers * draws))  # independent of the number of data
        for part in torch.arange(len(z)).split(batch_size):
            noise, weights = Noise(seeds[part]), []
            part_cond = cond[part].to(z.device) if cond is not None else None
            for copies in _parts(draws, max(1, NUMBERS_AT_ONCE // (numbers * batch_size))):
                log_likelihood, levels = self.bound(z[part], part_cond, _by_seed(noise, copies), copies)
                weights.append(log_likelihood + self._log_ratio(levels, copies) + self._log_cell)
            rows.append(torch.cat(weights, 1))
        return torch.cat(rows)

    def log_prob(self, x: Tensor, cond: Tensor | None, seeds: Tensor, draws: int = DEFAULT_DRAWS) -> LogProb:
        """Return the importance-weighted bound on log p(x) of each datum, in nats.

        error: standard error of each, sqrt(Var w / K) / E w.  seeds: (B,), one per datum.
        """
        log_weights = self.log_weights(x.to(self.device), cond, seeds, draws)
        weights = torch.exp(log_weights - log_weights.amax(1, keepdim=True))
        if draws > 1:
            error = weights.std(1) / (weights.mean(1) * math.sqrt(draws))
        else:
            error = torch.full_like(log_weights[:, 0], math.nan)
        return LogProb(importance_bound(log_weights).cpu(), error.cpu(), draws, f"{draws} samples of the latent", self.size)

    @torch.no_grad()
    def held_out_metrics(self, data: Dataset, seed: int) -> dict[str, Any]:
        """Return the bound, its two terms in nats per datum, and the share of active latent dimensions."""
        count = min(len(data), chunk_size(self.shape, METRIC_DATA))
        seeds, log_likelihood, kls = image_seeds(seed, count), 0.0, list[Tensor]()
        for part in torch.arange(count).split(max(1, NUMBERS_AT_ONCE // (self.size * self.observation.parameters))):
            x, labels = data.batch(part)
            cond = labels.to(self.device) if labels is not None else None
            log_p, levels = self.bound(self.codec.encode(x.to(self.device)), cond, _by_seed(Noise(seeds[part]), 1))
            log_likelihood += float(log_p.sum()) / count
            kls.append(torch.cat([level.kl().flatten(1).sum(0) for level in levels]) / count)
        kl_per_dim = torch.stack(kls).sum(0)  # nats of each latent dimension
        kl, reconstruction = float(kl_per_dim.sum()), -log_likelihood - self._log_cell
        nll = in_unit(self.codec, self.shape, reconstruction + kl)
        return {**nll, "kl": kl, "reconstruction": reconstruction, "active": float((kl_per_dim > ACTIVE).float().mean())}

    @torch.no_grad()
    def frames(self, inputs: SamplingInputs) -> Iterator[Frame]:
        """Sample in one step and yield one frame."""
        check_one_label(inputs)
        noise = Noise(inputs.seeds)
        cond = inputs.cond.to(self.device) if inputs.cond is not None else None
        check_labelled(self.label_count, cond, len(inputs.seeds))
        y = self.generate(len(inputs.seeds), cond, noise.like)
        x = self.observation.displayed_sample(y, noise)
        yield Frame(0, 1, 0.0, x, Pair(x, torch.zeros_like(x)))


def _by_seed(noise: Noise, copies: int) -> RandnLike:
    """Return noise with one stream per datum; copies of a datum are adjacent."""

    def randn(like: Tensor) -> Tensor:
        return noise.like(like.unflatten(0, (-1, copies))).flatten(0, 1)

    return randn


def _parts(total: int, maximum: int) -> list[int]:
    """Split an integer into parts of at most `maximum`."""
    return [min(maximum, total - k) for k in range(0, total, maximum)]
