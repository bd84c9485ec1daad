"""Whether mirrored images are as plausible as the images themselves: measured, by a network that tries to tell them apart."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from reverie.base.noise import check_seed, mix_seed
from reverie.data import Dataset

MIN_IMAGES, MAX_IMAGES = 64, 2000  # images without which nothing can be said, and with which enough can
SIDE = 16  # images are shrunk to at most this
STEPS, BATCH, RATE = 80, 48, 4e-3
SIGNIFICANCE = 1e-3  # the chance of so many right answers by luck, below which the images have a left and a right


@dataclass(frozen=True)
class MirrorResult:
    """Of so many images, how many are not their own mirror images, and how many of these were told from them."""

    images: int
    asked: int
    right: int

    @property
    def share(self) -> float:
        """The share of right answers; half is guessing."""
        return self.right / max(1, self.asked)

    @property
    def chance(self) -> float:
        """The probability of so many right answers by guessing."""
        from scipy.stats import binomtest

        return float(binomtest(self.right, self.asked, alternative="greater").pvalue) if self.asked else 1.0

    @property
    def is_safe(self) -> bool:
        """Whether mirroring may be taught: there were images enough, and they could not be told from their mirror images."""
        return self.images >= MIN_IMAGES and self.chance > SIGNIFICANCE


class MirrorClassifier(nn.Module):
    """Gives each image a score for each label, and one for all.  x: (B, C, H, W) -> (B, 1 + labels)."""

    def __init__(self, channels: int, labels: int) -> None:
        super().__init__()
        self.maps = nn.Sequential(
            nn.Conv2d(channels, 16, 5, stride=2, padding=2), nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
            nn.Conv2d(32, 32, 3, stride=2, padding=1), nn.ReLU(), nn.AdaptiveMaxPool2d(4), nn.Flatten(),
        )  # fmt: skip
        self.out = nn.Linear(32 * 16, 1 + labels)

    def margin(self, x: Tensor, labels: Tensor | None) -> Tensor:
        """Return how much better each image scores than its mirror image, (B,): above 0 is the right answer."""
        ours, theirs = self.out(self.maps(torch.cat([x, x.flip(-1)]))).chunk(2)
        scores: Tensor = ours - theirs
        own = scores.gather(1, labels[:, None] + 1)[:, 0] if labels is not None else 0.0
        return scores[:, 0] + own


def _train(x: Tensor, labels: Tensor | None, classes: int, seed: int, on_step: Callable[[int], None]) -> MirrorClassifier:
    """Train a judge so that images score more than their mirror images: mean of log(1 + exp(-margin))."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        judge = MirrorClassifier(x.shape[1], classes)
    random = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(judge.parameters(), lr=RATE, weight_decay=0.1, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=STEPS)
    for i in range(STEPS):
        index = torch.randint(len(x), (min(BATCH, len(x)),), generator=random)
        optimizer.zero_grad()
        functional.softplus(-judge.margin(x[index], _of(labels, index))).mean().backward()
        optimizer.step()
        schedule.step()
        on_step(i)
    return judge.eval()


def check_mirroring(
    data: Dataset, seed: int = 0, tell: Callable[[str, int, int], None] = lambda what, done, of: None
) -> MirrorResult:
    """Ask about each image whether it or its mirror image is the original, of a judge trained on the other half of the images.

    The judge knows the labels, so it sees as well where mirroring makes a thing of one label into one of another.
    """
    count = min(len(data), MAX_IMAGES)
    if count < MIN_IMAGES:
        return MirrorResult(count, 0, 0)
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(check_seed(seed)))[:count]
    x, labels = data.batch(order)
    shrink = math.ceil(max(x.shape[-2:]) / SIDE)
    x = functional.avg_pool2d(x, shrink, ceil_mode=True) if shrink > 1 else x
    asked, right = (x != x.flip(-1)).flatten(1).any(1), 0
    halves = torch.arange(count).tensor_split(2)
    for k, (known, other) in enumerate((halves, halves[::-1])):

        def on_step(i: int, k: int = k) -> None:
            tell("looking whether images may be mirrored", k * STEPS + i + 1, 2 * STEPS)

        judge = _train(x[known], _of(labels, known), len(data.label_names), mix_seed(seed, k), on_step)
        with torch.no_grad():
            right += int(((judge.margin(x[other], _of(labels, other)) > 0) & asked[other]).sum())
    return MirrorResult(count, int(asked.sum()), right)


def _of(labels: Tensor | None, index: Tensor) -> Tensor | None:
    return labels[index] if labels is not None else None
