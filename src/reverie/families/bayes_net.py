"""Bayesian networks: directed graphical models from arrows or a factorisation, with d-separation."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from reverie.base.errors import UserError, unknown
from reverie.families.factorisation import MAX_VALUE, read

NAME = re.compile(r"[^\W\d][\w']*")

Names = str | Iterable[str]  # one name, or several


@dataclass(frozen=True)
class Plate:
    """Nodes that are repeated; `count` is the letter of the number of copies."""

    count: str
    nodes: frozenset[str]


@dataclass(frozen=True)
class BayesNet:
    """A Bayesian network: p(nodes | given) = product over nodes v of p(v | parents of v).

    nodes: in topological order, ties by name, so that equal graphs are equal; edges: pairs (parent, child); observed: observed
    nodes, the others are latent; given: nodes without a factor.  `BayesNet.from_arrows` and `BayesNet.from_factorisation` parse
    text.
    """

    nodes: tuple[str, ...]
    edges: frozenset[tuple[str, str]]
    observed: frozenset[str] = frozenset()
    given: frozenset[str] = frozenset()
    plates: tuple[Plate, ...] = ()

    def __post_init__(self) -> None:
        named = set(self.nodes)
        if bad := [v for v in self.nodes if not NAME.fullmatch(v)]:
            raise UserError(f"invalid variable name: {bad[0]!r}; begin with a letter, such as z_1")
        if len(named) < len(self.nodes):
            raise UserError(f"two variables have the same name: {', '.join(self.nodes)}; rename one")
        inside = [v for plate in self.plates for v in plate.nodes]
        for v in [*(v for edge in sorted(self.edges) for v in edge), *self.observed, *self.given, *inside]:
            if v not in named:
                raise unknown(v, self.nodes, "variable")
        if children := sorted(child for _, child in self.edges if child in self.given):
            raise UserError(f"{children[0]} is given and has parents; remove the arrows to it, or do not list it as given")
        object.__setattr__(self, "nodes", _topological(self._parents, self._children))

    @cached_property
    def _parents(self) -> dict[str, frozenset[str]]:
        return _grouped(self.nodes, ((b, a) for a, b in self.edges))

    @cached_property
    def _children(self) -> dict[str, frozenset[str]]:
        return _grouped(self.nodes, self.edges)

    @classmethod
    def from_arrows(cls, text: str, observed: Iterable[str] = (), given: Iterable[str] = ()) -> BayesNet:
        """Parse arrows such as `z_2 -> z_1 -> x; y -> x` or `y, z -> x`; a name without arrows is also a node."""
        nodes: dict[str, None] = {}
        edges = set()
        for line in filter(None, (line.strip() for line in re.split(r"[;\n]", text))):
            stops = [[name.strip() for name in stop.split(",")] for stop in line.split("->")]
            nodes.update(dict.fromkeys(name for stop in stops for name in stop))
            edges |= {(a, b) for left, right in pairwise(stops) for a in left for b in right}
        return cls(tuple(nodes), frozenset(edges), frozenset(observed), frozenset(given))

    @classmethod
    def from_factorisation(cls, text: str, observed: Iterable[str] = (), **numbers: int) -> BayesNet:
        """Parse a factorisation such as `p(z) p(x | z)`; numbers: values of letters in indices, see `factorisation`."""
        left, factors = read(text, numbers)
        parents: dict[str, tuple[str, ...]] = {}
        for factor in factors:
            if len(factor.variables) != 1:
                raise UserError(f"{', '.join(factor.variables)} share a factor; give each its own: p(a | c) p(b | a, c)")
            (v,) = factor.variables
            if v in parents:
                raise UserError(f"{v} has two factors; write one with all its parents behind the bar")
            parents[v] = factor.parents
        given = left.parents if left else ()
        if both := sorted(set(given) & set(parents)):
            raise UserError(f"{both[0]} is given and has a factor; remove one of the two")
        if left and set(left.variables) != set(parents):
            sides = f"{', '.join(sorted(left.variables))} on the left and {', '.join(sorted(parents))} on the right"
            raise UserError(f"the sides of the factorisation have different variables: {sides}; use the same on both")
        for v, above in parents.items():
            if lost := [name for name in above if name not in parents and name not in given]:
                raise UserError(
                    f"{v} depends on {lost[0]}, which has no factor; add p({lost[0]}), or list it as given on the left side: "
                    f"p(... | {lost[0]}) = ..."
                )
        edges = frozenset((a, v) for v, above in parents.items() for a in above)
        return cls((*dict.fromkeys(given), *parents), edges, frozenset(observed), frozenset(given))

    def arrows(self) -> str:
        """Return the arrows as text for `from_arrows`."""
        lines = []
        for v in self.nodes:
            if children := [w for w in self.nodes if w in self.children(v)]:
                lines.append(f"{v} -> {', '.join(children)}")
            elif not self.parents(v):
                lines.append(v)
        return "; ".join(lines)

    def factorisation(self, letter: str = "p") -> str:
        """Return the factorisation as text for `from_factorisation`: `p(x, z) = p(z) p(x | z)`."""

        def factor(variables: Iterable[str], parents: Iterable[str]) -> str:
            return f"{letter}({' | '.join(filter(None, (', '.join(variables), ', '.join(parents))))})"

        free = [v for v in self.nodes if v not in self.given]
        left = factor(reversed(free), [v for v in self.nodes if v in self.given])
        right = " ".join(factor([v], [w for w in self.nodes if w in self.parents(v)]) for v in free)
        return right if left == right else f"{left} = {right}"

    def parents(self, node: str) -> frozenset[str]:
        """Return the parents of a node."""
        return self._parents[node]

    def children(self, node: str) -> frozenset[str]:
        """Return the children of a node."""
        return self._children[node]

    def ancestors(self, nodes: Names) -> frozenset[str]:
        """Return the ancestors of nodes, including the nodes."""
        found, ahead = set[str](), list(self._known(nodes))
        while ahead:
            v = ahead.pop()
            if v not in found:
                found.add(v)
                ahead += self.parents(v)
        return frozenset(found)

    def markov_blanket(self, node: str) -> frozenset[str]:
        """Return the Markov blanket: parents, children, and the children's other parents (Pearl 1988)."""
        (node,) = self._known(node)
        children = self.children(node)
        return (self.parents(node) | children | {a for child in children for a in self.parents(child)}) - {node}

    def d_separated(self, a: Names, b: Names, given: Names = ()) -> bool:
        """Return whether a and b are independent given `given` and the graph's own given nodes.

        This holds if no path between them is active (Pearl 1988; Koller and Friedman 2009, algorithm 3.1): an observed node
        blocks a path, unless two arrows meet there; a collider blocks it unless the collider or a descendant is observed.
        """
        left, right, condition = self._known(a), self._known(b), self._known(given)
        if both := sorted(left & right | left & condition | right & condition):
            raise UserError(f"{both[0]} is in two of the sets; d-separation needs disjoint sets of variables")
        known = condition | (self.given - left - right)
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
        """Return the graph with copies of the nodes v of each plate, v_1, v_2, ...: `graph.unrolled(N=3)`."""
        graph = self
        for count, n in counts.items():
            if count not in (known := [plate.count for plate in self.plates]):
                raise UserError(f"the graph has no plate {count}; its plates: {', '.join(known) or 'none'}")
            if not 1 <= n <= MAX_VALUE:
                raise UserError(f"the number of copies must be between 1 and {MAX_VALUE}, got {count}={n}")
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
        selected = frozenset([names] if isinstance(names, str) else names)
        if wrong := sorted(selected - set(self.nodes)):
            raise unknown(wrong[0], self.nodes, "variable")
        return selected


def _grouped(nodes: Iterable[str], pairs: Iterable[tuple[str, str]]) -> dict[str, frozenset[str]]:
    """Return for each node the second elements of its pairs."""
    grouped: dict[str, set[str]] = {v: set() for v in nodes}
    for a, b in pairs:
        grouped[a].add(b)
    return {v: frozenset(others) for v, others in grouped.items()}


def _topological(parents: Mapping[str, frozenset[str]], children: Mapping[str, frozenset[str]]) -> tuple[str, ...]:
    """Return nodes in topological order, ties by name; raise a UserError for a cycle."""
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
            walk.append(min(a for a in parents[walk[-1]] if a in waiting))  # each remaining node has a remaining parent
        ring = walk[walk.index(walk[-1]) :][::-1]
        raise UserError(f"the graph has a cycle: {' -> '.join(ring)}; remove one of these arrows")
    return tuple(order)
