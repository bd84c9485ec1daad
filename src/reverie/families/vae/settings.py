"""Settings of autoencoders and variational autoencoders: the table [family] of config.toml."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import nn

from reverie.base.errors import UserError
from reverie.base.spec import Spec, build, spec_of
from reverie.data.codec import CODECS
from reverie.diffusion.process import transition
from reverie.diffusion.schedule import Cosine
from reverie.families.latent_space import check_latent
from reverie.families.model import FamilySettings
from reverie.families.vae.autoencoder import Autoencoder, DenoisingAutoencoder
from reverie.families.vae.hierarchy import HVAE, CleanPredictors, LinearMHVAE, MarkovHVAE
from reverie.families.vae.maps import MapDecoder, MapEncoder, map_latent
from reverie.families.vae.model import VAE
from reverie.families.vae.networks import (
    ConvDecoder,
    ConvEncoder,
    Linear,
    PatchDecoder,
    PatchEncoder,
    Patches,
    ResidualMLP,
    conv_latent,
)  # fmt: skip
from reverie.families.vae.observation import OBSERVATIONS
from reverie.families.vae.variational import Variational

Layers = Literal["linear", "dense", "patches", "conv", "map"]
Size = Annotated[int, Field(ge=1, le=8192)]
Widths = Annotated[tuple[Annotated[int, Field(ge=4, le=1024)], ...], Field(min_length=1, max_length=8)]


class LatentSettings(FamilySettings):
    """Encoder and decoder networks.

    layers: linear; dense; patches, convolutions over a map of patches and dense layers; conv, with a feature map of `latent`
    channels; or map, with `latent` channels per patch, initialized with principal components.  hidden: width of dense layers;
    blocks: number of residual blocks; patch: side of a patch in pixels; with layers=patches, a position of the map has twice
    this side; widths: of convolutions, which halve the image between widths; the first is that of the map of patches.
    """

    layers: Layers = "dense"
    latent: Size = 40
    hidden: Size = 512
    blocks: Annotated[int, Field(ge=0, le=64)] = 1
    patch: Annotated[int, Field(ge=1, le=64)] = 4
    widths: Widths = (32, 64, 64)
    codec: Annotated[Spec, spec_of(CODECS, "codec")]


class VariationalSettings(LatentSettings):
    """Observation model and training of the bound; see `reverie.families.vae.variational`."""

    decoder: Literal["bernoulli", "categorical", "logistic", "gaussian"]
    beta: Annotated[float, Field(ge=0, le=1000)] = 1.0
    free_bits: Annotated[float, Field(ge=0, le=100)] = 0.0
    kl_warmup: Annotated[float, Field(ge=0, le=1)] = 0.1
    importance: Annotated[int, Field(ge=1, le=1000)] = 1


class VAESettings(VariationalSettings):
    """A variational autoencoder."""

    name: Literal["vae"] = "vae"


class HierarchySettings(VariationalSettings):
    """Several latents of equal size."""

    levels: Annotated[int, Field(ge=2, le=64)] = 3


class HVAESettings(HierarchySettings):
    """A ladder of latents, each conditioned on all above."""

    name: Literal["hvae"] = "hvae"
    layers: Literal["dense", "patches"] = "dense"


class MHVAESettings(HierarchySettings):
    """A chain of latents; encoder: learned, or linear, a fixed chain of the data's size, which is diffusion."""

    name: Literal["mhvae"] = "mhvae"
    layers: Literal["dense"] = "dense"
    encoder: Literal["learned", "linear"] = "learned"


class AutoencoderSettings(LatentSettings):
    """An autoencoder; kl: weight of KL(codes || N(0, 1)); perceptual: weight of the perceptual distance of images."""

    kl: Annotated[float, Field(ge=0, le=1000)] = 0.0
    perceptual: Annotated[float, Field(ge=0, le=1000)] = 0.0
    name: Literal["autoencoder"] = "autoencoder"


class DenoisingSettings(LatentSettings):
    """A denoising autoencoder; sigma: standard deviation of the noise, in model units."""

    name: Literal["denoising-autoencoder"] = "denoising-autoencoder"
    sigma: Annotated[float, Field(gt=0, le=100)] = 0.2


def latent_shape(settings: LatentSettings, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the latent; raise a UserError if it is impossible."""
    latent: tuple[int, ...] = (settings.latent,)
    if settings.layers == "conv":
        latent = conv_latent(shape, settings.latent, settings.widths)
    elif settings.layers == "map":
        latent = map_latent(shape, settings.latent, settings.patch)
    check_latent(math.prod(latent), math.prod(shape))
    return latent


def networks(
    settings: LatentSettings,
    shape: tuple[int, ...],
    labels: int,
    latent: tuple[int, ...],
    parameters_each: int,
    parameters: int,
) -> tuple[nn.Module, nn.Module]:
    """Build encoder, with `parameters_each` outputs per latent value, and decoder, with `parameters` per data value."""
    code_channels = parameters_each * latent[0]
    if settings.layers == "conv":
        encoder = ConvEncoder(shape[0], code_channels, settings.widths, labels)
        return encoder, ConvDecoder(latent[0], shape[0], parameters, settings.widths, labels)
    if settings.layers == "map":
        if parameters != 1:
            raise UserError("layers=map is for autoencoders; give layers=conv")
        size_of_map = settings.patch, settings.widths[0], settings.blocks
        return MapEncoder(shape, latent[0], parameters_each, *size_of_map), MapDecoder(shape, latent[0], *size_of_map)
    if settings.layers == "linear":
        return Linear(shape, (code_channels,)), Linear(latent, (*shape, parameters))
    if settings.layers == "patches":
        size = Patches(settings.patch, settings.widths[0], settings.hidden, settings.blocks)
        return PatchEncoder(shape, code_channels, size, labels), PatchDecoder(latent[0], shape, parameters, size, labels)
    dense = settings.hidden, settings.blocks, labels
    return ResidualMLP(shape, (code_channels,), *dense), ResidualMLP(latent, (*shape, parameters), *dense)


def build_variational(settings: VariationalSettings, shape: tuple[int, ...], labels: int, seed: int) -> Variational:
    """Build the model with weights initialized from the seed."""
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
            return VAE(*networks(settings, shape, labels, latent, 2, observation.parameters), latent, **options)
        if isinstance(settings, MHVAESettings) and settings.encoder == "linear":
            guess = CleanPredictors(settings.levels, shape, *size, labels)
            decoder = ResidualMLP(shape, (*shape, observation.parameters), *size, labels)
            return LinearMHVAE(fixed_chain(settings.levels), guess, decoder, **options)
        latents = latent * settings.levels
        if isinstance(settings, MHVAESettings):
            return MarkovHVAE(latents, *size, **options)
        ends = networks(settings, shape, labels, (settings.hidden,), 1, observation.parameters)
        return HVAE(*ends, latents, settings.hidden, **options)


def fixed_chain(levels: int) -> list[tuple[float, float]]:
    """Return a_t and b_t of the steps of diffusion with the cosine schedule, at evenly spaced times from 1 / levels to 1."""
    schedule = Cosine()
    times = [k / levels for k in range(levels + 1)]
    steps = [transition(schedule, s, t) for s, t in pairwise(times)]
    return [(float(a), float(b)) for a, b in steps]


def build_autoencoder(
    settings: AutoencoderSettings | DenoisingSettings, shape: tuple[int, ...], labels: int, seed: int
) -> Autoencoder:
    """Build the autoencoder with weights initialized from the seed."""
    latent = latent_shape(settings, shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        kl = settings.kl if isinstance(settings, AutoencoderSettings) else 0.0
        encoder, decoder = networks(settings, shape, 0, latent, 2 if kl else 1, 1)
    parts = encoder, decoder, latent, build(CODECS, settings.codec, "codec"), shape, labels
    if isinstance(settings, DenoisingSettings):
        return DenoisingAutoencoder(*parts, sigma=settings.sigma)
    if settings.perceptual and len(shape) != 3:
        raise UserError("the perceptual distance needs images, and these are points; leave perceptual out")
    return Autoencoder(*parts, kl=kl, perceptual=settings.perceptual)
