"""The Sinkhorn generator as a family: what is planned for data and a budget."""

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

MOST = 4096  # numbers of a datum up to which the distance of two of them says how alike they are


class SinkhornSettings(FamilySettings):
    """A generator and the cost it is trained by.

    epsilon: at the end of a training, in units of the mean cost; independent: whether batches are halved, so that what a batch
    costs by itself is that of another; features: principal components, whitened half-way, that the
    cost is one of, 0 for the data themselves; label_cost: what a move to another label costs, in units of the mean cost.
    latent: numbers of a code; layers, hidden, blocks, patch, width: of the network, as of `vae`.
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
    summary = "A generator trained by the Sinkhorn divergence of its batches from the data's (arXiv:1706.00292): no density."
    can: ClassVar[frozenset[str]] = frozenset({"labels"})
    settings = SinkhornSettings
    training_defaults: ClassVar[Mapping[str, Any]] = {
        "batch": 512,
        "learning_rate": 2e-3,
    }  # a divergence of few data is mostly chance

    def default_settings(self, request: PlanRequest, codec: Spec) -> dict[str, Any]:
        """Return a network and an epsilon; small ones, as the cost is what takes the time."""
        shape = request.train.shape
        if math.prod(shape) > MOST:
            raise UserError(
                f"the distance of data of {math.prod(shape):,} numbers says little, so the family sinkhorn takes at most"
                f" {MOST:,}; give a smaller --size"
            )
        if len(shape) == 1:
            return {"latent": max(2, min(shape[0], 8)), "layers": "dense", "hidden": 128, "epsilon": 0.01, "codec": codec}
        network = {key: value for key, value in network_for(shape).items() if key in ("layers", "patch", "hidden")}
        return {**network, "latent": min(16, math.prod(shape)), "epsilon": 0.02, "codec": {"name": "pixels"}}

    def describe_settings(self, settings: SinkhornSettings) -> str:
        """Say in one line what was chosen."""
        of = f"{settings.features} principal components" if settings.features else "the data themselves"
        return (
            f"sinkhorn: a {settings.layers} network of width {settings.hidden} from {settings.latent} numbers, by the"
            f" {settings.cost} cost of {of}, epsilon {settings.epsilon:g}"
        )

    def build(self, settings: SinkhornSettings, shape: tuple[int, ...], labels: int, seed: int) -> SinkhornGenerator:
        """Make the model."""
        if settings.features > math.prod(shape):
            raise UserError(f"data of {math.prod(shape)} numbers have no {settings.features} principal components")
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
