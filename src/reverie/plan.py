"""What to train for a data set when nothing is said: network, schedule, target and length, with the reasons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from reverie.data import Dataset
from reverie.spec import Spec

POINT_STEPS = 10_000
IMAGE_MINUTES = 10.0

# The networks by name: what `--network` takes.  A preset is a spec whose options can be overridden one by one.
PRESETS: dict[str, Spec] = {
    "unet-tiny": {"name": "unet", "widths": (32, 64), "blocks": 1},
    "unet-small": {"name": "unet", "widths": (64, 128), "blocks": 2},
    "unet-base": {"name": "unet", "widths": (128, 256), "blocks": 2},
    "unet-teaching": {
        "name": "unet", "widths": (10, 20, 40), "blocks": 3, "stem": 1, "attention": False, "groups": 1, "conditioning": "add",
    },
}  # fmt: skip

FINEST_MAP = 16  # the stem folds pixels until the first map is at most about this wide
SMALL_WORTH_MINUTES = 30  # budgets from which a larger network is chosen: judged by its cost, not measured
BASE_WORTH_MINUTES = 240


@dataclass(frozen=True)
class Plan:
    """A choice for everything, and why."""

    network: Spec
    schedule: Spec
    target: str
    settings: dict[str, Any]
    reasons: tuple[str, ...]


def stem_for(height: int, width: int, levels: int) -> int:
    """Return the side of the squares to fold: the least power of two that makes the map small, if the size allows it."""
    stem = 1
    while max(height, width) / stem > FINEST_MAP and not (
        height % (2 * stem << levels - 1) or width % (2 * stem << levels - 1)
    ):
        stem *= 2
    return stem


def network_for(dataset: Dataset, spec: Spec) -> Spec:
    """Fill in what the data decide: the shape and the number of labels, and the stem of a U-Net if it is not given."""
    if not dataset.is_images:
        return {**spec, "channels": dataset.shape[0], "labels": len(dataset.label_names)}
    channels, height, width = dataset.shape
    full = {**spec, "channels": channels, "height": height, "width": width, "labels": len(dataset.label_names)}
    if spec["name"] == "unet" and "stem" not in spec:
        full["stem"] = stem_for(height, width, len(spec.get("widths", (32, 64))))
    return full


def plan(dataset: Dataset, minutes: float | None, steps: int | None) -> Plan:
    """Choose for a data set and a budget."""
    length: dict[str, Any] = {"minutes": minutes, "steps": steps}
    if not dataset.is_images:
        if minutes is None and steps is None:
            length["steps"] = POINT_STEPS
        settings = {"batch": 512, "learning_rate": 5e-3, "times": "stratified", **length}
        return Plan({"name": "mlp"}, {"name": "cosine"}, "v", settings, ("points: a small dense network",))
    if minutes is None and steps is None:
        length["minutes"] = IMAGE_MINUTES
    budget = length["minutes"] or 0.0
    size = "base" if budget >= BASE_WORTH_MINUTES else "small" if budget >= SMALL_WORTH_MINUTES else "tiny"
    channels, height, width = dataset.shape
    settings = {"batch": 64, "optimizer": "muon", "learning_rate": 1e-2, "times": "logit-normal", **length}
    given = f"{budget:g} minutes" if budget else f"{steps} steps"
    reason = f"images {height}x{width}x{channels}, {len(dataset):,} of them, {given}: unet-{size}"
    return Plan(dict(PRESETS[f"unet-{size}"]), {"name": "rectified"}, "flow", settings, (reason,))
