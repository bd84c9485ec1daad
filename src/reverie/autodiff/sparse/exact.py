"""Optimal colourings of small graphs by exhaustive search."""

from __future__ import annotations

from typing import Any

import numpy as np

from reverie.autodiff.sparse.check import check_acyclic, check_columns, check_diagonal, check_star
from reverie.autodiff.sparse.color import UNCOLORED, Coloring, as_pattern
from reverie.autodiff.sparse.recover import recovery
from reverie.base.errors import UserError, pick

MAX_COLUMNS = 12  # a search that takes seconds; it is exponential
CHECKS = {"diagonal": check_diagonal, "acyclic": check_acyclic, "star": check_star, "columns": check_columns}


def _is_valid(problem: str, pattern: np.ndarray, colors: list[int]) -> bool:
    """Whether a partial colouring of the first columns is valid."""
    k = len(colors)
    try:
        CHECKS[problem](pattern[:, :k] if problem == "columns" else pattern[:k, :k], np.array(colors))
    except UserError:
        return False
    return True


def _extend(problem: str, pattern: np.ndarray, colors: list[int], max_colors: int) -> list[int] | None:
    """Return an extension of a partial colouring to all columns with at most `max_colors` colours, or None."""
    if len(colors) == pattern.shape[1]:
        return colors
    # colours beyond the first unused one are equivalent to it
    for c in range(min(max_colors, max(colors, default=UNCOLORED) + 2)):
        candidate = [*colors, c]
        if (
            _is_valid(problem, pattern, candidate)
            and (extended := _extend(problem, pattern, candidate, max_colors)) is not None
        ):
            return extended
    return None


def exact_color(pattern: Any, problem: str = "diagonal") -> Coloring:
    """Return a colouring with the fewest colours; its number is the chromatic number of the pattern's graph.

    problem: "diagonal" (distance 1), "acyclic", "star" or "columns" (distance 2).  If the diagonal has entries, the numbers
    increase in this order, because each problem constrains the one before.  Exhaustive search, for up to 12 columns.
    """
    pick(CHECKS, problem, "colouring problem with one colour for each column")
    matrix = as_pattern(pattern)
    rows, columns = matrix.shape
    if columns > MAX_COLUMNS:
        raise UserError(f"exhaustive search supports at most {MAX_COLUMNS} columns, got {columns:,}; use color(...)")
    if problem != "columns" and rows != columns:
        raise UserError(f"a {problem} colouring needs a square pattern, got {rows} x {columns}; use problem='columns'")
    if problem in ("star", "acyclic") and (matrix.toarray() != matrix.toarray().T).any():
        raise UserError(f"a {problem} colouring needs a symmetric pattern, and this one is not; use problem='columns'")
    attempts = (_extend(problem, matrix.toarray(), [], max_colors) for max_colors in range(columns + 1))
    colors = np.array(next(colors for colors in attempts if colors is not None), np.int64)  # distinct colours are always valid
    uncolored = np.full(rows, UNCOLORED, np.int64)
    return Coloring(problem, matrix, colors, uncolored, recovery(matrix, problem, colors, uncolored))
