"""Observation models p(x | z): the distribution of each value of a datum, given decoder outputs."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from reverie.base.errors import UserError
from reverie.base.noise import Noise
from reverie.diffusion.lattice import level_of, log_histograms
from reverie.diffusion.likelihood.normal import Diagonal

LOG_STD = (-7.0, 3.0)  # limits for values, in model units
LOG_SCALE = (-7.0, 2.0)


class Observation(ABC):
    """Independent values with `parameters` decoder outputs each.  x: (B, ...) in model units; y: (B, ..., P)."""

    parameters: int

    @abstractmethod
    def log_prob(self, x: Tensor, y: Tensor) -> Tensor:
        """Return log p of each value of x, or its log-density, in nats: of x's shape."""

    @abstractmethod
    def mean(self, y: Tensor) -> Tensor:
        """Return E x: (B, ...)."""

    @abstractmethod
    def sample(self, y: Tensor, u: Tensor, v: Tensor) -> Tensor:
        """Return a sample of each value: (B, ...).  u, v: of that shape, uniform in (0, 1)."""

    def displayed_sample(self, y: Tensor, noise: Noise) -> Tensor:
        """Return the displayed sample: for levels the mean, because independent pixel noise is not part of the image."""
        return self.mean(y)

    @abstractmethod
    def initial_parameters(self, x: Tensor) -> Tensor:
        """Return decoder outputs that fit data x without z: (..., P).  x: (N, ...)."""


class Bernoulli(Observation):
    """Two values, -1 and 1: p(1) = sigmoid(y)."""

    parameters = 1

    def __init__(self, levels: int | None) -> None:
        if levels != 2:
            values = f"{levels} levels" if levels is not None else "continuous values"
            raise UserError(f"a Bernoulli decoder needs data of two levels, and these have {values}; give another decoder")

    def log_prob(self, x: Tensor, y: Tensor) -> Tensor:
        """Return log sigmoid(x y)."""
        return functional.logsigmoid(x * y[..., 0])

    def mean(self, y: Tensor) -> Tensor:
        """Return p(1) - p(-1) = tanh(y / 2)."""
        return torch.tanh(y[..., 0] / 2)

    def sample(self, y: Tensor, u: Tensor, v: Tensor) -> Tensor:
        """Return 1 where u < p(1), else -1."""
        return torch.where(u < torch.sigmoid(y[..., 0]), 1.0, -1.0).to(y)

    def initial_parameters(self, x: Tensor) -> Tensor:
        """Return the logit of the frequency of 1 at each position."""
        return log_histograms(x, 2).diff(dim=-1)


class Categorical(Observation):
    """K levels with probabilities p = softmax(y)."""

    def __init__(self, levels: int | None) -> None:
        if levels is None:
            raise UserError("a categorical decoder needs images, and these data are continuous; give decoder=gaussian")
        self.parameters = levels

    def log_prob(self, x: Tensor, y: Tensor) -> Tensor:
        """Return log p of each level."""
        return y.log_softmax(-1).gather(-1, level_of(x, self.parameters)[..., None])[..., 0]

    def mean(self, y: Tensor) -> Tensor:
        """Return the mean over levels."""
        return y.softmax(-1) @ self._values(y)

    def sample(self, y: Tensor, u: Tensor, v: Tensor) -> Tensor:
        """Return the level at which the cumulative probability passes u."""
        level = (u[..., None] > y.softmax(-1).cumsum(-1)[..., :-1]).sum(-1)
        return self._values(y)[level]

    def initial_parameters(self, x: Tensor) -> Tensor:
        """Return the logarithm of the histogram at each position."""
        return log_histograms(x, self.parameters)

    def _values(self, y: Tensor) -> Tensor:
        return torch.linspace(-1, 1, self.parameters, dtype=y.dtype, device=y.device)


class LogisticMixture(Observation):
    """A mixture of logistic distributions; a level has the mass within half a step of it (arXiv:1701.05517, section 2.1).

    The outermost levels include the tails, so that the sum over all levels is 1.  y: logits, means and log-scales of each
    component.
    """

    components = 5

    def __init__(self, levels: int | None) -> None:
        if levels is None:
            raise UserError("a logistic decoder needs images, and these data are continuous; give decoder=gaussian")
        self.levels, self.parameters = levels, 3 * self.components

    def _parts(self, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits, means, log_scales = y.chunk(3, -1)
        return logits, means, log_scales.clamp(*LOG_SCALE)

    def log_prob(self, x: Tensor, y: Tensor) -> Tensor:
        """Return log sum_k w_k (sigmoid((x + h - m_k) / s_k) - sigmoid((x - h - m_k) / s_k)), h = 1 / (levels - 1)."""
        logits, means, log_scales = self._parts(y)
        half, inverse = 1 / (self.levels - 1), torch.exp(-log_scales)
        x = x[..., None]
        high, low = (x + half - means) * inverse, (x - half - means) * inverse
        # log(sigmoid(high) - sigmoid(low)) = log sigmoid(high) + log sigmoid(-low) + log(1 - exp(low - high))
        inside = functional.logsigmoid(high) + functional.logsigmoid(-low) + torch.log(-torch.expm1(low - high))
        mass = torch.where(x < -1 + half, functional.logsigmoid(high), inside)
        mass = torch.where(x > 1 - half, functional.logsigmoid(-low), mass)
        return (logits.log_softmax(-1) + mass).logsumexp(-1)

    def mean(self, y: Tensor) -> Tensor:
        """Return sum_k w_k m_k, within the range of the levels."""
        logits, means, _ = self._parts(y)
        return (logits.softmax(-1) * means.clamp(-1, 1)).sum(-1)

    def sample(self, y: Tensor, u: Tensor, v: Tensor) -> Tensor:
        """Return the level nearest to m_k + s_k log(v / (1 - v)), k at which the cumulative weight passes u."""
        logits, means, log_scales = self._parts(y)
        k = (u[..., None] > logits.softmax(-1).cumsum(-1)[..., :-1]).sum(-1, keepdim=True)
        mean, scale = (part.gather(-1, k)[..., 0] for part in (means, log_scales.exp()))
        level = level_of((mean + scale * torch.logit(v)).clamp(-1, 1), self.levels)
        return 2 * level.to(y) / (self.levels - 1) - 1

    def initial_parameters(self, x: Tensor) -> Tensor:
        """Return components evenly spaced over the range of the levels, with equal weights."""
        means = torch.linspace(-0.9, 0.9, self.components)
        scales = torch.full((self.components,), math.log(0.3))
        return torch.cat([torch.zeros(self.components), means, scales]).expand(*x.shape[1:], -1).clone()


class Gaussian(Observation):
    """Continuous values: N(m, s²) with y = (m, log s)."""

    parameters = 2

    def __init__(self, levels: int | None) -> None:
        if levels is not None:
            raise UserError("a Gaussian decoder needs continuous data, and images have levels; give decoder=logistic")

    def _normal(self, y: Tensor) -> Diagonal:
        return Diagonal(y[..., 0], y[..., 1].clamp(*LOG_STD))

    def log_prob(self, x: Tensor, y: Tensor) -> Tensor:
        """Return log N(x; m, s²)."""
        return self._normal(y).log_density(x)

    def mean(self, y: Tensor) -> Tensor:
        """Return m."""
        return y[..., 0]

    def displayed_sample(self, y: Tensor, noise: Noise) -> Tensor:
        """Return m + s eps."""
        return self._normal(y).at(noise.like(y[..., 0]))

    def sample(self, y: Tensor, u: Tensor, v: Tensor) -> Tensor:
        """Return m + s sqrt(-2 log u) cos(2 pi v) (Box and Muller 1958)."""
        return self._normal(y).at((-2 * u.log()).sqrt() * (2 * math.pi * v).cos())

    def initial_parameters(self, x: Tensor) -> Tensor:
        """Return mean and log standard deviation at each position."""
        return torch.stack([x.mean(0), x.std(0).clamp_min(1e-3).log()], -1)


OBSERVATIONS: dict[str, Callable[[int | None], Observation]] = {
    "bernoulli": Bernoulli, "categorical": Categorical, "logistic": LogisticMixture, "gaussian": Gaussian,
}  # fmt: skip
