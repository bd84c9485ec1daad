"""Classifiers of a data set's own labels: trained within a time, and kept in the user's cache."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from reverie.base.cache import Cache
from reverie.base.progress import OnProgress, silent
from reverie.base.tensors import tensor_specs
from reverie.data.dataset import Dataset
from reverie.nets.lenet import LeNet, accuracy, build, default_steps, train_classifier

CACHE = Cache("classifiers", 2**26)
JUDGED = 5000  # held-out images, at most, that a classifier is tried on
SMALLEST_SIDE = 4  # of images that a classifier takes
LONG_ENOUGH = 0.5  # of the time limit, that a classifier from the cache was trained for which was cut short


class ClassifierFacts(BaseModel):
    """What is kept beside the weights: steps and seconds of the training, the share of right answers and of how many images.

    A change of the network or of its training makes another format, and files of the old one are not used.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    format: Literal[2] = 2
    steps: int = Field(ge=1, lt=2**31)
    seconds: float = Field(ge=0)
    accuracy: float = Field(ge=0, le=1)
    held_out: int = Field(ge=1, lt=2**53)


@dataclass(frozen=True)
class LabelClassifier:
    """A classifier with its facts.  cached: whether it was trained before."""

    net: LeNet
    facts: ClassifierFacts
    cached: bool


def can_classify(train: Dataset) -> bool:
    """Tell whether a classifier of the labels of these data can be trained."""
    labelled = train.kind == "images" and train.labels is not None and len(train.label_names) >= 2
    return labelled and min(train.shape[1:]) >= SMALLEST_SIDE


def cached_classifier(train: Dataset, seed: int = 0, seconds: float = math.inf) -> LabelClassifier | None:
    """Return the classifier of these data and this seed that the cache holds.

    seconds: the time limit for training one; one that was cut short is returned if it took about as long.
    """
    net = build(train.shape, len(train.label_names), seed)
    wanted = tensor_specs(net.state_dict())
    for key in (_key(train, seed), *((_key(train, seed, short=True),) if math.isfinite(seconds) else ())):
        found = CACHE.read(key, lambda _: wanted, TypeAdapter(ClassifierFacts))
        if found is not None and (key == _key(train, seed) or found[1].seconds >= LONG_ENOUGH * seconds):
            net.load_state_dict(found[0])
            return LabelClassifier(net.eval(), found[1], cached=True)
    return None


def label_classifier(
    train: Dataset, held_out: Dataset, seed: int = 0, *, seconds: float = math.inf, on_progress: OnProgress = silent,
    clock: Callable[[], float] = time.perf_counter,
) -> LabelClassifier:  # fmt: skip
    """Return a classifier of the labels: from the cache, or trained in at most so many seconds and then kept there.

    Without a limit it is the same for the same data and seed.
    """
    if (found := cached_classifier(train, seed, seconds)) is not None:
        return found
    begun, steps = clock(), 0

    def report(done: int, of: int) -> None:
        nonlocal steps
        steps = done
        on_progress("training the classifier", done, of)

    net = train_classifier(
        train.batch,
        len(train),
        train.shape,
        len(train.label_names),
        seed=seed,
        seconds=seconds,
        clock=clock,
        on_progress=report,
    )
    x, labels = held_out.batch(torch.arange(min(len(held_out), JUDGED)))
    assert labels is not None
    facts = ClassifierFacts(steps=max(1, steps), seconds=clock() - begun, accuracy=accuracy(net, x, labels), held_out=len(x))
    CACHE.write(_key(train, seed, short=steps < default_steps(len(train))), net.state_dict(), facts.model_dump_json())
    return LabelClassifier(net, facts, cached=False)


def _key(train: Dataset, seed: int, short: bool = False) -> str:
    return f"{train.fingerprint()}-{seed}{'-short' if short else ''}"
