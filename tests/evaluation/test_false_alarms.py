"""The errors by which samples are compared with floors and runs with each other: one false alarm in twenty, and not none."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from reverie.data import Dataset
from reverie.evaluation.compare import difference_threshold
from reverie.evaluation.evaluation_data import QUICK, EvaluationData
from reverie.evaluation.memorization import _median_error, memorization_section, points_section
from reverie.evaluation.metrics.features import Features
from reverie.evaluation.quality import _detail, _frechet, _kid, distances_section, precision_recall_section
from reverie.evaluation.scores import FLOOR_THRESHOLD, z_above_floor

Figures = Mapping[str, Mapping[str, Any]]


def images(count: int, random: np.random.Generator, fault: float) -> torch.Tensor:
    shades = random.normal(0.5, 0.05, (count, 1, 1, 1)) + random.normal(0, 0.1 * (1 + fault), (count, 1, 2, 3))
    return torch.from_numpy(shades.clip(0, 1)).float()


def points(count: int, random: np.random.Generator, fault: float) -> torch.Tensor:
    angle = random.integers(0, 3, count) * 2 * np.pi / 3
    place = np.stack([np.cos(angle), np.sin(angle)], -1)
    return torch.from_numpy(place + random.normal(0, 0.25 * (1 + fault), (count, 2))).float()


def two_runs(kind: str, counts: tuple[int, int, int], seed: int, fault: float, splits: bool) -> list[EvaluationData]:
    """Return two runs of one distribution with the same training and held-out data: that of the data, except for the fault."""
    random, draw = np.random.default_rng(seed), images if kind == "images" else points
    samples, train, held = counts
    real = [Dataset("made", (255 * x).round().byte() if kind == "images" else x)
            for x in (draw(count, random, 0.0) for count in (train, held))]  # fmt: skip
    pixels = Features("given", lambda x: 4 * x.flatten(1) - 2, {"net": "none"}, learned=not splits)
    by = pixels if kind == "images" else "auto"
    return [EvaluationData(draw(samples, random, fault), None, real[0], real[1], by, seed, QUICK) for _ in range(2)]


def distances(m: EvaluationData) -> Figures:
    return {**_kid(m), **_frechet(m)}


def of_images(m: EvaluationData) -> Figures:
    sections = distances_section(m).figures, precision_recall_section(m).figures, memorization_section(m).figures
    return {**distances(m), **_detail(m), **sections[0], **sections[1], **sections[2]}


def simulated(measure: Any, repeats: int, *case: Any) -> dict[str, np.ndarray]:
    """Return how far samples lie above floors (2 repeats) and runs from each other (repeats), in standard errors, by figure."""
    found = defaultdict(list)
    for seed in range(repeats):
        a, b = (measure(m) for m in two_runs(case[0], case[1], seed, *case[2:]))
        for key in a:
            if isinstance(a[key], Mapping) and "floor" in a[key]:
                found[key] += [z_above_floor(a[key]), z_above_floor(b[key])]
                gap, error = a[key]["value"] - b[key]["value"], np.hypot(a[key]["error"], b[key]["error"])
                found[f"{key} of runs"].append(gap / error if gap else 0.0)
    return {key: np.array(values) for key, values in found.items()}


def alarms(key: str, z: np.ndarray) -> float:
    """Return how often a difference counts."""
    return float(np.mean(abs(z) > difference_threshold(2) if key.endswith("runs") else z > FLOOR_THRESHOLD))


@pytest.mark.parametrize("splits", [True, False])
def test_the_errors_of_distances_are_those_of_the_comparison(splits: bool) -> None:
    found = simulated(distances, 25, "images", (80, 120, 80), 0.0, splits)
    for key, z in found.items():  # the std of n normal numbers is 1 ± 1 / sqrt(2 n)
        assert abs(np.sqrt(np.mean(z**2)) - 1) < 3 / np.sqrt(2 * len(z)), (key, z)


@pytest.mark.parametrize("count", [60, 301])
def test_medians_of_one_distribution_differ_in_one_of_twenty_cases(count: int) -> None:
    random, repeats = np.random.default_rng(0), 6000
    draws = random.gamma(4, size=(repeats, 2, count))
    errors = np.array([[_median_error(x) for x in pair] for pair in draws])
    z = np.subtract(*np.median(draws, -1).T) / np.hypot(*errors.T)
    assert abs(alarms("nearest of runs", z) - 0.05) < 3 * np.sqrt(0.05 * 0.95 / repeats)


def report(found: dict[str, np.ndarray]) -> str:
    rows = ((key, np.sqrt(np.mean(z**2)), alarms(key, z), len(z)) for key, z in found.items())
    return "\n".join(f"{key:28} std {std:.2f}  counts {share:.3f} of {count}" for key, std, share, count in rows)


CASES = [
    (of_images, ("images", (300, 190, 60), 0.0, True)),
    (of_images, ("images", (300, 600, 150), 0.0, False)),
    (lambda m: points_section(m).figures, ("points", (200, 600, 400), 0.0, True)),
]


@pytest.mark.slow
@pytest.mark.parametrize("case", range(3))
def test_one_in_twenty_perfect_models_is_called_worse(case: int) -> None:
    """Within three standard errors of the count of alarms; discrete shares (copies, precision) may have fewer."""
    repeats = 200
    measure, how = CASES[case]
    found = simulated(measure, repeats, *how)
    print("\n" + report(found))
    for key, z in found.items():
        # the two runs of a repeat have their floor in common, so they count as one and a half
        allowed = 3 * np.sqrt(0.05 * 0.95 / (repeats if key.endswith("runs") else 1.5 * repeats))
        assert alarms(key, z) < 0.05 + allowed, (key, report(found))
        if key.split()[0] in ("kid", "frechet", "energy", "detail", "sliced_wasserstein", "sinkhorn", "mmd"):
            assert alarms(key, z) > 0.05 - allowed, (key, report(found))
