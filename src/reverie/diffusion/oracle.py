"""Optimal denoisers in closed form: of a Gaussian, a mixture of Gaussians, and a finite data set.

Samplers and losses are tested against them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from reverie.base.scalar import Coefficient, Time, expand
from reverie.diffusion.condition import NULL
from reverie.diffusion.denoiser import Denoiser
from reverie.diffusion.pair import Pair, pair_of
from reverie.diffusion.schedule import Schedule


class GaussianDenoiser(Denoiser):
    """The optimal denoiser of N(mean, covariance).  mean: (D,); covariance: (D, D).

    E[x0 | x] = mean + alpha C (alpha² C + sigma² I)^-1 (x - alpha mean), in the eigenbasis of C.
    """

    has_variance = True

    def __init__(self, schedule: Schedule, mean: Tensor, covariance: Tensor) -> None:
        super().__init__()
        self.schedule = schedule
        values, vectors = torch.linalg.eigh(covariance)
        self.mean = nn.Buffer(mean)
        self.values = nn.Buffer(values)  # (D,)
        self.vectors = nn.Buffer(vectors)  # (D, D), in columns

    def _centred(self, x: Tensor, t: Time) -> tuple[Tensor, Tensor, Coefficient]:
        """Return x - alpha mean in the eigenbasis (B, D), its variances (1 or B, D), and alpha."""
        alpha, sigma = (expand(c, x) for c in self.schedule(t))
        return (x - alpha * self.mean) @ self.vectors, alpha**2 * self.values + sigma**2, alpha

    def forward(self, x: Tensor, t: Time, cond: Tensor | None = None) -> Pair:
        """Return the posterior mean and the corresponding noise.  x: (B, D)."""
        centred, variances, alpha = self._centred(x, t)
        x0 = self.mean + (centred * alpha * self.values / variances) @ self.vectors.T
        alpha, sigma = self.schedule(t)
        variance = (expand(sigma**2, x) * self.values / variances) @ self.vectors.T.square()
        return replace(pair_of(x, x0, alpha, sigma, "x0"), variance=variance.expand_as(x))

    def log_prob(self, x: Tensor, t: Time) -> Tensor:
        """Return the log-density of noisy data at time t in nats: (B,)."""
        centred, variances, _ = self._centred(x, t)
        return -0.5 * (centred**2 / variances + variances.log() + math.log(2 * math.pi)).sum(-1)

    def flow(self, x: Tensor, t: Time, s: Time) -> Tensor:
        """Map x from time t to s along the probability flow, exactly: each eigen-coordinate scales with its std."""
        centred, at_t, _ = self._centred(x, t)
        alpha, sigma = (expand(c, x) for c in self.schedule(s))
        at_s = alpha**2 * self.values + sigma**2
        return alpha * self.mean + (centred * (at_s / at_t).sqrt()) @ self.vectors.T


class MixtureDenoiser(Denoiser):
    """The optimal denoiser of a mixture of Gaussians; a label selects one component.  weights: (K,).

    E[x0 | x] = sum_k r_k E_k[x0 | x],  r_k proportional to weight_k N_k(x).
    """

    has_variance = True

    def __init__(self, weights: Tensor, components: Sequence[GaussianDenoiser]) -> None:
        super().__init__()
        self.schedule = components[0].schedule
        self.components = nn.ModuleList(components)
        self.log_weights = nn.Buffer((weights / weights.sum()).log())

    def _log_joint(self, x: Tensor, t: Time, cond: Tensor | None) -> Tensor:
        densities = [c.log_prob(x, t) for c in self.components if isinstance(c, GaussianDenoiser)]
        joint = torch.stack(densities, dim=-1) + self.log_weights
        if cond is None:
            return joint
        excluded = (cond[:, None] != NULL) & (cond[:, None] != torch.arange(joint.shape[-1], device=x.device))
        return joint.masked_fill(excluded, -torch.inf)

    def forward(self, x: Tensor, t: Time, cond: Tensor | None = None) -> Pair:
        """Return the posterior mean and the corresponding noise.  x: (B, D); cond: (B,)."""
        responsibility = self._log_joint(x, t, cond).softmax(-1)[:, None]  # (B, 1, K)
        parts: list[Pair] = [c(x, t) for c in self.components]
        means = torch.stack([part.x0 for part in parts], dim=-1)  # (B, D, K)
        within = torch.stack([part.variance for part in parts if part.variance is not None], dim=-1)
        x0 = (means * responsibility).sum(-1)
        variance = ((within + (means - x0[..., None]).square()) * responsibility).sum(-1)
        return replace(pair_of(x, x0, *self.schedule(t), "x0"), variance=variance)

    def log_prob(self, x: Tensor, t: Time, cond: Tensor | None = None) -> Tensor:
        """Return the log-density of noisy data at time t in nats: (B,).  With a label: the joint log-density."""
        return self._log_joint(x, t, cond).logsumexp(-1)


class DatasetDenoiser(Denoiser):
    """The optimal denoiser of a finite data set: the softmax-weighted mean of its members.  data: (N, ...); labels: (N,).

    E[x0 | x] = sum_i w_i y_i,  w = softmax(-|x - alpha y_i|² / (2 sigma²)).  The members are visited in chunks with a
    running maximum, so memory does not grow with N x B.  Sampling with it returns members of the set: complete memorization.
    """

    def __init__(self, schedule: Schedule, data: Tensor, labels: Tensor | None = None, chunk: int = 4096) -> None:
        super().__init__()
        self.schedule = schedule
        self.chunk = chunk
        self.data = nn.Buffer(data)
        self.labels = nn.Buffer(labels) if labels is not None else None

    def forward(self, x: Tensor, t: Time, cond: Tensor | None = None) -> Pair:
        """Return the weighted mean and the corresponding noise.  x: (B, ...); cond: (B,)."""
        # Squared distances over a small 2 sigma² amplify rounding, so the sums use float64 where the device supports it.
        dtype = torch.float32 if x.device.type == "mps" else torch.float64
        flat = x.flatten(1).to(dtype)
        alpha, sigma = (expand(c, flat) for c in self.schedule(t))
        top = flat.new_full((len(x), 1), -torch.inf)
        total = flat.new_zeros(len(x), 1)
        mean = torch.zeros_like(flat)
        for start in range(0, len(self.data), self.chunk):
            y = self.data[start : start + self.chunk].flatten(1).to(dtype)
            logits = (alpha * (flat @ y.T) - alpha**2 * (y * y).sum(1) / 2) / sigma**2  # |x|² is common to all
            if cond is not None and self.labels is not None:
                excluded = (cond[:, None] != NULL) & (cond[:, None] != self.labels[start : start + self.chunk])
                logits = logits.masked_fill(excluded, -torch.inf)
            new_top = torch.maximum(top, logits.amax(1, keepdim=True))
            shift = new_top.nan_to_num(neginf=0.0)  # if no member so far has the label
            weights = (logits - shift).exp()
            rescale = (top - shift).exp()
            total = total * rescale + weights.sum(1, keepdim=True)
            mean = mean * rescale + weights @ y
            top = new_top
        if not (total > 0).all():
            raise ValueError("no member of the data set has one of the requested labels")
        alpha, sigma = self.schedule(t)
        return pair_of(x, (mean / total).to(x.dtype).reshape(x.shape), alpha, sigma, "x0")
