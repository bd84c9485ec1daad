"""Variational autoencoders as a family: what is planned for data and a budget, and what they can do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar, get_args

from reverie.base.spec import Spec
from reverie.families.model import Likelihood, PlanRequest
from reverie.families.planned import PlannedFamily, codec_for, decoder_for, is_small_dataset, small_data_learning_rate
from reverie.families.vae.autoencoder import Autoencoder
from reverie.families.vae.settings import (
    AutoencoderSettings,
    DenoisingSettings,
    HierarchySettings,
    HVAESettings,
    LatentSettings,
    MHVAESettings,
    VAESettings,
    VariationalSettings,
    build_autoencoder,
    build_variational,
)  # fmt: skip
from reverie.families.vae.variational import Variational

PATCHED_MOST = 4096  # numbers of an image, above which its latent is a map
FARTHEST = 3.0  # learning rate times steps, at most, where images are few: 1,700 digits are known by heart soon after
Settings = TypeVar("Settings", bound=LatentSettings)
Bounded = TypeVar("Bounded", bound=VariationalSettings)
Levelled = TypeVar("Levelled", bound=HierarchySettings)


def network_for(shape: tuple[int, ...]) -> dict[str, Any]:
    """Return the networks for data of a shape."""
    if len(shape) == 1:
        return {"layers": "dense", "latent": min(shape[0], 8), "hidden": 128}
    if math.prod(shape) > PATCHED_MOST:
        return {"layers": "conv", "latent": 4}
    patch = next((p for p in (2, 1) if shape[1] % (2 * p) == shape[2] % (2 * p) == 0 and min(shape[1:]) >= 8 * p), None)
    flat = {"latent": max(1, min(32, math.prod(shape) // 4)), "hidden": 256}
    return {"layers": "dense", **flat} if patch is None else {"layers": "patches", "patch": patch, **flat}


class LatentFamily(PlannedFamily[Settings]):
    """A family whose models have an encoder and a decoder, and learn by steps."""

    can: ClassVar[frozenset[str]] = frozenset({"labels", "encode"})

    def default_settings(self, request: PlanRequest, codec: Spec) -> dict[str, Any]:
        """Return settings for data where nothing else is asked for."""
        return {"codec": codec, **network_for(request.train.shape)}

    def describe_settings(self, settings: Settings) -> str:
        """Say in one line what was chosen."""
        each = {"linear": "", "conv": f" of widths {', '.join(map(str, settings.widths))}"}
        width = each.get(settings.layers, f" of width {settings.hidden}")
        what = "channels" if settings.layers == "conv" else "numbers"
        return f"{self.name}: {settings.layers} networks{width} around a latent of {settings.latent} {what}"


class VariationalFamily(LatentFamily[Bounded]):
    """A family whose models bound the likelihood."""

    likelihood: ClassVar[Likelihood] = "lower bound"

    def default_settings(self, request: PlanRequest, codec: Spec) -> dict[str, Any]:
        """Return networks, units, and the decoder for them."""
        return {**super().default_settings(request, codec), "decoder": decoder_for(codec)}

    def training(self, request: PlanRequest, settings: Bounded) -> Mapping[str, Any]:
        """Learn slowly where images are few."""
        few = request.train.kind == "images" and is_small_dataset(request)
        most = float(self.training_defaults["learning_rate"])
        return (
            {**self.training_defaults, "learning_rate": small_data_learning_rate(request, most, FARTHEST)}
            if few
            else self.training_defaults
        )

    def build(self, settings: Bounded, shape: tuple[int, ...], labels: int, seed: int) -> Variational:
        """Make the model."""
        return build_variational(settings, shape, labels, seed)


class VAEFamily(VariationalFamily[VAESettings]):
    """Variational autoencoders."""

    name = "vae"
    summary = "A variational autoencoder (arXiv:1312.6114): a Gaussian encoder, and a decoder for the levels of the data."
    settings = VAESettings


class HierarchyFamily(VariationalFamily[Levelled]):
    """A family whose models have several latents."""

    def default_settings(self, request: PlanRequest, codec: Spec) -> dict[str, Any]:
        """Return smaller latents, of which there are several, and none that is a map."""
        found = super().default_settings(request, codec)
        taken = get_args(self.settings.model_fields["layers"].annotation)
        return {**found, "layers": found["layers"] if found["layers"] in taken else "dense", "latent": min(found["latent"], 16)}

    def describe_settings(self, settings: Levelled) -> str:
        """Say in one line what was chosen."""
        latents = f"{settings.levels} latents of {settings.latent} numbers"
        return f"{self.name}: {latents}, {settings.layers} networks of width {settings.hidden}"


class HVAEFamily(HierarchyFamily[HVAESettings]):
    """Ladders."""

    name = "hvae"
    summary = "A hierarchical VAE, the ladder of arXiv:1602.02282: several latents, each conditioned on all above."
    settings = HVAESettings


class MHVAEFamily(HierarchyFamily[MHVAESettings]):
    """Chains."""

    name = "mhvae"
    summary = "A Markovian hierarchical VAE: each latent knows its neighbour alone; with encoder=linear it is diffusion."
    settings = MHVAESettings


def pixels(request: PlanRequest) -> Spec:
    """Return units in which a squared error means something: pixels from -1 to 1, points standardised."""
    return {"name": "pixels"} if request.train.kind == "images" else codec_for(request)


class AutoencoderFamily(LatentFamily[AutoencoderSettings]):
    """Autoencoders."""

    name = "autoencoder"
    summary = "An autoencoder, linear, dense or of convolutions, with a Gaussian of its codes to draw from."
    settings = AutoencoderSettings

    def default_settings(self, request: PlanRequest, codec: Spec) -> dict[str, Any]:
        """Return networks and units; a latent of points that is smaller than they are."""
        size = math.prod(request.train.shape)
        smaller = {"latent": max(1, size // 2)} if len(request.train.shape) == 1 else {}
        return {**super().default_settings(request, pixels(request)), **smaller}

    def build(self, settings: AutoencoderSettings, shape: tuple[int, ...], labels: int, seed: int) -> Autoencoder:
        """Make the model."""
        return build_autoencoder(settings, shape, labels, seed)


class DenoisingFamily(LatentFamily[DenoisingSettings]):
    """Autoencoders of noised data."""

    name = "denoising-autoencoder"
    summary = "An autoencoder that undoes noise (arXiv:1305.6663): what it changes is the score, by which a walk draws data."
    can: ClassVar[frozenset[str]] = frozenset({"encode"})  # a walk leaves the label that it begins with
    options: ClassVar[Mapping[str, Any]] = {"steps": None}
    settings = DenoisingSettings

    def held_out_measure(self, settings: DenoisingSettings) -> str:
        """Return the name with the noise, by which the loss grows."""
        return f"loss of {self.name}, sigma {settings.sigma:g}"

    def default_settings(self, request: PlanRequest, codec: Spec) -> dict[str, Any]:
        """Return networks and units."""
        return super().default_settings(request, pixels(request))

    def build(self, settings: DenoisingSettings, shape: tuple[int, ...], labels: int, seed: int) -> Autoencoder:
        """Make the model."""
        return build_autoencoder(settings, shape, labels, seed)
