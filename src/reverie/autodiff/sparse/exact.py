"""The fewest colours of small graphs, by trying all colourings."""

from __future__ import annotations

from typing import Any

import numpy as np

from reverie.autodiff.sparse.check import check_acyclic, check_columns, check_diagonal, check_star
from reverie.autodiff.sparse.color import NONE, Coloring, as_pattern
from reverie.autodiff.sparse.recover import recovery
from reverie.base.errors import UserError, pick

LIMIT = 12  # columns: some seconds; the colourings of more are too many
KINDS = {"diagonal": check_diagonal, "acyclic": check_acyclic, "star": check_star, "columns": check_columns}


def _holds(problem: str, pattern: np.ndarray, colors: list[int]) -> bool:
    """Whether the colours of the first columns, and of the rows with them where there is a graph, break no rule."""
    k = len(colors)
    try:
        KINDS[problem](pattern[:, :k] if problem == "columns" else pattern[:k, :k], np.array(colors))
    except UserError:
        return False
    return True


def _extended(problem: str, pattern: np.ndarray, colors: list[int], most: int) -> list[int] | None:
    """Return a colouring of all columns with at most so many colours that begins with these, or None."""
    if len(colors) == pattern.shape[1]:
        return colors
    for c in range(min(most, max(colors, default=NONE) + 2)):  # colours beyond the first unused one differ only by name
        tried = [*colors, c]
        if _holds(problem, pattern, tried) and (found := _extended(problem, pattern, tried, most)) is not None:
            return found
    return None


def exact_color(pattern: Any, problem: str = "diagonal") -> Coloring:
    """Return a colouring with the fewest colours there are; its number is the chromatic number of the pattern's graph.

    problem: "diagonal" (neighbours differ), "acyclic", "star" or "columns" (distance 2).  With entries on the diagonal the
    numbers never fall in this order, as each kind is one of the kind before.  By trying all: for up to 12 columns.
    """
    pick(KINDS, problem, "colouring problem with one colour for each column")
    found = as_pattern(pattern)
    rows, columns = found.shape
    if columns > LIMIT:
        raise UserError(f"trying all colourings of {columns:,} columns takes too long (at most {LIMIT}); use color(...)")
    if problem != "columns" and rows != columns:
        raise UserError(f"a {problem} colouring is of a graph, and this pattern is {rows} x {columns}; use problem='columns'")
    if problem in ("star", "acyclic") and (found.toarray() != found.toarray().T).any():
        raise UserError(f"a {problem} colouring is for symmetric patterns, and this one is not; use problem='columns'")
    tried = (_extended(problem, found.toarray(), [], most) for most in range(columns + 1))
    colors = np.array(next(colors for colors in tried if colors is not None), np.int64)  # all different is always allowed
    none = np.full(rows, NONE, np.int64)
    return Coloring(problem, found, colors, none, recovery(found, problem, colors, none))
