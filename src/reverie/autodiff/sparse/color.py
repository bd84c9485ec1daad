"""Colourings: sets of columns or rows of a sparse matrix that share one product."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from reverie.autodiff.sparse import greedy
from reverie.autodiff.sparse.order import ORDERS, Graph, intersections, without_diagonal
from reverie.autodiff.sparse.path import Detected
from reverie.autodiff.sparse.recover import Recovery, recovery
from reverie.base.errors import UserError, pick

UNCOLORED = -1  # colour of a row or column without a product


@dataclass(frozen=True, eq=False)
class Coloring:
    """A pattern, the colours of its columns and rows, and how to recover each entry from the compressed products.

    The products are J S, one column per column colour, and R^T J, one row per row colour; S and R are the seed matrices.
    colors: (n,) of columns; row_colors: (m,); -1 for none.  Symmetric problems have column colours only.
    """

    problem: str
    pattern: sparse.csr_array
    colors: np.ndarray
    row_colors: np.ndarray
    recovery: Recovery

    @property
    def numbers(self) -> tuple[int, int]:
        """The numbers of products with columns and with rows."""
        return int(self.colors.max(initial=UNCOLORED)) + 1, int(self.row_colors.max(initial=UNCOLORED)) + 1

    @property
    def number(self) -> int:
        """The total number of products."""
        return sum(self.numbers)

    @property
    def seeds(self) -> tuple[np.ndarray, np.ndarray]:
        """The seed matrices of the columns, (n, colours), and of the rows, (m, colours)."""
        (k, r) = self.numbers
        return self.colors[:, None] == np.arange(k), self.row_colors[:, None] == np.arange(r)

    def compress(self, matrix: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return J S, (m, colours), and R^T J, (colours, n), of an explicit matrix."""
        columns, rows = self.seeds
        return np.asarray(matrix @ columns.astype(float)), np.asarray((matrix.T @ rows.astype(float)).T)


def _uncolored(n: int) -> np.ndarray:
    return np.full(n, UNCOLORED, np.int64)


Colors = tuple[np.ndarray, np.ndarray]
Ordering = Callable[[Graph, int, int], np.ndarray]
Solve = Callable[[sparse.csr_array, Ordering, int], Colors]


def _columns(pattern: sparse.csr_array, order: Ordering, seed: int) -> Colors:
    vertices = order(lambda: intersections(pattern), pattern.shape[1], seed)
    return greedy.distance_two(pattern, vertices), _uncolored(pattern.shape[0])


def _rows(pattern: sparse.csr_array, order: Ordering, seed: int) -> Colors:
    columns, rows = _columns(sparse.csr_array(pattern.T.tocsr()), order, seed)
    return rows, columns


def _both(pattern: sparse.csr_array, order: Ordering, seed: int) -> Colors:
    """Recover the fullest rows from products with rows and the rest from products with columns, or vice versa.

    All candidate thresholds on the number of entries are compared, so the result never needs more colours than one side alone.
    """
    best: Colors | None = None
    transposed = sparse.csr_array(pattern.T.tocsr())
    for side, matrix in enumerate((pattern, transposed)):
        counts = np.diff(matrix.indptr)
        for threshold in _thresholds(counts):
            full, rest = counts > threshold, counts <= threshold
            column_colors, _ = _columns(_with_rows(matrix, rest), order, seed)
            _, row_colors = _rows(_with_rows(matrix, full), order, seed)
            column_colors = np.where(np.diff(_with_rows(matrix, rest).tocsc().indptr) > 0, column_colors, UNCOLORED)
            row_colors = np.where(full, row_colors, UNCOLORED)
            candidate = (row_colors, column_colors) if side else (column_colors, row_colors)
            if best is None or _count(candidate) < _count(best):
                best = candidate
    assert best is not None
    return best


def _thresholds(counts: np.ndarray, max_cuts: int = 12) -> np.ndarray:
    """Return up to `max_cuts` thresholds of the number of entries, in increasing order, including the highest."""
    levels = np.unique(np.append(counts, 0))
    return np.asarray(levels[np.unique(np.linspace(0, len(levels) - 1, max_cuts).round().astype(int))])


def _count(colors: Colors) -> int:
    return sum(int(c.max(initial=UNCOLORED)) + 1 for c in colors)


def _with_rows(pattern: sparse.csr_array, chosen: np.ndarray) -> sparse.csr_array:
    mask = np.repeat(chosen, np.diff(pattern.indptr))
    pointers = np.concatenate([[0], np.cumsum(np.diff(pattern.indptr) * chosen)])
    return sparse.csr_array((np.ones(int(mask.sum()), bool), pattern.indices[mask], pointers), shape=pattern.shape)


def _symmetric(method: Callable[[sparse.csr_array, np.ndarray], np.ndarray], what: str) -> Solve:
    def solve(pattern: sparse.csr_array, order: Ordering, seed: int) -> Colors:
        rows, columns = pattern.shape
        mirrored: Any = pattern.T.tocsr()
        if rows != columns or (pattern != mirrored).nnz:
            raise UserError(f"a {what} colouring needs a symmetric pattern, and this one is not; use problem='columns'")
        graph = without_diagonal(pattern)
        return method(graph, order(lambda: graph, rows, seed)), _uncolored(rows)

    return solve


def _star(pattern: sparse.csr_array, order: Ordering, seed: int) -> Colors:
    """Return a greedy star colouring, or the distance-2 colouring of columns if it has fewer colours.

    Distance-2 colouring needs as many colours as the fullest row has entries, so it is tried only if the star colouring has
    more.
    """
    colors = _symmetric(greedy.star, "star")(pattern, order, seed)
    n = pattern.shape[0]
    filled = sparse.csr_array(pattern + sparse.eye_array(n, dtype=bool, format="csr"))
    if _count(colors) <= np.diff(filled.indptr).max(initial=0):
        return colors
    return min(colors, _columns(filled, order, seed), key=_count)


def _diagonal(pattern: sparse.csr_array, order: Ordering, seed: int) -> Colors:
    rows, columns = pattern.shape
    if rows != columns:
        raise UserError(f"the problem 'diagonal' needs a square pattern, got {rows} x {columns}")
    graph = without_diagonal(sparse.csr_array(pattern + pattern.T.tocsr()))
    return greedy.distance_one(graph, order(lambda: graph, rows, seed)), _uncolored(rows)


PROBLEMS: dict[str, Solve] = {
    "columns": _columns,  # distance-2 colouring of columns: products J v
    "rows": _rows,  # distance-2 colouring of rows: products u^T J
    "both": _both,  # full rows by products with rows, the others by products with columns
    "star": _star,  # symmetric, direct recovery
    "acyclic": _symmetric(greedy.acyclic, "acyclic"),  # symmetric, recovery by substitution
    "diagonal": _diagonal,  # only the diagonal: distance-1 colouring
}


def as_pattern(matrix: Any) -> sparse.csr_array:
    """Return the boolean pattern of a sparse or dense matrix, sorted, without explicit zeros or duplicates."""
    array: Any = matrix if sparse.issparse(matrix) else np.asarray(matrix) != 0
    if array.ndim != 2:
        raise UserError(f"a pattern must be two-dimensional, got the shape {array.shape}")
    csr = sparse.csr_array(array).astype(bool)
    csr.sum_duplicates()
    csr.eliminate_zeros()
    if isinstance(matrix, Detected):
        csr = Detected(csr)
        csr.path = matrix.path
    return csr


def color(pattern: Any, problem: str = "columns", order: str = "natural", seed: int = 0) -> Coloring:
    """Colour a sparsity pattern greedily, so that its matrix can be recovered from few products.

    pattern: (m, n), scipy.sparse or array; problem: a name of PROBLEMS; order: a name of ORDERS; seed: of order "random".
    """
    matrix = as_pattern(pattern)
    colors, row_colors = pick(PROBLEMS, problem, "colouring problem")(matrix, pick(ORDERS, order, "order"), seed)
    return Coloring(problem, matrix, colors, row_colors, recovery(matrix, problem, colors, row_colors))
