"""What images are turned into before they are compared: numbers whose distances mean something."""

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

MOST_NUMBERS = 256  # of an image, as raw pixels
BATCH = 500
GENERAL_BATCH = 32  # whose maps stay near the processor: a larger one takes longer for each image
ACCURATE, SURELY = 0.95, 0.9  # of right answers: what a classifier has that is compared by, and what two errors less leave it
SIGN_SIDE, SIGN_LEVELS = 64, 0.82  # the largest side of a sign, and the share of its variance that two grey levels explain
SEEN = 500  # images by which signs are told from photographs


@dataclass(frozen=True)
class Features:
    """A map from images (B, C, H, W) in [0, 1] to features (B, D), with the facts that belong to each score made by it.

    learned: from the training data, whose own features are then unlike those of new data.
    """

    name: str
    compute: Callable[[Tensor], Tensor]
    facts: dict[str, Any] = field(default_factory=dict)
    learned: bool = False

    @torch.no_grad()
    def of(self, images: Tensor, tell: OnProgress = silent, what: str = "features") -> Tensor:
        """Return the features of images in memory, (N, D) float32."""
        parts = []
        for block in self.blocks(images):
            parts.append(block)
            tell(what, sum(map(len, parts)), len(images))
        found = torch.cat(parts)
        if not found.isfinite().all():
            raise UserError(f"the features {self.name} of {what} hold NaN or infinity")
        return found

    def blocks(self, images: Tensor) -> Iterator[Tensor]:
        """Yield the features of one block of images after another."""
        return (self.compute(part).flatten(1).float().cpu() for part in images.split(BATCH))


def pixels(train: Dataset, held: Dataset, tell: OnProgress, seconds: float = math.inf) -> Features:
    """The pixels themselves, averaged over squares until there are no more than 256."""
    return of_pixels(train.shape)


def of_pixels(shape: tuple[int, ...]) -> Features:
    """Return the features `pixels` of images of a shape, (C, H, W)."""
    channels, height, width = shape
    shrink = min(1.0, math.sqrt(MOST_NUMBERS / (channels * height * width)))
    size = (max(1, math.floor(height * shrink)), max(1, math.floor(width * shrink)))

    def compute(x: Tensor) -> Tensor:
        return functional.adaptive_avg_pool2d(x, size) if size != x.shape[-2:] else x

    format_score = f"{size[0]}x{size[1]} pixels" if shrink < 1 else "the pixels as they are"
    return Features("pixels", compute, {"net": f"none: {format_score}"})


def general(train: Dataset, held: Dataset, tell: OnProgress, seconds: float = math.inf) -> Features:
    """EfficientNet-Lite0, trained on ImageNet: for whatever is seen by texture, shape and colour."""
    return of_general()


def of_general() -> Features:
    """Return the features `general`, which are the same for all images."""
    net = efficientnet.load_general()

    def compute(x: Tensor) -> Tensor:
        return torch.cat([net(part) for part in x.split(GENERAL_BATCH)])

    return Features("general", compute, {"net": "EfficientNet-Lite0, ImageNet weights, 320 features before the head"})


def dataset_classifier(
    train: Dataset, held: Dataset, tell: OnProgress, *, seconds: float = math.inf, known: bool = False
) -> tuple[LeNet, dict[str, Any]]:
    """Return a classifier of the training labels and what is known of it, from the cache if it was trained before.

    seconds: the time limit of its training; one that was cut short is kept apart.  known: only if it is in the cache.
    """
    if train.labels is None or len(train.label_names) < 2:
        raise UserError("the data have no labels, so no classifier can be trained on them; take the features pixels")
    if len(train.labels.unique()) < 2:
        raise UserError("the data are all of one label, so no classifier can be trained on them; take the features pixels")
    if not can_classify(train):
        raise UserError("the classifier needs images of at least 4 x 4; take the features pixels")
    if known and cached_classifier(train, seconds=seconds) is None:
        raise UserError("it needs a classifier of the labels, which --quick trains only where the features need it")
    found = label_classifier(train, held, seconds=seconds, on_progress=tell)
    return found.net, {
        "net": "LeNet-5 trained on the run's own labels, 84 features",
        "trained_on": len(train),
        "seed": 0,
        "held_out_accuracy": found.facts.accuracy,
        "held_out_count": found.facts.held_out,
    }


def by_classifier(train: Dataset, held: Dataset, tell: OnProgress, seconds: float = math.inf) -> Features:
    """The penultimate features of a LeNet that knows the data's own labels."""
    net, facts = dataset_classifier(train, held, tell, seconds=seconds)
    return Features("classifier", lambda x: net(x)[0], facts, learned=True)


FEATURES: dict[str, Callable[[Dataset, Dataset, OnProgress, float], Features]] = {
    "classifier": by_classifier,
    "general": general,
    "pixels": pixels,
}


def two_levels(images: Tensor) -> float:
    """Return the share of the pixels' variance that the best two grey levels explain (Otsu 1979): 1 for ink on paper.

    Pixels spread evenly have 0.75, normal ones 0.64.  Measured over all images: MNIST 0.93, Hoda 0.92, digits of 8 x 8 0.86;
    in grey, photos 0.74, icons 0.77, emoji 0.78, sprites 0.80.
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


def unlike_digits(data: Dataset) -> str | None:
    """Say why images are no digits or other signs, or nothing if they are: grey, small, ink on a ground, the same in all.

    A LeNet sees all there is of such images.  In colours, shades and textures it learns only what its labels need, and what is
    wrong with the rest leaves its features as they are.
    """
    if data.shape[0] != 1:
        return "the images are in colour"
    if max(data.shape[1:]) > SIGN_SIDE:
        return f"the images are larger than {SIGN_SIDE} pixels"
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
    x = data.batch(order[:SEEN])[0]
    inked = min(two_levels(x), float(np.median([two_levels(one) for one in x])))
    return None if inked >= SIGN_LEVELS else "the images are not ink on a plain ground, as digits are"


def accurate(share: float, count: int) -> bool:
    """Tell whether a classifier with this share of right answers to so many questions is good, and not only lucky.

    The standard error is taken with one right and one wrong answer more, so that it is never 0.
    """
    usual = (share * count + 1) / (count + 2)
    return share >= ACCURATE and usual - 2 * math.sqrt(usual * (1 - usual) / (count + 2)) >= SURELY


def suited(train: Dataset, held: Dataset, tell: OnProgress = silent, seconds: float = math.inf) -> tuple[str, str]:
    """Return the name of the features that suit images, and why: those of their own classifier if it can be trusted."""
    why = unlike_digits(train)
    if why is None:
        try:
            facts = dataset_classifier(train, held, tell, seconds=seconds)[1]
        except UserError:
            why = "there are no labels that a classifier could learn"
        else:
            share, count = facts["held_out_accuracy"], facts["held_out_count"]
            known = f"a classifier of their labels is right about {share:.1%} of {count:,} held-out images"
            if accurate(share, count):
                return "classifier", known
            why = f"{known}, which is too few to go by" if share >= ACCURATE else f"{known} only"
    if efficientnet.available():
        return "general", why
    warnings.warn(
        f"{efficientnet.NOT_INSTALLED}; without it images are compared by their pixels, which see little of what people see",
        ReverieWarning, stacklevel=2,
    )  # fmt: skip
    return "pixels", "the general network is not installed"


def choose_features(
    features: str | Callable[[Tensor], Tensor] | Features, train: Dataset, held: Dataset, tell: OnProgress = silent,
    seconds: float = math.inf,
) -> Features:  # fmt: skip
    """Return features by name, "auto", or made of any function from images (B, C, H, W) in [0, 1] to (B, ...).

    seconds: that a classifier may be trained for, if they need one.
    """
    if isinstance(features, Features):
        return features
    if not isinstance(features, str):
        if isinstance(features, nn.Module):  # a copy, so that the caller's network stays in the mode it is in
            features = copy.deepcopy(features).eval()
        name = getattr(features, "__name__", type(features).__name__)
        return Features(name, features, {"net": f"{name}, given by the caller"})
    if features != "auto":
        return pick(FEATURES, features, "kind of features")(train, held, tell, seconds)
    name, why = suited(train, held, tell, seconds)
    found = FEATURES[name](train, held, tell, seconds)
    return replace(found, facts={**found.facts, "chosen_because": why})
