"""The Sinkhorn generator as a family: default settings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import nn

from reverie.base.errors import UserError
from reverie.base.spec import Spec, build, spec_of
from reverie.data.codec import CODECS
from reverie.families.model import FamilySettings, PlanRequest
from reverie.families.planned import PlannedFamily
from reverie.families.sinkhorn.model import SinkhornGenerator
from reverie.families.vae.family import network_for
from reverie.families.vae.networks import PatchDecoder, Patches, ResidualMLP
from reverie.families.vae.settings import Size

MAX_VALUES = 4096  # values in a datum, at most, for which distances are informative


class SinkhornSettings(FamilySettings):
    """A generator and its transport cost.

    epsilon: final entropic regularisation, in units of the mean cost; independent: whether the self-transport of a
    batch is between its halves; features: number of half-whitened principal components in which the cost is measured, 0 for
    the data;
    label_cost: cost of transport to another label, in units of the mean cost.  latent: dimensions of a code; layers, hidden,
    blocks, patch, width: of the network, as in `vae`.
    """

    name: Literal["sinkhorn"] = "sinkhorn"
    latent: Size
    layers: Literal["dense", "patches"]
    hidden: Size
    blocks: Annotated[int, Field(ge=0, le=64)] = 2
    patch: Annotated[int, Field(ge=1, le=64)] = 2
    width: Annotated[int, Field(ge=4, le=1024)] = 32
    cost: Literal["squared", "euclidean", "manhattan"] = "squared"
    epsilon: Annotated[float, Field(ge=1e-4, le=10)]
    independent: bool = True
    features: Annotated[int, Field(ge=0, le=1024)] = 0
    label_cost: Annotated[float, Field(ge=0, le=1000)] = 1.0
    codec: Annotated[Spec, spec_of(CODECS, "codec")]


class SinkhornFamily(PlannedFamily[SinkhornSettings]):
    """Generators."""

    name = "sinkhorn"
    summary = "A generator trained by the Sinkhorn divergence between batches (arXiv:1706.00292); no density."
    capabilities: ClassVar[frozenset[str]] = frozenset({"labels"})
    settings = SinkhornSettings
    training_defaults: ClassVar[Mapping[str, Any]] = {
        "batch": 512,  # divergences of small batches are noisy
        "learning_rate": 2e-3,
    }

    def default_settings(self, request: PlanRequest, codec: Spec) -> dict[str, Any]:
        """Return network and epsilon; small networks, because the transport takes most of the time."""
        shape = request.train.shape
        if math.prod(shape) > MAX_VALUES:
            raise UserError(
                f"distances between data of {math.prod(shape):,} values mean little; the limit is {MAX_VALUES:,}; use"
                " a smaller --size"
            )
        if len(shape) == 1:
            return {"latent": max(2, min(shape[0], 8)), "layers": "dense", "hidden": 128, "epsilon": 0.01, "codec": codec}
        network = {key: value for key, value in network_for(shape).items() if key in ("layers", "patch", "hidden")}
        return {**network, "latent": min(16, math.prod(shape)), "epsilon": 0.02, "codec": {"name": "pixels"}}

    def describe_settings(self, settings: SinkhornSettings) -> str:
        """Return the settings as one line."""
        space = f"{settings.features} principal components" if settings.features else "the data"
        return (
            f"sinkhorn: a {settings.layers} network of width {settings.hidden} with {settings.latent} latent dimensions,"
            f" {settings.cost} cost of {space}, epsilon {settings.epsilon:g}"
        )

    def build(self, settings: SinkhornSettings, shape: tuple[int, ...], labels: int, seed: int) -> SinkhornGenerator:
        """Build the model."""
        if settings.features > math.prod(shape):
            raise UserError(f"features={settings.features} is above the {math.prod(shape)} values of a datum; give fewer")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            net: nn.Module
            if settings.layers == "patches":
                size = Patches(settings.patch, settings.width, settings.hidden, settings.blocks)
                net = PatchDecoder(settings.latent, shape, 1, size, labels)
            else:
                net = ResidualMLP((settings.latent,), (*shape, 1), settings.hidden, settings.blocks, labels)
        codec = build(CODECS, settings.codec, "codec")
        return SinkhornGenerator(
            net,
            settings.latent,
            codec,
            shape,
            labels,
            settings.epsilon,
            settings.cost,
            settings.features,
            settings.label_cost,
            settings.independent,
        )
