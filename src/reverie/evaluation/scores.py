"""Scores: a value with its standard error and its floor, the same figure of real data; tests of significance."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import Any

from reverie.base.errors import UserError
from reverie.evaluation.metrics.distances import DISTANCES

SIGNIFICANCE = 0.05  # level of all tests


def familywise_threshold(rows: int = 1, sides: int = 1) -> float:
    """Return the threshold in standard errors of a test with Bonferroni correction for `rows` figures, one- or two-sided."""
    return NormalDist().inv_cdf(1 - SIGNIFICANCE / (rows * sides))


FLOOR_THRESHOLD = familywise_threshold()  # in standard errors, for a single comparison with the floor


@cache
def difference_threshold(runs: int) -> float:
    """Return the threshold in standard errors of a difference between the best and the worst of several runs (Tukey)."""
    from scipy.stats import studentized_range

    return float(studentized_range.ppf(1 - SIGNIFICANCE, max(runs, 2), math.inf)) / math.sqrt(2)


def score(value: float, error: float | None = None, floor: float | None = None, floor_error: float | None = None,
          **more: Any) -> dict[str, Any]:  # fmt: skip
    """Return a score as plain values, without unknown ones.

    error: over new samples with fixed data; floor_error: over new real data; gap_error: of value - floor for a perfect model,
    if it is not the root of the sum of both squares.
    """
    if not math.isfinite(value):
        raise UserError("the figure is not finite, because the data or the samples hardly vary")
    parts = {"value": value, "error": error, "floor": floor, "floor_error": floor_error}
    return {key: v for key, v in parts.items() if v is not None and math.isfinite(v)} | more


def z_above_floor(score: Mapping[str, Any]) -> float:
    """Return the distance of a score above its floor in standard errors."""
    error = score.get("gap_error", math.hypot(score.get("error", 0.0), score.get("floor_error", 0.0)))
    gap = score["value"] - score.get("floor", 0.0)
    return gap / error if error > 0 else math.copysign(math.inf, gap) if gap else 0.0


def format_score(score: Mapping[str, Any], form: str = ".3g", of: str = "value") -> str:
    """Return "value ± error" or "floor ± error"; an empty string if there is no such value."""
    if of not in score:
        return ""
    error = score.get("error" if of == "value" else f"{of}_error")
    return f"{score[of]:{form}}" + (f" ± {error:{'.2g' if form == '.3g' else form}}" if error is not None else "")


@dataclass(frozen=True)
class HeadlineMetric:
    """A metric at the top of a report and in comparisons."""

    section: str
    name: str
    title: str
    better: str  # "low", "high" or "floor": near the figure of real data
    form: str = ".3g"
    keys: tuple[str, ...] = ()  # in the section's figures, the first that exists; by default the name

    def of(self, sections: Mapping[str, Mapping[str, Any]]) -> Any:
        """Return the figure from the figures of all sections by name, or None."""
        figures = sections.get(self.section, {})
        return next((figures[key] for key in self.keys or (self.name,) if key in figures), None)


HEADLINE_METRICS: dict[str, HeadlineMetric] = {
    row.name: row
    for row in (
        HeadlineMetric("quality", "kid", "KID", "low"),
        HeadlineMetric("quality", "frechet", "Fréchet distance", "low"),
        HeadlineMetric("quality", "detail", "detail", "floor", ".2f"),
        HeadlineMetric("points", "mean_distance", "distance to the curve", "low"),
        HeadlineMetric("points", "coverage_ks", "unevenness along the curve (KS)", "low"),
        HeadlineMetric("points", "sliced_wasserstein", "sliced Wasserstein", "low"),
        HeadlineMetric("points", "sinkhorn", "Sinkhorn divergence", "low"),
        HeadlineMetric("points", "mmd", "MMD²", "low"),
        *(HeadlineMetric("distances", name, distance.title, "low") for name, distance in DISTANCES.items()),
        HeadlineMetric("precision_recall", "precision", "precision", "high", ".3f"),
        HeadlineMetric("precision_recall", "recall", "recall", "high", ".3f"),
        HeadlineMetric("precision_recall", "density", "density", "high", ".3f"),
        HeadlineMetric("precision_recall", "coverage", "coverage", "high", ".3f"),
        HeadlineMetric("precision_recall", "diversity", "diversity", "floor", ".3f"),
        HeadlineMetric("two_sample", "two_sample_accuracy", "two-sample accuracy", "low", ".1%"),
        HeadlineMetric("labels", "label_accuracy", "label accuracy", "high", ".1%"),
        HeadlineMetric("memorization", "copies", "copies of training data", "low", ".1%"),
        HeadlineMetric("memorization", "nearest_distance", "distance to training data", "floor"),
        HeadlineMetric("answers", "exact_match", "exact answers to unseen sources", "high", ".4f"),
        HeadlineMetric("answers", "exact_match_longer", "exact answers to longer sources", "high", ".4f"),
        HeadlineMetric("passages", "longest", "longest passage shared with training text", "floor", ".1f"),
        HeadlineMetric("passages", "novel_8", "novel 8-grams", "floor", ".1%"),
        HeadlineMetric("passages", "novel_16", "novel 16-grams", "floor", ".1%"),
        HeadlineMetric("likelihood", "exact", "NLL of held-out data", "low", ".3f"),
        HeadlineMetric("likelihood", "dequantised", "NLL of held-out data, dequantized", "low", ".3f"),
        HeadlineMetric(
            "likelihood", "bound", "NLL of held-out data, upper bound (ELBO)", "low", ".3f", ("bound, continuous time", "bound")
        ),
        HeadlineMetric("likelihood", "flow", "NLL of held-out data, by the flow", "low", ".3f"),
    )
}
