"""The sections that compare samples with data and need no model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from reverie.base.deadline import Deadline, PacedProgress
from reverie.base.progress import OnProgress, silent
from reverie.data import Dataset
from reverie.data.kind import Kind, kind_of
from reverie.evaluation.evaluation_data import EvaluationData, limits_for, samples_tensor
from reverie.evaluation.memorization import memorization_section, points_section, samples_section
from reverie.evaluation.metrics.features import Features
from reverie.evaluation.quality import (
    distances_section,
    labels_section,
    precision_recall_section,
    quality_section,
    two_sample_section,
)
from reverie.evaluation.report_section import ReportSection
from reverie.evaluation.section_plan import PlannedSection, measure_planned

Measure = Callable[[EvaluationData], ReportSection | None]

TITLES = {
    "quality": "Distance to the data",
    "points": "Distance to the data",
    "distances": "More distances",
    "precision_recall": "Precision, recall and diversity",
    "two_sample": "Two-sample test",
    "labels": "Do samples show their labels?",
    "memorization": "Memorization",
}
MEASURES: dict[Kind, dict[str, Measure]] = {
    "points": {
        "points": points_section,
        "distances": distances_section,
        "precision_recall": precision_recall_section,
        "two_sample": two_sample_section,
        "memorization": memorization_section,
    },
    "series": {"memorization": memorization_section},
    "images": {
        "quality": quality_section,
        "distances": distances_section,
        "precision_recall": precision_recall_section,
        "two_sample": two_sample_section,
        "labels": labels_section,
        "memorization": memorization_section,
    },
}


def measure_samples(
    samples: np.ndarray, train: Dataset, held: Dataset, *, labels: Sequence[str] | None = None,
    features: str | Callable[[Tensor], Tensor] | Features = "auto", seed: int = 0, quick: bool = False,
    on_progress: OnProgress = silent, source: str = "",
) -> list[ReportSection]:  # fmt: skip
    """Return the sections on samples, (N, D), (N, H, W) or (N, H, W, C) in user units, against training and held-out data.

    labels: requested labels of the samples; features: "auto", a name of FEATURES, or a function of images (B, C, H, W) in
    [0, 1]; source: the name of the data, for metrics against a known distribution.
    """
    return measure_sections(collect_data(samples, train, held, labels, features, seed, quick, on_progress, source))


def collect_data(
    samples: np.ndarray, train: Dataset, held: Dataset, labels: Sequence[str] | None,
    features: str | Callable[[Tensor], Tensor] | Features, seed: int, quick: bool, on_progress: OnProgress, source: str,
    all_labels: tuple[Dataset, Dataset] | None = None, deadline: Deadline | None = None,
) -> EvaluationData:  # fmt: skip
    """Return the arguments of `measure_samples` as `EvaluationData`.

    all_labels: training and held-out data of every label.
    """
    requested = torch.tensor([train.label_names.index(name) for name in labels]) if labels is not None else None
    return EvaluationData(
        samples_tensor(samples, train.kind), requested, train, held, features, seed, limits_for(len(samples), quick),
        on_progress, source, all_labels, deadline or Deadline(),
    )  # fmt: skip


def measure_sections(data: EvaluationData) -> list[ReportSection]:
    """Return all sections; one that cannot be computed contains the reason."""
    return measure_planned(sample_plan(data), Deadline(), PacedProgress(data.on_progress, Deadline()))[0]


def sample_plan(m: EvaluationData) -> list[PlannedSection]:
    """Return the planned sections of samples and data."""

    def samples() -> ReportSection:
        return samples_section(m.samples, m.subset(m.held), m.subset(m.train, len(m.samples)))

    def measure(part: Measure) -> Callable[[], ReportSection | None]:
        return lambda: part(m)

    parts = [PlannedSection(name, TITLES[name], measure(part)) for name, part in MEASURES[m.kind].items()]
    return [PlannedSection("samples", "Samples", samples), *parts]


def sections_without_data(
    samples: np.ndarray, labels: Sequence[str] | None, why: str, kind: Kind | None = None
) -> Iterator[ReportSection]:
    """Yield the section on the samples, and the others with the reason why they cannot be computed."""
    x = samples_tensor(samples, kind)
    yield samples_section(x, None)
    for name in MEASURES[kind_of(x.shape[1:])]:
        if name != "labels" or labels is not None:
            yield ReportSection(name, TITLES[name], figures={"not_computable": why})
