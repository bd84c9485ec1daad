"""In which order a greedy colouring visits the vertices of a graph."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import sparse

from reverie.base.errors import UserError

GRAPH_LIMIT = 200_000_000  # entries of an intersection graph that still fit in memory

Graph = Callable[[], sparse.csr_array]  # the conflict graph, made only if an order asks for it


def intersections(pattern: sparse.csr_array) -> sparse.csr_array:
    """Return the graph whose vertices are the columns, two being joined if some row has entries in both."""
    work = int((np.diff(pattern.indptr).astype(np.int64) ** 2).sum())
    if work > GRAPH_LIMIT:
        raise UserError(
            f"this order needs the graph of columns that share a row, which has up to {work:,} edges here because some rows"
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
    """Take vertices one by one, always the one with the highest key; a vertex's key grows by 1 as each neighbour goes."""
    n = len(start)
    pointers, neighbours = graph.indptr.tolist(), graph.indices.tolist()
    key = start.tolist()
    low, high = min(key, default=0), max(key, default=0) + int(np.diff(graph.indptr).max(initial=0))
    heaps: list[list[int]] = [[] for _ in range(high - low + 1)]
    for v in range(n - 1, -1, -1):
        heaps[key[v] - low].append(v)
    order: list[int] = []
    taken, top = bytearray(n), high - low
    while len(order) < n:
        while not heaps[top]:
            top -= 1
        v = heaps[top].pop()
        if taken[v] or key[v] - low != top:
            continue  # an old place of a vertex that has moved on
        taken[v] = 1
        order.append(v)
        for u in neighbours[pointers[v] : pointers[v + 1]]:
            if not taken[u]:
                key[u] += 1
                heaps[key[u] - low].append(u)
                top = max(top, key[u] - low)
    return np.array(order, np.int64)


def _smallest_last(graph: Graph, n: int, seed: int) -> np.ndarray:
    """Remove the vertex of smallest degree in what is left, again and again; the removed come in reverse."""
    found = graph()
    return _buckets(found, -np.diff(found.indptr))[::-1].copy()


def _incidence_degree(graph: Graph, n: int, seed: int) -> np.ndarray:
    """Take the vertex with most neighbours taken already."""
    return _buckets(graph(), np.zeros(n, np.int64))


ORDERS: dict[str, Callable[[Graph, int, int], np.ndarray]] = {
    "natural": _natural,
    "largest-first": _largest_first,
    "smallest-last": _smallest_last,
    "incidence-degree": _incidence_degree,
    "random": _random,
}
