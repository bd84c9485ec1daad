"""Denoisers of data with discrete levels: a network predicts a prior over levels, and Bayes' rule gives the posterior."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from reverie.base.scalar import Time, expand
from reverie.diffusion.denoiser import NetDenoiser, noise_level
from reverie.diffusion.pair import Pair, pair_of
from reverie.diffusion.posterior import posterior_mean
from reverie.diffusion.schedule import Schedule

PSEUDOCOUNT = 20.0  # weight of the overall histogram in the histogram of each position, as a number of data
GROUPS = 32  # groups of levels for the pointwise estimate that is an input of the network


class LatticeDenoiser(NetDenoiser):
    """The posterior mean over levels v, for a prior over levels that a network predicts for each number.

    x0 = sum_v v p_v,  p = softmax(net_v + log prior_v - (x - alpha v)² / (2 sigma²)).
    The prior of each position is initialized to the histogram of the data, so that the untrained model is the optimal pointwise
    denoiser.  The network predicts `features` numbers per number of the data, which a matrix maps to levels; its input is x and
    an approximation of the pointwise estimate.  levels: K, evenly spaced in [-1, 1].
    """

    def __init__(self, net: nn.Module, schedule: Schedule, shape: tuple[int, ...], levels: int, features: int) -> None:
        super().__init__(net, schedule, "x0", has_variance=True)
        self.values = nn.Buffer(torch.linspace(-1, 1, levels), persistent=False)
        self.features = features
        self.log_prior = nn.Parameter(torch.zeros(*shape, levels))
        self.to_levels = nn.Parameter(bumps(features, levels))

    @torch.no_grad()
    def initialize(self, x0: Tensor) -> None:
        """Initialize the prior of each position by the histogram of the data.  x0: (N, ...) in model units, on the levels."""
        self.log_prior.copy_(log_histograms(x0, len(self.values)))

    def estimate(self, x: Tensor, t: Time, cond: Tensor | None, conditioning: Tensor | None) -> Pair:
        """Return the posterior mean, the corresponding noise, and, except in training, the posterior variance."""
        alpha, sigma = self.schedule(t)
        features, to_levels, prior = self._factors(x, t, cond, conditioning)
        v = self.values.to(x.dtype)
        if self.training and torch.is_grad_enabled():  # training uses the mean only
            x0 = posterior_mean(features, to_levels, prior, v, recompute=True)
            return pair_of(x, x0.reshape(x.shape), alpha, sigma, "x0")
        moments = posterior_mean(features, to_levels, prior, torch.stack([v, v**2], 1), recompute=False)
        x0, squared = moments.reshape(*x.shape, 2).unbind(-1)
        return replace(pair_of(x, x0, alpha, sigma, "x0"), variance=(squared - x0**2).clamp(min=0))

    def logits(self, x: Tensor, t: Time, cond: Tensor | None, conditioning: Tensor | None = None) -> Tensor:
        """Return unnormalized log-probabilities of the levels given the noisy sample: (B, ..., K)."""
        features, to_levels, prior = self._factors(x, t, cond, conditioning)
        return (features @ to_levels + prior).reshape(*x.shape, -1)

    def _factors(self, x: Tensor, t: Time, cond: Tensor | None, conditioning: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return features (B, D, F + 2), their matrix to levels, (F + 2, K), and the log-prior of each position, (D, K).

        -(x - alpha v)² / (2 sigma²) is, up to x², the sum of two features of each number times v and v².
        """
        alpha, sigma = self.schedule(t)
        slope, curve = expand(alpha / sigma**2, x) * x, expand(-(alpha**2) / (2 * sigma**2), x[:1]) * torch.ones_like(x)
        likelihood_features = torch.stack([slope, curve], -1).flatten(1, -2)  # (B, D, 2)
        level = torch.as_tensor(noise_level(alpha, sigma), dtype=torch.float64).to(device=x.device, dtype=x.dtype)
        inputs = (
            torch.cat([x, self._pointwise_x0(likelihood_features.detach()).reshape(x.shape)], 1),
            level.expand(x.shape[0]),
            cond,
        )
        y = (self.net(*inputs) if conditioning is None else self.net(*inputs, conditioning)).to(x.dtype)
        y = y.unflatten(1, (x.shape[1], self.features)).movedim(2, -1).flatten(1, -2)  # (B, D, F)
        v = self.values.to(x.dtype)
        to_levels = torch.cat([torch.stack([v, v**2]), self.to_levels.to(x.dtype)])
        return torch.cat([likelihood_features, y], -1), to_levels, self.log_prior.to(x.dtype).flatten(0, -2)

    def _pointwise_x0(self, likelihood_features: Tensor) -> Tensor:
        """Return an approximation of x0 from each number independently, with neighbouring levels grouped: (B, D)."""
        prior = self.log_prior.detach().to(likelihood_features.dtype).flatten(0, -2)
        groups = _group_levels(prior.exp(), GROUPS)  # (D, G, k)
        mass = groups.sum(-1)
        v = (groups * _group_levels(self.values.to(likelihood_features.dtype).expand_as(prior), GROUPS)).sum(-1) / mass
        slope, curve = likelihood_features.unsqueeze(-1).unbind(-2)  # (B, D, 1) each
        return ((slope * v + curve * v**2 + mass.log()).softmax(-1) * v).sum(-1)

    def log_level(self, x0: Tensor, x: Tensor, t: Time, cond: Tensor | None) -> Tensor:
        """Return log p(x0 | x), the log-probability of the levels of each datum: (B,)."""
        logits = self.logits(x, t, cond).double() if x.device.type != "mps" else self.logits(x, t, cond)
        index = level_of(x0, len(self.values))
        return logits.log_softmax(-1).gather(-1, index[..., None]).flatten(1).sum(1)


def level_of(x0: Tensor, levels: int) -> Tensor:
    """Return the index of the level of each number: int64.  x0: in [-1, 1]."""
    return ((x0 + 1) * ((levels - 1) / 2)).round().long().clamp(0, levels - 1)


def _group_levels(x: Tensor, groups: int) -> Tensor:
    """Return neighbours in at most `groups` groups, zero-padded.  x: (..., K) -> (..., groups, k)."""
    size = -(-x.shape[-1] // groups)
    count = -(-x.shape[-1] // size)
    padded: Tensor = functional.pad(x, (0, count * size - x.shape[-1])).unflatten(-1, (count, size))
    return padded


def log_histograms(x0: Tensor, levels: int) -> Tensor:
    """Return the smoothed log-frequency of each level at each position: (..., K) float64.  x0: (N, ...)."""
    index = level_of(x0, levels).flatten(1)  # (N, D)
    counts = torch.zeros(index.shape[1], levels, dtype=torch.float64, device=x0.device)
    counts.scatter_add_(1, index.T, torch.ones_like(index.T, dtype=torch.float64))
    overall = (counts.sum(0) + 1) / (counts.sum() + levels)
    return ((counts + PSEUDOCOUNT * overall) / (len(x0) + PSEUDOCOUNT)).log().reshape(*x0.shape[1:], levels)


def bumps(features: int, levels: int) -> Tensor:
    """Return smooth basis functions of the level, from coarse to fine: (features, levels)."""
    if features >= levels:
        return torch.eye(features, levels)
    v, count = torch.linspace(-1, 1, levels), 1
    rows: list[Tensor] = []
    while len(rows) < features - 2:
        centres = torch.linspace(-1, 1, count) if count > 1 else torch.zeros(1)
        rows += [torch.exp(-(((v - c) * max(1, count - 1)) ** 2)) for c in centres]
        count *= 2
    ends = [(v == v[0]).float(), (v == v[-1]).float()]  # black and white, which are frequent in images
    return torch.stack([*ends, *rows[: features - 2]])
