"""A normalising flow as a model: p(x) = p(f(x)) |det df/dx|, trained by maximum likelihood."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from reverie.base.deadline import Deadline
from reverie.base.noise import Noise, image_seeds, mix_seed
from reverie.data import Dataset, chunk_size, evaluation_batch_size
from reverie.data.codec import Codec
from reverie.diffusion.likelihood.bound import check_data
from reverie.diffusion.likelihood.flow import LogProb
from reverie.diffusion.pair import Pair
from reverie.diffusion.samplers import Frame
from reverie.families.diffusion.noise_levels import in_unit
from reverie.families.flow.transforms import BEGIN_DATA, FlowTransform
from reverie.families.model import SamplingInputs, TrainedModel, check_labelled, check_one_label
from reverie.nets.dropout import seeded_dropout

METRIC_DATA = 1024  # maximum number of data for held-out metrics
EVALUATION_BATCH = 256
TIMED, ROUNDS = 64, 3  # data and repetitions for the timing of each direction


class Flow(TrainedModel):
    """z = f(x), log p(x) = log p(z) + log |det df/dx|; images are dequantised uniformly (arXiv:1511.01844).

    Level k of L is the interval [k, k + 1) / L, so log P(k) >= E log p(v) - D log L, v uniform in it.
    """

    def __init__(self, transform: FlowTransform, codec: Codec, shape: tuple[int, ...], labels: int) -> None:
        super().__init__()
        self.transform, self.codec, self.shape, self.label_count = transform, codec, shape, labels
        self.size = math.prod(shape)

    def encode(self, x: Tensor) -> Tensor:
        """Return data in model units, by the codec."""
        return self.codec.encode(x)

    def decode(self, z: Tensor) -> Tensor:
        """Return data in user units, by the codec."""
        return self.codec.decode(z)

    def _dequantise(self, x: Tensor, u: Tensor) -> Tensor:
        """Return dequantised levels v = (k + u) / L; x: (B, ...) in model units; u: (B, ...) in [0, 1)."""
        assert self.codec.levels is not None
        rank = ((x + 1) * ((self.codec.levels - 1) / 2)).round()
        return ((rank + u.to(rank)) / self.codec.levels).clamp(0, 1 - 2**-20)

    def _quantise(self, v: Tensor) -> Tensor:
        """Return the levels of values in [0, 1), in model units."""
        assert self.codec.levels is not None
        rank = (v * self.codec.levels).floor().clamp(0, self.codec.levels - 1)
        return 2 * rank / (self.codec.levels - 1) - 1

    @property
    def _log_cell(self) -> float:
        """The log volume that converts a density of v to a probability of levels, or of points to user units."""
        levels = self.codec.levels
        return self.codec.log_cell(self.shape) if levels is None else -self.size * math.log(levels)

    @torch.no_grad()
    def initialize(self, data: Dataset, deadline: Deadline | None = None) -> None:
        """Initialize the transform with the marginal distribution of each value."""
        x = self.codec.encode(data.subsample(BEGIN_DATA))
        random = torch.Generator().manual_seed(0)
        self.transform.initialize(
            x if self.codec.levels is None else self._dequantise(x, torch.rand(x.shape, generator=random))
        )

    def loss(self, x: Tensor, cond: Tensor | None, seed: int) -> Tensor:
        """Return -log p(x) in nats per dimension, (B,); the dequantisation is a function of the seed."""
        check_labelled(self.label_count, cond, len(x))
        z = self.codec.encode(x)
        if self.codec.levels is not None:
            random = torch.Generator(z.device).manual_seed(seed)
            z = self._dequantise(z, torch.rand(z.shape, generator=random, device=z.device, dtype=z.dtype))
        with seeded_dropout(self.transform, mix_seed(seed, 1)):
            return -(self.transform.log_density(z, cond) + self._log_cell) / self.size

    def _transform_input(self, x: Tensor, seeds: Tensor) -> Tensor:
        """Return the input of the transform.  x: (B, ...) in user units; seeds: (B,), for the dequantisation."""
        z = self.codec.encode(x.to(self.device))
        check_data(z, self.codec.levels)
        if self.codec.levels is None:
            return z
        return self._dequantise(z, Noise(seeds).uniform(self.size, z.device)[0].reshape(z.shape))

    @torch.no_grad()
    def log_prob(self, x: Tensor, cond: Tensor | None, seeds: Tensor) -> LogProb:
        """Return the exact log-density of points, or a bound on the log-probability of levels: (B,), in nats.

        Levels are dequantised once; averaging exp over several seeds is tighter, see `reverie.evaluation.density`.
        """
        check_labelled(self.label_count, cond, len(x))
        v, log_p = self._transform_input(x, seeds), list[Tensor]()
        for part in torch.arange(len(v)).split(evaluation_batch_size(self.shape, EVALUATION_BATCH)):
            part_cond = cond[part].to(self.device) if cond is not None else None
            log_p.append(self.transform.log_density(v[part], part_cond).double().cpu() + self._log_cell)
        nats = torch.cat(log_p)
        return LogProb(nats, torch.zeros_like(nats), 1, "change of variables", self.size)

    @torch.no_grad()
    def held_out_metrics(self, data: Dataset, seed: int) -> dict[str, Any]:
        """Return the negative log-likelihood of held-out data in bits/dim or nats, with fixed dequantisation."""
        x, labels = data.batch(torch.arange(min(len(data), chunk_size(self.shape, METRIC_DATA))))
        training = self.transform.training
        self.transform.eval()  # no dropout, for the raw weights as well
        nats = self.log_prob(x, labels if self.label_count else None, image_seeds(seed, len(x))).nats
        self.transform.train(training)
        return in_unit(self.codec, self.shape, -float(nats.mean()))

    @torch.no_grad()
    def to_latent(self, x: Tensor, cond: Tensor | None = None, seeds: Tensor | None = None) -> Tensor:
        """Return the noise z of data, (B, ...); levels are dequantised with noise of the seeds, default 0, 1, ..."""
        check_labelled(self.label_count, cond, len(x))
        z: Tensor = self.transform(self._transform_input(x, torch.arange(len(x)) if seeds is None else seeds), cond)[0]
        return z

    @torch.no_grad()
    def from_latent(self, z: Tensor, cond: Tensor | None = None) -> Tensor:
        """Return the data of noise z, in user units: (B, ...)."""
        return self.codec.decode(self._decode_noise(z, cond))

    def _decode_noise(self, z: Tensor, cond: Tensor | None) -> Tensor:
        x = self.transform.inverse(z, cond)
        return x if self.codec.levels is None else self._quantise(x)

    def _start(self, noise: Noise) -> Tensor:
        """Return the noise of each seed: (B, ...)."""
        shape = (len(noise.seeds), *self.shape)
        if self.transform.uniform:
            return noise.uniform(self.size, self.device)[0].reshape(shape)
        return noise.like(torch.empty(shape, device=self.device))

    @torch.no_grad()
    def frames(self, inputs: SamplingInputs) -> Iterator[Frame]:
        """Sample noise and invert the flow into one frame."""
        check_one_label(inputs)
        cond = inputs.cond.to(self.device) if inputs.cond is not None else None
        check_labelled(self.label_count, cond, len(inputs.seeds))
        training = self.transform.training
        self.transform.eval()
        x = self._decode_noise(self._start(Noise(inputs.seeds)), cond)
        self.transform.train(training)
        yield Frame(0, 1, 0.0, x, Pair(x, torch.zeros_like(x)))

    @torch.no_grad()
    def seconds_per_direction(self, cond: Tensor | None = None) -> tuple[float, float]:
        """Return the seconds of CPU time per datum from data to noise and back: the best of a few rounds of 64 data.

        cond: (64,) labels, for models with labels; default 0.
        """
        if self.label_count and cond is None:
            cond = torch.zeros(TIMED, dtype=torch.long, device=self.device)
        z = self._start(Noise(image_seeds(0, TIMED)))
        x = self.transform.inverse(z, cond)

        clock = time.process_time if self.device.type == "cpu" else time.perf_counter  # CPU time ignores other processes

        def timed(forward: bool) -> float:
            start = clock()
            self.transform.log_density(x, cond) if forward else self.transform.inverse(z, cond)
            return clock() - start

        return min(timed(True) for _ in range(ROUNDS)) / TIMED, min(timed(False) for _ in range(ROUNDS)) / TIMED
