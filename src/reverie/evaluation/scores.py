"""A score: a value with its standard error, the same figure of real data, and what they say together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import Any

from reverie.base.errors import UserError
from reverie.evaluation.metrics.distances import DISTANCES

SIGNIFICANCE = 0.05  # how often luck alone may make a difference that counts


def familywise_threshold(rows: int = 1, sides: int = 1) -> float:
    """Return the standard errors that the luck of so many figures exceeds once in twenty, on one side or on either."""
    return NormalDist().inv_cdf(1 - SIGNIFICANCE / (rows * sides))


FLOOR_THRESHOLD = familywise_threshold()  # standard errors by which one figure must be worse than its floor to count


@cache
def difference_threshold(runs: int) -> float:
    """Return the standard errors of a difference that the best and the worst of equal runs exceed once in twenty (Tukey)."""
    from scipy.stats import studentized_range

    return float(studentized_range.ppf(1 - SIGNIFICANCE, max(runs, 2), math.inf)) / math.sqrt(2)


def score(value: float, error: float | None = None, floor: float | None = None, floor_error: float | None = None,
          **more: Any) -> dict[str, Any]:  # fmt: skip
    """Return a score as plain values; what is not known is left out.

    error: how much the value differs with other samples, the data being the same; floor_error: how much that of real data does;
    gap_error, where it is not the root of both squares: how much the samples of a perfect model differ from the floor.
    """
    if not math.isfinite(value):
        raise UserError("the figure is not a finite number, because the data or the samples hardly vary")
    known = {"value": value, "error": error, "floor": floor, "floor_error": floor_error}
    return {key: v for key, v in known.items() if v is not None and math.isfinite(v)} | more


def z_above_floor(found: Mapping[str, Any]) -> float:
    """Return by how many standard errors a score lies above its floor."""
    error = found.get("gap_error", math.hypot(found.get("error", 0.0), found.get("floor_error", 0.0)))
    gap = found["value"] - found.get("floor", 0.0)
    return gap / error if error > 0 else math.copysign(math.inf, gap) if gap else 0.0


def format_score(found: Mapping[str, Any], form: str = ".3g", of: str = "value") -> str:
    """Say a score: value ± error, or its floor ± the error of that; nothing if it has none."""
    if of not in found:
        return ""
    error = found.get("error" if of == "value" else f"{of}_error")
    return f"{found[of]:{form}}" + (f" ± {error:{'.2g' if form == '.3g' else form}}" if error is not None else "")


@dataclass(frozen=True)
class HeadlineMetric:
    """A figure that is shown first: where it is found, what it is called, which way is better, and how it reads."""

    section: str
    name: str
    title: str
    better: str  # "low", "high" or "floor": the nearer to the figure of real data
    form: str = ".3g"
    keys: tuple[str, ...] = ()  # in the section's figures, the first that is there, if it is not the name

    def of(self, sections: Mapping[str, Mapping[str, Any]]) -> Any:
        """Return the figure among those of all sections by name; None where it is not there."""
        figures = sections.get(self.section, {})
        return next((figures[key] for key in self.keys or (self.name,) if key in figures), None)


HEADLINE_METRICS: dict[str, HeadlineMetric] = {
    row.name: row
    for row in (
        HeadlineMetric("quality", "kid", "KID", "low"),
        HeadlineMetric("quality", "frechet", "Fréchet distance", "low"),
        HeadlineMetric("quality", "detail", "detail", "floor", ".2f"),
        HeadlineMetric("points", "mean_distance", "distance to the curve", "low"),
        HeadlineMetric("points", "coverage_ks", "unevenness along the curve", "low"),
        HeadlineMetric("points", "sliced_wasserstein", "sliced Wasserstein", "low"),
        HeadlineMetric("points", "sinkhorn", "Sinkhorn divergence", "low"),
        HeadlineMetric("points", "mmd", "MMD²", "low"),
        *(HeadlineMetric("distances", name, distance.title, "low") for name, distance in DISTANCES.items()),
        HeadlineMetric("variety", "precision", "precision", "high", ".3f"),
        HeadlineMetric("variety", "recall", "recall", "high", ".3f"),
        HeadlineMetric("variety", "density", "density", "high", ".3f"),
        HeadlineMetric("variety", "coverage", "coverage", "high", ".3f"),
        HeadlineMetric("variety", "spread", "spread", "floor", ".3f"),
        HeadlineMetric("two_sample", "told_apart", "told from data", "low", ".1%"),
        HeadlineMetric("labels", "label_accuracy", "label accuracy", "high", ".1%"),
        HeadlineMetric("memory", "copies", "copies of training data", "low", ".1%"),
        HeadlineMetric("memory", "nearest", "distance to training data", "floor"),
        HeadlineMetric("answers", "exact_match", "unseen pairs answered exactly", "high", ".4f"),
        HeadlineMetric("answers", "exact_match_longer", "answered exactly, longer than trained", "high", ".4f"),
        HeadlineMetric("passages", "longest", "longest passage of the training text", "floor", ".1f"),
        HeadlineMetric("passages", "novel_8", "8-grams that are new", "floor", ".1%"),
        HeadlineMetric("passages", "novel_16", "16-grams that are new", "floor", ".1%"),
        HeadlineMetric("likelihood", "exact", "cost of held-out data", "low", ".3f"),
        HeadlineMetric("likelihood", "dequantised", "cost of held-out data, dequantised", "low", ".3f"),
        HeadlineMetric(
            "likelihood", "bound", "cost of held-out data, at most", "low", ".3f", ("bound, continuous time", "bound")
        ),
        HeadlineMetric("likelihood", "flow", "cost of held-out data, by the flow", "low", ".3f"),
    )
}
