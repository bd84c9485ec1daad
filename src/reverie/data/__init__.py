"""Data sets by name: one function and one line in DATASETS each."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from reverie.data.toy import PATTERNS, TOYS, Maker, patterns
from reverie.errors import UserError, pick

HELD_OUT = 0.05


@dataclass(frozen=True)
class Dataset:
    """Data in user units, with labels where there are any.  x: (N, ...) float32; labels: (N,) int64."""

    name: str
    x: Tensor
    labels: Tensor | None = None
    label_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.x)

    def fingerprint(self) -> str:
        """Return a hash of shape, values and labels: equal data have equal fingerprints."""
        digest = hashlib.sha256(repr((tuple(self.x.shape), self.label_names)).encode())
        digest.update(self.x.contiguous().numpy().tobytes())
        if self.labels is not None:
            digest.update(self.labels.contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]

    @property
    def is_images(self) -> bool:
        """Tell images, (C, H, W) each, from points, (D,) each."""
        return self.x.ndim == 4

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one datum."""
        return tuple(self.x.shape[1:])

    def label_counts(self) -> list[int]:
        """Return how often each label occurs."""
        return [] if self.labels is None else torch.bincount(self.labels, minlength=len(self.label_names)).tolist()

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the chosen members in user units, images in [0, 1], and their labels."""
        x = self.x[index]
        return x.float() / 255 if x.dtype == torch.uint8 else x, self.labels[index] if self.labels is not None else None

    def take(self, index: Tensor) -> Dataset:
        """Return the chosen members."""
        labels = self.labels[index] if self.labels is not None else None
        return Dataset(self.name, self.x[index], labels, self.label_names)

    def split(self, seed: int) -> tuple[Dataset, Dataset]:
        """Return 95 % for training and 5 % held out, a function of the seed and the size alone."""
        if len(self) < 2:
            raise UserError(f"{self.name} has {len(self)} members; at least 2 are needed, one of them to be held out")
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        held = max(1, round(HELD_OUT * len(self)))
        return self.take(order[held:]), self.take(order[:held])


def _toy(name: str, maker: Maker) -> Callable[[int, int], Dataset]:
    def make(points: int, seed: int) -> Dataset:
        made = maker(points, np.random.default_rng(seed))
        return Dataset(name, torch.from_numpy(made).float())

    return make


def _patterns(points: int, seed: int) -> Dataset:
    made, labels = patterns(points, np.random.default_rng(seed))
    return Dataset("patterns", torch.from_numpy(made).float(), torch.from_numpy(labels), PATTERNS)


DATASETS: dict[str, Callable[[int, int], Dataset]] = {
    **{name: _toy(name, maker) for name, maker in TOYS.items()},
    "patterns": _patterns,
}


def load_data(name: str, points: int = 10_000, seed: int = 0, **reading: object) -> Dataset:
    """Return a data set by name; points and seed are the number and the seed of generated data."""
    make = pick(DATASETS, name, "data")
    if points < 2:
        raise UserError(f"the number of points must be at least 2, got {points}")
    return make(points, seed)
