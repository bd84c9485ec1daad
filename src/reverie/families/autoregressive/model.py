"""Autoregressive models: an exact likelihood, sampling value by value, and completion of known values."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from reverie.base.deadline import Deadline
from reverie.base.errors import UserError
from reverie.base.noise import Noise
from reverie.data import Dataset, chunk_size
from reverie.data.codec import Codec
from reverie.diffusion.likelihood.bound import check_data
from reverie.diffusion.likelihood.flow import LogProb
from reverie.diffusion.pair import Pair
from reverie.diffusion.samplers import Frame
from reverie.families.autoregressive.completion import KnownNumbers, complete
from reverie.families.diffusion.noise_levels import in_unit
from reverie.families.model import CompletionModel, SamplingInputs, TrainedModel, check_labelled, check_one_label
from reverie.families.vae.observation import Observation

METRIC_DATA = 1024  # data, at most, for held-out metrics
BEGIN_DATA = 4096  # training data, at most, for initialization
NUMBERS_AT_ONCE = 2**23  # output parameters per evaluated batch


class IncrementalDecoder(ABC):
    """Data that are generated value by value, in a given order."""

    @abstractmethod
    def next_parameters(self) -> Tensor:
        """Return the parameters of the next value's distribution: (B, P)."""

    @abstractmethod
    def append(self, z: Tensor) -> None:
        """Append the next value of each datum, in model units.  z: (B,)."""

    @abstractmethod
    def select(self, index: Tensor) -> None:
        """Continue with the selected data, which may repeat.  index: (B,) int64."""


class Autoregressive(TrainedModel, CompletionModel):
    """log p(x) = sum_i log p(x_i | x_1 .. x_{i-1}), with an `Observation` as distribution of each value.

    order: (D,) int64, positions of a datum in generation order: pixels row by row, all channels of a pixel together.
    orderless: whether the model has a joint distribution for every order.
    """

    orderless = False

    def __init__(self, observation: Observation, codec: Codec, shape: tuple[int, ...], labels: int) -> None:
        super().__init__()
        self.observation, self.codec, self.shape, self.label_count = observation, codec, shape, labels
        self.size = math.prod(shape)

    @property
    def order(self) -> Tensor:
        """The position in a datum of each value of its sequence: (D,)."""
        positions = torch.arange(self.size, device=self.device)
        return positions.reshape(self.shape).movedim(0, -1).flatten() if len(self.shape) == 3 else positions

    def order_around(self, seen: Tensor) -> Tensor:
        """Return the generation order for a datum with some known values.  seen: (D,) bool, by position."""
        return self.order

    @abstractmethod
    def output_parameters(self, z: Tensor, cond: Tensor | None) -> Tensor:
        """Return the parameters of each value's distribution given those before it: (B, D, P).  z: (B, D) in `order`."""

    @abstractmethod
    def incremental_decoder(self, count: int, cond: Tensor | None, order: Tensor) -> IncrementalDecoder:
        """Return a decoder that generates `count` data in an order; most models support only `order`."""

    def encode(self, x: Tensor) -> Tensor:
        """Return data in model units, by the codec."""
        return self.codec.encode(x)

    def decode(self, z: Tensor) -> Tensor:
        """Return data in user units, by the codec."""
        return self.codec.decode(z)

    def initialize(self, data: Dataset, deadline: Deadline | None = None) -> None:
        """Initialize with the marginal distribution of each value."""
        self.initialize_with(self.codec.encode(data.subsample(BEGIN_DATA)))

    @abstractmethod
    def initialize_with(self, z: Tensor) -> None:
        """Initialize weights from training data in model units: (N, ...)."""

    def log_numbers(self, z: Tensor, cond: Tensor | None, order: Tensor | None = None) -> Tensor:
        """Return log p of each value given those before it: (B, D), in the given order, default `order`.

        z: (B, ...) in model units.
        """
        check_labelled(self.label_count, cond, len(z))
        if order is None or torch.equal(order, self.order):
            sequence = z.flatten(1)[:, self.order]
            return self.observation.log_prob(sequence, self.output_parameters(sequence, cond))
        if not self.orderless:
            raise UserError("the model has one order only; train nade:orderless=true for likelihoods in other orders")
        incremental_decoder, log_p = self.incremental_decoder(len(z), cond, order), []
        for i, numbers in enumerate(z.flatten(1)[:, order].T):
            log_p.append(self.observation.log_prob(numbers, incremental_decoder.next_parameters()))
            if i + 1 < self.size:
                incremental_decoder.append(numbers)
        return torch.stack(log_p, 1)

    def loss(self, x: Tensor, cond: Tensor | None, seed: int) -> Tensor:
        """Return the negative log-likelihood in nats per dimension: (B,)."""
        return -self.log_numbers(self.codec.encode(x), cond).mean(1)

    @torch.no_grad()
    def log_prob(self, x: Tensor, cond: Tensor | None, seeds: Tensor, order: Tensor | None = None) -> LogProb:
        """Return log p(x) of each datum, exactly, in nats.  order: generation order, default `order`."""
        z = self.codec.encode(x.to(self.device))
        check_data(z, self.codec.levels)
        parts = []
        for part in torch.arange(len(z)).split(self._batch_size):
            labels = cond[part].to(z.device) if cond is not None else None
            parts.append(self.log_numbers(z[part], labels, order).cpu().double().sum(1))
        nats = torch.cat(parts) + (0.0 if self.codec.levels is not None else self.codec.log_cell(self.shape))
        return LogProb(nats, torch.zeros_like(nats), 1, "autoregressive", self.size)

    @property
    def _batch_size(self) -> int:
        """The number of data per evaluated batch."""
        return max(1, NUMBERS_AT_ONCE // (self.size * self.observation.parameters))

    def held_out_metrics(self, data: Dataset, seed: int) -> dict[str, Any]:
        """Return the mean negative log-likelihood of held-out data."""
        x, labels = data.batch(torch.arange(min(len(data), chunk_size(self.shape, METRIC_DATA))))
        return in_unit(self.codec, self.shape, -float(self.log_prob(x, labels, torch.empty(0)).nats.mean()))

    @torch.no_grad()
    def frames(self, inputs: SamplingInputs) -> Iterator[Frame]:
        """Sample value by value and yield a frame after each; later values are at their minimum."""
        check_one_label(inputs)
        count, noise = len(inputs.seeds), Noise(inputs.seeds)
        cond = inputs.cond.to(self.device) if inputs.cond is not None else None
        check_labelled(self.label_count, cond, count)
        incremental_decoder, order = self.incremental_decoder(count, cond, self.order), self.order.tolist()
        x = torch.full((count, self.size), -1.0, device=self.device)
        u, v = (part.to(x) for part in noise.uniform(self.size))
        for i, position in enumerate(order):
            z = self.observation.sample(incremental_decoder.next_parameters(), u[:, i], v[:, i])
            x[:, position] = z
            if i + 1 < self.size:
                incremental_decoder.append(z)
            yield self.frame(i, x)

    def frame(self, i: int, x: Tensor) -> Frame:
        """Return the frame after value i.  x: (B, D) by position."""
        data = x.reshape(-1, *self.shape)
        data = data.clone() if i + 1 < self.size else data
        return Frame(i, self.size, 1 - (i + 1) / self.size, data, Pair(data, torch.zeros_like(data[:1]).expand_as(data)))

    def completes_exactly(self, seen: Tensor) -> bool:
        """Return whether all known values come first."""
        flat = seen.flatten().to(self.device)
        return KnownNumbers(flat.float(), flat[self.order_around(flat)]).comes_first

    def completes_in_own_order(self, seen: Tensor) -> bool:
        """Return whether `order_around` equals `order`."""
        return torch.equal(self.order_around(seen.flatten().to(self.device)), self.order)

    @torch.no_grad()
    def complete(
        self, inputs: SamplingInputs, truth: Tensor, seen: Tensor, log_prior: Tensor | None, note: Callable[[float], None]
    ) -> Iterator[Frame]:
        """See `CompletionModel.complete`."""
        check_one_label(inputs)
        mask = seen.flatten().to(self.device)
        order = self.order_around(mask)
        known = KnownNumbers(self.codec.encode(truth[None].to(self.device)).flatten()[order], mask[order])
        has_label = inputs.cond is not None or not self.label_count
        prior = None if log_prior is None or has_label else log_prior.float().to(self.device)
        for i, z in complete(self, known, order, inputs, prior, note):
            x = torch.full_like(z, -1.0)
            x[:, order] = z
            yield self.frame(i, x)
