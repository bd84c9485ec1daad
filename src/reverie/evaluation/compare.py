"""Comparison of runs: significant differences and recommendations."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reverie.base.errors import UserError
from reverie.evaluation.reports import Evaluation
from reverie.evaluation.scores import HEADLINE_METRICS, difference_threshold, format_score

BEST, NOT_WORSE = "*", "~"
MIN_SHARED = 3  # sections that are missing for the same reason, from which a note reports it


def significance_rule(runs: int) -> str:
    """Return a sentence with the threshold of significant differences."""
    threshold = difference_threshold(runs)
    return f"a difference is significant above {threshold:.3g} of its standard errors; by chance 1 row in 20 exceeds that"


def _as_loss(key: str, figure: Mapping[str, Any]) -> float:
    """Return a metric as a value to minimize."""
    value = float(figure["value"])
    match HEADLINE_METRICS[key].better:
        case "high":
            return -value
        case "floor":
            return abs(value - float(figure.get("floor", 0.0)))
        case _:
            return value


@dataclass(frozen=True)
class ComparedMetric:
    """One metric of all runs.  best: index of the best run; worse: indices of the significantly worse runs."""

    key: str
    figures: tuple[Mapping[str, Any] | None, ...]
    best: int
    worse: tuple[int, ...]
    has_errors: bool  # whether the figures have standard errors


def _row(key: str, figures: Sequence[Mapping[str, Any] | None]) -> ComparedMetric:
    indices = [k for k, figure in enumerate(figures) if figure is not None]
    by_run = {k: figure for k, figure in enumerate(figures) if figure is not None}
    best = min(indices, key=lambda k: _as_loss(key, by_run[k]))
    has_errors = all(figure.get("error") is not None for figure in by_run.values())
    worse = []
    for k in indices:
        noise = math.hypot(*(by_run[j].get("error") or 0.0 for j in (k, best)))
        if has_errors and _as_loss(key, by_run[k]) - _as_loss(key, by_run[best]) > difference_threshold(len(figures)) * noise:
            worse.append(k)
    return ComparedMetric(key, tuple(figures), best, tuple(worse), has_errors)


@dataclass(frozen=True)
class Competitor:
    """Additional results of a run in a comparison of families: its costs, its capabilities, and a sheet of samples."""

    name: str
    costs: Mapping[str, Any]
    capabilities: Mapping[str, str]
    sheet: bytes


@dataclass(frozen=True)
class Comparison:
    """Evaluations of several runs side by side.

    competitors: the same runs, in a comparison of families; failures: families that could not be trained or measured, with
    the reason; truth: held-out data as a picture.
    """

    evaluations: tuple[Evaluation, ...]
    competitors: tuple[Competitor, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict)
    truth: bytes | None = None

    @property
    def names(self) -> list[str]:
        """The names of the runs: of the families, or else the shortest distinct ends of their paths."""
        if self.competitors:
            return [competitor.name for competitor in self.competitors]
        paths = [Path(str(e.facts["run"])).parts for e in self.evaluations]
        for depth in range(1, max(map(len, paths)) + 1):
            names = ["/".join(parts[-depth:]) for parts in paths]
            if len(set(names)) == len(names):
                return names
        return [f"{k + 1}: {'/'.join(parts[-1:])}" for k, parts in enumerate(paths)]

    @property
    def significance(self) -> str:
        """A sentence with the threshold of significant differences."""
        return significance_rule(len(self.evaluations))

    def rows(self) -> list[ComparedMetric]:
        """Return the headline metrics that at least two runs have."""
        scores_by_run = [dict(e.scores()) for e in self.evaluations]
        keys = [key for key in HEADLINE_METRICS if sum(key in scores for scores in scores_by_run) > 1]
        return [_row(key, [scores.get(key) for scores in scores_by_run]) for key in keys]

    def verdict(self) -> list[str]:
        """Return the metrics in which each run is significantly better than another, and notes."""
        names, rows = self.names, self.rows()
        lines = []
        for k, name in enumerate(names):
            wins = [HEADLINE_METRICS[row.key].title for row in rows if row.best == k and row.worse]
            if wins:
                lines.append(f"{name} is significantly better than at least one other run in: {'; '.join(wins)}")
        if not rows and len(names) < 2:
            lines = [f"nothing to compare: only {names[0]} could be measured"]
        elif not rows:
            lines = ["nothing to compare: the runs have no metric in common"]
        elif not lines:
            lines = ["no significant difference between the runs"]
        lines += [f"{name} failed: {why}" for name, why in self.failures.items()]
        for name, evaluation in zip(names, self.evaluations, strict=True):
            reasons = Counter(str(s.figures["not_computable"]) for s in evaluation.sections if "not_computable" in s.figures)
            lines += [f"note: most of {name} was not measured: {why}" for why, count in reasons.items() if count >= MIN_SHARED]
        for key, what in (("fingerprint", "data"), ("samples", "numbers of samples"), ("guidance", "guidance")):
            if len({str(e.facts.get(key)) for e in self.evaluations}) > 1:
                lines.append(f"note: the runs have different {what}, so their figures are not comparable")
        return [*lines, self.significance]

    def figures(self) -> dict[str, Any]:
        """Return everything as plain values."""
        names = self.names
        table = {
            row.key: {
                "values": dict(zip(names, (figure and dict(figure) for figure in row.figures), strict=True)),
                "best": names[row.best], "significantly_worse": [names[k] for k in row.worse], "with_errors": row.has_errors,
            }
            for row in self.rows()
        }  # fmt: skip
        runs = {name: e.figures() for name, e in zip(names, self.evaluations, strict=True)}
        for competitor in self.competitors:
            runs[competitor.name] |= {"costs": dict(competitor.costs), "capabilities": dict(competitor.capabilities)}
        return {
            "recommendations": recommendations(self), "verdict": self.verdict(),
            "significance": self.significance, "comparison": table,
            "likelihood": likelihoods(self), "runs": runs, "failures": dict(self.failures),
        }  # fmt: skip

    def _cells(self, row: ComparedMetric) -> list[str]:
        form = HEADLINE_METRICS[row.key].form
        marks = [
            BEST if k == row.best else "" if k in row.worse or not row.has_errors else NOT_WORSE
            for k in range(len(row.figures))
        ]
        return [
            f"{format_score(figure, form)} {mark or ' '}" if figure else ""
            for figure, mark in zip(row.figures, marks, strict=True)
        ]

    def table(self) -> list[tuple[str, list[str]]]:
        """Return title and formatted figures of each metric, with marks for the best run and those not significantly worse."""
        return [(HEADLINE_METRICS[row.key].title, [cell.strip() for cell in self._cells(row)]) for row in self.rows()]

    def __str__(self) -> str:
        rows = [["", *(f"{name}  " for name in self.names)]]
        rows += [[HEADLINE_METRICS[row.key].title, *self._cells(row)] for row in self.rows()]
        widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
        lines = ["  ".join([f"{row[0]:<{widths[0]}}", *(f"{c:>{w}}" for c, w in zip(row[1:], widths[1:], strict=True))])
                 for row in rows]  # fmt: skip
        advice = [*recommendations(self), ""] if self.competitors else []
        legend = f"{BEST} best   {NOT_WORSE} not significantly worse"
        return "\n".join([*advice, *self.verdict(), "", *(line.rstrip() for line in lines), legend])

    def save(self, path: str | Path) -> Path:
        """Write the report as one HTML file without external resources."""
        from reverie.evaluation.comparison_report import STYLE, body
        from reverie.evaluation.html_report import write_page

        return write_page(path, self.title, body(self), STYLE)

    @property
    def title(self) -> str:
        """The number of runs or families, and their data."""
        data = {str(e.facts["data"]) for e in self.evaluations}
        subject = f"{len(self.evaluations)} families" if self.competitors else f"{len(self.evaluations)} runs"
        return f"{subject} on {next(iter(data))}" if len(data) == 1 else subject


LIKELIHOOD_KINDS = {  # figures of different kinds are not ranked with each other
    "exact": "exact", "dequantised": "dequantized, an upper bound", "bound": "ELBO, an upper bound",
    "flow": "by the flow of a diffusion",
}  # fmt: skip


def likelihoods(c: Comparison) -> list[dict[str, Any]]:
    """Return the NLL of held-out data of every run that has one, by kind, the lowest of each kind first."""
    ranked = []
    for key, kind in LIKELIHOOD_KINDS.items():
        by_name = [(name, dict(e.scores()).get(key)) for name, e in zip(c.names, c.evaluations, strict=True)]
        rows = [{"kind": kind, "run": name, **figure} for name, figure in by_name if figure is not None]
        ranked += sorted(rows, key=lambda row: float(row["value"]))
    return ranked


RANKING = ("kid", "frechet", "sliced_wasserstein", "sinkhorn", "mmd")  # the metrics that rank samples, by priority
LOW_DIVERSITY = 0.8  # of the floor: below it the samples are blurred or collapsed


def _join_names(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _more_diverse(rows: Mapping[str, ComparedMetric], candidates: Sequence[int], best: int) -> tuple[int, int | None]:
    """Choose among runs without a significant difference; also return a run with higher coverage but lower recall, if any.

    Coverage decides unless recall contradicts it significantly.
    """

    def compare_among(key: str, runs: Sequence[int]) -> ComparedMetric | None:
        figures = [f if k in runs else None for k, f in enumerate(rows[key].figures)] if key in rows else []
        return _row(key, figures) if any(figures) else None

    coverage = compare_among("coverage", candidates)
    if coverage is None or best not in coverage.worse:
        return best, None
    recall = compare_among("recall", (best, coverage.best))
    return (best, coverage.best) if recall is not None and coverage.best in recall.worse else (coverage.best, None)


def _for_samples(c: Comparison) -> str:
    rows = {row.key: row for row in c.rows()}
    primary = [str(s.figures.get("primary_metric")) for e in c.evaluations for s in e.sections if s.name == "quality"]
    key = next((key for key in (*primary, *RANKING) if key in rows), None)
    if key is None:
        return "Sample quality: no common metric could be measured."
    row, names, title, form = rows[key], c.names, HEADLINE_METRICS[key].title, HEADLINE_METRICS[key].form
    candidates = [k for k, f in enumerate(row.figures) if f is not None and k not in row.worse]
    chosen, alternative = _more_diverse(rows, candidates, row.best)
    text = f"For sample quality use {names[chosen]}: {title} {format_score(row.figures[chosen] or {}, form)}"
    if others := [names[k] for k in candidates if k != chosen]:
        text += f"; {_join_names(others)} {'is' if len(others) == 1 else 'are'} not significantly worse"
        text += f", but its coverage is significantly higher than that of {names[row.best]}" if chosen != row.best else ""
    if alternative is not None:
        text += f"; {names[alternative]} has significantly higher coverage, but significantly lower recall"
    if row.worse:
        text += f"; {_join_names([names[k] for k in row.worse])} {'is' if len(row.worse) == 1 else 'are'} significantly worse"
    diversity = dict(c.evaluations[chosen].scores()).get("diversity")
    if diversity and diversity["value"] < LOW_DIVERSITY * diversity.get("floor", 1.0):
        text += f"; but the diversity of its samples is only {diversity['value']:.2f} times that of data: inspect them"
    return f"{text}."


def _for_likelihood(c: Comparison) -> str:
    rows = likelihoods(c)
    if not rows:
        return "Likelihood: none of them has one."
    firsts = [next(row for row in rows if row["kind"] == kind) for kind in dict.fromkeys(row["kind"] for row in rows)]
    parts = [f"{row['run']} {format_score(row, '.3f')} {row.get('unit', '')} ({row['kind']})" for row in firsts]
    text = f"For likelihood use {parts[0]}"
    if len(parts) > 1:
        text += f"; other kinds of figures are not ranked with it; the lowest of each: {_join_names(parts[1:])}"
    lowest = min(firsts, key=lambda row: float(row["value"]))
    if lowest is not firsts[0]:
        gap = float(firsts[0]["value"]) - float(lowest["value"])
        noise = math.hypot(lowest.get("error") or 0.0, firsts[0].get("error") or 0.0)
        if gap > difference_threshold(len(c.evaluations)) * noise:
            text += f"; as an upper bound is never too low, {lowest['run']} is better"
    return f"{text}."


def _for_speed(c: Comparison) -> str:
    speeds = sorted(
        (float(e.facts["processor_milliseconds_per_sample"]), name) for name, e in zip(c.names, c.evaluations, strict=True)
    )
    (quick, first), (slow, last) = speeds[0], speeds[-1]
    text = f"For fast sampling use {first}: {quick:.2g} ms of CPU time per sample"
    if len(speeds) > 1:
        text += f"; {last} takes {slow:.2g} ms"
    sizes = sorted((int(e.costs["parameters"]), e.name) for e in c.competitors)
    if sizes:
        text += f"; the smallest is {sizes[0][1]} with {sizes[0][0]:,} parameters"
    return f"{text}."


def recommendations(c: Comparison) -> list[str]:
    """Return three sentences: which run to use for sample quality, for likelihood, and for fast sampling."""
    return [_for_samples(c), _for_likelihood(c), _for_speed(c)]


def compare(evaluations: Sequence[Evaluation]) -> Comparison:
    """Compare evaluations: `compare([reverie.evaluate(a), reverie.evaluate(b)])`."""
    if len(evaluations) < 2:
        raise UserError(f"a comparison needs at least two runs, got {len(evaluations)}")
    return Comparison(tuple(evaluations))
