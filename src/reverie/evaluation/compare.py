"""Comparing runs: which differences are larger than noise, and what to use when."""

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

BEST, AS_GOOD = "*", "~"
MANY = 3  # sections that one reason, such as missing data, keeps from being measured


def rule(runs: int) -> str:
    """Say which differences count."""
    threshold = difference_threshold(runs)
    return f"a difference is significant above {threshold:.3g} of its standard errors; by chance 1 row in 20 exceeds that"


def _badness(key: str, found: Mapping[str, Any]) -> float:
    """Return a figure turned so that less is better."""
    value = float(found["value"])
    match HEADLINE_METRICS[key].better:
        case "high":
            return -value
        case "floor":
            return abs(value - float(found.get("floor", 0.0)))
        case _:
            return value


@dataclass(frozen=True)
class Row:
    """One figure of all runs.  best: the number of the best; worse: of those that are worse by more than noise."""

    key: str
    figures: tuple[Mapping[str, Any] | None, ...]
    best: int
    worse: tuple[int, ...]
    sure: bool  # whether the figures have standard errors


def _row(key: str, figures: Sequence[Mapping[str, Any] | None]) -> Row:
    there = [k for k, found in enumerate(figures) if found is not None]
    known = {k: found for k, found in enumerate(figures) if found is not None}
    best = min(there, key=lambda k: _badness(key, known[k]))
    sure = all(found.get("error") is not None for found in known.values())
    worse = []
    for k in there:
        noise = math.hypot(*(known[j].get("error") or 0.0 for j in (k, best)))
        if sure and _badness(key, known[k]) - _badness(key, known[best]) > difference_threshold(len(figures)) * noise:
            worse.append(k)
    return Row(key, tuple(figures), best, tuple(worse), sure)


@dataclass(frozen=True)
class Competitor:
    """What else is known of a run that takes part: what it took, what its family can do, and its samples as a picture."""

    name: str
    costs: Mapping[str, Any]
    abilities: Mapping[str, str]
    sheet: bytes


@dataclass(frozen=True)
class Comparison:
    """Evaluations of several runs side by side.

    entrants: the same runs, where families were compared; failures: families that could not be trained or measured, with the
    reason; truth: held-out data as a picture.
    """

    evaluations: tuple[Evaluation, ...]
    competitors: tuple[Competitor, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict)
    truth: bytes | None = None

    @property
    def names(self) -> list[str]:
        """The runs: as they were named, or by the shortest ends of their paths that differ."""
        if self.competitors:
            return [competitor.name for competitor in self.competitors]
        paths = [Path(str(e.facts["run"])).parts for e in self.evaluations]
        for depth in range(1, max(map(len, paths)) + 1):
            names = ["/".join(parts[-depth:]) for parts in paths]
            if len(set(names)) == len(names):
                return names
        return [f"{k + 1}: {'/'.join(parts[-1:])}" for k, parts in enumerate(paths)]

    @property
    def rule(self) -> str:
        """Which differences count, in words."""
        return rule(len(self.evaluations))

    def rows(self) -> list[Row]:
        """Return the figures that at least two runs have."""
        found = [dict(e.scores()) for e in self.evaluations]
        keys = [key for key in HEADLINE_METRICS if sum(key in scores for scores in found) > 1]
        return [_row(key, [scores.get(key) for scores in found]) for key in keys]

    def verdict(self) -> list[str]:
        """Say which run is better in what, beyond noise."""
        names, rows = self.names, self.rows()
        lines = []
        for k, name in enumerate(names):
            wins = [HEADLINE_METRICS[row.key].title for row in rows if row.best == k and row.worse]
            if wins:
                lines.append(f"{name} is better than at least one other in: {'; '.join(wins)}")
        if not rows and len(names) < 2:
            lines = [f"only {names[0]} could be measured, so there is nothing to compare"]
        elif not rows:
            lines = ["nothing was measured of two runs, so there is nothing to compare"]
        elif not lines:
            lines = ["no difference between the runs is larger than noise"]
        lines += [f"{name} failed: {why}" for name, why in self.failures.items()]
        for name, evaluation in zip(names, self.evaluations, strict=True):
            lost = Counter(str(s.figures["not_computable"]) for s in evaluation.sections if "not_computable" in s.figures)
            lines += [f"note: most of {name} could not be measured: {why}" for why, count in lost.items() if count >= MANY]
        for key, what in (("fingerprint", "data"), ("samples", "numbers of samples"), ("guidance", "guidance")):
            if len({str(e.facts.get(key)) for e in self.evaluations}) > 1:
                lines.append(f"note: the runs have different {what}, so their figures cannot be compared like for like")
        return [*lines, self.rule]

    def figures(self) -> dict[str, Any]:
        """Return everything as plain values."""
        names = self.names
        table = {
            row.key: {
                "values": dict(zip(names, (found and dict(found) for found in row.figures), strict=True)),
                "best": names[row.best], "clearly_worse": [names[k] for k in row.worse], "with_errors": row.sure,
            }
            for row in self.rows()
        }  # fmt: skip
        runs = {name: e.figures() for name, e in zip(names, self.evaluations, strict=True)}
        for competitor in self.competitors:
            runs[competitor.name] |= {"costs": dict(competitor.costs), "abilities": dict(competitor.abilities)}
        return {
            "advice": advice(self), "verdict": self.verdict(), "rule": self.rule, "comparison": table,
            "likelihood": likelihoods(self), "runs": runs, "failures": dict(self.failures),
        }  # fmt: skip

    def _cells(self, row: Row) -> list[str]:
        form = HEADLINE_METRICS[row.key].form
        marks = [BEST if k == row.best else "" if k in row.worse or not row.sure else AS_GOOD for k in range(len(row.figures))]
        return [
            f"{format_score(found, form)} {mark or ' '}" if found else ""
            for found, mark in zip(row.figures, marks, strict=True)
        ]

    def table(self) -> list[tuple[str, list[str]]]:
        """Return the figures in words: what, and for each run the figure and a mark where it is the best, or as good."""
        return [(HEADLINE_METRICS[row.key].title, [cell.strip() for cell in self._cells(row)]) for row in self.rows()]

    def __str__(self) -> str:
        rows = [["", *(f"{name}  " for name in self.names)]]
        rows += [[HEADLINE_METRICS[row.key].title, *self._cells(row)] for row in self.rows()]
        widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
        lines = ["  ".join([f"{row[0]:<{widths[0]}}", *(f"{c:>{w}}" for c, w in zip(row[1:], widths[1:], strict=True))])
                 for row in rows]  # fmt: skip
        use = [*advice(self), ""] if self.competitors else []
        return "\n".join(
            [*use, *self.verdict(), "", *(line.rstrip() for line in lines), f"{BEST} best   {AS_GOOD} as good within noise"]
        )

    def save(self, path: str | Path) -> Path:
        """Write the report, one HTML file that needs nothing else."""
        from reverie.evaluation.comparison_report import STYLE, body
        from reverie.evaluation.html_report import write_page

        return write_page(path, self.title, body(self), STYLE)

    @property
    def title(self) -> str:
        """What is compared, of which data."""
        data = {str(e.facts["data"]) for e in self.evaluations}
        what = f"{len(self.evaluations)} families" if self.competitors else f"{len(self.evaluations)} runs"
        return f"{what} on {next(iter(data))}" if len(data) == 1 else what


KINDS = {
    "exact": "exact", "dequantised": "dequantised, a ceiling", "bound": "a bound, a ceiling",
    "flow": "by the flow of a diffusion",
}  # fmt: skip  # what figures of the likelihood are: of different kinds, and never ranked with each other


def likelihoods(c: Comparison) -> list[dict[str, Any]]:
    """Return what held-out data cost under every run that tells it, kind by kind, the least of each kind first."""
    found = []
    for key, kind in KINDS.items():
        own = [(name, dict(e.scores()).get(key)) for name, e in zip(c.names, c.evaluations, strict=True)]
        told = [{"kind": kind, "run": name, **figure} for name, figure in own if figure is not None]
        found += sorted(told, key=lambda row: float(row["value"]))
    return found


LEADING = ("kid", "frechet", "sliced_wasserstein", "sinkhorn", "mmd")  # what samples are ranked by, the first that is there
THIN = 0.8  # of the data's spread: less is blur, or few things drawn again and again


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _more_varied(rows: Mapping[str, Row], alike: Sequence[int], best: int) -> tuple[int, int | None]:
    """Return which of the equally good runs to take, and one that has more coverage than it for less recall, if any.

    Coverage decides only where recall does not clearly say the opposite.
    """

    def among(key: str, runs: Sequence[int]) -> Row | None:
        figures = [f if k in runs else None for k, f in enumerate(rows[key].figures)] if key in rows else []
        return _row(key, figures) if any(figures) else None

    coverage = among("coverage", alike)
    if coverage is None or best not in coverage.worse:
        return best, None
    recall = among("recall", (best, coverage.best))
    return (best, coverage.best) if recall is not None and coverage.best in recall.worse else (coverage.best, None)


def _for_samples(c: Comparison) -> str:
    rows = {row.key: row for row in c.rows()}
    leads = [str(s.figures.get("leads")) for e in c.evaluations for s in e.sections if s.name == "quality"]
    key = next((key for key in (*leads, *LEADING) if key in rows), None)
    if key is None:
        return "Which draws the best samples could not be measured."
    row, names, title, form = rows[key], c.names, HEADLINE_METRICS[key].title, HEADLINE_METRICS[key].form
    alike = [k for k, f in enumerate(row.figures) if f is not None and k not in row.worse]
    chosen, traded = _more_varied(rows, alike, row.best)
    words = f"For samples like the data take {names[chosen]}, with a {title} of {format_score(row.figures[chosen] or {}, form)}"
    if others := [names[k] for k in alike if k != chosen]:
        words += f"; {_listed(others)} {'is' if len(others) == 1 else 'are'} as good in that within noise"
        words += f", but it covers clearly more of the data than {names[row.best]}" if chosen != row.best else ""
    if traded is not None:
        words += f"; {names[traded]} covers clearly more of the data, but has clearly less recall"
    if row.worse:
        far = "has" if len(row.worse) == 1 else "have"
        words += f"; {_listed([names[k] for k in row.worse])} {far} clearly more than the least"
    spread = dict(c.evaluations[chosen].scores()).get("spread")
    if spread and spread["value"] < THIN * spread.get("floor", 1.0):
        words += f"; but its samples are spread only {spread['value']:.2f} times as far as data, so look at them first"
    return f"{words}."


def _for_likelihood(c: Comparison) -> str:
    told = likelihoods(c)
    if not told:
        return "None of them tells how probable data are."
    firsts = [next(row for row in told if row["kind"] == kind) for kind in dict.fromkeys(row["kind"] for row in told)]
    parts = [f"{row['run']} {format_score(row, '.3f')} {row.get('unit', '')} ({row['kind']})" for row in firsts]
    words = f"For the probability of data take {parts[0]}"
    if len(parts) > 1:
        words += f"; figures of other kinds are not ranked with it, and the least of each are {_listed(parts[1:])}"
    least = min(firsts, key=lambda row: float(row["value"]))
    if least is not firsts[0]:
        gap = float(firsts[0]["value"]) - float(least["value"])
        noise = math.hypot(least.get("error") or 0.0, firsts[0].get("error") or 0.0)
        if gap > difference_threshold(len(c.evaluations)) * noise:
            words += f"; as a ceiling can only be too high, {least['run']} is better all the same"
    return f"{words}."


def _for_speed(c: Comparison) -> str:
    speeds = sorted(
        (float(e.facts["processor_milliseconds_per_sample"]), name) for name, e in zip(c.names, c.evaluations, strict=True)
    )
    (quick, first), (slow, last) = speeds[0], speeds[-1]
    words = f"When samples must be quick take {first}, {quick:.2g} ms of the processor each"
    if len(speeds) > 1:
        words += f", where {last} takes {slow:.2g} ms"
    sizes = sorted((int(e.costs["parameters"]), e.name) for e in c.competitors)
    if sizes:
        words += f"; the smallest is {sizes[0][1]} with {sizes[0][0]:,} numbers"
    return f"{words}."


def advice(c: Comparison) -> list[str]:
    """Say in three sentences what to use when, by the figures."""
    return [_for_samples(c), _for_likelihood(c), _for_speed(c)]


def compare(evaluations: Sequence[Evaluation]) -> Comparison:
    """Set evaluations side by side: `compare([reverie.evaluate(a), reverie.evaluate(b)])`."""
    if len(evaluations) < 2:
        raise UserError(f"a comparison needs at least two runs, got {len(evaluations)}")
    return Comparison(tuple(evaluations))
