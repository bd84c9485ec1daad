"""Normalising flows as a family: what is planned for data and a budget, and what they can do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from reverie.base.errors import UserError
from reverie.base.spec import Spec, build
from reverie.base.tensors import TensorSpec, tensor_specs
from reverie.data import Dataset
from reverie.data.codec import CODECS
from reverie.families.flow.histogram import knots_of
from reverie.families.flow.model import Flow
from reverie.families.flow.settings import FlowSettings, build_flow
from reverie.families.flow.transforms import zuko
from reverie.families.model import Likelihood, PlanRequest
from reverie.families.planned import PlannedFamily

BINS = 32  # of the histograms of images with more levels than that
SHARES = 4096  # training data, at most, by which levels are counted
DENSE_MOST = 1024  # numbers of an image up to which its networks may be dense
OF_POINTS: dict[str, Any] = {"hidden": 128, "bins": 8}
OF_SMALL_IMAGES: dict[str, Any] = {"hidden": 256, "bins": 8, "dropout": 0.2}
BATCHES = {True: 64, False: 256}  # with convolutions and without
LAYERS = {"spline": (3, 1), "maf": (5, 3), "realnvp": (8, 8)}  # transforms, of points and of images


def shares_of(data: Dataset, codec: Spec) -> torch.Tensor:
    """Return how often each level is in the data: (levels,)."""
    made = build(CODECS, codec, "codec")
    assert made.levels is not None
    rank = ((made.encode(data.subsample(SHARES)) + 1) * ((made.levels - 1) / 2)).round().long()
    return rank.flatten().bincount(minlength=made.levels).double() / rank.numel()


class FlowFamily(PlannedFamily[FlowSettings]):
    """Flows."""

    name = "flow"
    summary = "A normalising flow: an invertible map of data to noise, exact in its density, one pass each way or many."
    can: ClassVar[frozenset[str]] = frozenset({"labels", "encode"})
    likelihood: ClassVar[Likelihood] = "exact"
    settings = FlowSettings
    set_by_training: ClassVar[frozenset[str]] = frozenset({"knots"})

    def check(self, requested: Mapping[str, Any]) -> None:
        """Refuse options that no data could make possible, and a family whose package is missing."""
        super().check(requested)
        zuko()

    def default_settings(self, request: PlanRequest, codec: Spec) -> dict[str, Any]:
        """Return the transform and its networks."""
        shape = request.train.shape
        of_points, of_images = LAYERS.get(str(request.requested.get("transform")), LAYERS["spline"])
        if len(shape) == 1:
            return {"transform": "spline", "layers": of_points, "codec": codec, **OF_POINTS}
        halved = all(side % 2 == 0 for side in shape[1:])
        if request.requested.get("transform") in (None, "multiscale") and halved:
            return {"transform": "multiscale", "codec": codec, "knots": knots_of(shares_of(request.train, codec), BINS)}
        if math.prod(shape) > DENSE_MOST:
            raise UserError(
                f"images of {math.prod(shape):,} numbers are too large for a dense flow, which has at most {DENSE_MOST:,};"
                " give transform=multiscale, and a --size that can be halved"
            )
        return {"transform": "spline", "layers": of_images, "codec": codec, **OF_SMALL_IMAGES}

    def training(self, request: PlanRequest, settings: FlowSettings) -> Mapping[str, Any]:
        """Return batches that are as large as is worth it."""
        return {**self.training_defaults, "batch": BATCHES[settings.transform == "multiscale"], "weight_decay": 0.01}

    def batch(self, form: Dataset) -> int:
        """Return how many data a step takes when nothing is said."""
        return BATCHES[form.kind == "images"]

    def describe_settings(self, settings: FlowSettings) -> str:
        """Say in one line what was chosen."""
        if settings.transform == "multiscale":
            bins = max(1, len(settings.knots) - 1)
            return f"flow: multiscale, convolutions of width {settings.widths[0]}, histograms of {bins} bins; quick both ways"
        way = "quick both ways" if settings.transform == "realnvp" else "drawing takes a pass for each number"
        return f"flow: {settings.layers} transforms of kind {settings.transform}, networks of width {settings.hidden}; {way}"

    def build(self, settings: FlowSettings, shape: tuple[int, ...], labels: int, seed: int) -> Flow:
        """Make the model."""
        return build_flow(settings, shape, labels, seed)

    def tensor_specs(self, settings: FlowSettings, shape: tuple[int, ...], labels: int) -> dict[str, TensorSpec]:
        """Return the form of every tensor; zuko can only tell it of a flow that is made, whose size is checked first."""
        return tensor_specs(self.build(settings, shape, labels, 0).state_dict())
