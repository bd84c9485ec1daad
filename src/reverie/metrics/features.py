"""What images are turned into before they are compared: numbers whose distances mean something."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from reverie.data import Dataset
from reverie.data.download import cache_folder
from reverie.errors import UserError, pick
from reverie.metrics import classifier, efficientnet

MOST_NUMBERS = 256  # of an image, as raw pixels
BATCH = 500
JUDGED = 5000  # held-out images, at most, that the classifier is tried on

Tell = Callable[[str, int, int], None]  # what is being done, how much of it, of how much


def silent(what: str, done: int, of: int) -> None:
    """Tell nobody."""


@dataclass(frozen=True)
class Features:
    """A map from images (B, C, H, W) in [0, 1] to features (B, D), with the facts that belong to each score made by it."""

    name: str
    compute: Callable[[Tensor], Tensor]
    facts: dict[str, Any] = field(default_factory=dict)

    @torch.no_grad()
    def of(self, images: Tensor, tell: Tell = silent, what: str = "features") -> Tensor:
        """Return the features of images in memory, (N, D) float32."""
        parts = []
        for part in images.split(BATCH):
            parts.append(self.compute(part).flatten(1).float().cpu())
            tell(what, sum(map(len, parts)), len(images))
        found = torch.cat(parts)
        if not found.isfinite().all():
            raise UserError(f"the features {self.name} of {what} hold NaN or infinity")
        return found


def pixels(train: Dataset, held: Dataset, tell: Tell) -> Features:
    """The pixels themselves, averaged over squares until there are no more than 256."""
    channels, height, width = train.shape
    shrink = min(1.0, math.sqrt(MOST_NUMBERS / (channels * height * width)))
    size = (max(1, math.floor(height * shrink)), max(1, math.floor(width * shrink)))

    def compute(x: Tensor) -> Tensor:
        return functional.adaptive_avg_pool2d(x, size) if size != x.shape[-2:] else x

    said = f"{size[0]}x{size[1]} pixels" if shrink < 1 else "the pixels as they are"
    return Features("pixels", compute, {"net": f"none: {said}"})


def general(train: Dataset, held: Dataset, tell: Tell) -> Features:
    """EfficientNet-Lite0, trained on ImageNet: for colour photographs."""
    net = efficientnet.load_general()
    return Features("general", net, {"net": "EfficientNet-Lite0, ImageNet weights, 320 features before the head"})


def own_classifier(
    train: Dataset, held: Dataset, tell: Tell, folder: Path | None = None
) -> tuple[classifier.LeNet, dict[str, Any]]:
    """Return a classifier of the training labels and what is known of it, from the cache if it was trained before."""
    if train.labels is None or len(train.label_names) < 2:
        raise UserError("the data have no labels, so no classifier can be trained on them; take the features pixels")
    if len(train.labels.unique()) < 2:
        raise UserError("the data are all of one label, so no classifier can be trained on them; take the features pixels")
    if min(train.shape[1:]) < 4:
        raise UserError("the classifier needs images of at least 4 x 4; take the features pixels")
    classes = len(train.label_names)
    path = (folder or cache_folder() / "classifiers") / f"{train.fingerprint()}.safetensors"
    found = classifier.recall(path, train.shape, classes)
    if found is None:
        net = classifier.train_classifier(
            train.batch, len(train), train.shape, classes,
            on_progress=lambda done, of: tell("training the classifier", done, of),
        )  # fmt: skip
        x, labels = held.batch(torch.arange(min(len(held), JUDGED)))
        assert labels is not None
        found = net, {"accuracy": classifier.accuracy(net, x, labels), "held_out": len(x)}
        classifier.remember(*found, path)
    net, facts = found
    return net, {
        "net": "LeNet-5 trained on the run's own labels, 84 features",
        "trained_on": len(train),
        "seed": 0,
        "held_out_accuracy": facts["accuracy"],
        "held_out_count": int(facts["held_out"]),
    }


def by_classifier(train: Dataset, held: Dataset, tell: Tell) -> Features:
    """The penultimate features of a LeNet that knows the data's own labels."""
    net, facts = own_classifier(train, held, tell)
    return Features("classifier", lambda x: net(x)[0], facts)


FEATURES: dict[str, Callable[[Dataset, Dataset, Tell], Features]] = {
    "classifier": by_classifier,
    "general": general,
    "pixels": pixels,
}


def usual(train: Dataset) -> str:
    """Return the features that suit the data: its own classifier, else for colour the general network, else pixels."""
    if train.labels is not None and len(train.labels.unique()) > 1 and min(train.shape[1:]) >= 4:
        return "classifier"
    return "general" if train.shape[0] >= 3 and efficientnet.available() else "pixels"


def choose(
    features: str | Callable[[Tensor], Tensor] | Features, train: Dataset, held: Dataset, tell: Tell = silent
) -> Features:
    """Return features by name, "auto", or made of any function from images (B, C, H, W) in [0, 1] to (B, ...)."""
    if isinstance(features, Features):
        return features
    if not isinstance(features, str):
        if isinstance(features, nn.Module):  # a copy, so that the caller's network stays in the mode it is in
            features = copy.deepcopy(features).eval()
        name = getattr(features, "__name__", type(features).__name__)
        return Features(name, features, {"net": f"{name}, given by the caller"})
    name = usual(train) if features == "auto" else features
    return pick(FEATURES, name, "kind of features")(train, held, tell)
