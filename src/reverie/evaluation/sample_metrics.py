"""Measuring given samples against given data: everything in an evaluation that needs no model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from reverie.base.deadline import Deadline, PacedProgress
from reverie.base.progress import OnProgress, silent
from reverie.data import Dataset
from reverie.data.kind import Kind, kind_of
from reverie.evaluation.evaluation_data import EvaluationData, effort_for, samples_tensor
from reverie.evaluation.memorization import memory_section, points_section, samples_section
from reverie.evaluation.metrics.features import Features
from reverie.evaluation.quality import (
    distances_section,
    labels_section,
    quality_section,
    two_sample_section,
    variety_section,
)
from reverie.evaluation.report_section import ReportSection
from reverie.evaluation.section_plan import Planned, measure_planned

Measure = Callable[[EvaluationData], ReportSection | None]

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


def measure_samples(
    samples: np.ndarray, train: Dataset, held: Dataset, *, labels: Sequence[str] | None = None,
    features: str | Callable[[Tensor], Tensor] | Features = "auto", seed: int = 0, quick: bool = False,
    tell: OnProgress = silent, source: str = "",
) -> list[ReportSection]:  # fmt: skip
    """Measure samples, (N, D), (N, H, W) or (N, H, W, C) in user units, against training and held-out data, section by section.

    labels: what the samples were meant to be; features: "auto", a name of FEATURES, or any function of images (B, C, H, W) in
    [0, 1]; source: the name of the data, whose truth may be known.
    """
    return measure_sections(collect_data(samples, train, held, labels, features, seed, quick, tell, source))


def collect_data(
    samples: np.ndarray, train: Dataset, held: Dataset, labels: Sequence[str] | None,
    features: str | Callable[[Tensor], Tensor] | Features, seed: int, quick: bool, tell: OnProgress, source: str,
    known: tuple[Dataset, Dataset] | None = None, deadline: Deadline | None = None,
) -> EvaluationData:  # fmt: skip
    """Lay samples and data out for measuring, as `measure` takes them.

    known: training and held-out data of every label.
    """
    asked = torch.tensor([train.label_names.index(name) for name in labels]) if labels is not None else None
    return EvaluationData(
        samples_tensor(samples, train.kind), asked, train, held, features, seed, effort_for(len(samples), quick), tell, source,
        known, deadline or Deadline(),
    )  # fmt: skip


def measure_sections(material: EvaluationData) -> list[ReportSection]:
    """Return the sections; one that cannot be computed says why."""
    return measure_planned(sample_plan(material), Deadline(), PacedProgress(material.tell, Deadline()))[0]


def sample_plan(m: EvaluationData) -> list[Planned]:
    """Return the sections of samples and data."""

    def samples() -> ReportSection:
        return samples_section(m.samples, m.some(m.held), m.some(m.train, len(m.samples)))

    def of(part: Measure) -> Callable[[], ReportSection | None]:
        return lambda: part(m)

    parts = [Planned(name, TITLES[name], of(part)) for name, part in MEASURES[m.kind].items()]
    return [Planned("samples", "Samples", samples), *parts]


def sections_without_data(
    samples: np.ndarray, labels: Sequence[str] | None, why: str, kind: Kind | None = None
) -> Iterator[ReportSection]:
    """Yield what can be said of samples alone, and why the rest cannot."""
    x = samples_tensor(samples, kind)
    yield samples_section(x, None)
    for name in MEASURES[kind_of(x.shape[1:])]:
        if name != "labels" or labels is not None:
            yield ReportSection(name, TITLES[name], figures={"not_computable": why})
