"""Recovery of the entries of a sparse matrix from compressed products.

The plan depends only on the pattern and the colours.  An entry is read directly if it is the only one of its colour; acyclic
colourings use substitution along two-coloured trees, from the leaves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from reverie.base.errors import UserError


@dataclass(frozen=True, eq=False)
class Recovery:
    """The source of each entry.

    Entry k, at (rows[k], columns[k]), is element source[k] of the two compressed matrices, flattened by rows and
    concatenated.  In an acyclic colouring recovered entries are then subtracted level by level: value[to] -= value[minus] for
    each pair (to, minus), and value[mirror[fresh]] = value[fresh].  levels: (pairs (2, P), fresh (F,)).
    """

    rows: np.ndarray
    columns: np.ndarray
    source: np.ndarray
    levels: tuple[tuple[np.ndarray, np.ndarray], ...] = ()
    mirror: np.ndarray | None = None


def _is_unique(groups: np.ndarray, colors: np.ndarray, size: int) -> np.ndarray:
    """Return which entries are the only one of their colour in their group (row or column)."""
    key = groups.astype(np.int64) * (size + 1) + colors
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    same = ordered[1:] == ordered[:-1]
    unique_in_order = ~(np.append(False, same) | np.append(same, False))
    unique = np.empty(len(key), bool)
    unique[order] = unique_in_order
    return unique & (colors >= 0)


def entries(pattern: sparse.csr_array) -> tuple[np.ndarray, np.ndarray]:
    """Return the row and column indices of the entries, row by row."""
    return np.repeat(np.arange(pattern.shape[0]), np.diff(pattern.indptr)), pattern.indices.astype(np.int64)


def recovery(pattern: sparse.csr_array, problem: str, colors: np.ndarray, row_colors: np.ndarray) -> Recovery:
    """Return the recovery of the entries that a problem requires; raise an error if the colours do not allow it."""
    i, j = entries(pattern)
    if problem == "acyclic":
        return _by_substitution(pattern, i, j, colors)
    (m, n), k = pattern.shape, int(colors.max(initial=-1)) + 1
    by_row = _is_unique(i, colors[j], k)
    direct = i * k + colors[j]
    if problem == "star":
        by_column, other = _is_unique(j, colors[i], k), j * k + colors[i]
    else:
        r = int(row_colors.max(initial=-1)) + 1
        by_column, other = _is_unique(j, row_colors[i], r), m * k + row_colors[i] * n + j
    required = (i == j) if problem == "diagonal" else np.ones(len(i), bool)
    unrecovered = required & ~(by_row | by_column)
    if unrecovered.any():
        at = int(np.flatnonzero(unrecovered)[0])
        raise UserError(f"these colours do not separate entry ({i[at]}, {j[at]}) for the problem {problem!r}")
    source = np.where(by_row, direct, other)
    return Recovery(i[required], j[required], source[required])


def _by_substitution(pattern: sparse.csr_array, i: np.ndarray, j: np.ndarray, colors: np.ndarray) -> Recovery:
    """Remove the leaves of all two-coloured trees simultaneously until no edge is left.

    Row i of product c_j is the sum of all entries of row i in columns of colour c_j.  If all but one are known, subtraction
    gives the last.
    """
    k, n = int(colors.max(initial=-1)) + 1, pattern.shape[0]
    if (np.asarray(colors)[i] == np.asarray(colors)[j])[i != j].any():
        raise UserError("adjacent vertices must differ in an acyclic colouring, and two of them have the same colour")
    index = i * k + colors[j]
    back = sparse.csr_array((np.arange(1, len(i) + 1), (j, i)), shape=(n, n))
    back.sort_indices()
    mirror = back.data.astype(np.int64) - 1  # entries sorted by (j, i) are those of the transpose sorted by rows
    unknown_count = np.bincount(index, minlength=n * k)  # unknown entries in each number of the products
    recovered = np.zeros(len(i), bool)
    source = np.zeros(len(i), np.int64)
    levels: list[tuple[np.ndarray, np.ndarray]] = []
    by_index = np.argsort(index, kind="stable")
    starts = np.concatenate([[0], np.cumsum(unknown_count)])
    frontier = np.flatnonzero(unknown_count[index] == 1)
    while len(frontier):
        fresh = np.unique(
            np.minimum(frontier, np.where(unknown_count[index[mirror[frontier]]] == 1, mirror[frontier], frontier))
        )
        source[fresh] = index[fresh]
        # subtract known entries from their sums
        counts = starts[index[fresh] + 1] - starts[index[fresh]]
        to = np.repeat(fresh, counts)
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        subtracted = by_index[np.repeat(starts[index[fresh]], counts) + within]
        other = subtracted != to
        twins = mirror[fresh]
        levels.append((np.stack([to[other], subtracted[other]]), fresh))
        resolved = np.unique(np.concatenate([fresh, twins]))
        recovered[resolved] = True
        source[twins] = index[fresh]
        np.subtract.at(unknown_count, index[resolved], 1)
        touched = np.unique(index[resolved])
        counts = starts[touched + 1] - starts[touched]
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        candidates = by_index[np.repeat(starts[touched], counts) + within]
        frontier = candidates[(~recovered[candidates]) & (unknown_count[index[candidates]] == 1)]
    if not recovered.all():
        at = int(np.flatnonzero(~recovered)[0])
        raise UserError(f"these colours leave a two-coloured cycle through entry ({i[at]}, {j[at]}), so it cannot be recovered")
    return Recovery(i, j, source, tuple(levels), mirror)
