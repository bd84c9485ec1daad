"""The samples and the data that an evaluation compares, with their features."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.base.deadline import Deadline
from reverie.base.errors import UserError
from reverie.base.progress import OnProgress, silent
from reverie.data import Dataset, LazyImages
from reverie.data.kind import Kind
from reverie.evaluation.metrics.features import Features, choose_features

FEW_HELD_OUT = 500  # with fewer held-out data, floors come from random splits of all real data
BLOCK = 2048


@dataclass(frozen=True)
class EvaluationLimits:
    """Limits of the work of an evaluation.

    samples: the default number of samples; reference: real data per set whose features are computed; lazy: training images
    searched for copies if read from files; neighbourhoods: points per set for precision and recall; resamples: bootstrap
    sets; splits: random splits of the real data for a floor; permutations: of a permutation test; bounded: data
    with an ELBO; flow: data with a probability-flow likelihood; nfe_samples: samples for each sampler and each of `budgets`,
    which are numbers of function evaluations.
    """

    samples: int = 2048
    reference: int = 10_000
    lazy: int = 50_000
    neighbourhoods: int = 4000
    resamples: int = 200
    splits: int = 24
    permutations: int = 500
    bounded: int = 256
    flow: int = 64
    nfe_samples: int = 256
    budgets: tuple[int, ...] = (5, 10, 20, 40)


FULL = EvaluationLimits()
QUICK = EvaluationLimits(  # fits into one minute
    samples=512, reference=4_000, lazy=4_000, neighbourhoods=2000, resamples=50, permutations=200, bounded=64, flow=8,
    nfe_samples=128, budgets=(5, 20),
)  # fmt: skip


# With a deadline: maximum seconds for a classifier, and the share of the remaining time for features.
CLASSIFIER_SECONDS, FEATURE_SHARE = 20.0, 0.5
TIMED = 8  # images whose features are timed
# Number of real data with features: minimum with a deadline, minimum with few samples, and number per sample.
MIN_WITH_DEADLINE, MIN_REFERENCE, PER_SAMPLE = 100, 500, 10


def classifier_seconds(deadline: Deadline) -> float:
    """Return the time limit for training a classifier."""
    return min(CLASSIFIER_SECONDS, FEATURE_SHARE * deadline.left) if deadline.limited else math.inf


def limits_for(samples: int, quick: bool) -> EvaluationLimits:
    """Return the limits for a number of samples: few samples need few real data for comparison."""
    base = QUICK if quick else FULL
    few = {name: min(getattr(base, name), max(TIMED, samples)) for name in ("bounded", "flow", "nfe_samples")}
    return replace(base, reference=min(base.reference, max(MIN_REFERENCE, PER_SAMPLE * samples)), **few)


def describe_held_out(count: int) -> str:
    """Return a phrase with the small number of held-out data."""
    return "Only one datum is held out" if count == 1 else f"Only {count:,} data are held out"


def samples_tensor(samples: np.ndarray, kind: Kind | None = None) -> Tensor:
    """Return samples in user units as points (N, D), images (N, C, H, W) or, if kind is "series", series (N, T, C)."""
    x = torch.from_numpy(np.ascontiguousarray(samples, np.float32))
    if x.ndim == 3 and kind != "series":
        return x[:, None]
    return x.permute(0, 3, 1, 2).contiguous() if x.ndim == 4 else x


@dataclass(frozen=True)
class EvaluationData:
    """Samples, training data, held-out data and their features, each computed once on first access.

    samples: (N, D) or (N, C, H, W) in user units; labels: (N,) int64, the requested labels; all_labels: training and held-out
    data of every label, if train and held have only one; deadline: of the whole evaluation; it shortens the training of
    classifiers and limits the data with features.
    """

    samples: Tensor
    labels: Tensor | None
    train: Dataset
    held: Dataset
    feature_choice: str | Callable[[Tensor], Tensor] | Features = "auto"
    seed: int = 0
    limits: EvaluationLimits = FULL
    on_progress: OnProgress = silent
    source: str = ""
    all_labels: tuple[Dataset, Dataset] | None = None
    deadline: Deadline = field(default_factory=Deadline)

    def __post_init__(self) -> None:
        if tuple(self.samples.shape[1:]) != self.train.shape:
            sample_shape, data_shape = "x".join(map(str, self.samples.shape[1:])), "x".join(map(str, self.train.shape))
            raise UserError(f"samples of {sample_shape} and data of {data_shape} cannot be compared; resize one of them")
        if not len(self.samples):
            raise UserError("there are no samples to measure")
        for what, data in (("training", self.train), ("held-out", self.held)):
            if not len(data):
                raise UserError(f"there are no {what} data to compare with; use a larger dataset")
        if not self.samples.isfinite().all():
            bad = int((~self.samples.flatten(1).isfinite().all(1)).sum())
            raise UserError(f"{bad} of {len(self.samples)} samples contain NaN or infinity; train the model again")

    @property
    def classifier_data(self) -> tuple[Dataset, Dataset]:
        """The training and held-out data of every label, for classifiers."""
        return self.all_labels or (self.train, self.held)

    @property
    def kind(self) -> Kind:
        """The kind of data."""
        return self.train.kind

    @cached_property
    def features(self) -> Features:
        """The feature map; for points, the standardized coordinates."""
        if self.kind == "images":
            seconds = classifier_seconds(self.deadline)
            return choose_features(self.feature_choice, *self.classifier_data, self.on_progress, seconds)
        x = self.subset(self.train)
        mean, scale = x.mean(0), x.std(0).clamp_min(1e-12)
        return Features("coordinates", lambda z: (z - mean) / scale, {"net": "none: standardized coordinates"})

    @cached_property
    def reference_count(self) -> int:
        """The maximum number of training data, and of held-out data, with features; less if the deadline is close."""
        maximum = self.limits.reference
        if self.kind != "images" or not self.deadline.limited:
            return maximum
        images, clock = self.samples[:TIMED], self.deadline.clock
        self.features.of(images[:1])  # warm-up
        start = clock()
        self.features.of(images)
        seconds = (clock() - start) / len(images)
        affordable = int(FEATURE_SHARE * self.deadline.left / max(seconds, 1e-9)) - len(self.samples)
        needed = sum(min(len(x), maximum) for x in (self.train, self.held))
        return maximum if affordable >= needed else max(MIN_WITH_DEADLINE, affordable // 2)

    def subset(self, data: Dataset, most: int | None = None) -> Tensor:
        """Return at most `most` data, and at most `limits.reference`, in random order: files are often sorted."""
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(self.seed))
        return data.batch(order[: self.limits.reference][:most])[0]

    @cached_property
    def sample_features(self) -> Tensor:
        """Features of the samples, (N, D)."""
        return self.features.of(self.samples, self.on_progress, "features of samples")

    @cached_property
    def train_features(self) -> Tensor:
        """Features of training data, (M, D)."""
        return self.features.of(self.subset(self.train, self.reference_count), self.on_progress, "features of training data")

    @cached_property
    def held_out_features(self) -> Tensor:
        """Features of held-out data, (H, D)."""
        return self.features.of(self.subset(self.held, self.reference_count), self.on_progress, "features of held-out data")

    @property
    def feature_unit(self) -> float:
        """The root mean square of the training features; KID is measured in this unit."""
        return float(self.train_features.square().mean().sqrt()) or 1.0

    @cached_property
    def real_features(self) -> Tensor:
        """Features of all real data, (M + H, D)."""
        return torch.cat([self.train_features, self.held_out_features])

    @property
    def splits_real(self) -> bool:
        """Whether floors come from random splits of all real data, because few are held out."""
        return len(self.held) < FEW_HELD_OUT and not self.features.learned

    @property
    def compared_count(self) -> int:
        """The number of samples, and of real data for the floor, in each comparison with real data."""
        return min(len(self.samples), len(self.real_features) // 2 if self.splits_real else len(self.held_out_features))

    def feature_pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the features of samples and of real data to compare, with the same counts as `floor_pairs`.

        Held-out data: blocks of samples against all training data.  Random splits: random subsets of both.
        """
        count = self.compared_count
        if not self.splits_real:
            yield from ((part, self.train_features) for part in self.sample_features.split(count) if len(part) == count)
            return
        random = torch.Generator().manual_seed(self.seed)
        for _ in range(self.limits.splits):
            sets = (self.sample_features, self.real_features)
            x, y = (z[torch.randperm(len(z), generator=random)[:count]] for z in sets)
            yield x, y

    def floor_pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield features of two disjoint sets of real data, one in place of the samples."""
        count = self.compared_count
        if not self.splits_real:
            yield self.held_out_features[:count], self.train_features
            return
        random = torch.Generator().manual_seed(self.seed + 1)
        for _ in range(self.limits.splits):
            order = torch.randperm(len(self.real_features), generator=random)
            yield self.real_features[order[:count]], self.real_features[order[count : 2 * count]]

    def describe_floors(self) -> str:
        """Return a sentence that explains the floors."""
        if not self.splits_real:
            return "The floor is the same figure for held-out data: a perfect model reaches it within the error bars."
        return (
            f"{describe_held_out(len(self.held))}, so the floor compares {self.compared_count:,} real data with"
            f" {self.compared_count:,} others: the mean ± standard deviation over {self.limits.splits} random splits."
            " A perfect model reaches it."
        )

    def searched_count(self) -> int:
        """Return the number of training data that are searched for neighbours."""
        lazy = isinstance(self.train.x, LazyImages) and not self.train.x.decoded
        return min(len(self.train), self.limits.lazy) if lazy else len(self.train)

    def train_blocks(self, what: str) -> Iterator[Tensor]:
        """Yield the training data in blocks."""
        count = self.searched_count()
        for part in torch.arange(count).split(BLOCK):
            yield self.train.batch(part)[0]
            self.on_progress(what, int(part[-1]) + 1, count)

    def facts(self) -> dict[str, Any]:
        """Return the settings of each score: features, counts, seed."""
        return {
            "features": {"name": self.features.name, **self.features.facts}, "samples": len(self.samples),
            "training_data": len(self.train_features), "held_out_data": len(self.held_out_features),
            "evaluation_seed": self.seed,
            "floor_source": f"{self.limits.splits} splits of all real data" if self.splits_real else "held-out data",
        }  # fmt: skip
