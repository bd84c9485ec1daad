"""Directed graphical models: from arrows to a factorisation and back, and which variables tell of one another."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from reverie.base.errors import UserError, unknown
from reverie.families.factorisation import MOST, read

NAME = re.compile(r"[^\W\d][\w']*")

Names = str | Iterable[str]  # one name, or several


@dataclass(frozen=True)
class Plate:
    """A part of a graph of which there are several copies, as many as a letter says."""

    count: str
    nodes: frozenset[str]


@dataclass(frozen=True)
class BayesNet:
    """Variables and the arrows between them: p(nodes | given) = product over nodes v of p(v | parents of v).

    nodes: kept in topological order, and by name where that leaves a choice, so that equal graphs are equal; edges: pairs
    (parent, child); observed: nodes whose value is known of data, the others are latent; given: nodes without a factor of
    their own.  `Graph.from_arrows` and `Graph.from_factorisation` make them from text.
    """

    nodes: tuple[str, ...]
    edges: frozenset[tuple[str, str]]
    observed: frozenset[str] = frozenset()
    given: frozenset[str] = frozenset()
    plates: tuple[Plate, ...] = ()

    def __post_init__(self) -> None:
        named = set(self.nodes)
        if bad := [v for v in self.nodes if not NAME.fullmatch(v)]:
            raise UserError(f"{bad[0]!r} cannot be the name of a variable; begin with a letter, such as z_1")
        if len(named) < len(self.nodes):
            raise UserError(f"two variables have one name among {', '.join(self.nodes)}; rename one")
        inside = [v for plate in self.plates for v in plate.nodes]
        for v in [*(v for edge in sorted(self.edges) for v in edge), *self.observed, *self.given, *inside]:
            if v not in named:
                raise unknown(v, self.nodes, "variable")
        if told := sorted(child for _, child in self.edges if child in self.given):
            raise UserError(f"{told[0]} is given and has arrows to it; leave those out, or let it not be given")
        object.__setattr__(self, "nodes", _topological(self._parents, self._children))

    @cached_property
    def _parents(self) -> dict[str, frozenset[str]]:
        return _grouped(self.nodes, ((b, a) for a, b in self.edges))

    @cached_property
    def _children(self) -> dict[str, frozenset[str]]:
        return _grouped(self.nodes, self.edges)

    @classmethod
    def from_arrows(cls, text: str, observed: Iterable[str] = (), given: Iterable[str] = ()) -> BayesNet:
        """Make a graph of text such as `z_2 -> z_1 -> x; y -> x` or `y, z -> x`; a name without arrows is a node too."""
        nodes: dict[str, None] = {}
        edges = set()
        for line in filter(None, (line.strip() for line in re.split(r"[;\n]", text))):
            stops = [[name.strip() for name in stop.split(",")] for stop in line.split("->")]
            nodes.update(dict.fromkeys(name for stop in stops for name in stop))
            edges |= {(a, b) for left, right in pairwise(stops) for a in left for b in right}
        return cls(tuple(nodes), frozenset(edges), frozenset(observed), frozenset(given))

    @classmethod
    def from_factorisation(cls, text: str, observed: Iterable[str] = (), **numbers: int) -> BayesNet:
        """Make a graph of text such as `p(z) p(x | z)`; numbers: what letters of indices stand for, see `factorisation`."""
        left, factors = read(text, numbers)
        parents: dict[str, tuple[str, ...]] = {}
        for factor in factors:
            if len(factor.variables) != 1:
                raise UserError(f"{', '.join(factor.variables)} share a factor; give each its own: p(a | c) p(b | a, c)")
            (v,) = factor.variables
            if v in parents:
                raise UserError(f"{v} has two factors; write one, with all that it depends on behind the bar")
            parents[v] = factor.parents
        given = left.parents if left else ()
        if both := sorted(set(given) & set(parents)):
            raise UserError(f"{both[0]} is given and has a factor of its own; leave out one of the two")
        if left and set(left.variables) != set(parents):
            sides = f"{', '.join(sorted(left.variables))} on the left and {', '.join(sorted(parents))} on the right"
            raise UserError(f"both sides of a factorisation are of the same variables, got {sides}")
        for v, above in parents.items():
            if lost := [name for name in above if name not in parents and name not in given]:
                raise UserError(
                    f"{v} depends on {lost[0]}, which has no factor; add p({lost[0]}), or give it on a left side: "
                    f"p(... | {lost[0]}) = ..."
                )
        edges = frozenset((a, v) for v, above in parents.items() for a in above)
        return cls((*dict.fromkeys(given), *parents), edges, frozenset(observed), frozenset(given))

    def arrows(self) -> str:
        """Return the arrows as text that `from_arrows` reads."""
        lines = []
        for v in self.nodes:
            if children := [w for w in self.nodes if w in self.children(v)]:
                lines.append(f"{v} -> {', '.join(children)}")
            elif not self.parents(v):
                lines.append(v)
        return "; ".join(lines)

    def factorisation(self, letter: str = "p") -> str:
        """Return the factorisation as text that `from_factorisation` reads: `p(x, z) = p(z) p(x | z)`."""

        def told(variables: Iterable[str], parents: Iterable[str]) -> str:
            return f"{letter}({' | '.join(filter(None, (', '.join(variables), ', '.join(parents))))})"

        free = [v for v in self.nodes if v not in self.given]
        left = told(reversed(free), [v for v in self.nodes if v in self.given])
        right = " ".join(told([v], [w for w in self.nodes if w in self.parents(v)]) for v in free)
        return right if left == right else f"{left} = {right}"

    def parents(self, node: str) -> frozenset[str]:
        """Return the nodes with an arrow to this one."""
        return self._parents[node]

    def children(self, node: str) -> frozenset[str]:
        """Return the nodes that this one has an arrow to."""
        return self._children[node]

    def ancestors(self, nodes: Names) -> frozenset[str]:
        """Return the nodes from which arrows lead to these, and these themselves."""
        found, ahead = set[str](), list(self._known(nodes))
        while ahead:
            v = ahead.pop()
            if v not in found:
                found.add(v)
                ahead += self.parents(v)
        return frozenset(found)

    def markov_blanket(self, node: str) -> frozenset[str]:
        """Return parents, children and their other parents: given those, a node tells nothing of any other (Pearl 1988)."""
        (node,) = self._known(node)
        children = self.children(node)
        return (self.parents(node) | children | {a for child in children for a in self.parents(child)}) - {node}

    def d_separated(self, a: Names, b: Names, given: Names = ()) -> bool:
        """Tell whether the graph makes a and b independent once `given` is known, besides what the graph itself has as given.

        That is so where no path between them is open (Pearl 1988; Koller and Friedman 2009, algorithm 3.1): knowledge closes
        a variable on a path, but opens one at which two arrows meet, and so does knowledge of anything that follows from it.
        """
        left, right, told = self._known(a), self._known(b), self._known(given)
        if both := sorted(left & right | left & told | right & told):
            raise UserError(f"{both[0]} is named twice; d-separation is of two sets of variables given a third")
        known = told | (self.given - left - right)
        opened = self.ancestors(known)
        seen, ahead = set(), [(v, True) for v in left]
        while ahead:
            v, from_below = step = ahead.pop()
            if step in seen:
                continue
            seen.add(step)
            if v in right:
                return False
            if v not in known:
                ahead += [(w, False) for w in self.children(v)]
            if v not in known if from_below else v in opened:
                ahead += [(w, True) for w in self.parents(v)]
        return True

    def unrolled(self, **counts: int) -> BayesNet:
        """Return the graph with so many copies of each plate, v_1, v_2, ... of its node v: `graph.unrolled(N=3)`."""
        graph = self
        for count, n in counts.items():
            if count not in (known := [plate.count for plate in self.plates]):
                raise UserError(f"the graph has no plate {count}; it has {', '.join(known) or 'none'}")
            if not 1 <= n <= MOST:
                raise UserError(f"a plate has between 1 and {MOST} copies, got {count}={n}")
            graph = graph._copied(count, n)
        return graph

    def _copied(self, count: str, n: int) -> BayesNet:
        inside = {v for plate in self.plates if plate.count == count for v in plate.nodes}
        copies = {v: [f"{v}_{k + 1}" for k in range(n)] if v in inside else [v] for v in self.nodes}

        def all_of(nodes: Iterable[str]) -> frozenset[str]:
            return frozenset(copy for v in nodes for copy in copies[v])

        edges: set[tuple[str, str]] = set()
        for a, b in self.edges:
            together = zip(copies[a], copies[b], strict=True) if a in inside and b in inside else None
            edges |= set(together or ((c, d) for c in copies[a] for d in copies[b]))
        plates = tuple(replace(plate, nodes=all_of(plate.nodes)) for plate in self.plates if plate.count != count)
        nodes = tuple(copy for v in self.nodes for copy in copies[v])
        return BayesNet(nodes, frozenset(edges), all_of(self.observed), all_of(self.given), plates)

    def _known(self, names: Names) -> frozenset[str]:
        wanted = frozenset([names] if isinstance(names, str) else names)
        if wrong := sorted(wanted - set(self.nodes)):
            raise unknown(wrong[0], self.nodes, "variable")
        return wanted


def _grouped(nodes: Iterable[str], pairs: Iterable[tuple[str, str]]) -> dict[str, frozenset[str]]:
    """Return for each node those that stand second in its pairs."""
    found: dict[str, set[str]] = {v: set() for v in nodes}
    for a, b in pairs:
        found[a].add(b)
    return {v: frozenset(others) for v, others in found.items()}


def _topological(parents: Mapping[str, frozenset[str]], children: Mapping[str, frozenset[str]]) -> tuple[str, ...]:
    """Return nodes with parents before children, the first by name where there is a choice, or tell of a cycle."""
    waiting = {v: len(above) for v, above in parents.items()}
    free = sorted(v for v, count in waiting.items() if not count)
    order = []
    while free:
        v = heapq.heappop(free)
        order.append(v)
        del waiting[v]
        for w in children[v]:
            waiting[w] -= 1
            if not waiting[w]:
                heapq.heappush(free, w)
    if waiting:
        walk = [min(waiting)]
        while walk[-1] not in walk[:-1]:
            walk.append(min(a for a in parents[walk[-1]] if a in waiting))  # each that is left has a parent that is left
        ring = walk[walk.index(walk[-1]) :][::-1]
        raise UserError(f"the arrows go round, {' -> '.join(ring)}; no variable may depend on itself")
    return tuple(order)
