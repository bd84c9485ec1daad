"""How each entry of a sparse matrix is read from compressed products.

The plan follows from pattern and colours alone, whatever made them: an entry is read directly where it stands alone, and
in an acyclic colouring by substitution along two-coloured trees, leaves first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from reverie.base.errors import UserError


@dataclass(frozen=True, eq=False)
class Recovery:
    """Where the entries come from.

    Entry k, at (rows[k], columns[k]), is number source[k] of the two compressed matrices laid end to end, each flat by
    rows.  In an acyclic colouring entries found before are then taken away, level by level: for each pair (to, minus) of a
    level value[to] -= value[minus], and value[mirror[fresh]] = value[fresh].  levels: (pairs (2, P), fresh (F,)).
    """

    rows: np.ndarray
    columns: np.ndarray
    source: np.ndarray
    levels: tuple[tuple[np.ndarray, np.ndarray], ...] = ()
    mirror: np.ndarray | None = None


def _alone(groups: np.ndarray, colors: np.ndarray, size: int) -> np.ndarray:
    """Return which entries are the only one of their colour in their row (group)."""
    key = groups.astype(np.int64) * (size + 1) + colors
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    same = ordered[1:] == ordered[:-1]
    single = ~(np.append(False, same) | np.append(same, False))
    alone = np.empty(len(key), bool)
    alone[order] = single
    return alone & (colors >= 0)


def entries(pattern: sparse.csr_array) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows and columns of the entries, by rows."""
    return np.repeat(np.arange(pattern.shape[0]), np.diff(pattern.indptr)), pattern.indices.astype(np.int64)


def recovery(pattern: sparse.csr_array, problem: str, colors: np.ndarray, row_colors: np.ndarray) -> Recovery:
    """Return how the entries wanted by a problem are read; refuse colours that do not allow it."""
    i, j = entries(pattern)
    if problem == "acyclic":
        return _by_substitution(pattern, i, j, colors)
    (m, n), k = pattern.shape, int(colors.max(initial=-1)) + 1
    here = _alone(i, colors[j], k)
    direct = i * k + colors[j]
    if problem == "star":
        there, other = _alone(j, colors[i], k), j * k + colors[i]
    else:
        r = int(row_colors.max(initial=-1)) + 1
        there, other = _alone(j, row_colors[i], r), m * k + row_colors[i] * n + j
    wanted = (i == j) if problem == "diagonal" else np.ones(len(i), bool)
    lost = wanted & ~(here | there)
    if lost.any():
        at = int(np.flatnonzero(lost)[0])
        raise UserError(f"these colours do not separate entry ({i[at]}, {j[at]}) for the problem {problem!r}")
    source = np.where(here, direct, other)
    return Recovery(i[wanted], j[wanted], source[wanted])


def _by_substitution(pattern: sparse.csr_array, i: np.ndarray, j: np.ndarray, colors: np.ndarray) -> Recovery:
    """Peel the leaves off all two-coloured trees at once, again and again.

    In row i of product c_j stand all entries of i with neighbours of colour c_j.  Where all but one are known, that one is
    known.
    """
    k, n = int(colors.max(initial=-1)) + 1, pattern.shape[0]
    if (np.asarray(colors)[i] == np.asarray(colors)[j])[i != j].any():
        raise UserError("neighbours must differ in an acyclic colouring, and two of them have one colour")
    place = i * k + colors[j]
    back = sparse.csr_array((np.arange(1, len(i) + 1), (j, i)), shape=(n, n))
    back.sort_indices()
    mirror = back.data.astype(np.int64) - 1  # entries sorted by (j, i) are those of the transpose sorted by rows
    left = np.bincount(place, minlength=n * k)  # unknown entries in each place
    known = np.zeros(len(i), bool)
    source = np.zeros(len(i), np.int64)
    levels: list[tuple[np.ndarray, np.ndarray]] = []
    by_place = np.argsort(place, kind="stable")
    starts = np.concatenate([[0], np.cumsum(left)])
    frontier = np.flatnonzero(left[place] == 1)
    while len(frontier):
        fresh = np.unique(np.minimum(frontier, np.where(left[place[mirror[frontier]]] == 1, mirror[frontier], frontier)))
        source[fresh] = place[fresh]
        # what is known in the same places is taken away
        counts = starts[place[fresh] + 1] - starts[place[fresh]]
        to = np.repeat(fresh, counts)
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        minus = by_place[np.repeat(starts[place[fresh]], counts) + within]
        other = minus != to
        twins = mirror[fresh]
        levels.append((np.stack([to[other], minus[other]]), fresh))
        found = np.unique(np.concatenate([fresh, twins]))
        known[found] = True
        source[twins] = place[fresh]
        np.subtract.at(left, place[found], 1)
        touched = np.unique(place[found])
        counts = starts[touched + 1] - starts[touched]
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        near = by_place[np.repeat(starts[touched], counts) + within]
        frontier = near[(~known[near]) & (left[place[near]] == 1)]
    if not known.all():
        at = int(np.flatnonzero(~known)[0])
        raise UserError(
            f"these colours leave a two-coloured cycle through entry ({i[at]}, {j[at]}), so it cannot be solved for"
        )
    return Recovery(i, j, source, tuple(levels), mirror)
