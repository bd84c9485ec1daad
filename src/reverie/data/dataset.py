"""Datasets: points, series, images, text or pairs of texts, with optional labels or other conditions."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.base.errors import UserError
from reverie.data.conditions import Conditions
from reverie.data.copies import content_hashes, split_without_copies
from reverie.data.kind import Kind
from reverie.data.lazy import LazyImages
from reverie.data.text_pairs import TextPairs
from reverie.data.text_windows import TextWindows

HELD_OUT = 0.05
MAX_CHUNK_NUMBERS = 2**24  # maximum numbers processed at a time: 64 MiB
SMALL_DATUM = 2**14  # numbers of a datum up to which a network is evaluated in full batches


def chunk_size(shape: tuple[int, ...], limit: int) -> int:
    """Return the number of data of a shape to process at a time, at most `limit`."""
    return max(1, min(limit, MAX_CHUNK_NUMBERS // max(1, math.prod(shape))))


def evenly_spaced_indices(count: int, limit: int) -> Tensor:
    """Return at most this many evenly spaced indices from first to last: (min(count, limit),) int64."""
    chosen = min(count, limit)
    return torch.arange(chosen) * (count - 1) // max(1, chosen - 1)


def evaluation_batch_size(shape: tuple[int, ...], limit: int) -> int:
    """Return the batch size of evaluation: smaller for large data, because attention is quadratic in their size."""
    return min(limit, max(4, round(256 * (SMALL_DATUM / max(1, math.prod(shape))) ** 2)))


@dataclass(frozen=True)
class Dataset:
    """Data with optional labels or other conditions.

    x: points (N, D) or series (N, T, C), float32 in data units, or images (N, C, H, W) uint8, in memory or lazy, or windows of
    text (N, W), or pairs of texts (N, 2, W); labels: (N,); conditions: captions, numbers or images instead of labels; columns:
    names of the coordinates of points, or of the numbers of a time step. notes: lines for users; report: the same
    for programs; both describe the whole dataset, so subsets have none.
    """

    name: str
    x: Tensor | LazyImages | TextWindows | TextPairs
    labels: Tensor | None = None
    label_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    report: Mapping[str, Any] = field(default_factory=dict)
    conditions: Conditions | None = None
    columns: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.x)

    @property
    def kind(self) -> Kind:
        """The kind of data: images are stored as bytes, points and series as real numbers."""
        if isinstance(self.x, TextWindows):
            return "text"
        if isinstance(self.x, TextPairs):
            return "pairs"
        if isinstance(self.x, LazyImages) or self.x.dtype == torch.uint8:
            return "images"
        return "series" if self.x.ndim == 3 else "points"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one datum: (D,), (T, C), (C, H, W), (W,) characters, or (2, W) of a source and its target."""
        return tuple(self.x.shape[1:])

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the chosen data as float32, images in [0, 1], or characters as int64; and labels (B,) or condition vectors.

        Condition vectors (B, width): see `reverie.data.conditions`.  index: (B,) int64.
        """
        chosen = self.x[index] if isinstance(self.x, Tensor) else self.x.take(index)
        labels = self.labels[index] if self.labels is not None else None
        if self.conditions is not None:
            labels = self.conditions.batch(index)
        return (chosen.float().div_(255) if self.kind == "images" else chosen), labels

    def order(self, random: torch.Generator) -> Tensor:
        """Return a random order in which images of shards can be read efficiently: (N,) int64."""
        return self.x.order(random) if isinstance(self.x, LazyImages) else torch.randperm(len(self), generator=random)

    def describe_conditions(self, index: Tensor) -> list[str]:
        """Describe the labels, captions or numbers of the chosen data in words; empty without conditions."""
        if self.conditions is not None:
            return [self.conditions.form.describe_vector(row) for row in self.conditions.conditions_at(index)]
        return [] if self.labels is None else [self.label_names[int(k)] for k in self.labels[index]]

    def subsample(self, limit: int) -> Tensor:
        """Return evenly spaced data as in `batch`, at most `limit` and no more than fit into memory easily."""
        return self.batch(evenly_spaced_indices(len(self), chunk_size(self.shape, limit)))[0]

    def passes(self, batches: int, size: int) -> float:
        """Return the number of epochs of this many batches of a size; no batch contains a datum twice."""
        overlap = (len(self) * self.x.window / len(self.x.codes)) if isinstance(self.x, TextWindows) else 1.0
        return overlap * batches * min(size, len(self)) / len(self)

    def label_counts(self) -> list[int]:
        """Return the count of each label, in the order of label_names; empty without labels."""
        if self.labels is None:
            return []
        return [int(n) for n in torch.bincount(self.labels, minlength=len(self.label_names))]

    def fingerprint(self) -> str:
        """Return a hash of shape, values and labels: equal data have equal fingerprints."""
        digest = hashlib.sha256(repr((tuple(self.x.shape), self.label_names)).encode())
        if isinstance(self.x, LazyImages):
            digest.update(self.x.content())
        elif isinstance(self.x, TextWindows):
            digest.update(self.x.codes.data)
        elif isinstance(self.x, TextPairs):
            digest.update(self.x.content())
        else:
            digest.update(_bytes(self.x))
        if self.labels is not None:
            digest.update(_bytes(self.labels))
        if self.conditions is not None:
            digest.update(self.conditions.content())
        return digest.hexdigest()[:16]

    def take(self, index: Tensor) -> Dataset:
        """Return the chosen data."""
        x = self.x[index] if isinstance(self.x, Tensor) else self.x.subset(index)
        labels = self.labels[index] if self.labels is not None else None
        conditions = self.conditions.take(index) if self.conditions is not None else None
        return Dataset(self.name, x, labels, self.label_names, conditions=conditions, columns=self.columns)

    def split(self, seed: int) -> tuple[Dataset, Dataset]:
        """Return 95 % for training and 5 % held out, by seed and size; for series, the last in time.

        No training image has an exact copy in the held-out set, see `split_without_copies`.  For text, 10 % are held out,
        see `TextWindows.split`; for pairs, whole sources, see `TextPairs.split`.
        """
        if isinstance(self.x, TextWindows | TextPairs):
            train, held_out = self.x.split(seed)
            return Dataset(self.name, train), Dataset(self.name, held_out)
        if len(self) < 2:
            raise UserError(f"{self.name} has {len(self)} data; at least 2 are needed, one of them for the held-out set")
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        if self.kind == "series":
            # Neighbours in time are similar, so a random held-out set would leak into training.
            order = torch.arange(len(self)).flip(0)
        count = max(1, round(HELD_OUT * len(self)))
        image_hashes = self._image_hashes() if self.kind == "images" else None
        train_order, held_order = (
            split_without_copies(order, count, image_hashes) if image_hashes is not None else (order[count:], order[:count])
        )
        return self.take(train_order), self.take(held_order)

    def _image_hashes(self) -> np.ndarray | None:
        """Return hashes of images, (N,), equal for copies; None for images that would have to be downloaded."""
        if isinstance(self.x, Tensor):
            return content_hashes(self.x.numpy())
        return self.x.content_hashes() if isinstance(self.x, LazyImages) else None


def _bytes(x: Tensor) -> memoryview:
    """Return a tensor's memory without a copy, for hashlib."""
    return x.contiguous().numpy().data
