"""A generator trained by the debiased Sinkhorn divergence between batches (arXiv:1706.00292, with arXiv:1810.08278)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reverie.base.deadline import Deadline
from reverie.base.distances import finest_dtype
from reverie.base.errors import ReverieWarning, UserError
from reverie.base.noise import Noise, image_seeds
from reverie.data import Dataset, chunk_size
from reverie.data.codec import Codec
from reverie.data.kind import kind_of
from reverie.diffusion.likelihood.flow import LogProb
from reverie.diffusion.pair import Pair
from reverie.diffusion.samplers import Frame
from reverie.families.model import SamplingInputs, TrainedModel, check_labelled, check_one_label
from reverie.transport import Sinkhorn, between, sinkhorn

BEGIN_DATA = 2048  # training data, at most, for the mean cost and the principal components
METRIC_DATA = 1024  # data, at most, for the held-out divergence
TOLERANCE, ITERATIONS = 1e-3, 300  # of the potentials; the error is below the noise of batches
START_EPSILON, DECAY_SHARE = 0.5, 0.5  # initial epsilon in mean costs, and share of the training in which it decreases


class SinkhornGenerator(TrainedModel):
    """x = G(z), z ~ N(0, I), trained to minimize the divergence S(x, y) = OT(x, y) - OT(x, x)/2 - OT(y, y)/2 of batches.

    With `independent`, batches are halved, and OT(x, x') and OT(y, y') between halves replace OT(x, x) and OT(y, y).  Then the
    expectation is minimal for the data's distribution (arXiv:1803.05573); the cost of a batch to itself is almost 0 at a small
    epsilon, so blurred samples would not be penalized.

    OT is entropic.  Epsilon decreases from half the mean cost of data to `epsilon` in the first half of a training.  The
    gradient uses converged potentials; those of OT(x, y) are initialized with those of the data, which halves the time.  Labels
    are further coordinates, so that transport to another label costs `label_cost` times the mean cost.  features: (D, K); the
    cost is of x @ features, or of x if K is 0.
    """

    def __init__(
        self, net: nn.Module, latent: int, codec: Codec, shape: tuple[int, ...], labels: int, epsilon: float, cost: str,
        features: int, label_cost: float, independent: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.independent = independent
        self.net, self.latent, self.codec, self.shape, self.label_count = net, latent, codec, shape, labels
        self.epsilon, self.cost, self.label_cost, self.size = epsilon, cost, label_cost, math.prod(shape)
        self.unit = nn.Buffer(torch.ones(()))  # the mean cost between training data
        self.features = nn.Buffer(torch.zeros(self.size, features))
        self.done = 1.0

    def encode(self, x: Tensor) -> Tensor:
        """Return data in model units, by the codec."""
        return self.codec.encode(x)

    def decode(self, z: Tensor) -> Tensor:
        """Return data in user units, by the codec."""
        return self.codec.decode(z)

    @torch.no_grad()
    def initialize(self, data: Dataset, deadline: Deadline | None = None) -> None:
        """Compute the mean cost of data and, as features, half-whitened principal components: scaled by variance to -1/4."""
        x = self.codec.encode(data.subsample(BEGIN_DATA)).flatten(1)
        if self.features.shape[1]:
            values, vectors = torch.linalg.eigh(torch.atleast_2d(x.to(finest_dtype(x)).T.cov(correction=0)))
            values, vectors = values.flip(0)[: self.features.shape[1]], vectors.flip(1)[:, : self.features.shape[1]]
            self.features.copy_(vectors * values.clamp_min(1e-6 * values[0]) ** -0.25)
        points = self._points(x, None)
        self.unit.copy_(between(points, points, cost=self.cost).mean_cost().clamp_min(1e-12))

    def set_progress(self, fraction: float) -> None:
        """Set the completed fraction of the training, on which epsilon depends."""
        self.done = fraction

    @property
    def epsilon_now(self) -> float:
        """The current epsilon, in units of the mean cost; it decreases geometrically."""
        first = max(START_EPSILON, self.epsilon)
        return float(first * (self.epsilon / first) ** min(1.0, self.done / DECAY_SHARE))

    def generate(self, z: Tensor, cond: Tensor | None) -> Tensor:
        """Return the generator's output, in model units: (B, ...); images are in [-1, 1].  z: (B, latent)."""
        x: Tensor = self.net(z, cond)[..., 0]
        return x.tanh() if kind_of(self.shape) == "images" else x

    def _points(self, x: Tensor, cond: Tensor | None) -> Tensor:
        """Return the points to transport, features and one-hot labels of data: (B, K).  x: (B, ...) in model units."""
        flat = x.flatten(1)
        points = flat @ self.features if self.features.shape[1] else flat
        if not self.label_count or cond is None:
            return points
        label_cost = float(self.label_cost * self.unit)  # cost between two labels, which differ in two coordinates
        one_hot_value = {
            "squared": math.sqrt(label_cost / 2),
            "euclidean": label_cost / math.sqrt(2),
            "manhattan": label_cost / 2,
        }[self.cost]
        return torch.cat([points, one_hot_value * F.one_hot(cond, self.label_count).to(points)], 1)

    def transport(self, x: Tensor, y: Tensor, epsilon: float, start: Tensor | None = None) -> Sinkhorn:
        """Return the optimal transport of x to y.  epsilon: in mean costs; start: initial potential of y, default 0."""
        start = torch.zeros(len(y)) if start is None else start
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ReverieWarning)  # a few batches do not converge, which does not matter
            return sinkhorn(
                between(x, y, cost=self.cost), epsilon, scale=float(self.unit), tolerance=TOLERANCE, max_iterations=ITERATIONS,
                start=start,
            )  # fmt: skip

    def divergence(self, x: Tensor, y: Tensor, epsilon: float) -> Tensor:
        """Return the debiased divergence of two sets of points, with gradient by x: ().  epsilon: in mean costs."""
        self_transport = [self.transport(points, points, epsilon) for points in (x, y)]
        return (
            self.transport(x, y, epsilon, self_transport[1].f).value - (self_transport[0].value + self_transport[1].value) / 2
        )

    def energy(self, x: Tensor, y: Tensor, epsilon: float) -> Tensor:
        """Return the divergence estimated from independent halves of both sets: ()."""
        (a, b), (c, d) = x.tensor_split(2), y.tensor_split(2)
        data_transport = self.transport(c, d, epsilon)
        cross = self.transport(a, c, epsilon, data_transport.f).value + self.transport(b, d, epsilon, data_transport.g).value
        return (cross - self.transport(a, b, epsilon).value - data_transport.value) / 2

    def loss(self, x: Tensor, cond: Tensor | None, seed: int) -> Tensor:
        """Return the divergence of a batch, in units of the mean cost, for each datum: (B,)."""
        check_labelled(self.label_count, cond, len(x))
        random = torch.Generator(x.device).manual_seed(seed)
        z = torch.randn(len(x), self.latent, generator=random, device=x.device)
        generated, truth = self._points(self.generate(z, cond), cond), self._points(self.codec.encode(x), cond)
        objective = self.energy if self.independent and len(x) > 1 else self.divergence
        return (objective(generated, truth, self.epsilon_now) / self.unit).expand(len(x))

    def _codes(self, noise: Noise) -> Tensor:
        return noise.like(torch.empty(len(noise.seeds), self.latent, device=self.device))

    @torch.no_grad()
    def held_out_metrics(self, data: Dataset, seed: int) -> dict[str, Any]:
        """Return the distance of samples from held-out data, at the final epsilon, in units of the mean cost: `held_out`.

        It is the divergence; with `independent`, OT(x, y) - OT(x, x')/2 with two sets of samples, whose expectation is minimal
        for the data's distribution, and then half of OT between independent data.
        """
        x, labels = data.batch(torch.arange(min(len(data), chunk_size(self.shape, METRIC_DATA))))
        cond = labels.to(self.device) if labels is not None and self.label_count else None
        truth = self._points(self.codec.encode(x.to(self.device)), cond)
        generated, second = (
            self._points(self.generate(self._codes(Noise(image_seeds(seed, len(x), first))), cond), cond)
            for first in (0, len(x))
        )
        if not self.independent:
            return {"held_out": float(self.divergence(generated, truth, self.epsilon) / self.unit)}
        to_data, between_samples = (
            self.transport(generated, truth, self.epsilon),
            self.transport(generated, second, self.epsilon),
        )
        return {"held_out": float((to_data.value - between_samples.value / 2) / self.unit)}

    @torch.no_grad()
    def frames(self, inputs: SamplingInputs) -> Iterator[Frame]:
        """Sample codes and generate one frame."""
        check_one_label(inputs)
        cond = inputs.cond.to(self.device) if inputs.cond is not None else None
        check_labelled(self.label_count, cond, len(inputs.seeds))
        x = self.generate(self._codes(Noise(inputs.seeds)), cond)
        yield Frame(0, 1, 0.0, x, Pair(x, torch.zeros_like(x)))

    def log_prob(self, x: Tensor, cond: Tensor | None, seeds: Tensor) -> LogProb:
        """Raise a UserError: a generator has no density."""
        raise UserError("a generator has no likelihood; train a flow")
