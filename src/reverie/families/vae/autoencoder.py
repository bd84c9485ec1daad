"""Autoencoders trained by squared error, and denoising autoencoders."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from reverie.base.deadline import Deadline
from reverie.base.errors import UserError
from reverie.base.noise import Noise, image_seeds
from reverie.data import Dataset, chunk_size
from reverie.data.codec import Codec
from reverie.data.dataset import evenly_spaced_indices
from reverie.data.kind import kind_of
from reverie.diffusion.likelihood.flow import LogProb
from reverie.diffusion.pair import Pair
from reverie.diffusion.samplers import Frame
from reverie.families.model import SamplingInputs, TrainedModel, check_one_label
from reverie.families.vae.maps import MapDecoder, MapEncoder, begin_with_components
from reverie.families.vae.model import diagonal_normal
from reverie.nets.efficientnet import EfficientNetLite0, load_general, perceptual_distance

METRIC_DATA = 1024  # maximum number of data for held-out metrics
MAX_CODES = 4096  # training data for the moments of codes
EVALUATION_BATCH = 128
MAX_FULL_COVARIANCE = 512  # values of a code up to which its full covariance is stored
FLOOR = 1e-6  # added to a code's variances, as a share of their mean
MAX_STEPS, DEFAULT_STEPS = 100_000, 100  # of the Markov chain


class Autoencoder(TrainedModel):
    """x -> centre + decoder(encoder(x - centre)), trained by squared error per value, in model units.

    centre is the mean of the training data.  Codes are sampled from a Gaussian with the moments of the training data's codes,
    for each label (arXiv:1903.12436, section 3); there is no density.  latent: shape of a code, (c,) or (c, h, w).  kl: weight
    of KL(q(z | x) || N(0, 1)) per value of the data, for encoders that output mean and log standard deviation of q; training
    samples q, else its mean is used (arXiv:2112.10752, section 3.1).  perceptual: weight of the perceptual distance, which
    preserves textures.  code_mean: (labels or 1, L); code_spread: (labels or 1, L, L), square roots of covariances, or for
    large codes (labels or 1, L), standard deviations.
    """

    def __init__(
        self, encoder: nn.Module, decoder: nn.Module, latent: tuple[int, ...], codec: Codec, shape: tuple[int, ...],
        labels: int, kl: float = 0.0, perceptual: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.perceptual, self._perceptual_networks = perceptual, list[EfficientNetLite0]()  # in a list: no submodule
        self.encoder, self.decoder, self.latent, self.codec, self.shape = encoder, decoder, latent, codec, shape
        self.label_count, self.kl, numbers = labels, kl, math.prod(latent)
        groups = max(1, labels)
        moments_shape = (groups, numbers, numbers) if numbers <= MAX_FULL_COVARIANCE else (groups, numbers)
        self.centre = nn.Buffer(torch.zeros(shape))
        self.code_mean, self.code_spread = (
            nn.Buffer(torch.zeros(groups, numbers)),
            nn.Buffer(torch.zeros(moments_shape)),
        )

    def encode(self, x: Tensor) -> Tensor:
        """Return data in model units, by the codec."""
        return self.codec.encode(x)

    def decode(self, z: Tensor) -> Tensor:
        """Return data in user units, by the codec."""
        return self.codec.decode(z)

    def initialize(self, data: Dataset, deadline: Deadline | None = None) -> None:
        """Set `centre` to the mean of the data; map networks are initialized with principal components of patches."""
        x = self.codec.encode(data.subsample(MAX_CODES))
        self.centre.copy_(x.mean(0))
        if isinstance(self.encoder, MapEncoder) and isinstance(self.decoder, MapDecoder):
            begin_with_components(self.encoder, self.decoder, x - x.mean(0))

    def reconstruct(self, x: Tensor) -> Tensor:
        """Return centre + decoder(encoder(x - centre)).  x: (B, ...) in model units."""
        return self._decoded(self._encoded(x))

    def _encoded(self, x: Tensor) -> Tensor:
        output: Tensor = self.encoder(x - self.centre)
        return output.chunk(2, 1)[0] if self.kl else output

    def _decoded(self, z: Tensor) -> Tensor:
        decoded: Tensor = self.decoder(z)
        return self.centre + decoded[..., 0]

    def to_latent(self, x: Tensor) -> Tensor:
        """Return the codes of data in user units: (B, *latent)."""
        return self._encoded(self.codec.encode(x))

    def from_latent(self, z: Tensor) -> Tensor:
        """Return the decoded data in user units: (B, ...)."""
        return self.codec.decode(self._decoded(z))

    def expected(self, z: Tensor) -> Tensor:
        """Return the decoded data in model units, unclamped."""
        return self._decoded(z)

    def loss(self, x: Tensor, cond: Tensor | None, seed: int) -> Tensor:
        """Return the squared error per value plus the KL term: (B,), a function of data and seed."""
        z = self.codec.encode(x)
        if not self.kl:
            return self._difference(self.reconstruct(z), z)
        q = diagonal_normal(self.encoder(z - self.centre))
        random = torch.Generator(z.device).manual_seed(seed)
        code = q.at(torch.randn(q.mean.shape, generator=random, device=z.device, dtype=z.dtype))
        return self._difference(self._decoded(code), z) + self.kl / math.prod(self.shape) * q.kl().flatten(1).sum(1)

    def use_perceptual_network(self, network: EfficientNetLite0) -> None:
        """Use this network for the perceptual distance."""
        self._perceptual_networks[:] = [network]

    def _difference(self, y: Tensor, truth: Tensor) -> Tensor:
        """Return the squared error per value plus the perceptual distance: (B,).  y, truth: in model units."""
        error = (y - truth).square().flatten(1).mean(1)
        if not self.perceptual:
            return error
        if not self._perceptual_networks:
            self.use_perceptual_network(load_general().to(truth.device))
        return error + self.perceptual * perceptual_distance(
            self._perceptual_networks[0], self.codec.decode(y), self.codec.decode(truth)
        )

    @torch.no_grad()
    def finalize(self, data: Dataset) -> None:
        """Compute the moments of the training data's codes; labels with few data use those of all data."""
        index = evenly_spaced_indices(len(data), chunk_size(self.shape, MAX_CODES))
        labels = data.labels[index] if data.labels is not None else None
        parts = [self.to_latent(data.batch(part)[0].to(self.device)).cpu() for part in index.split(EVALUATION_BATCH)]
        codes = torch.cat(parts).flatten(1).double()
        root_of_all = self._covariance_root(codes)
        for label in range(len(self.code_mean)):
            selected = codes[labels == label] if labels is not None and self.label_count else codes
            self.code_mean[label] = (selected if len(selected) else codes).mean(0).to(self.code_mean)
            self.code_spread[label] = (self._covariance_root(selected) if len(selected) > codes.shape[1] else root_of_all).to(
                self.code_spread
            )

    def _covariance_root(self, codes: Tensor) -> Tensor:
        """Return a square root of the covariance of codes, (L, L), or their standard deviations, (L,)."""
        if self.code_spread.ndim == 2:
            return codes.std(0, correction=0)
        covariance = torch.atleast_2d(codes.T.cov(correction=0))
        values, vectors = torch.linalg.eigh(covariance + FLOOR * covariance.diagonal().mean() * torch.eye(len(covariance)))
        root: Tensor = vectors * values.clamp_min(0).sqrt()
        return root

    def sample_codes(self, noise: Noise, cond: Tensor | None) -> Tensor:
        """Sample codes from the Gaussian of each label, one per seed: (B, *latent)."""
        label = cond.to(self.device) if self.label_count and cond is not None else torch.zeros(len(noise.seeds)).long()
        eps = noise.like(torch.empty(len(noise.seeds), self.code_mean.shape[1], device=self.device))
        if self.code_spread.ndim == 2:
            deviation = self.code_spread[label] * eps
        else:
            deviation = (self.code_spread[label] @ eps[..., None])[..., 0]
        return (self.code_mean[label] + deviation).reshape(-1, *self.latent)

    def frames(self, inputs: SamplingInputs) -> Iterator[Frame]:
        """Sample codes and decode them into one frame."""
        x = self._decoded_samples(inputs, Noise(inputs.seeds))
        yield Frame(0, 1, 0.0, x, Pair(x, torch.zeros_like(x)))

    @torch.no_grad()
    def _decoded_samples(self, inputs: SamplingInputs, noise: Noise) -> Tensor:
        check_one_label(inputs)
        return self._decoded(self.sample_codes(noise, inputs.cond))

    @torch.no_grad()
    def held_out_metrics(self, data: Dataset, seed: int) -> dict[str, Any]:
        """Return the mean training loss on held-out data without the KL term."""
        return {"held_out": self._mean_error(data, seed, 0.0)}

    def _mean_error(self, data: Dataset, seed: int, sigma: float) -> float:
        """Return the mean squared error on data with fixed noise."""
        total, count = 0.0, min(len(data), chunk_size(self.shape, METRIC_DATA))
        for part in torch.arange(count).split(EVALUATION_BATCH):
            z = self.codec.encode(data.batch(part)[0].to(self.device))
            noised = z + sigma * Noise(image_seeds(seed, count)[part]).like(z) if sigma else z
            total += float(self._difference(self.reconstruct(noised), z).sum())
        return total / count

    def log_prob(self, x: Tensor, cond: Tensor | None, seeds: Tensor) -> LogProb:
        """Raise a UserError: an autoencoder has no density."""
        raise UserError("an autoencoder has no likelihood; train a vae")


class DenoisingAutoencoder(Autoencoder):
    """x -> decoder(encoder(x + sigma eps)), trained to reconstruct x (Vincent et al. 2008).

    The optimal r is E[x | x + sigma eps], so r(y) - y = sigma² times the score of the noised data at y (arXiv:1211.4246;
    Miyasawa 1961).  For small sigma the Markov chain x <- r(x + sigma eps) + sigma eps' samples the data: it is Langevin
    dynamics with step size sigma² (arXiv:1305.6663).  It starts from samples of the plain autoencoder.
    """

    def __init__(self, *parts: Any, sigma: float) -> None:
        super().__init__(*parts)
        self.sigma = sigma

    def loss(self, x: Tensor, cond: Tensor | None, seed: int) -> Tensor:
        """Return |x - r(x + sigma eps)|² / D, (B,); the noise is a function of the seed."""
        z = self.codec.encode(x)
        random = torch.Generator(z.device).manual_seed(seed)
        eps = torch.randn(z.shape, generator=random, device=z.device, dtype=z.dtype)
        return self._difference(self.reconstruct(z + self.sigma * eps), z)

    def score(self, y: Tensor) -> Tensor:
        """Return (r(y) - y) / sigma², the score of the noised data: (B, ...) in model units."""
        return (self.reconstruct(y) - y) / self.sigma**2

    @torch.no_grad()
    def held_out_metrics(self, data: Dataset, seed: int) -> dict[str, Any]:
        """Return the mean squared error on data with fixed noise."""
        return {"held_out": self._mean_error(data, seed, self.sigma)}

    @torch.no_grad()
    def frames(self, inputs: SamplingInputs) -> Iterator[Frame]:
        """Run the Markov chain and yield every step; the estimate of images is r, before the noise of the next step."""
        noise = Noise(inputs.seeds)
        steps = inputs.options.get("steps")
        steps = DEFAULT_STEPS if steps is None else steps
        if not 1 <= steps <= MAX_STEPS:
            raise UserError(f"--steps must be between 1 and {MAX_STEPS:,}, got {steps}")
        x = self._decoded_samples(inputs, noise)
        for k in range(steps):
            guess = self.reconstruct(x + self.sigma * noise.like(x))
            x = guess + self.sigma * noise.like(x)
            clean = guess if kind_of(self.shape) == "images" else x
            yield Frame(k, steps, 0.0, x, Pair(clean, (x - clean) / self.sigma))
