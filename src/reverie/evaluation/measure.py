"""Measuring given samples against given data: everything in an evaluation that needs no model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from reverie.base.errors import UserError
from reverie.base.progress import Tell, silent
from reverie.data import Dataset
from reverie.data.kind import Kind, kind_of
from reverie.evaluation.material import FULL, QUICK, Material, as_images
from reverie.evaluation.metrics.features import Features
from reverie.evaluation.nearness import memory_section, points_section, samples_section
from reverie.evaluation.quality import (
    distances_section,
    labels_section,
    quality_section,
    two_sample_section,
    variety_section,
)
from reverie.evaluation.section import Section

Measure = Callable[[Material], Section | None]

TITLES = {
    "quality": "Distance to the data",
    "points": "Distance to the data",
    "distances": "More distances",
    "variety": "Precision and variety",
    "two_sample": "Can samples be told from data?",
    "labels": "Do samples show their labels?",
    "memory": "Memorisation",
}
MEASURES: dict[Kind, dict[str, Measure]] = {
    "points": {
        "points": points_section,
        "distances": distances_section,
        "variety": variety_section,
        "two_sample": two_sample_section,
        "memory": memory_section,
    },
    "series": {"memory": memory_section},
    "images": {
        "quality": quality_section,
        "distances": distances_section,
        "variety": variety_section,
        "two_sample": two_sample_section,
        "labels": labels_section,
        "memory": memory_section,
    },
}


def not_computable(name: str, why: str) -> Section:
    """Return a section that says why it holds nothing."""
    return Section(name, TITLES[name], figures={"not_computable": why})


def measure(
    samples: np.ndarray, train: Dataset, held: Dataset, *, labels: Sequence[str] | None = None,
    features: str | Callable[[Tensor], Tensor] | Features = "auto", seed: int = 0, quick: bool = False, tell: Tell = silent,
    source: str = "",
) -> Iterator[Section]:  # fmt: skip
    """Measure samples, (N, D), (N, H, W) or (N, H, W, C) in user units, against training and held-out data, section by section.

    labels: what the samples were meant to be; features: "auto", a name of FEATURES, or any function of images (B, C, H, W) in
    [0, 1]; source: the name of the data, whose truth may be known.
    """
    return sections_of(gather(samples, train, held, labels, features, seed, quick, tell, source))


def gather(
    samples: np.ndarray, train: Dataset, held: Dataset, labels: Sequence[str] | None,
    features: str | Callable[[Tensor], Tensor] | Features, seed: int, quick: bool, tell: Tell, source: str,
    known: tuple[Dataset, Dataset] | None = None,
) -> Material:  # fmt: skip
    """Lay samples and data out for measuring, as `measure` takes them; known: training and held-out data of every label."""
    asked = torch.tensor([train.label_names.index(name) for name in labels]) if labels is not None else None
    return Material(
        as_images(samples, train.kind), asked, train, held, features, seed, QUICK if quick else FULL, tell, source, known
    )


def sections_of(material: Material) -> Iterator[Section]:
    """Yield the sections; one that cannot be computed says why."""
    yield samples_section(material.samples, material.some(material.held), material.some(material.train, len(material.samples)))
    for name, part in MEASURES[material.kind].items():
        try:
            found = part(material)
        except UserError as error:
            found = not_computable(name, str(error))
        if found is not None:
            yield found


def without_data(samples: np.ndarray, labels: Sequence[str] | None, why: str, kind: Kind | None = None) -> Iterator[Section]:
    """Yield what can be said of samples alone, and why the rest cannot."""
    x = as_images(samples, kind)
    yield samples_section(x, None)
    for name in MEASURES[kind_of(x.shape[1:])]:
        if name != "labels" or labels is not None:
            yield not_computable(name, why)
