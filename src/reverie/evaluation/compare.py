"""Comparing runs: which differences are larger than noise."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reverie.base.errors import UserError
from reverie.evaluation.evaluation import Evaluation
from reverie.evaluation.score import HEADLINES, clear, said
from reverie.evaluation.section import Section

BEST, AS_GOOD = "*", "~"
MANY = 3  # sections that one reason, such as missing data, keeps from being measured


def rule(runs: int) -> str:
    """Say which differences count."""
    return f"a difference counts if it exceeds {clear(runs):.3g} standard errors of it; luck does so in one of twenty rows"


def _badness(key: str, found: Mapping[str, Any]) -> float:
    """Return a figure turned so that less is better."""
    value = float(found["value"])
    match HEADLINES[key].better:
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
        if sure and _badness(key, known[k]) - _badness(key, known[best]) > clear(len(figures)) * noise:
            worse.append(k)
    return Row(key, tuple(figures), best, tuple(worse), sure)


@dataclass(frozen=True)
class Comparison:
    """Evaluations of several runs side by side."""

    evaluations: tuple[Evaluation, ...]

    @property
    def names(self) -> list[str]:
        """The runs, by the shortest ends of their paths that differ."""
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
        keys = [key for key in HEADLINES if sum(key in scores for scores in found) > 1]
        return [_row(key, [scores.get(key) for scores in found]) for key in keys]

    def verdict(self) -> list[str]:
        """Say which run is better in what, beyond noise."""
        names, rows = self.names, self.rows()
        lines = []
        for k, name in enumerate(names):
            wins = [HEADLINES[row.key].title for row in rows if row.best == k and row.worse]
            if wins:
                lines.append(f"{name} is better than at least one other in: {'; '.join(wins)}")
        if not rows:
            lines = ["nothing was measured of two runs, so there is nothing to compare"]
        elif not lines:
            lines = ["no difference between the runs is larger than noise"]
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
        return {"verdict": self.verdict(), "rule": self.rule, "comparison": table, "runs": runs}

    def _cells(self, row: Row) -> list[str]:
        form = HEADLINES[row.key].form
        marks = [BEST if k == row.best else "" if k in row.worse or not row.sure else AS_GOOD for k in range(len(row.figures))]
        return [f"{said(found, form)} {mark or ' '}" if found else "" for found, mark in zip(row.figures, marks, strict=True)]

    def table(self) -> list[tuple[str, list[str]]]:
        """Return the figures in words: what, and for each run the figure and a mark where it is the best, or as good."""
        return [(HEADLINES[row.key].title, [cell.strip() for cell in self._cells(row)]) for row in self.rows()]

    def __str__(self) -> str:
        rows = [["", *(f"{name}  " for name in self.names)]]
        rows += [[HEADLINES[row.key].title, *self._cells(row)] for row in self.rows()]
        widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
        lines = ["  ".join([f"{row[0]:<{widths[0]}}", *(f"{c:>{w}}" for c, w in zip(row[1:], widths[1:], strict=True))])
                 for row in rows]  # fmt: skip
        return "\n".join(
            [*self.verdict(), "", *(line.rstrip() for line in lines), f"{BEST} best   {AS_GOOD} as good within noise"]
        )

    def save(self, path: str | Path) -> Path:
        """Write the report: the comparison, then each run's verdict and samples."""
        from reverie.evaluation.html import write_report

        names = self.names
        rows = [{"figure": title, **dict(zip(names, cells, strict=True))} for title, cells in self.table()]
        words = (f"{BEST} marks the best, {AS_GOOD} those as good within noise; {self.rule}.",)
        sections = [Section("comparison", "Side by side", tuple(self.verdict()[:-1]), words, {"figures": rows})]
        for name, e in zip(names, self.evaluations, strict=True):
            pictures = {
                caption: picture
                for s in e.sections
                if s.name in ("samples", "memory")
                for caption, picture in s.pictures.items()
            }
            sections.append(Section(name, name, (), e.verdict, e.facts, pictures))
        return write_report(path, f"Comparison of {' and '.join(names)}", {"runs": len(names), "rule": self.rule}, sections)


def compare(evaluations: Sequence[Evaluation]) -> Comparison:
    """Set evaluations side by side: `compare([reverie.evaluate(a), reverie.evaluate(b)])`."""
    if len(evaluations) < 2:
        raise UserError(f"a comparison needs at least two runs, got {len(evaluations)}")
    return Comparison(tuple(evaluations))
