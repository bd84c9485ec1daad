"""Normalising flows as a family: default settings and capabilities."""

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

BINS = 32  # histogram bins of images with more levels
MAX_COUNTED = 4096  # training data for the frequencies of levels
MAX_DENSE = 1024  # values in an image for dense networks
POINT_NETWORKS: dict[str, Any] = {"hidden": 128, "bins": 8}
SMALL_IMAGE_NETWORKS: dict[str, Any] = {"hidden": 256, "bins": 8, "dropout": 0.2}
BATCHES = {True: 64, False: 256}  # by whether the networks are convolutional
LAYERS = {"spline": (3, 1), "maf": (5, 3), "realnvp": (8, 8)}  # transforms, of points and of images


def level_frequencies(data: Dataset, codec: Spec) -> torch.Tensor:
    """Return the frequency of each level in the data: (levels,)."""
    built = build(CODECS, codec, "codec")
    assert built.levels is not None
    rank = ((built.encode(data.subsample(MAX_COUNTED)) + 1) * ((built.levels - 1) / 2)).round().long()
    return rank.flatten().bincount(minlength=built.levels).double() / rank.numel()


class FlowFamily(PlannedFamily[FlowSettings]):
    """Normalising flows."""

    name = "flow"
    summary = "A normalising flow (arXiv:1912.02762): an invertible map of data to noise with an exact density."
    capabilities: ClassVar[frozenset[str]] = frozenset({"labels", "encode"})
    likelihood: ClassVar[Likelihood] = "exact"
    settings = FlowSettings
    set_by_training: ClassVar[frozenset[str]] = frozenset({"knots"})

    def check(self, requested: Mapping[str, Any]) -> None:
        """Raise a UserError for options that are invalid for all data, or if zuko is not installed."""
        super().check(requested)
        zuko()

    def default_settings(self, request: PlanRequest, codec: Spec) -> dict[str, Any]:
        """Return the transform and its networks."""
        shape = request.train.shape
        point_layers, image_layers = LAYERS.get(str(request.requested.get("transform")), LAYERS["spline"])
        if len(shape) == 1:
            return {"transform": "spline", "layers": point_layers, "codec": codec, **POINT_NETWORKS}
        is_even = all(side % 2 == 0 for side in shape[1:])
        if request.requested.get("transform") in (None, "multiscale") and is_even:
            return {"transform": "multiscale", "codec": codec, "knots": knots_of(level_frequencies(request.train, codec), BINS)}
        if math.prod(shape) > MAX_DENSE:
            raise UserError(
                f"images of {math.prod(shape):,} values are too large for a dense flow, limit {MAX_DENSE:,}; give"
                " transform=multiscale, and an even --size"
            )
        return {"transform": "spline", "layers": image_layers, "codec": codec, **SMALL_IMAGE_NETWORKS}

    def training(self, request: PlanRequest, settings: FlowSettings) -> Mapping[str, Any]:
        """Return the batch size and weight decay."""
        return {**self.training_defaults, "batch": BATCHES[settings.transform == "multiscale"], "weight_decay": 0.01}

    def batch(self, form: Dataset) -> int:
        """Return the default batch size."""
        return BATCHES[form.kind == "images"]

    def describe_settings(self, settings: FlowSettings) -> str:
        """Return the settings as one line."""
        if settings.transform == "multiscale":
            bins = max(1, len(settings.knots) - 1)
            network = f"convolutions of width {settings.widths[0]}, {bins} histogram bins"
            return f"flow: multiscale, {network}; fast in both directions"
        speed = "fast in both directions" if settings.transform == "realnvp" else "sampling needs one pass per value"
        return f"flow: {settings.layers} {settings.transform} transforms, networks of width {settings.hidden}; {speed}"

    def build(self, settings: FlowSettings, shape: tuple[int, ...], labels: int, seed: int) -> Flow:
        """Build the model."""
        return build_flow(settings, shape, labels, seed)

    def tensor_specs(self, settings: FlowSettings, shape: tuple[int, ...], labels: int) -> dict[str, TensorSpec]:
        """Return dtype and shape of every tensor; zuko has no meta device, so the flow is built after a check of its size."""
        return tensor_specs(self.build(settings, shape, labels, 0).state_dict())
