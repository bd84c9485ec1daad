"""Autoencoders and variational autoencoders as families: default settings and capabilities."""

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

MAX_PATCHED = 4096  # values in an image above which the latent is a feature map
MAX_PROGRESS = 3.0  # learning rate times steps for small image datasets: 1,700 digits are memorized soon after
Settings = TypeVar("Settings", bound=LatentSettings)
Bounded = TypeVar("Bounded", bound=VariationalSettings)
Levelled = TypeVar("Levelled", bound=HierarchySettings)


def network_for(shape: tuple[int, ...]) -> dict[str, Any]:
    """Return default networks for data of a shape."""
    if len(shape) == 1:
        return {"layers": "dense", "latent": min(shape[0], 8), "hidden": 128}
    if math.prod(shape) > MAX_PATCHED:
        return {"layers": "conv", "latent": 4}
    patch = next((p for p in (2, 1) if shape[1] % (2 * p) == shape[2] % (2 * p) == 0 and min(shape[1:]) >= 8 * p), None)
    flat = {"latent": max(1, min(32, math.prod(shape) // 4)), "hidden": 256}
    return {"layers": "dense", **flat} if patch is None else {"layers": "patches", "patch": patch, **flat}


class LatentFamily(PlannedFamily[Settings]):
    """A family of encoder-decoder models trained by gradient descent."""

    capabilities: ClassVar[frozenset[str]] = frozenset({"labels", "encode"})

    def default_settings(self, request: PlanRequest, codec: Spec) -> dict[str, Any]:
        """Return codec and networks."""
        return {"codec": codec, **network_for(request.train.shape)}

    def describe_settings(self, settings: Settings) -> str:
        """Return the settings as one line."""
        widths = {"linear": "", "conv": f" of widths {', '.join(map(str, settings.widths))}"}
        width = widths.get(settings.layers, f" of width {settings.hidden}")
        unit = "channels" if settings.layers == "conv" else "dimensions"
        return f"{self.name}: {settings.layers} networks{width}, latent of {settings.latent} {unit}"


class VariationalFamily(LatentFamily[Bounded]):
    """A family whose models bound the likelihood."""

    likelihood: ClassVar[Likelihood] = "lower bound"

    def default_settings(self, request: PlanRequest, codec: Spec) -> dict[str, Any]:
        """Return networks, codec, and the decoder's distribution."""
        return {**super().default_settings(request, codec), "decoder": decoder_for(codec)}

    def training(self, request: PlanRequest, settings: Bounded) -> Mapping[str, Any]:
        """Lower the learning rate for small image datasets."""
        small = request.train.kind == "images" and is_small_dataset(request)
        maximum = float(self.training_defaults["learning_rate"])
        return (
            {**self.training_defaults, "learning_rate": small_data_learning_rate(request, maximum, MAX_PROGRESS)}
            if small
            else self.training_defaults
        )

    def build(self, settings: Bounded, shape: tuple[int, ...], labels: int, seed: int) -> Variational:
        """Build the model."""
        return build_variational(settings, shape, labels, seed)


class VAEFamily(VariationalFamily[VAESettings]):
    """Variational autoencoders."""

    name = "vae"
    summary = "A variational autoencoder (arXiv:1312.6114) with a Gaussian encoder and a decoder that fits the data."
    settings = VAESettings


class HierarchyFamily(VariationalFamily[Levelled]):
    """A family of models with a hierarchy of latents."""

    def default_settings(self, request: PlanRequest, codec: Spec) -> dict[str, Any]:
        """Return smaller latents, and no feature maps."""
        defaults = super().default_settings(request, codec)
        allowed = get_args(self.settings.model_fields["layers"].annotation)
        layers = defaults["layers"] if defaults["layers"] in allowed else "dense"
        return {**defaults, "layers": layers, "latent": min(defaults["latent"], 16)}

    def describe_settings(self, settings: Levelled) -> str:
        """Return the settings as one line."""
        latents = f"{settings.levels} latents of {settings.latent} dimensions"
        return f"{self.name}: {latents}, {settings.layers} networks of width {settings.hidden}"


class HVAEFamily(HierarchyFamily[HVAESettings]):
    """Ladder VAEs."""

    name = "hvae"
    summary = "A hierarchical VAE, the ladder of arXiv:1602.02282: several latents, each conditioned on all above it."
    settings = HVAESettings


class MHVAEFamily(HierarchyFamily[MHVAESettings]):
    """Markov chains of latents."""

    name = "mhvae"
    summary = "A Markovian hierarchical VAE (arXiv:2208.11970): with encoder=linear it is diffusion."
    settings = MHVAESettings


def pixels(request: PlanRequest) -> Spec:
    """Return a codec for squared errors: pixels in [-1, 1], standardised points."""
    return {"name": "pixels"} if request.train.kind == "images" else codec_for(request)


class AutoencoderFamily(LatentFamily[AutoencoderSettings]):
    """Autoencoders."""

    name = "autoencoder"
    summary = "An autoencoder (linear, dense or convolutional) with a Gaussian of its codes (Hinton and Salakhutdinov 2006)."
    settings = AutoencoderSettings

    def default_settings(self, request: PlanRequest, codec: Spec) -> dict[str, Any]:
        """Return networks and codec; for points, with half as many latent dimensions as coordinates."""
        size = math.prod(request.train.shape)
        smaller = {"latent": max(1, size // 2)} if len(request.train.shape) == 1 else {}
        return {**super().default_settings(request, pixels(request)), **smaller}

    def build(self, settings: AutoencoderSettings, shape: tuple[int, ...], labels: int, seed: int) -> Autoencoder:
        """Build the model."""
        return build_autoencoder(settings, shape, labels, seed)


class DenoisingFamily(LatentFamily[DenoisingSettings]):
    """Denoising autoencoders."""

    name = "denoising-autoencoder"
    summary = "A denoising autoencoder (arXiv:1305.6663): its correction estimates the score, which a Markov chain samples by."
    capabilities: ClassVar[frozenset[str]] = frozenset({"encode"})  # the Markov chain does not preserve a label
    options: ClassVar[Mapping[str, Any]] = {"steps": None}
    settings = DenoisingSettings

    def held_out_measure(self, settings: DenoisingSettings) -> str:
        """Return the name with sigma, on which the loss depends."""
        return f"loss of {self.name}, sigma {settings.sigma:g}"

    def default_settings(self, request: PlanRequest, codec: Spec) -> dict[str, Any]:
        """Return networks and codec."""
        return super().default_settings(request, pixels(request))

    def build(self, settings: DenoisingSettings, shape: tuple[int, ...], labels: int, seed: int) -> Autoencoder:
        """Build the model."""
        return build_autoencoder(settings, shape, labels, seed)
