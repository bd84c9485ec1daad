"""The variational autoencoder (arXiv:1312.6114): one latent, standard normal, with a Gaussian encoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from reverie.diffusion.likelihood.normal import Diagonal
from reverie.families.vae.variational import LatentLevel, RandnLike, Variational

LOG_STD = (-8.0, 4.0)  # limits for latent values


def diagonal_normal(parameters: Tensor) -> Diagonal:
    """Return the normal whose mean and log standard deviation are the halves of the first dimension after the batch."""
    mean, log_std = parameters.chunk(2, 1)
    return Diagonal(mean, log_std.clamp(*LOG_STD))


class VAE(Variational):
    """z ~ N(0, I), x ~ p(x | decoder(z)), q(z | x) = N(mean, std²) with both from the encoder.

    encoder: (B, ...) -> (B, 2 c, ...), decoder: (B, c, ...) -> (B, ..., P); latent: the shape of z, (c,) or (c, h, w).
    """

    def __init__(self, encoder: nn.Module, decoder: nn.Module, latent: tuple[int, ...], **options: Any) -> None:
        super().__init__(**options)
        self.encoder, self.decoder, self.latent = encoder, decoder, latent

    def posterior(self, x: Tensor, cond: Tensor | None = None) -> Diagonal:
        """Return q(z | x).  x: (B, ...) in model units."""
        return diagonal_normal(self.encoder(x - self.centre, cond))

    def decoder_output(self, z: Tensor, cond: Tensor | None = None) -> Tensor:
        """Return the parameters of p(x | z): (B, ..., P)."""
        y: Tensor = self.decoder(z, cond) + self.bias
        return y

    def infer(self, x: Tensor, cond: Tensor | None, randn: RandnLike, copies: int = 1) -> tuple[Sequence[LatentLevel], Tensor]:
        """See `Variational.infer`."""
        q = self.posterior(x, cond)
        if copies > 1:
            q = Diagonal(q.mean.repeat_interleave(copies, 0), q.log_std.repeat_interleave(copies, 0))
            cond = cond.repeat_interleave(copies, 0) if cond is not None else None
        z = q.at(randn(q.mean))
        return [LatentLevel(q, None, z)], self.decoder_output(z, cond)

    def generate(self, count: int, cond: Tensor | None, randn: RandnLike) -> Tensor:
        """See `Variational.generate`."""
        return self.decoder_output(randn(torch.empty(count, *self.latent, device=self.device)), cond)

    def to_latent(self, x: Tensor, cond: Tensor | None = None) -> Tensor:
        """Return the mean of q(z | x): (B, *latent).  x: (B, ...) in user units."""
        return self.posterior(self.codec.encode(x), cond).mean

    def from_latent(self, z: Tensor, cond: Tensor | None = None) -> Tensor:
        """Return E[x | z] in user units: (B, ...)."""
        return self.codec.decode(self.expected(z, cond))

    def expected(self, z: Tensor, cond: Tensor | None = None) -> Tensor:
        """Return E[x | z] in model units, (B, ...), unclamped."""
        return self.observation.mean(self.decoder_output(z, cond))
