"""Floors: the figures of a perfect model with few held-out data, and the consequences of their errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from reverie.base.progress import silent
from reverie.data import Dataset
from reverie.evaluation.evaluation_data import EvaluationData
from reverie.evaluation.metrics.features import Features
from reverie.evaluation.metrics.kid import kid
from reverie.evaluation.nfe_quality import _verdict, nfe_section
from reverie.evaluation.quality import kid_floor, precision_recall_section, quality_section, two_sample_section
from reverie.evaluation.report_section import ReportSection
from reverie.evaluation.reports import Evaluation
from reverie.evaluation.sample_metrics import collect_data, measure_samples
from reverie.evaluation.verdicts import assess
from reverie.runs.run import Run
from reverie.runs.samples import Samples

REAL = 200


def images(count: int, seed: int) -> np.ndarray:
    """Return grey images of 3 x 3, each with shades around its own grey."""
    random = np.random.default_rng(seed)
    return np.clip(random.normal(0.5, 0.12, (count, 1, 1)) + random.normal(0, 0.1, (count, 3, 3)), 0, 1).astype(np.float32)


def data(count: int, seed: int) -> Dataset:
    return Dataset("made", torch.from_numpy((255 * images(count, seed)).round().astype(np.uint8))[:, None])


def arranged(samples: np.ndarray, real: Dataset, features: object = "pixels") -> EvaluationData:
    return collect_data(samples, *real.split(0), None, features, 0, True, silent, "")  # type: ignore[arg-type]


def test_the_floor_of_kid_is_the_kid_of_new_data() -> None:
    """At the counts of the samples, although the floor comes from halves of the real data."""
    found, errors = [], []
    for k in range(40):
        m = arranged(images(300, 100 + k), data(REAL, k))
        found.append(float(kid(m.sample_features / m.feature_unit, m.train_features / m.feature_unit).value))
        floor, error = kid_floor(m, 300)
        errors.append(error)
        assert floor == 0 and m.splits_real
    assert abs(np.mean(found)) < 3 * np.std(found) / len(found) ** 0.5
    assert np.mean(errors) == pytest.approx(np.std(found, ddof=1), rel=0.35)


def test_new_data_score_at_the_floors_with_few_held_out_data() -> None:
    found = {s.name: s for s in measure_samples(images(300, 7), *data(REAL, 0).split(0), features="pixels", quick=True)}
    assert assess(list(found.values()))[0] == []
    for section, keys in (
        ("quality", ("kid", "frechet", "detail")),
        ("precision_recall", ("precision", "recall", "density", "coverage")),
    ):
        for key in keys:
            f = found[section].figures[key]
            assert f["floor_error"] > 0
            assert abs(f["value"] - f["floor"]) < 3 * np.hypot(f["error"], f["floor_error"]), (key, f)
    assert "Only 10 data are held out" in found["quality"].notes[1] and "24 random splits" in found["quality"].notes[1]


def test_both_sides_and_their_floor_have_one_count() -> None:
    m = arranged(images(300, 7), data(REAL, 0))
    for pairs in (list(m.feature_pairs()), list(m.floor_pairs())):
        assert len(pairs) == 24 and all(len(x) == len(y) == REAL // 2 for x, y in pairs)
    for x, y in m.floor_pairs():  # no datum is compared with itself
        assert not (torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist") == 0).any()
    figures = precision_recall_section(m).figures
    assert figures["compared_count"] == figures["training_data"] == REAL // 2
    assert quality_section(m).figures["frechet"]["samples"] == REAL // 2
    assert two_sample_section(m).figures["test_count"] == REAL  # all real data, not only the ten held-out ones
    assert arranged(images(30, 7), data(REAL, 0)).compared_count == 30


def test_learned_features_have_their_floor_from_held_out_data() -> None:
    real = data(REAL, 0)
    train = real.split(0)[0].batch(torch.arange(190))[0]

    def memorizing(x: Tensor) -> Tensor:
        """Return pixels, and whether the image is a training image."""
        known = (torch.cdist(x.flatten(1), train.flatten(1), compute_mode="donot_use_mm_for_euclid_dist") == 0).any(1)
        return torch.cat([x.flatten(1), known[:, None].float()], 1)

    m = arranged(images(300, 7), real, Features("memorizing", memorizing, {"net": "a list"}, learned=True))
    assert not m.splits_real and m.facts()["floor_source"] == "held-out data"
    floor, error = kid_floor(m, 300)
    assert floor > 10 * error  # held-out data are as new to it as samples
    assert "feature_shift" not in assess([quality_section(m)])[0]


def scored(**figures: dict[str, float]) -> list[str]:
    return assess([ReportSection("quality", "q", figures=figures)])[0]


def test_a_floor_above_the_samples_is_inconclusive() -> None:
    found = assess(
        [ReportSection("quality", "q", figures={"kid": {"value": 0.097, "error": 0.02, "floor": 0.934, "floor_error": 0.8}})]
    )
    assert found[0] == ["inconclusive"] and len(found[1]) == 1
    assert "0.934 ± 0.8" in found[1][0] and "0.097 ± 0.02" in found[1][0]
    assert scored(kid={"value": -0.03, "error": 0.01, "floor": 0.0, "floor_error": 0.013}) == []
    assert scored(kid={"value": 0.1, "error": 0.01, "floor": 0.0, "floor_error": 0.2}) == ["inconclusive"]
    assert scored(kid={"value": -0.002, "error": 0.003, "floor": 0.0, "floor_error": 0.003}) == []
    assert scored(kid={"value": 0.5, "error": 0.01, "floor": 0.0, "floor_error": 0.003}) == ["feature_shift"]


def test_floors_are_printed_with_their_errors() -> None:
    figures = {"kid": {"value": 0.5, "error": 0.02, "floor": 0.0, "floor_error": 0.003}}
    facts = {"run": "r", "samples": 9, "sampler": "ddim", "steps": 4, "seed": 0}
    found = Evaluation(facts, (ReportSection("quality", "q", figures=figures),), (), ())
    assert "0 ± 0.003" in str(found) and "real data" in str(found) and found.figures()["kid_floor_error"] == 0.003


def row(sampler: str, evaluations: int, value: float, error: float) -> dict[str, object]:
    return {"sampler": sampler, "evaluations": evaluations, "value": value, "standard error": error}


def test_sufficient_means_as_good_as_the_best_and_not_merely_uncertain() -> None:
    best, middling = row("dpm++2m", 40, 0.097, 0.01), row("ddpm", 20, 0.11, 0.02)
    uncertain, bad = row("ddim", 5, 0.421, 0.2), row("ddpm", 5, 3.0, 0.1)
    floor = (0.0, 0.004)
    found = _verdict([best, middling, uncertain, bad], "KID", "", floor)
    assert found.startswith("ddpm with 20 function evaluations is sufficient") and "KID 0.11 ± 0.02" in found
    assert "0.097 ± 0.01 (dpm++2m with 40)" in found
    assert _verdict([best, uncertain, bad], "KID", "", floor).startswith(
        "dpm++2m with 40 function evaluations has the lowest KID"
    )
    assert "No significant difference" in _verdict([best, uncertain], "KID", "", floor)
    at_floor = [row("ddpm", 5, 0.003, 0.003), row("ddim", 5, 0.002, 0.003), row("ddim", 20, -0.001, 0.003), bad]
    assert _verdict(at_floor, "KID", "", floor).startswith("ddim with 5 function evaluations is sufficient")


def test_the_samples_of_the_report_are_among_those_compared(spiral_run: Run) -> None:
    def deviation(samples: Samples) -> tuple[float, float | None]:
        return float(abs(samples.x.std() - 1)), 0.01

    usual = spiral_run.sample(30)
    kinds = {"what": "distance", "n": 30, "counts": (4,), "samplers": ("ddim",)}
    rows = nfe_section(spiral_run, deviation, evaluated=({}, usual), **kinds).figures["results"]  # type: ignore[arg-type]
    name, steps, _ = spiral_run.chosen_sampling({})
    assert len(rows) == 2 and (rows[1]["sampler"], rows[1]["steps"]) == (name, steps)
    assert rows[1]["value"] == pytest.approx(deviation(usual)[0])
    again = nfe_section(spiral_run, deviation, evaluated=({"sampler": "ddim", "steps": 4}, usual), **kinds)  # type: ignore[arg-type]
    assert len(again.figures["results"]) == 1
    open_cost = nfe_section(spiral_run, deviation, evaluated=({"sampler": "rk45"}, usual), **kinds)  # type: ignore[arg-type]
    assert len(open_cost.figures["results"]) == 1
