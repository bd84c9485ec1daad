"""Greedy colourings: each vertex in turn takes the first valid colour."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from scipy import sparse

Lists = list[list[int]]


def lists(matrix: sparse.csr_array) -> Lists:
    """Return the column indices of each row as Python lists, for fast loops."""
    flat, ends = matrix.indices.tolist(), matrix.indptr.tolist()
    return [flat[a:b] for a, b in pairwise(ends)]


def _first_free(used: int) -> int:
    """Return the lowest bit that is not set."""
    return (~used & (used + 1)).bit_length() - 1


def distance_two(pattern: sparse.csr_array, order: np.ndarray) -> np.ndarray:
    """Colour columns so that no row has two entries of one colour.

    The colours used in each row are the bits of an integer, so the cost of a column is its number of entries.
    """
    rows_of = lists(sparse.csr_array(pattern.T.tocsr()))
    used_in_row = [0] * pattern.shape[0]
    colors = [0] * pattern.shape[1]
    for v in order.tolist():
        used = 0
        for r in rows_of[v]:
            used |= used_in_row[r]
        colors[v] = c = _first_free(used)
        bit = 1 << c
        for r in rows_of[v]:
            used_in_row[r] |= bit
    return np.array(colors, np.int64)


def distance_one(graph: sparse.csr_array, order: np.ndarray) -> np.ndarray:
    """Colour vertices so that neighbours differ."""
    neighbours = lists(graph)
    bits = [0] * graph.shape[0]
    colors = [0] * graph.shape[0]
    for v in order.tolist():
        used = 0
        for w in neighbours[v]:
            used |= bits[w]
        colors[v] = c = _first_free(used)
        bits[v] = 1 << c
    return np.array(colors, np.int64)


def star(graph: sparse.csr_array, order: np.ndarray) -> np.ndarray:
    """Colour vertices so that neighbours differ and no path of four vertices has only two colours.

    Edges of two colours then form stars; each is stored with its hub (Gebremedhin, Tarafdar, Manne and Pothen,
    "New acyclic and star coloring algorithms with application to computing Hessians", SISC 29, 2007, algorithm 4.1).
    """
    neighbours = lists(graph)
    n = graph.shape[0]
    color = [-1] * n
    star_of: dict[int, int] = {}  # edge -> index of its star
    hub: list[int] = []  # -1 while a star is a single edge

    def edge(a: int, b: int) -> int:
        return a * n + b if a < b else b * n + a

    for v in order.tolist():
        used = 0
        first: dict[int, int] = {}  # colour -> first neighbour of that colour
        processed: set[int] = set()
        colored = [w for w in neighbours[v] if color[w] >= 0]
        for w in colored:
            c = color[w]
            used |= 1 << c
            q = first.get(c)
            if q is None:
                first[c] = w
                for x in neighbours[w]:
                    if color[x] >= 0 and hub[star_of[edge(w, x)]] == x:
                        used |= 1 << color[x]
            else:  # v is the hub of its neighbours of colour c, so their other neighbours cannot have v's colour
                for u in (q, w):
                    if u not in processed:
                        processed.add(u)
                        for x in neighbours[u]:
                            if color[x] >= 0:
                                used |= 1 << color[x]
        color[v] = own_color = _first_free(used)
        for w in colored:
            joined = next((x for x in neighbours[w] if x != v and color[x] == own_color), None)
            q = first[color[w]]
            if joined is not None:
                star_of[edge(v, w)] = s = star_of[edge(w, joined)]
                hub[s] = w
            elif q != w:
                star_of[edge(v, w)] = s = star_of[edge(v, q)]
                hub[s] = v
            else:
                star_of[edge(v, w)] = len(hub)
                hub.append(-1)
    return np.array(color, np.int64)


def acyclic(graph: sparse.csr_array, order: np.ndarray) -> np.ndarray:
    """Colour vertices so that neighbours differ and every cycle has three colours.

    Edges of two colours then form trees, stored as disjoint sets (Gebremedhin et al. 2007, algorithm 3.1).
    """
    neighbours = lists(graph)
    n = graph.shape[0]
    color = [-1] * n
    edge_index: dict[int, int] = {}  # edge -> index in the disjoint sets
    parent: list[int] = []

    def find(a: int, b: int) -> int:
        e = edge_index[a * n + b if a < b else b * n + a]
        while parent[e] != e:
            parent[e] = e = parent[parent[e]]
        return e

    for v in order.tolist():
        used = 0
        colored = [w for w in neighbours[v] if color[w] >= 0]
        for w in colored:
            used |= 1 << color[w]
        visited: dict[int, int] = {}  # tree -> the neighbour of v through which it was reached
        for w in colored:
            for x in neighbours[w]:
                if color[x] >= 0 and not used >> color[x] & 1:
                    tree = find(w, x)
                    if visited.setdefault(tree, w) != w:
                        used |= 1 << color[x]  # v would close a cycle
        color[v] = own_color = _first_free(used)
        first: dict[int, int] = {}
        for w in colored:
            e = len(parent)
            edge_index[v * n + w if v < w else w * n + v] = e
            q = first.setdefault(color[w], w)
            parent.append(e if q == w else find(v, q))
        for w in colored:
            for x in neighbours[w]:
                if x != v and color[x] == own_color:
                    a, b = find(v, w), find(w, x)
                    parent[a] = b
    return np.array(color, np.int64)
