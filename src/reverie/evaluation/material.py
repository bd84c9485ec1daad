"""What is measured, and what it is measured against."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.data import Dataset, LazyImages
from reverie.errors import UserError
from reverie.metrics.features import Features, Tell, choose, silent

REFERENCE = {False: 10_000, True: 4_000}  # data that features are taken of, at most; fewer when in a hurry
MOST_LAZY = {False: 50_000, True: 4_000}  # training images looked through for copies where they must be read from files
BLOCK = 2048


@dataclass(frozen=True)
class Effort:
    """How much work is done: everything, or what fits into a coffee break."""

    quick: bool = False

    @property
    def resamples(self) -> int:
        """How often sets are drawn anew for an interval."""
        return 50 if self.quick else 200

    @property
    def permutations(self) -> int:
        """How often labels are exchanged for a p-value."""
        return 200 if self.quick else 500


def as_images(samples: np.ndarray) -> Tensor:
    """Return samples in user units as a tensor: points (N, D), images (N, C, H, W)."""
    x = torch.from_numpy(np.ascontiguousarray(samples, np.float32))
    if x.ndim == 3:
        return x[:, None]
    return x.permute(0, 3, 1, 2).contiguous() if x.ndim == 4 else x


@dataclass(frozen=True)
class Material:
    """Samples beside training and held-out data, and their features, each computed once when first asked for.

    samples: (N, D) or (N, C, H, W) in user units; labels: (N,) int64, what each was meant to be; known: the training and
    held-out data of every label, which a classifier learns, where train and held are those of one.
    """

    samples: Tensor
    labels: Tensor | None
    train: Dataset
    held: Dataset
    kind: str | Callable[[Tensor], Tensor] | Features = "auto"
    seed: int = 0
    effort: Effort = Effort()
    tell: Tell = silent
    source: str = ""
    known: tuple[Dataset, Dataset] | None = None

    def __post_init__(self) -> None:
        if tuple(self.samples.shape[1:]) != self.train.shape:
            ours, theirs = "x".join(map(str, self.samples.shape[1:])), "x".join(map(str, self.train.shape))
            raise UserError(f"samples of {ours} cannot be measured against data of {theirs}; bring both to one size")
        if not len(self.samples):
            raise UserError("there are no samples to measure")
        for what, data in (("training", self.train), ("held-out", self.held)):
            if not len(data):
                raise UserError(f"there are no {what} data to measure against; take more data")
        if not self.samples.isfinite().all():
            bad = int((~self.samples.flatten(1).isfinite().all(1)).sum())
            raise UserError(
                f"{bad} of {len(self.samples)} samples hold NaN or infinity, so nothing can be measured; train again"
            )

    @property
    def taught(self) -> tuple[Dataset, Dataset]:
        """The training and held-out data that a classifier learns: of every label."""
        return self.known or (self.train, self.held)

    @property
    def is_images(self) -> bool:
        """Whether these are images and not points."""
        return self.train.is_images

    @cached_property
    def features(self) -> Features:
        """What turns data into features; for points, their coordinates brought to deviation 1."""
        if self.is_images:
            return choose(self.kind, *self.taught, self.tell)
        x = self.some(self.train)
        mean, scale = x.mean(0), x.std(0).clamp_min(1e-12)
        return Features("coordinates", lambda z: (z - mean) / scale, {"net": "none: coordinates of deviation 1"})

    def some(self, data: Dataset, most: int | None = None) -> Tensor:
        """Return as many data as features are taken of, or at most so many, in an order of chance: files are often sorted."""
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(self.seed))
        return data.batch(order[: REFERENCE[self.effort.quick]][:most])[0]

    @cached_property
    def of_samples(self) -> Tensor:
        """Features of the samples, (N, D)."""
        return self.features.of(self.samples, self.tell, "features of samples")

    @cached_property
    def of_train(self) -> Tensor:
        """Features of training data, (M, D)."""
        return self.features.of(self.some(self.train), self.tell, "features of training data")

    @cached_property
    def of_held(self) -> Tensor:
        """Features of held-out data, (H, D)."""
        return self.features.of(self.some(self.held), self.tell, "features of held-out data")

    @property
    def shared(self) -> int:
        """The count at which samples and held-out data are compared."""
        return min(len(self.samples), len(self.of_held))

    def parts(self) -> Iterator[Tensor]:
        """Yield features of the samples in groups of that count, so that each can be compared with the held-out data."""
        for part in self.of_samples.split(self.shared):
            if len(part) == self.shared:
                yield part

    def looked_through(self) -> int:
        """Return how many training data are searched for neighbours."""
        lazy = isinstance(self.train.x, LazyImages) and self.train.x.store is None
        return min(len(self.train), MOST_LAZY[self.effort.quick]) if lazy else len(self.train)

    def blocks(self, what: str) -> Iterator[Tensor]:
        """Pass over the training data."""
        count = self.looked_through()
        for part in torch.arange(count).split(BLOCK):
            yield self.train.batch(part)[0]
            self.tell(what, int(part[-1]) + 1, count)

    def facts(self) -> dict[str, Any]:
        """Return what belongs to each score: features, counts, seeds."""
        return {
            "features": {"name": self.features.name, **self.features.facts}, "samples": len(self.samples),
            "training_data": len(self.of_train), "held_out_data": len(self.of_held), "measuring_seed": self.seed,
        }  # fmt: skip
