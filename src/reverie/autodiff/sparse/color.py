"""Colourings: which columns or rows of a sparse matrix share one product."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from reverie.autodiff.sparse import greedy
from reverie.autodiff.sparse.order import ORDERS, Graph, intersections, without_diagonal
from reverie.autodiff.sparse.recover import Recovery, recovery
from reverie.autodiff.sparse.way import Detected
from reverie.base.errors import UserError, pick

NONE = -1  # the colour of a row or column that takes part in no product


@dataclass(frozen=True, eq=False)
class Coloring:
    """A pattern, the colours of its columns and rows, and how each entry is read from the compressed products.

    The products are J S, one column for each column colour, and R^T J, one row for each row colour; S and R are the seed
    matrices.  colors: (n,) of columns; row_colors: (m,); -1 where there is none.  For symmetric problems they are one.
    """

    problem: str
    pattern: sparse.csr_array
    colors: np.ndarray
    row_colors: np.ndarray
    recovery: Recovery

    @property
    def numbers(self) -> tuple[int, int]:
        """How many products there are with columns and with rows."""
        return int(self.colors.max(initial=NONE)) + 1, int(self.row_colors.max(initial=NONE)) + 1

    @property
    def number(self) -> int:
        """How many products the whole matrix takes."""
        return sum(self.numbers)

    @property
    def seeds(self) -> tuple[np.ndarray, np.ndarray]:
        """The seed matrices of the columns, (n, colours), and of the rows, (m, colours)."""
        (k, r) = self.numbers
        return self.colors[:, None] == np.arange(k), self.row_colors[:, None] == np.arange(r)

    def compress(self, matrix: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return J S, (m, colours), and R^T J, (colours, n), of a matrix that is at hand."""
        columns, rows = self.seeds
        return np.asarray(matrix @ columns.astype(float)), np.asarray((matrix.T @ rows.astype(float)).T)


def _nothing(n: int) -> np.ndarray:
    return np.full(n, NONE, np.int64)


Colors = tuple[np.ndarray, np.ndarray]
Ordering = Callable[[Graph, int, int], np.ndarray]
Solve = Callable[[sparse.csr_array, Ordering, int], Colors]


def _columns(pattern: sparse.csr_array, order: Ordering, seed: int) -> Colors:
    chosen = order(lambda: intersections(pattern), pattern.shape[1], seed)
    return greedy.distance_two(pattern, chosen), _nothing(pattern.shape[0])


def _rows(pattern: sparse.csr_array, order: Ordering, seed: int) -> Colors:
    columns, rows = _columns(sparse.csr_array(pattern.T.tocsr()), order, seed)
    return rows, columns


def _both(pattern: sparse.csr_array, order: Ordering, seed: int) -> Colors:
    """Read the fullest rows from products with rows and the rest from products with columns, or the other way round.

    Where to cut is tried at each number of entries a row (or column) has, so it never takes more than the better side.
    """
    best: Colors | None = None
    flipped = sparse.csr_array(pattern.T.tocsr())
    for side, matrix in enumerate((pattern, flipped)):
        counts = np.diff(matrix.indptr)
        for cut in _cuts(counts):
            full, rest = counts > cut, counts <= cut
            thin, _ = _columns(_with_rows(matrix, rest), order, seed)
            _, thick = _rows(_with_rows(matrix, full), order, seed)
            thin = np.where(np.diff(_with_rows(matrix, rest).tocsc().indptr) > 0, thin, NONE)
            thick = np.where(full, thick, NONE)
            tried = (thick, thin) if side else (thin, thick)
            if best is None or _total(tried) < _total(best):
                best = tried
    assert best is not None
    return best


def _cuts(counts: np.ndarray, most: int = 12) -> np.ndarray:
    """Return up to `most` numbers of entries to cut at, the fewest first, always with the highest."""
    levels = np.unique(np.append(counts, 0))
    return np.asarray(levels[np.unique(np.linspace(0, len(levels) - 1, most).round().astype(int))])


def _total(colors: Colors) -> int:
    return sum(int(c.max(initial=NONE)) + 1 for c in colors)


def _with_rows(pattern: sparse.csr_array, chosen: np.ndarray) -> sparse.csr_array:
    kept = np.repeat(chosen, np.diff(pattern.indptr))
    pointers = np.concatenate([[0], np.cumsum(np.diff(pattern.indptr) * chosen)])
    return sparse.csr_array((np.ones(int(kept.sum()), bool), pattern.indices[kept], pointers), shape=pattern.shape)


def _symmetric(method: Callable[[sparse.csr_array, np.ndarray], np.ndarray], what: str) -> Solve:
    def solve(pattern: sparse.csr_array, order: Ordering, seed: int) -> Colors:
        rows, columns = pattern.shape
        mirrored: Any = pattern.T.tocsr()
        if rows != columns or (pattern != mirrored).nnz:
            raise UserError(f"a {what} colouring is for symmetric patterns, and this one is not; use problem='columns'")
        graph = without_diagonal(pattern)
        return method(graph, order(lambda: graph, rows, seed)), _nothing(rows)

    return solve


def _star(pattern: sparse.csr_array, order: Ordering, seed: int) -> Colors:
    """Colour greedily for stars, or take the columns' colours if they are fewer: at distance 2 all paths have three colours.

    Columns need as many colours as the fullest row has entries, so where stars need no more there is nothing to gain.
    """
    found = _symmetric(greedy.star, "star")(pattern, order, seed)
    n = pattern.shape[0]
    filled = sparse.csr_array(pattern + sparse.eye_array(n, dtype=bool, format="csr"))
    if _total(found) <= np.diff(filled.indptr).max(initial=0):
        return found
    return min(found, _columns(filled, order, seed), key=_total)


def _diagonal(pattern: sparse.csr_array, order: Ordering, seed: int) -> Colors:
    rows, columns = pattern.shape
    if rows != columns:
        raise UserError(f"only a square matrix has a diagonal to colour for, and this one is {rows} x {columns}")
    graph = without_diagonal(sparse.csr_array(pattern + pattern.T.tocsr()))
    return greedy.distance_one(graph, order(lambda: graph, rows, seed)), _nothing(rows)


PROBLEMS: dict[str, Solve] = {
    "columns": _columns,  # distance-2 colouring of columns: products J v
    "rows": _rows,  # distance-2 colouring of rows: products u^T J
    "both": _both,  # full rows by products with rows, the others by products with columns
    "star": _star,  # symmetric, every entry read directly
    "acyclic": _symmetric(greedy.acyclic, "acyclic"),  # symmetric, entries found by substitution along trees
    "diagonal": _diagonal,  # only the diagonal: distance-1 colouring
}


def as_pattern(matrix: Any) -> sparse.csr_array:
    """Return the pattern of a matrix, sparse or dense: boolean, sorted, without explicit zeros or duplicates."""
    given: Any = matrix if sparse.issparse(matrix) else np.asarray(matrix) != 0
    if given.ndim != 2:
        raise UserError(f"a pattern has rows and columns, and this array is of shape {given.shape}")
    csr = sparse.csr_array(given).astype(bool)
    csr.sum_duplicates()
    csr.eliminate_zeros()
    if isinstance(matrix, Detected):
        csr = Detected(csr)
        csr.way = matrix.way
    return csr


def color(pattern: Any, problem: str = "columns", order: str = "natural", seed: int = 0) -> Coloring:
    """Colour a sparsity pattern greedily so that its matrix can be recovered from few products.

    pattern: (m, n), scipy.sparse or array; problem: a name of PROBLEMS; order: a name of ORDERS; seed: of order "random".
    """
    found = as_pattern(pattern)
    colors, row_colors = pick(PROBLEMS, problem, "colouring problem")(found, pick(ORDERS, order, "order"), seed)
    return Coloring(problem, found, colors, row_colors, recovery(found, problem, colors, row_colors))
