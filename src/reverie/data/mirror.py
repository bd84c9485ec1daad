"""Whether mirrored images are as plausible as the originals, tested by a classifier."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from reverie.base.noise import check_seed, mix_seed
from reverie.base.progress import OnProgress, silent
from reverie.data import Dataset

MIN_IMAGES, MAX_IMAGES = 64, 2000  # minimum images for a result, and maximum used
SIDE = 16  # images are downsampled to at most this side
STEPS, BATCH, RATE = 80, 48, 4e-3
SIGNIFICANCE = 1e-3  # p-value below which left and right are distinguishable


@dataclass(frozen=True)
class MirrorResult:
    """The number of images, of those that are not symmetric, and of those classified correctly."""

    images: int
    asymmetric: int
    correct: int

    @property
    def share(self) -> float:
        """The accuracy; chance is one half."""
        return self.correct / max(1, self.asymmetric)

    @property
    def chance(self) -> float:
        """The p-value: the probability of this accuracy by guessing."""
        from scipy.stats import binomtest

        return float(binomtest(self.correct, self.asymmetric, alternative="greater").pvalue) if self.asymmetric else 1.0

    @property
    def is_safe(self) -> bool:
        """Whether flips are safe: there were enough images, and their mirror images were not distinguishable."""
        return self.images >= MIN_IMAGES and self.chance > SIGNIFICANCE


class MirrorClassifier(nn.Module):
    """Scores each image overall and for each label.  x: (B, C, H, W) -> (B, 1 + labels)."""

    def __init__(self, channels: int, labels: int) -> None:
        super().__init__()
        self.maps = nn.Sequential(
            nn.Conv2d(channels, 16, 5, stride=2, padding=2), nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
            nn.Conv2d(32, 32, 3, stride=2, padding=1), nn.ReLU(), nn.AdaptiveMaxPool2d(4), nn.Flatten(),
        )  # fmt: skip
        self.out = nn.Linear(32 * 16, 1 + labels)

    def margin(self, x: Tensor, labels: Tensor | None) -> Tensor:
        """Return the score of each image minus that of its mirror image, (B,): positive is correct."""
        original, mirrored = self.out(self.maps(torch.cat([x, x.flip(-1)]))).chunk(2)
        scores: Tensor = original - mirrored
        own = scores.gather(1, labels[:, None] + 1)[:, 0] if labels is not None else 0.0
        return scores[:, 0] + own


def _train(x: Tensor, labels: Tensor | None, classes: int, seed: int, on_step: Callable[[int], None]) -> MirrorClassifier:
    """Train a classifier to score images higher than their mirror images: mean of log(1 + exp(-margin))."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        classifier = MirrorClassifier(x.shape[1], classes)
    random = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(classifier.parameters(), lr=RATE, weight_decay=0.1, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=STEPS)
    for i in range(STEPS):
        index = torch.randint(len(x), (min(BATCH, len(x)),), generator=random)
        optimizer.zero_grad()
        functional.softplus(-classifier.margin(x[index], _labels_at(labels, index))).mean().backward()
        optimizer.step()
        schedule.step()
        on_step(i)
    return classifier.eval()


def check_mirroring(data: Dataset, seed: int = 0, on_progress: OnProgress = silent) -> MirrorResult:
    """Test whether a classifier trained on one half of the images separates originals from mirror images in the other half.

    The classifier is conditioned on labels, so that it also detects when mirroring turns one class into another.
    """
    count = min(len(data), MAX_IMAGES)
    if count < MIN_IMAGES:
        return MirrorResult(count, 0, 0)
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(check_seed(seed)))[:count]
    x, labels = data.batch(order)
    shrink = math.ceil(max(x.shape[-2:]) / SIDE)
    x = functional.avg_pool2d(x, shrink, ceil_mode=True) if shrink > 1 else x
    asymmetric, correct = (x != x.flip(-1)).flatten(1).any(1), 0
    halves = torch.arange(count).tensor_split(2)
    for k, (train, test) in enumerate((halves, halves[::-1])):

        def on_step(i: int, k: int = k) -> None:
            on_progress("testing whether images may be mirrored", k * STEPS + i + 1, 2 * STEPS)

        classifier = _train(x[train], _labels_at(labels, train), len(data.label_names), mix_seed(seed, k), on_step)
        with torch.no_grad():
            correct += int(((classifier.margin(x[test], _labels_at(labels, test)) > 0) & asymmetric[test]).sum())
    return MirrorResult(count, int(asymmetric.sum()), correct)


def _labels_at(labels: Tensor | None, index: Tensor) -> Tensor | None:
    return labels[index] if labels is not None else None
