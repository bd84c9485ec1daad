"""What a variational autoencoder is made of, as the table [family] of config.toml."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import nn

from reverie.base.spec import Spec, build, spec_of
from reverie.data.codec import CODECS
from reverie.diffusion.process import transition
from reverie.diffusion.schedule import Cosine
from reverie.families.latent import check_latent
from reverie.families.model import FamilySettings
from reverie.families.vae.autoencoder import Autoencoder, DenoisingAutoencoder
from reverie.families.vae.hierarchy import HVAE, Guesses, LinearMHVAE, MarkovHVAE
from reverie.families.vae.model import VAE
from reverie.families.vae.networks import ConvDecoder, ConvEncoder, Dense, Linear, conv_latent
from reverie.families.vae.observation import OBSERVATIONS
from reverie.families.vae.variational import Variational

Layers = Literal["linear", "dense", "conv"]
Size = Annotated[int, Field(ge=1, le=8192)]
Widths = Annotated[tuple[Annotated[int, Field(ge=4, le=1024)], ...], Field(min_length=1, max_length=8)]


class LatentSettings(FamilySettings):
    """Networks to a latent and back.

    layers: linear, one map each way; dense; or conv, whose latent is a map of so many channels; hidden, blocks: of dense
    layers; widths: of convolutions, with the image halved between them.
    """

    layers: Layers = "dense"
    latent: Size = 40
    hidden: Size = 512
    blocks: Annotated[int, Field(ge=0, le=64)] = 1
    widths: Widths = (32, 64, 64)
    codec: Annotated[Spec, spec_of(CODECS, "codec")]


class VariationalSettings(LatentSettings):
    """p(x | z), and how the bound is trained; see `reverie.families.vae.variational`."""

    decoder: Literal["bernoulli", "categorical", "logistic", "gaussian"]
    beta: Annotated[float, Field(ge=0, le=1000)] = 1.0
    free_bits: Annotated[float, Field(ge=0, le=100)] = 0.0
    kl_warmup: Annotated[float, Field(ge=0, le=1)] = 0.1
    importance: Annotated[int, Field(ge=1, le=1000)] = 1


class VAESettings(VariationalSettings):
    """A variational autoencoder."""

    name: Literal["vae"] = "vae"


class HierarchySettings(VariationalSettings):
    """Several latents of one size, of dense layers."""

    levels: Annotated[int, Field(ge=2, le=64)] = 3
    layers: Literal["dense"] = "dense"


class HVAESettings(HierarchySettings):
    """A ladder of latents, each conditioned on all above."""

    name: Literal["hvae"] = "hvae"


class MHVAESettings(HierarchySettings):
    """A chain of latents; encoder: learned, or linear, which is diffusion: a fixed chain of the data's own size."""

    name: Literal["mhvae"] = "mhvae"
    encoder: Literal["learned", "linear"] = "learned"


class AutoencoderSettings(LatentSettings):
    """An autoencoder."""

    name: Literal["autoencoder"] = "autoencoder"


class DenoisingSettings(LatentSettings):
    """An autoencoder of noised data; sigma: of the noise, in model units."""

    name: Literal["denoising-autoencoder"] = "denoising-autoencoder"
    sigma: Annotated[float, Field(gt=0, le=100)] = 0.2


def latent_shape(settings: LatentSettings, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the latent, or say why there is none that could be."""
    found = conv_latent(shape, settings.latent, settings.widths) if settings.layers == "conv" else (settings.latent,)
    check_latent(math.prod(found), math.prod(shape))
    return found


def networks(
    settings: LatentSettings, shape: tuple[int, ...], labels: int, told: int, parameters: int
) -> tuple[nn.Module, nn.Module]:
    """Make encoder, with `told` numbers for each of the latent, and decoder, with `parameters` for each of the data."""
    latent = latent_shape(settings, shape)
    if settings.layers == "conv":
        encoder: nn.Module = ConvEncoder(shape[0], told * latent[0], settings.widths, labels)
        return encoder, ConvDecoder(latent[0], shape[0], parameters, settings.widths, labels)
    if settings.layers == "linear":
        return Linear(shape, (told * latent[0],)), Linear(latent, (*shape, parameters))
    size = settings.hidden, settings.blocks, labels
    return Dense(shape, (told * latent[0],), *size), Dense(latent, (*shape, parameters), *size)


def build_variational(settings: VariationalSettings, shape: tuple[int, ...], labels: int, seed: int) -> Variational:
    """Make the model that settings describe, with weights drawn from the seed."""
    codec = build(CODECS, settings.codec, "codec")
    observation, latent = OBSERVATIONS[settings.decoder](codec.levels), latent_shape(settings, shape)
    options: dict[str, Any] = {
        "observation": observation, "codec": codec, "shape": shape, "labels": labels, "beta": settings.beta,
        "free_bits": settings.free_bits, "kl_warmup": settings.kl_warmup, "importance": settings.importance,
    }  # fmt: skip
    size = settings.hidden, settings.blocks
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if not isinstance(settings, HierarchySettings):
            return VAE(*networks(settings, shape, labels, 2, observation.parameters), latent, **options)
        if isinstance(settings, MHVAESettings) and settings.encoder == "linear":
            guess = Guesses(settings.levels, shape, *size, labels)
            decoder = Dense(shape, (*shape, observation.parameters), *size, labels)
            return LinearMHVAE(fixed_chain(settings.levels), guess, decoder, **options)
        kind = MarkovHVAE if isinstance(settings, MHVAESettings) else HVAE
        return kind(latent * settings.levels, *size, **options)


def fixed_chain(levels: int) -> list[tuple[float, float]]:
    """Return a_t and b_t of the steps of diffusion with the cosine schedule, at evenly spaced times from 1 / levels to 1."""
    schedule = Cosine()
    times = [k / levels for k in range(levels + 1)]
    steps = [transition(schedule, s, t) for s, t in pairwise(times)]
    return [(float(a), float(b)) for a, b in steps]


def build_autoencoder(
    settings: AutoencoderSettings | DenoisingSettings, shape: tuple[int, ...], labels: int, seed: int
) -> Autoencoder:
    """Make the autoencoder that settings describe, with weights drawn from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder, decoder = networks(settings, shape, 0, 1, 1)
    parts = encoder, decoder, latent_shape(settings, shape), build(CODECS, settings.codec, "codec"), shape, labels
    if isinstance(settings, DenoisingSettings):
        return DenoisingAutoencoder(*parts, sigma=settings.sigma)
    return Autoencoder(*parts)
