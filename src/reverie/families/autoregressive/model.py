"""What autoregressive models share: an exact likelihood, and drawing number by number, also around numbers that are known."""

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

METRIC_DATA = 1024  # data, at most, of which held-out figures are the mean
BEGIN_DATA = 4096  # training data, at most, that the first weights are told by
NUMBERS_AT_ONCE = 2**23  # that are said of data together when the likelihood is measured


class IncrementalDecoder(ABC):
    """Data that are being written, a number at a time, in the order that the model was asked for."""

    @abstractmethod
    def next_parameters(self) -> Tensor:
        """Return what is said of the next number: (B, P)."""

    @abstractmethod
    def write(self, z: Tensor) -> None:
        """Take the next number of each datum, in model units.  z: (B,)."""

    @abstractmethod
    def take(self, index: Tensor) -> None:
        """Go on with the chosen data, each as often as it is named.  index: (B,) int64."""


class Autoregressive(TrainedModel, CompletionModel):
    """log p(x) = sum_i log p(x_i | x_1 .. x_{i-1}), each number's distribution being an `Observation`.

    order: (D,) int64, at which place of a datum the numbers stand that are written one after another: of images the pixels
    row by row, of each its channels.  orderless: whether it has a joint distribution for every order, each another one.
    """

    orderless = False

    def __init__(self, observation: Observation, codec: Codec, shape: tuple[int, ...], labels: int) -> None:
        super().__init__()
        self.observation, self.codec, self.shape, self.label_count = observation, codec, shape, labels
        self.size = math.prod(shape)

    @property
    def order(self) -> Tensor:
        """At which place of a datum each number of its sequence stands: (D,)."""
        places = torch.arange(self.size, device=self.device)
        return places.reshape(self.shape).movedim(0, -1).flatten() if len(self.shape) == 3 else places

    def order_around(self, seen: Tensor) -> Tensor:
        """Return the order in which a datum is written of which some numbers are known.  seen: (D,) bool, by place."""
        return self.order

    @abstractmethod
    def output_parameters(self, z: Tensor, cond: Tensor | None) -> Tensor:
        """Return what is said of each number by those before it: (B, D, P).  z: (B, D) in model units and in `order`."""

    @abstractmethod
    def incremental_decoder(self, count: int, cond: Tensor | None, order: Tensor) -> IncrementalDecoder:
        """Begin to write so many data in an order of their places; of some models `order` is the only one."""

    def encode(self, x: Tensor) -> Tensor:
        """Return data in model units, by the codec."""
        return self.codec.encode(x)

    def decode(self, z: Tensor) -> Tensor:
        """Return data in user units, by the codec."""
        return self.codec.decode(z)

    def initialize(self, data: Dataset, deadline: Deadline | None = None) -> None:
        """Let every number begin as it is without the others."""
        self.initialize_with(self.codec.encode(data.subsample(BEGIN_DATA)))

    @abstractmethod
    def initialize_with(self, z: Tensor) -> None:
        """Set first weights by training data in model units: (N, ...)."""

    def log_numbers(self, z: Tensor, cond: Tensor | None, order: Tensor | None = None) -> Tensor:
        """Return log p of each number given those before it: (B, D) in that order, `order` if none is given.

        z: (B, ...) in model units.
        """
        check_labelled(self.label_count, cond, len(z))
        if order is None or torch.equal(order, self.order):
            sequence = z.flatten(1)[:, self.order]
            return self.observation.log_prob(sequence, self.output_parameters(sequence, cond))
        if not self.orderless:
            raise UserError("the model has one order only; train nade:orderless=true for the likelihood in another")
        incremental_decoder, found = self.incremental_decoder(len(z), cond, order), []
        for i, numbers in enumerate(z.flatten(1)[:, order].T):
            found.append(self.observation.log_prob(numbers, incremental_decoder.next_parameters()))
            if i + 1 < self.size:
                incremental_decoder.write(numbers)
        return torch.stack(found, 1)

    def loss(self, x: Tensor, cond: Tensor | None, seed: int) -> Tensor:
        """Return what each datum costs, in nats for each dimension: (B,)."""
        return -self.log_numbers(self.codec.encode(x), cond).mean(1)

    @torch.no_grad()
    def log_prob(self, x: Tensor, cond: Tensor | None, seeds: Tensor, order: Tensor | None = None) -> LogProb:
        """Return log p(x) of each datum, exactly, in nats.  order: in which its numbers are written, if not `order`."""
        z = self.codec.encode(x.to(self.device))
        check_data(z, self.codec.levels)
        parts = []
        for part in torch.arange(len(z)).split(self._together):
            own = cond[part].to(z.device) if cond is not None else None
            parts.append(self.log_numbers(z[part], own, order).cpu().double().sum(1))
        nats = torch.cat(parts) + (0.0 if self.codec.levels is not None else self.codec.log_cell(self.shape))
        return LogProb(nats, torch.zeros_like(nats), 1, "number by number", self.size)

    @property
    def _together(self) -> int:
        """How many data are looked at together."""
        return max(1, NUMBERS_AT_ONCE // (self.size * self.observation.parameters))

    def held_out_metrics(self, data: Dataset, seed: int) -> dict[str, Any]:
        """Return what data that were not trained on cost."""
        x, labels = data.batch(torch.arange(min(len(data), chunk_size(self.shape, METRIC_DATA))))
        return in_unit(self.codec, self.shape, -float(self.log_prob(x, labels, torch.empty(0)).nats.mean()))

    @torch.no_grad()
    def frames(self, inputs: SamplingInputs) -> Iterator[Frame]:
        """Draw number by number and yield a frame after each; what is not written yet is at its least value."""
        check_one_label(inputs)
        count, noise = len(inputs.seeds), Noise(inputs.seeds)
        cond = inputs.cond.to(self.device) if inputs.cond is not None else None
        check_labelled(self.label_count, cond, count)
        incremental_decoder, order = self.incremental_decoder(count, cond, self.order), self.order.tolist()
        x = torch.full((count, self.size), -1.0, device=self.device)
        u, v = (part.to(x) for part in noise.uniform(self.size))
        for i, place in enumerate(order):
            z = self.observation.sample(incremental_decoder.next_parameters(), u[:, i], v[:, i])
            x[:, place] = z
            if i + 1 < self.size:
                incremental_decoder.write(z)
            yield self.frame(i, x)

    def frame(self, i: int, x: Tensor) -> Frame:
        """Return the frame after number i.  x: (B, D) by place."""
        shown = x.reshape(-1, *self.shape)
        shown = shown.clone() if i + 1 < self.size else shown
        return Frame(i, self.size, 1 - (i + 1) / self.size, shown, Pair(shown, torch.zeros_like(shown[:1]).expand_as(shown)))

    def completes_exactly(self, seen: Tensor) -> bool:
        """Tell whether all that is known comes first."""
        flat = seen.flatten().to(self.device)
        return KnownNumbers(flat.float(), flat[self.order_around(flat)]).comes_first

    def completes_in_own_order(self, seen: Tensor) -> bool:
        """Tell whether `order_around` is `order`."""
        return torch.equal(self.order_around(seen.flatten().to(self.device)), self.order)

    @torch.no_grad()
    def complete(
        self, inputs: SamplingInputs, truth: Tensor, seen: Tensor, log_prior: Tensor | None, note: Callable[[float], None]
    ) -> Iterator[Frame]:
        """See `CompletionModel.complete`."""
        check_one_label(inputs)
        there = seen.flatten().to(self.device)
        order = self.order_around(there)
        known = KnownNumbers(self.codec.encode(truth[None].to(self.device)).flatten()[order], there[order])
        asked = inputs.cond is not None or not self.label_count
        prior = None if log_prior is None or asked else log_prior.float().to(self.device)
        for i, z in complete(self, known, order, inputs, prior, note):
            x = torch.full_like(z, -1.0)
            x[:, order] = z
            yield self.frame(i, x)
