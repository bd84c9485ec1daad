"""Feature maps of images, in which distances are measured."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from reverie.base.errors import ReverieWarning, UserError, pick
from reverie.base.progress import OnProgress, silent
from reverie.data import Dataset
from reverie.data.classifiers import cached_classifier, can_classify, label_classifier
from reverie.nets import efficientnet
from reverie.nets.lenet import LeNet

MAX_NUMBERS = 256  # maximum number of features `pixels`
BATCH = 500
GENERAL_BATCH = 32  # activations stay in the cache of the CPU; larger batches are slower per image
# Minimum accuracy of a classifier whose features are used, and the minimum after subtracting two standard errors.
MIN_ACCURACY, MIN_ACCURACY_BOUND = 0.95, 0.9
GLYPH_SIDE, GLYPH_LEVELS = (
    64,
    0.82,
)  # maximum side of a glyph, and the minimum share of its variance that two grey levels explain
GLYPH_IMAGES = 500  # images that are tested for being glyphs


@dataclass(frozen=True)
class Features:
    """A map from images (B, C, H, W) in [0, 1] to features (B, D), with the facts that a report contains.

    learned: from the training data, whose features then differ from those of new data.
    """

    name: str
    compute: Callable[[Tensor], Tensor]
    facts: dict[str, Any] = field(default_factory=dict)
    learned: bool = False

    @torch.no_grad()
    def of(self, images: Tensor, on_progress: OnProgress = silent, what: str = "features") -> Tensor:
        """Return the features of images in memory, (N, D) float32."""
        parts = []
        for block in self.blocks(images):
            parts.append(block)
            on_progress(what, sum(map(len, parts)), len(images))
        features = torch.cat(parts)
        if not features.isfinite().all():
            raise UserError(f"the features {self.name} of {what} contain NaN or infinity; choose other --features")
        return features

    def blocks(self, images: Tensor) -> Iterator[Tensor]:
        """Yield the features of one block of images after another."""
        return (self.compute(part).flatten(1).float().cpu() for part in images.split(BATCH))


def pixels(train: Dataset, held: Dataset, on_progress: OnProgress, seconds: float = math.inf) -> Features:
    """The pixels, averaged over squares down to at most 256 numbers."""
    return of_pixels(train.shape)


def of_pixels(shape: tuple[int, ...]) -> Features:
    """Return the features `pixels` for images of a shape (C, H, W)."""
    channels, height, width = shape
    shrink = min(1.0, math.sqrt(MAX_NUMBERS / (channels * height * width)))
    size = (max(1, math.floor(height * shrink)), max(1, math.floor(width * shrink)))

    def compute(x: Tensor) -> Tensor:
        return functional.adaptive_avg_pool2d(x, size) if size != x.shape[-2:] else x

    size_text = f"{size[0]}x{size[1]} pixels" if shrink < 1 else "unchanged pixels"
    return Features("pixels", compute, {"net": f"none: {size_text}"})


def general(train: Dataset, held: Dataset, on_progress: OnProgress, seconds: float = math.inf) -> Features:
    """EfficientNet-Lite0 with ImageNet weights (arXiv:1905.11946): texture, shape and color."""
    return of_general()


def of_general() -> Features:
    """Return the features `general`."""
    net = efficientnet.load_general()

    def compute(x: Tensor) -> Tensor:
        return torch.cat([net(part) for part in x.split(GENERAL_BATCH)])

    return Features("general", compute, {"net": "EfficientNet-Lite0, ImageNet weights, 320 features before the head"})


def dataset_classifier(
    train: Dataset, held: Dataset, on_progress: OnProgress, *, seconds: float = math.inf, cached_only: bool = False
) -> tuple[LeNet, dict[str, Any]]:
    """Return a classifier of the training labels and its facts, from the cache or newly trained.

    seconds: the time limit of its training; a classifier whose training was cut short has its own cache entry.
    """
    if train.labels is None or len(train.label_names) < 2:
        raise UserError("the data have no labels for a classifier; use --features pixels")
    if len(train.labels.unique()) < 2:
        raise UserError("the data have only one label, too few for a classifier; use --features pixels")
    if not can_classify(train):
        raise UserError("the classifier needs images of at least 4 x 4 pixels; use --features pixels")
    if cached_only and cached_classifier(train, seconds=seconds) is None:
        raise UserError("it needs a classifier of the labels, which --quick trains only for the features; leave out --quick")
    classifier = label_classifier(train, held, seconds=seconds, on_progress=on_progress)
    return classifier.net, {
        "net": "LeNet-5 trained on the run's own labels, 84 features",
        "trained_on": len(train),
        "seed": 0,
        "held_out_accuracy": classifier.facts.accuracy,
        "held_out_count": classifier.facts.held_out,
    }


def by_classifier(train: Dataset, held: Dataset, on_progress: OnProgress, seconds: float = math.inf) -> Features:
    """The penultimate features of a LeNet-5 trained on the labels of the data (LeCun et al. 1998)."""
    net, facts = dataset_classifier(train, held, on_progress, seconds=seconds)
    return Features("classifier", lambda x: net(x)[0], facts, learned=True)


FEATURES: dict[str, Callable[[Dataset, Dataset, OnProgress, float], Features]] = {
    "classifier": by_classifier,
    "general": general,
    "pixels": pixels,
}


def bilevel_share(images: Tensor) -> float:
    """Return the share of the pixels' variance that the best two grey levels explain (Otsu 1979): 1 for binary images.

    Uniform pixels have 0.75, Gaussian ones 0.64.  Measured: MNIST 0.93, Hoda 0.92, digits of 8 x 8 0.86; in grey, photos 0.74,
    icons 0.77, emoji 0.78, sprites 0.80.
    """
    level = np.arange(256)
    share = np.bincount(images.mul(255).round().to(torch.uint8).flatten().numpy(), minlength=256) / images.numel()
    variance = float(share @ level**2 - (share @ level) ** 2)
    below, mass = np.cumsum(share)[:-1], np.cumsum(share * level)
    inside = (below > 0) & (below < 1)
    if variance <= 0 or not inside.any():
        return 0.0
    between = (mass[-1] * below - mass[:-1])[inside] ** 2 / (below * (1 - below))[inside]
    return float(between.max() / variance)


def why_not_glyphs(data: Dataset) -> str | None:
    """Return why images are not glyphs such as digits (small, grey, ink on a plain ground), or None if they are.

    The features of a LeNet describe glyphs completely.  They encode colours, shades and textures only as far as the labels
    depend on them, so they miss other faults of the samples.
    """
    if data.shape[0] != 1:
        return "the images are in colour"
    if max(data.shape[1:]) > GLYPH_SIDE:
        return f"the images are larger than {GLYPH_SIDE} pixels"
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
    x = data.batch(order[:GLYPH_IMAGES])[0]
    share = min(bilevel_share(x), float(np.median([bilevel_share(one) for one in x])))
    return None if share >= GLYPH_LEVELS else "the images are not ink on a plain ground, as digits are"


def is_accurate(accuracy: float, count: int) -> bool:
    """Return whether an accuracy on `count` test data is high, and significantly so.

    The standard error adds one right and one wrong answer, so that it is never 0.
    """
    smoothed = (accuracy * count + 1) / (count + 2)
    return accuracy >= MIN_ACCURACY and smoothed - 2 * math.sqrt(smoothed * (1 - smoothed) / (count + 2)) >= MIN_ACCURACY_BOUND


def recommended_features(
    train: Dataset, held: Dataset, on_progress: OnProgress = silent, seconds: float = math.inf
) -> tuple[str, str]:
    """Return the name of the features for images, and the reason: an accurate classifier's own, else `general`."""
    why = why_not_glyphs(train)
    if why is None:
        try:
            facts = dataset_classifier(train, held, on_progress, seconds=seconds)[1]
        except UserError:
            why = "there are no labels for a classifier"
        else:
            accuracy, count = facts["held_out_accuracy"], facts["held_out_count"]
            description = f"a classifier of the labels has accuracy {accuracy:.1%} on {count:,} held-out images"
            if is_accurate(accuracy, count):
                return "classifier", description
            why = f"{description}, too few for certainty" if accuracy >= MIN_ACCURACY else f"{description} only"
    if efficientnet.available():
        return "general", why
    warnings.warn(
        f"{efficientnet.NOT_INSTALLED}; without it, images are compared by their pixels, which hardly reflect image quality",
        ReverieWarning, stacklevel=2,
    )  # fmt: skip
    return "pixels", "the general network is not installed"


def choose_features(
    features: str | Callable[[Tensor], Tensor] | Features, train: Dataset, held: Dataset, on_progress: OnProgress = silent,
    seconds: float = math.inf,
) -> Features:  # fmt: skip
    """Return features by name or "auto", or from a function of images (B, C, H, W) in [0, 1].

    seconds: the time limit for training a classifier.
    """
    if isinstance(features, Features):
        return features
    if not isinstance(features, str):
        if isinstance(features, nn.Module):  # a copy, so that the mode of the caller's network does not change
            features = copy.deepcopy(features).eval()
        name = getattr(features, "__name__", type(features).__name__)
        return Features(name, features, {"net": f"{name}, a function of the caller"})
    if features != "auto":
        return pick(FEATURES, features, "kind of features")(train, held, on_progress, seconds)
    name, why = recommended_features(train, held, on_progress, seconds)
    chosen = FEATURES[name](train, held, on_progress, seconds)
    return replace(chosen, facts={**chosen.facts, "chosen_because": why})
