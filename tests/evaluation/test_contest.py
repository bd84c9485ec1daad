"""Comparison of families: the true one has the lowest NLL, failures are reported, finished runs are not trained again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reverie import api
from reverie.base.errors import UserError
from reverie.evaluation.compare import Comparison, likelihoods, recommendations
from reverie.evaluation.family_comparison import split_families
from reverie.evaluation.report_section import ReportSection
from reverie.evaluation.reports import Evaluation

MEANS = np.array([[-2.0, 0.0], [2.0, 0.5], [0.0, 2.5]])
STDS, WEIGHTS = np.array([0.3, 0.5, 0.4]), np.array([0.5, 0.3, 0.2])
FAMILIES = "gaussian,mixture,flow:hidden=16,pca:latent=5"


def mixture_samples(count: int, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    which = random.choice(3, count, p=WEIGHTS)
    return MEANS[which] + STDS[which, None] * random.normal(size=(count, 2))


def nll(x: np.ndarray) -> np.ndarray:
    """Return -log p(x) of the mixture."""
    squared = ((x[:, None] - MEANS) ** 2).sum(-1) / STDS**2
    return -np.log((WEIGHTS / (2 * np.pi * STDS**2) * np.exp(-squared / 2)).sum(1))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Comparison, Path]:
    place = tmp_path_factory.mktemp("compared")
    data = mixture_samples(2400, 0).astype(np.float32)
    options: dict[str, Any] = {"runs": place / "runs", "quick": True, "n": 64, "steps": 30, "progress": False}
    return api.compare_families(data, FAMILIES, place / "report.html", **options), place


def test_the_true_family_has_the_lowest_nll_which_is_the_entropy(found: tuple[Comparison, Path]) -> None:
    comparison = found[0]
    rows = likelihoods(comparison)
    assert rows[0]["run"] == "mixture" and {row["kind"] for row in rows} == {"exact"}
    entropy = float(nll(mixture_samples(200_000, 1)).mean())
    assert abs(rows[0]["value"] - entropy) < 3 * rows[0]["error"] and rows[0]["error"] < 0.2
    assert "gaussian" in comparison.figures()["comparison"]["exact"]["significantly_worse"]
    assert "use mixture" in recommendations(comparison)[1] and len(recommendations(comparison)) == 3


def test_a_failing_family_is_reported_and_the_others_finish(found: tuple[Comparison, Path]) -> None:
    comparison, place = found
    assert set(comparison.names) == {"gaussian", "mixture", "flow:hidden=16"}
    assert "latent" in comparison.failures["pca:latent=5"]
    page = (place / "report.html").read_text()
    assert all(name in page for name in comparison.names) and "<b>pca:latent=5</b>" in page and "<script" not in page
    values = json.loads(json.dumps(comparison.figures()))
    assert values["runs"]["flow:hidden=16"]["costs"]["clock"] == "processor" and values["failures"]
    assert values["runs"]["flow:hidden=16"]["costs"]["step_bytes"] > 1000
    assert values["runs"]["mixture"]["capabilities"]["likelihood"] == "exact"


def test_finished_runs_are_not_trained_again(found: tuple[Comparison, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    comparison, place = found
    weights = place / "runs" / "flow-hidden=16" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    data = mixture_samples(2400, 0).astype(np.float32)
    options: dict[str, Any] = {"runs": place / "runs", "quick": True, "n": 16, "progress": False}
    again = api.compare_families(data, f"flow:hidden=16,{place}/runs/mixture", steps=30, **options)
    assert weights.stat().st_mtime_ns == before and again.names == ["flow:hidden=16", f"{place}/runs/mixture"]
    first, second = (next(row for row in likelihoods(c) if row["run"].startswith("flow")) for c in (comparison, again))
    assert first["value"] == second["value"]
    with pytest.raises(UserError, match=r"every family failed.*steps was 30 and is now 31"):
        api.compare_families(data, "flow:hidden=16,pca:latent=7", steps=31, **options)


def test_kinds_of_likelihood_are_not_ranked_with_each_other() -> None:
    def made(name: str, key: str, value: float) -> Evaluation:
        facts = {"run": name, "data": "d", "samples": 9, "seed": 0, "processor_milliseconds_per_sample": 1.0}
        figure = {"value": value, "error": 0.01, "unit": "bits/dim"}
        return Evaluation(facts, (ReportSection("likelihood", "Likelihood", figures={key: figure}),), (), ())

    high = Comparison((made("a", "exact", 2.0), made("b", "bound", 2.5), made("c", "dequantised", 2.2)))
    text = recommendations(high)[1]
    assert "use a 2.000 ± 0.010 bits/dim (exact)" in text and "b 2.500" in text and "c 2.200" in text
    assert "b is better" not in text and not high.rows()
    low = Comparison((made("a", "exact", 2.0), made("b", "bound", 1.5)))
    assert recommendations(low)[1].endswith("b is better.")


def test_families_are_split_at_commas() -> None:
    assert split_families("gaussian, mixture:components=4,rank=2,flow") == ["gaussian", "mixture:components=4,rank=2", "flow"]


def test_the_best_weights_are_kept_if_requested(tmp_path: Path) -> None:
    import reverie

    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0)).numpy()
    options: dict[str, Any] = {"family": "flow:hidden=64", "steps": 120, "learning_rate": 0.02, "keep_data": True}
    best, last = (reverie.train(x, tmp_path / keep, keep=keep, **options) for keep in ("best", "last"))
    checked = [row["held_out"] for row in best.metrics() if "held_out" in row]
    assert min(checked) < checked[-1] - 0.05  # it overfits
    from reverie.evaluation.reports import find_data

    held = find_data(best, 1)[1]
    assert best.model.held_out_metrics(held, 0)["held_out"] == pytest.approx(min(checked), abs=1e-5)
    assert reverie.load(best.path).model.held_out_metrics(held, 0)["held_out"] == pytest.approx(min(checked), abs=1e-5)
    assert last.model.held_out_metrics(held, 0)["held_out"] == pytest.approx(checked[-1], abs=1e-5)


def test_of_runs_without_significant_difference_higher_coverage_is_recommended() -> None:
    def made(name: str, distance: float, coverage: float, diversity: float = 1.0, recall: float = 0.9) -> Evaluation:
        facts = {"run": name, "data": "d", "samples": 9, "seed": 0, "processor_milliseconds_per_sample": 1.0}
        near = ReportSection("points", "Points", figures={"sliced_wasserstein": {"value": distance, "error": 0.01}})
        figures = {
            "coverage": {"value": coverage, "error": 0.01}, "recall": {"value": recall, "error": 0.01},
            "diversity": {"value": diversity, "error": 0.01, "floor": 1.0},
        }  # fmt: skip
        return Evaluation(facts, (near, ReportSection("precision_recall", "Recall", figures=figures)), (), ())

    first = recommendations(Comparison((made("a", 0.05, 0.1), made("b", 0.06, 0.5), made("c", 0.5, 0.9))))[0]
    assert "use b: " in first and "; a is not" in first and "coverage is significantly higher than that of a" in first
    assert "c is significantly worse" in first
    traded = recommendations(Comparison((made("a", 0.05, 0.2), made("b", 0.06, 0.4, recall=0.5), made("c", 0.5, 0.9))))[0]
    assert "use a: " in traded and "b has significantly higher coverage" in traded and "lower recall" in traded
    alone = recommendations(Comparison((made("a", 0.05, 0.5, diversity=0.6), made("b", 0.5, 0.1))))[0]
    assert "use a: " in alone and "diversity" in alone and "0.60" in alone  # blur may have the least distance
