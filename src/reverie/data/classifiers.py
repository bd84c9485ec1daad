"""Classifiers of a dataset's own labels: trained within a time limit and cached."""

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
MAX_HELD_OUT = 5000  # maximum held-out images for the accuracy
MIN_SIDE = 4  # minimum image side of a classifier
MIN_TIME_SHARE = 0.5  # a cached classifier whose training was cut short is used if it had this share of the time limit


class ClassifierFacts(BaseModel):
    """The record stored with the weights: steps and seconds of training, accuracy, and number of held-out images.

    A change of the network or its training increases the format, so that older files are not used.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    format: Literal[2] = 2
    steps: int = Field(ge=1, lt=2**31)
    seconds: float = Field(ge=0)
    accuracy: float = Field(ge=0, le=1)
    held_out: int = Field(ge=1, lt=2**53)


@dataclass(frozen=True)
class LabelClassifier:
    """A classifier with its record.  cached: whether it was loaded from the cache."""

    net: LeNet
    facts: ClassifierFacts
    cached: bool


def can_classify(train: Dataset) -> bool:
    """Return whether a classifier of the labels can be trained."""
    labelled = train.kind == "images" and train.labels is not None and len(train.label_names) >= 2
    return labelled and min(train.shape[1:]) >= MIN_SIDE


def cached_classifier(train: Dataset, seed: int = 0, seconds: float = math.inf) -> LabelClassifier | None:
    """Return the cached classifier of these data and this seed, or None.

    seconds: the time limit of training; a classifier whose training was cut short is used if it had at least half of this time.
    """
    net = build(train.shape, len(train.label_names), seed)
    wanted = tensor_specs(net.state_dict())
    for key in (_key(train, seed), *((_key(train, seed, incomplete=True),) if math.isfinite(seconds) else ())):
        entry = CACHE.read(key, lambda _: wanted, TypeAdapter(ClassifierFacts))
        if entry is not None and (key == _key(train, seed) or entry[1].seconds >= MIN_TIME_SHARE * seconds):
            net.load_state_dict(entry[0])
            return LabelClassifier(net.eval(), entry[1], cached=True)
    return None


def label_classifier(
    train: Dataset, held_out: Dataset, seed: int = 0, *, seconds: float = math.inf, on_progress: OnProgress = silent,
    clock: Callable[[], float] = time.perf_counter,
) -> LabelClassifier:  # fmt: skip
    """Return a classifier of the labels: from the cache, or trained within the time limit and then cached.

    Without a limit it depends on data and seed only.
    """
    if (classifier := cached_classifier(train, seed, seconds)) is not None:
        return classifier
    start, steps = clock(), 0

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
    x, labels = held_out.batch(torch.arange(min(len(held_out), MAX_HELD_OUT)))
    assert labels is not None
    facts = ClassifierFacts(steps=max(1, steps), seconds=clock() - start, accuracy=accuracy(net, x, labels), held_out=len(x))
    CACHE.write(_key(train, seed, incomplete=steps < default_steps(len(train))), net.state_dict(), facts.model_dump_json())
    return LabelClassifier(net, facts, cached=False)


def _key(train: Dataset, seed: int, incomplete: bool = False) -> str:
    return f"{train.fingerprint()}-{seed}{'-short' if incomplete else ''}"
