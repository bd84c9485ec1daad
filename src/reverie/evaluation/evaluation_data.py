"""What is measured, and what it is measured against."""

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

FEW = 500  # held-out data below which floors come from splits of all real data
BLOCK = 2048


@dataclass(frozen=True)
class Effort:
    """How much work is done.

    samples: drawn where no number is given; reference: data that features are taken of, at most; lazy: training images looked
    through for copies where they must be read from files; balls: real data, and samples at once, whose neighbourhoods are
    compared; resamples: sets drawn anew for an interval; splits: of the real data, for a floor; permutations: for a p-value;
    bounded, followed: data whose likelihood is bounded, and of them followed by the flow; drawn: samples for each sampler and
    each of the budgets, which are numbers of evaluations.
    """

    samples: int = 2048
    reference: int = 10_000
    lazy: int = 50_000
    balls: int = 4000
    resamples: int = 200
    splits: int = 24
    permutations: int = 500
    bounded: int = 256
    followed: int = 64
    drawn: int = 256
    budgets: tuple[int, ...] = (5, 10, 20, 40)


FULL = Effort()
QUICK = Effort(  # what fits into a minute
    samples=512, reference=4_000, lazy=4_000, balls=2000, resamples=50, permutations=200, bounded=64, followed=8,
    drawn=128, budgets=(5, 20),
)  # fmt: skip


LEARNING, FEATURES = 20.0, 0.5  # seconds for a classifier, and the share of what is left for features, if time is limited
TRIED = 8  # images by which it is known how long features take
FEWEST, LEAST, TIMES = 100, 500, 10  # real data that features are taken of: where time is short, of few samples, and for each


def learning(deadline: Deadline) -> float:
    """Return the seconds that a classifier may be trained for."""
    return min(LEARNING, FEATURES * deadline.left) if deadline.limited else math.inf


def effort_for(samples: int, quick: bool) -> Effort:
    """Return how much work so many samples are worth: what is compared with a few needs no better figures than they give."""
    base = QUICK if quick else FULL
    few = {name: min(getattr(base, name), max(TRIED, samples)) for name in ("bounded", "followed", "drawn")}
    return replace(base, reference=min(base.reference, max(LEAST, TIMES * samples)), **few)


def few_held(count: int) -> str:
    """Say that few data are held out."""
    return "Only one datum is held out" if count == 1 else f"Only {count:,} data are held out"


def samples_tensor(samples: np.ndarray, kind: Kind | None = None) -> Tensor:
    """Return samples in user units as a tensor: points (N, D), series (N, T, C) if it is said, images (N, C, H, W)."""
    x = torch.from_numpy(np.ascontiguousarray(samples, np.float32))
    if x.ndim == 3 and kind != "series":
        return x[:, None]
    return x.permute(0, 3, 1, 2).contiguous() if x.ndim == 4 else x


@dataclass(frozen=True)
class EvaluationData:
    """Samples beside training and held-out data, and their features, each computed once when first asked for.

    samples: (N, D) or (N, C, H, W) in user units; labels: (N,) int64, what each was meant to be; known: the training and
    held-out data of every label, which a classifier learns, where train and held are those of one; deadline: of the whole
    evaluation, by which classifiers are trained shorter and features taken of fewer data.
    """

    samples: Tensor
    labels: Tensor | None
    train: Dataset
    held: Dataset
    by: str | Callable[[Tensor], Tensor] | Features = "auto"
    seed: int = 0
    effort: Effort = FULL
    tell: OnProgress = silent
    source: str = ""
    known: tuple[Dataset, Dataset] | None = None
    deadline: Deadline = field(default_factory=Deadline)

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
    def kind(self) -> Kind:
        """What one datum is."""
        return self.train.kind

    @cached_property
    def features(self) -> Features:
        """What turns data into features; for points, their coordinates brought to deviation 1."""
        if self.kind == "images":
            return choose_features(self.by, *self.taught, self.tell, learning(self.deadline))
        x = self.some(self.train)
        mean, scale = x.mean(0), x.std(0).clamp_min(1e-12)
        return Features("coordinates", lambda z: (z - mean) / scale, {"net": "none: coordinates of deviation 1"})

    @cached_property
    def reference(self) -> int:
        """How many training or held-out data features are taken of, at most: of fewer where the time is short."""
        most = self.effort.reference
        if self.kind != "images" or not self.deadline.limited:
            return most
        few, clock = self.samples[:TRIED], self.deadline.clock
        self.features.of(few[:1])  # the first is slower
        begun = clock()
        self.features.of(few)
        each = (clock() - begun) / len(few)
        possible = int(FEATURES * self.deadline.left / max(each, 1e-9)) - len(self.samples)
        return most if possible >= sum(min(len(x), most) for x in (self.train, self.held)) else max(FEWEST, possible // 2)

    def some(self, data: Dataset, most: int | None = None) -> Tensor:
        """Return as many data as features are taken of, or at most so many, in an order of chance: files are often sorted."""
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(self.seed))
        return data.batch(order[: self.effort.reference][:most])[0]

    @cached_property
    def of_samples(self) -> Tensor:
        """Features of the samples, (N, D)."""
        return self.features.of(self.samples, self.tell, "features of samples")

    @cached_property
    def of_train(self) -> Tensor:
        """Features of training data, (M, D)."""
        return self.features.of(self.some(self.train, self.reference), self.tell, "features of training data")

    @cached_property
    def of_held(self) -> Tensor:
        """Features of held-out data, (H, D)."""
        return self.features.of(self.some(self.held, self.reference), self.tell, "features of held-out data")

    @property
    def unit(self) -> float:
        """The root mean square of training features, in which KID is measured so that it does not depend on their size."""
        return float(self.of_train.square().mean().sqrt()) or 1.0

    @cached_property
    def of_real(self) -> Tensor:
        """Features of all real data, (M + H, D), which are alike unless the features were learned from some of them."""
        return torch.cat([self.of_train, self.of_held])

    @property
    def parted(self) -> bool:
        """Whether floors come from splits of all real data, because few are held out."""
        return len(self.held) < FEW and not self.features.learned

    @property
    def shared(self) -> int:
        """The count at which samples, and for the floor real data, are compared with real data."""
        return min(len(self.samples), len(self.of_real) // 2 if self.parted else len(self.of_held))

    def pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield features of samples and of real data that are compared; the counts are those of `floors`.

        Held-out data are compared with all training data; where real data are parted, both sides have half of them.
        """
        if not self.parted:
            yield from ((part, self.of_train) for part in self.of_samples.split(self.shared) if len(part) == self.shared)
            return
        random = torch.Generator().manual_seed(self.seed)
        for _ in range(self.effort.splits):
            ours, theirs = (z[torch.randperm(len(z), generator=random)[: self.shared]] for z in (self.of_samples, self.of_real))
            yield ours, theirs

    def floors(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield features of real data that a perfect model's samples would be like, and what they are compared with."""
        if not self.parted:
            yield self.of_held[: self.shared], self.of_train
            return
        random = torch.Generator().manual_seed(self.seed + 1)
        for _ in range(self.effort.splits):
            order = torch.randperm(len(self.of_real), generator=random)
            yield self.of_real[order[: self.shared]], self.of_real[order[self.shared : 2 * self.shared]]

    def about_floors(self) -> str:
        """Say what floors are."""
        if not self.parted:
            return "Beside each stands the same figure for held-out data: a perfect model scores there, within the error bars."
        return (
            f"{few_held(len(self.held))}, so beside each stands the same figure between {self.shared:,} of all"
            f" real data and {self.shared:,} others: the mean of {self.effort.splits} random splits ± how much it is by chance."
            " A perfect model scores there."
        )

    def looked_through(self) -> int:
        """Return how many training data are searched for neighbours."""
        lazy = isinstance(self.train.x, LazyImages) and not self.train.x.decoded
        return min(len(self.train), self.effort.lazy) if lazy else len(self.train)

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
            "floor_of": f"{self.effort.splits} splits of all real data" if self.parted else "held-out data",
        }  # fmt: skip
