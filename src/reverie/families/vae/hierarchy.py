"""Hierarchies of latents: a ladder, where each depends on all above it, and Markov chains, where each depends on the next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from reverie.diffusion.likelihood.normal import Diagonal
from reverie.families.vae.model import diagonal_normal
from reverie.families.vae.networks import DenseResidual, ResidualMLP
from reverie.families.vae.variational import LatentLevel, RandnLike, Variational
from reverie.nets.embedding import LabelEmbedding


def _repeat(x: Tensor | None, copies: int) -> Tensor | None:
    return x.repeat_interleave(copies, 0) if x is not None and copies > 1 else x


class Rung(nn.Module):
    """One latent of a ladder: p(z | above), q(z | above, encoded), and the state below.  above, encoded: (B, hidden)."""

    def __init__(self, hidden: int, latent: int) -> None:
        super().__init__()
        self.prior, self.posterior = nn.Linear(hidden, 2 * latent), nn.Linear(2 * hidden, 2 * latent)
        self.tell, self.mix = nn.Linear(latent, hidden), DenseResidual(hidden)
        nn.init.zeros_(self.prior.weight)
        nn.init.zeros_(self.prior.bias)  # N(0, 1) initially

    def forward(self, above: Tensor, encoded: Tensor | None, randn: RandnLike) -> tuple[LatentLevel, Tensor]:
        """Sample z, from the prior without `encoded`, and return it with the state below: (B, hidden)."""
        state = functional.silu(above)
        p = diagonal_normal(self.prior(state))
        q = p if encoded is None else diagonal_normal(self.posterior(torch.cat([state, encoded], 1)))
        z = q.at(randn(q.mean))
        below: Tensor = self.mix(above + self.tell(z))
        return LatentLevel(q, p, z), below


class HVAE(Variational):
    """A hierarchy z_T, ..., z_1 in which each latent is conditioned on all above it.

    p(x, z) = p(x | z) prod_t p(z_t | z_>t) and q(z | x) = prod_t q(z_t | z_>t, x).  In this ladder (arXiv:1602.02282) the
    encoder processes x once, bottom up, and the decoder runs down the rungs.  Every latent is added to
    the state on the way down, so each depends on all above it.  encoder: (B, ...) -> (B, hidden); decoder: (B, hidden) -> (B,
    ..., P); latents: their sizes, the topmost first.
    """

    def __init__(self, encoder: nn.Module, decoder: nn.Module, latents: tuple[int, ...], hidden: int, **options: Any) -> None:
        super().__init__(**options)
        self.encoder, self.decoder = encoder, decoder
        self.top = nn.Parameter(torch.zeros(hidden))
        self.label = LabelEmbedding(self.label_count, hidden) if self.label_count else None
        self.look = nn.ModuleList(DenseResidual(hidden) for _ in latents[1:])  # from each rung to the one above
        self.rungs = nn.ModuleList(Rung(hidden, latent) for latent in latents)

    def _encode_rungs(self, x: Tensor, cond: Tensor | None) -> list[Tensor]:
        """Return the encoder's output for each rung, the topmost first: (B, hidden) each."""
        outputs = [self.encoder(x - self.centre, cond)]
        for layer in self.look:
            outputs.append(layer(outputs[-1]))
        return [functional.silu(h) for h in reversed(outputs)]

    def _down(
        self, encoded: Sequence[Tensor | None], count: int, cond: Tensor | None, randn: RandnLike
    ) -> tuple[list[LatentLevel], Tensor]:
        state = self.top.expand(count, -1)
        if self.label is not None:
            state = state + self.label(cond)
        levels = []
        for rung, rung_encoded in zip(self.rungs, encoded, strict=True):
            level, state = rung(state, rung_encoded, randn)
            levels.append(level)
        return levels, self.decoder(functional.silu(state), cond) + self.bias

    def infer(self, x: Tensor, cond: Tensor | None, randn: RandnLike, copies: int = 1) -> tuple[Sequence[LatentLevel], Tensor]:
        """See `Variational.infer`."""
        encoded = [_repeat(h, copies) for h in self._encode_rungs(x, cond)]
        return self._down(encoded, len(x) * copies, _repeat(cond, copies), randn)

    def generate(self, count: int, cond: Tensor | None, randn: RandnLike) -> Tensor:
        """See `Variational.generate`."""
        return self._down([None] * len(self.rungs), count, cond, randn)[1]


class SampledLevel(LatentLevel):
    """A latent whose KL has no closed form, because the prior depends on a sample: estimated by that sample."""

    def kl(self) -> Tensor:
        """Return log q(z) - log p(z), an unbiased estimate of the KL: (B, ...)."""
        assert self.prior is not None
        return self.posterior.log_density(self.z) - self.prior.log_density(self.z)

    def cost(self, free_bits: float) -> Tensor:
        """Return the estimate unclipped: it may be negative, and clipping would bias the bound."""
        return self.kl()


class MarkovHVAE(Variational):
    """x <-> z_1 <-> ... <-> z_T, each conditioned on its neighbour only.

    p(x, z) = p(x | z_1) prod_t p(z_t | z_t+1) N(z_T; 0, 1) and q(z | x) = q(z_1 | x) prod_t q(z_t+1 | z_t).
    latents: their sizes, z_1 first.
    """

    def __init__(self, latents: tuple[int, ...], hidden: int, blocks: int, **options: Any) -> None:
        super().__init__(**options)
        inputs, labels = [self.shape, *((n,) for n in latents[:-1])], self.label_count
        self.latents = latents
        self.up = nn.ModuleList(ResidualMLP(s, (2 * n,), hidden, blocks, labels) for s, n in zip(inputs, latents, strict=True))
        downs = [(*self.shape, self.observation.parameters), *((2 * n,) for n in latents[:-1])]
        self.down = nn.ModuleList(ResidualMLP((n,), s, hidden, blocks, labels) for n, s in zip(latents, downs, strict=True))

    def infer(self, x: Tensor, cond: Tensor | None, randn: RandnLike, copies: int = 1) -> tuple[Sequence[LatentLevel], Tensor]:
        """See `Variational.infer`."""
        z, cond = x - self.centre, _repeat(cond, copies)
        posteriors, latents_below = [], []
        for k, up in enumerate(self.up):
            parameters = up(z, cond if k or copies == 1 or cond is None else cond[::copies])
            q = diagonal_normal(parameters if k or copies == 1 else parameters.repeat_interleave(copies, 0))
            z = q.at(randn(q.mean))
            posteriors.append(q)
            latents_below.append(z)
        priors = [diagonal_normal(down(above, cond)) for down, above in zip(self.down[1:], latents_below[1:], strict=True)]
        levels: list[LatentLevel] = [SampledLevel(q, p, z) for q, p, z in zip(posteriors, priors, latents_below, strict=False)]
        levels.append(LatentLevel(posteriors[-1], None, latents_below[-1]))
        return levels, self.down[0](latents_below[0], cond) + self.bias

    def generate(self, count: int, cond: Tensor | None, randn: RandnLike) -> Tensor:
        """See `Variational.generate`."""
        z = randn(torch.empty(count, self.latents[-1], device=self.device))
        for down in reversed(self.down[1:]):
            p = diagonal_normal(down(z, cond))
            z = p.at(randn(p.mean))
        y: Tensor = self.down[0](z, cond) + self.bias
        return y


class LinearMHVAE(Variational):
    """The chain with a fixed encoder: q(z_t | z_t-1) = N(a_t z_t-1, b_t²), with latents of the data's shape.

    Then q(z_t | x) = N(A_t x, B_t²) and q(z_t-1 | z_t, x) are normal, and with p(z_t-1 | z_t) = q(z_t-1 | z_t, estimate of x)
    the bound is that of diffusion: KL(q(z_T | x) || N(0, 1)) + sum_t KL(q(z_t-1 | z_t, x) || p(z_t-1 | z_t)) - log p(x | z_1)
    (arXiv:2006.11239, eq. 5).  chain: (a_t, b_t) for t = 1, ..., T; guess: (z, t, cond) -> x; decoder: (z_1, cond) -> y.
    """

    def __init__(self, chain: Sequence[tuple[float, float]], guess: nn.Module, decoder: nn.Module, **options: Any) -> None:
        super().__init__(**options)
        self.chain, self.guess, self.decoder = list(chain), guess, decoder
        self.marginals: list[tuple[float, float]] = []  # A_t, B_t
        scale, variance = 1.0, 0.0
        for a, b in self.chain:
            scale, variance = a * scale, a**2 * variance + b**2
            self.marginals.append((scale, math.sqrt(variance)))

    def below(self, t: int, z: Tensor, x: Tensor) -> Diagonal:
        """Return q(z_t-1 | z_t, x) by Bayes' rule: precisions add, and so do precision-weighted means."""
        (a, b), (scale, std) = self.chain[t - 1], self.marginals[t - 2]
        variance = 1 / (1 / std**2 + a**2 / b**2)
        mean = variance * (scale / std**2 * x + a / b**2 * z)
        return Diagonal(mean, torch.full_like(mean, math.log(variance) / 2))

    def infer(self, x: Tensor, cond: Tensor | None, randn: RandnLike, copies: int = 1) -> tuple[Sequence[LatentLevel], Tensor]:
        """See `Variational.infer`."""
        x, cond = x.repeat_interleave(copies, 0), _repeat(cond, copies)
        scale, std = self.marginals[-1]
        q = Diagonal(scale * x, torch.full_like(x, math.log(std)))
        z = q.at(randn(x))
        levels = [LatentLevel(q, None, z)]
        for t in range(len(self.chain), 1, -1):
            q, p = self.below(t, z, x), self.below(t, z, self.guess(z, t, cond))
            z = q.at(randn(x))
            levels.append(LatentLevel(q, p, z))
        return levels, self.decoder(z, cond) + self.bias

    def generate(self, count: int, cond: Tensor | None, randn: RandnLike) -> Tensor:
        """See `Variational.generate`."""
        z = randn(torch.empty(count, *self.shape, device=self.device))
        for t in range(len(self.chain), 1, -1):
            p = self.below(t, z, self.guess(z, t, cond))
            z = p.at(randn(z))
        y: Tensor = self.decoder(z, cond) + self.bias
        return y


class CleanPredictors(nn.Module):
    """A network for each t: (z, t, cond) -> x.  z, x: (B, ...)."""

    def __init__(self, levels: int, shape: tuple[int, ...], hidden: int, blocks: int, labels: int) -> None:
        super().__init__()
        self.nets = nn.ModuleList(ResidualMLP(shape, shape, hidden, blocks, labels) for _ in range(levels - 1))

    def forward(self, z: Tensor, t: int, cond: Tensor | None) -> Tensor:
        """Return the estimate of x, for t >= 2."""
        guess: Tensor = self.nets[t - 2](z, cond)
        return guess
