"""Vertex orders of greedy colouring."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import sparse

from reverie.base.errors import UserError

MAX_EDGES = 200_000_000  # of a column intersection graph, limited by memory

Graph = Callable[[], sparse.csr_array]  # the conflict graph, computed on demand


def intersections(pattern: sparse.csr_array) -> sparse.csr_array:
    """Return the column intersection graph: columns are adjacent if a row has entries in both."""
    work = int((np.diff(pattern.indptr).astype(np.int64) ** 2).sum())
    if work > MAX_EDGES:
        raise UserError(
            f"this order needs the column intersection graph, which has up to {work:,} edges here because some rows"
            " are nearly full; use order='natural' or 'random', or problem='both'"
        )
    return without_diagonal(sparse.csr_array(pattern.T.tocsr() @ pattern))


def without_diagonal(graph: sparse.csr_array) -> sparse.csr_array:
    """Return the off-diagonal entries of a square pattern."""
    coo = graph.tocoo()
    off = coo.row != coo.col
    return sparse.csr_array((np.ones(int(off.sum()), bool), (coo.row[off], coo.col[off])), shape=graph.shape)


def _natural(graph: Graph, n: int, seed: int) -> np.ndarray:
    return np.arange(n)


def _random(graph: Graph, n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).permutation(n)


def _largest_first(graph: Graph, n: int, seed: int) -> np.ndarray:
    return np.argsort(-np.diff(graph().indptr), kind="stable")


def _buckets(graph: sparse.csr_array, start: np.ndarray) -> np.ndarray:
    """Return vertices by highest key first; removing a vertex increases the keys of its neighbours by 1."""
    n = len(start)
    pointers, neighbours = graph.indptr.tolist(), graph.indices.tolist()
    key = start.tolist()
    low, high = min(key, default=0), max(key, default=0) + int(np.diff(graph.indptr).max(initial=0))
    heaps: list[list[int]] = [[] for _ in range(high - low + 1)]
    for v in range(n - 1, -1, -1):
        heaps[key[v] - low].append(v)
    order: list[int] = []
    removed, top = bytearray(n), high - low
    while len(order) < n:
        while not heaps[top]:
            top -= 1
        v = heaps[top].pop()
        if removed[v] or key[v] - low != top:
            continue  # an outdated entry
        removed[v] = 1
        order.append(v)
        for u in neighbours[pointers[v] : pointers[v + 1]]:
            if not removed[u]:
                key[u] += 1
                heaps[key[u] - low].append(u)
                top = max(top, key[u] - low)
    return np.array(order, np.int64)


def _smallest_last(graph: Graph, n: int, seed: int) -> np.ndarray:
    """Repeatedly remove the vertex of smallest degree in the remaining graph; return the reverse order."""
    conflicts = graph()
    return _buckets(conflicts, -np.diff(conflicts.indptr))[::-1].copy()


def _incidence_degree(graph: Graph, n: int, seed: int) -> np.ndarray:
    """Repeatedly choose the vertex with the most neighbours already chosen."""
    return _buckets(graph(), np.zeros(n, np.int64))


ORDERS: dict[str, Callable[[Graph, int, int], np.ndarray]] = {
    "natural": _natural,
    "largest-first": _largest_first,
    "smallest-last": _smallest_last,
    "incidence-degree": _incidence_degree,
    "random": _random,
}
