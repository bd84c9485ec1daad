"""Settings of flows: the table [family] of config.toml."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Annotated, Literal, Self

import torch
from pydantic import Field, model_validator

from reverie.base.errors import UserError
from reverie.base.spec import Spec, build, spec_of
from reverie.data.codec import CODECS
from reverie.families.flow.model import Flow
from reverie.families.flow.multiscale import COARSEST_MOST, Multiscale
from reverie.families.flow.transforms import DENSE, DenseFlow, FlowTransform
from reverie.families.model import FamilySettings

MAX_WEIGHTS = 2**28  # parameters of a flow

Knot = Annotated[int, Field(ge=0, le=256)]
Width = Annotated[int, Field(ge=4, le=1024)]


class FlowSettings(FamilySettings):
    """A normalising flow.

    transform: realnvp, maf or spline, see `reverie.families.flow.transforms`, or multiscale for images.  layers: number of
    transforms; hidden: width of dense networks; bins: of a spline.  For multiscale: widths of the convolutions at each scale,
    the finest first; blocks: residual blocks; knots: levels at the edges of histogram bins.  dropout: of the networks.
    """

    name: Literal["flow"] = "flow"
    transform: Literal["realnvp", "maf", "spline", "multiscale"]
    layers: Annotated[int, Field(ge=1, le=64)] = 3
    hidden: Annotated[int, Field(ge=1, le=4096)] = 128
    bins: Annotated[int, Field(ge=2, le=256)] = 8
    widths: Annotated[tuple[Width, ...], Field(min_length=1, max_length=8)] = (32, 48)
    blocks: Annotated[int, Field(ge=0, le=64)] = 2
    knots: Annotated[tuple[Knot, ...], Field(max_length=257)] = ()
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    codec: Annotated[Spec, spec_of(CODECS, "codec")]

    @model_validator(mode="after")
    def _knots_rise(self) -> Self:
        if self.knots and (self.knots[0] != 0 or any(a >= b for a, b in pairwise(self.knots))):
            raise ValueError("knots must begin at 0 and increase")
        return self


def weights_of(settings: FlowSettings, shape: tuple[int, ...], labels: int) -> int:
    """Return the approximate number of parameters of a flow."""
    size, hidden = math.prod(shape), settings.hidden
    if settings.transform != "multiscale":
        outputs = 3 * settings.bins if settings.transform == "spline" else 2
        return settings.layers * hidden * (size + labels + hidden + outputs * size)
    bins, widest = max(2, len(settings.knots) - 1 if settings.knots else 256), max(settings.widths)
    nets = 2 * shape[0] * widest * (36 * shape[0] + 18 * settings.blocks * widest + size + 2 * bins + labels)
    return 8 * nets + size * bins + hidden * (COARSEST_MOST * (1 + bins) + labels + hidden)


def check_size(settings: FlowSettings, shape: tuple[int, ...], labels: int) -> None:
    """Raise a UserError for a flow that is too large."""
    if (numbers := weights_of(settings, shape, labels)) > MAX_WEIGHTS:
        raise UserError(
            f"a {settings.transform} flow of data of shape {shape} would have about {numbers:,} parameters; give smaller"
            " networks, or a smaller --size"
        )


def build_flow(settings: FlowSettings, shape: tuple[int, ...], labels: int, seed: int) -> Flow:
    """Build the flow with weights initialized from the seed."""
    check_size(settings, shape, labels)
    codec = build(CODECS, settings.codec, "codec")
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):  # zuko reads the values of its masks
        torch.manual_seed(seed)
        return Flow(_transform(settings, shape, labels, codec.levels), codec, shape, labels)


def _transform(settings: FlowSettings, shape: tuple[int, ...], labels: int, levels: int | None) -> FlowTransform:
    if settings.transform != "multiscale":
        make_flow = DENSE[settings.transform](settings.layers, settings.hidden, settings.bins, settings.dropout)
        return DenseFlow(make_flow, shape, labels, levels is not None, settings.dropout)
    if len(shape) != 3 or levels is None:
        raise UserError("a multiscale flow needs images; give transform=spline for points")
    if settings.knots and settings.knots[-1] != levels:
        raise UserError(f"the last knot must be the number of levels, {levels}, got {settings.knots[-1]}")
    knots = settings.knots or tuple(range(levels + 1))
    return Multiscale(shape, labels, knots, settings.widths, settings.blocks, settings.hidden, settings.dropout)
