"""Checks of colourings against their definitions.  Each check raises UserError or returns None."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from reverie.autodiff.sparse.color import Coloring, as_pattern
from reverie.autodiff.sparse.recover import entries
from reverie.base.errors import UserError


def _duplicate(groups: np.ndarray, colors: np.ndarray) -> int | None:
    """Return an index whose (group, colour) is a duplicate, or None."""
    order = np.lexsort((colors, groups))
    same = (groups[order][1:] == groups[order][:-1]) & (colors[order][1:] == colors[order][:-1])
    return int(order[1:][same][0]) if same.any() else None


def check_columns(pattern: Any, colors: np.ndarray) -> None:
    """Every column with entries has a colour, and no row has two entries of one colour."""
    i, j = entries(as_pattern(pattern))
    if (uncolored := colors[j] < 0).any():
        raise UserError(f"column {j[uncolored][0]} has entries but no colour")
    if (at := _duplicate(i, colors[j])) is not None:
        raise UserError(f"row {i[at]} has two entries in columns of colour {colors[j[at]]}, one of them column {j[at]}")


def check_rows(pattern: Any, colors: np.ndarray) -> None:
    """As `check_columns`, for rows."""
    check_columns(as_pattern(pattern).T, colors)


def check_both(pattern: Any, colors: np.ndarray, row_colors: np.ndarray) -> None:
    """Every entry is the only one of its column colour in its row, or of its row colour in its column; -1 is uncoloured."""
    matrix = as_pattern(pattern).astype(np.int64)
    i, j = entries(matrix)
    in_rows = matrix @ (colors[:, None] == np.arange(colors.max(initial=0) + 1)).astype(np.int64)
    in_columns = matrix.T @ (row_colors[:, None] == np.arange(row_colors.max(initial=0) + 1)).astype(np.int64)
    by_column = (colors[j] >= 0) & (in_rows[i, colors[j]] == 1)
    by_row = (row_colors[i] >= 0) & (in_columns[j, row_colors[i]] == 1)
    if not (by_column | by_row).all():
        at = int(np.flatnonzero(~(by_column | by_row))[0])
        raise UserError(f"entry ({i[at]}, {j[at]}) is the only one of its colour neither in its row nor in its column")


def check_diagonal(pattern: Any, colors: np.ndarray) -> None:
    """Adjacent vertices differ, so the diagonal entry of each row is the only one of its colour (distance-1 colouring)."""
    i, j = entries(as_pattern(pattern))
    same = (i != j) & (colors[i] == colors[j])
    if same.any():
        at = int(np.flatnonzero(same)[0])
        raise UserError(f"{i[at]} and {j[at]} are neighbours and both have colour {colors[i[at]]}")


def _two_colored(pattern: Any, colors: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return each edge with the index of its connected component in the subgraph of its two colours."""
    check_diagonal(pattern, colors)
    matrix = as_pattern(pattern)
    mirrored: Any = matrix.T.tocsr()
    if (matrix != mirrored).nnz:
        raise UserError("star and acyclic colourings need a symmetric pattern, and this one is not")
    i, j = entries(matrix)
    i, j = i[i < j], j[i < j]
    low, high = np.minimum(colors[i], colors[j]), np.maximum(colors[i], colors[j])
    _, pair = np.unique(low * (colors.max(initial=0) + 1) + high, return_inverse=True)
    n = len(colors)
    ends = np.unique(np.concatenate([pair * n + i, pair * n + j]))  # each vertex once per pair of colours of its edges
    a, b = np.searchsorted(ends, pair * n + i), np.searchsorted(ends, pair * n + j)
    graph = sparse.coo_array((np.ones(len(a), bool), (a, b)), shape=(len(ends), len(ends)))
    _, parts = connected_components(graph, directed=False)
    return np.stack([i, j]), parts[a], parts


def check_star(pattern: Any, colors: np.ndarray) -> None:
    """Adjacent vertices differ and no path of four vertices has two colours: two-coloured components are stars."""
    (i, j), part, _ = _two_colored(pattern, colors)
    edges = np.bincount(part)
    ends, degrees = np.unique(np.concatenate([part * len(colors) + i, part * len(colors) + j]), return_counts=True)
    max_degrees = np.zeros_like(edges)
    np.maximum.at(max_degrees, ends // len(colors), degrees)
    if (bad := (edges > 2) & (max_degrees != edges)).any():  # a star's hub has all of its edges
        at = int(np.flatnonzero(bad[part])[0])
        raise UserError(f"a path of four vertices in the part of edge ({i[at]}, {j[at]}) has only two colours")


def check_acyclic(pattern: Any, colors: np.ndarray) -> None:
    """Adjacent vertices differ and every cycle has three colours: two-coloured components are trees."""
    (i, j), part, parts = _two_colored(pattern, colors)
    cyclic = np.bincount(part, minlength=len(np.unique(parts))) != np.bincount(parts) - 1
    if cyclic.any():
        at = int(np.flatnonzero(cyclic[part])[0])
        raise UserError(f"a cycle through the part of edge ({i[at]}, {j[at]}) has only two colours")


CHECKS: dict[str, Any] = {
    "columns": lambda c: check_columns(c.pattern, c.colors),
    "rows": lambda c: check_rows(c.pattern, c.row_colors),
    "both": lambda c: check_both(c.pattern, c.colors, c.row_colors),
    "star": lambda c: check_star(c.pattern, c.colors),
    "acyclic": lambda c: check_acyclic(c.pattern, c.colors),
    "diagonal": lambda c: check_diagonal(c.pattern, c.colors),
}


def check(coloring: Coloring) -> None:
    """Check a colouring against the definition of its problem."""
    CHECKS[coloring.problem](coloring)
