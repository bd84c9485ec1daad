"""What a variational autoencoder is made of, as the table [family] of config.toml."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import nn

from reverie.base.spec import Spec, build, spec_of
from reverie.data.codec import CODECS
from reverie.families.latent import check_latent
from reverie.families.model import FamilySettings
from reverie.families.vae.autoencoder import Autoencoder, DenoisingAutoencoder
from reverie.families.vae.model import VAE
from reverie.families.vae.networks import ConvDecoder, ConvEncoder, Dense, Linear, conv_latent
from reverie.families.vae.observation import OBSERVATIONS, Observation

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


def observation_of(settings: VariationalSettings) -> Observation:
    """Return p(x | z) for the levels of the data."""
    return OBSERVATIONS[settings.decoder](build(CODECS, settings.codec, "codec").levels)


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


def build_vae(settings: VAESettings, shape: tuple[int, ...], labels: int, seed: int) -> VAE:
    """Make the model that settings describe, with weights drawn from the seed."""
    observation = observation_of(settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder, decoder = networks(settings, shape, labels, 2, observation.parameters)
    return VAE(
        encoder, decoder, latent_shape(settings, shape), observation=observation, codec=build(CODECS, settings.codec, "codec"),
        shape=shape, labels=labels, beta=settings.beta, free_bits=settings.free_bits, kl_warmup=settings.kl_warmup,
        importance=settings.importance,
    )  # fmt: skip


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
