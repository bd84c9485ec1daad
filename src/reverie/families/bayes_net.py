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

    nodes: in topological order, ties by name, so that equal graphs compare equal; edges: pairs (parent, child); observed:
    observed nodes, the others are latent; given: nodes without a factor.  `BayesNet.from_arrows` and
    `BayesNet.from_factorisation` parse text.
    """

    nodes: tuple[str, ...]
    edges: frozenset[tuple[str, str]]
    observed: frozenset[str] = frozenset()
    given: frozenset[str] = frozenset()
    plates: tuple[Plate, ...] = ()

    def __post_init__(self) -> None:
        names = set(self.nodes)
        if bad := [v for v in self.nodes if not NAME.fullmatch(v)]:
            raise UserError(f"invalid variable name: {bad[0]!r}; begin with a letter, such as z_1")
        if len(names) < len(self.nodes):
            raise UserError(f"two variables have the same name: {', '.join(self.nodes)}; rename one")
        plate_nodes = [v for plate in self.plates for v in plate.nodes]
        for v in [*(v for edge in sorted(self.edges) for v in edge), *self.observed, *self.given, *plate_nodes]:
            if v not in names:
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
            groups = [[name.strip() for name in group.split(",")] for group in line.split("->")]
            nodes.update(dict.fromkeys(name for group in groups for name in group))
            edges |= {(a, b) for left, right in pairwise(groups) for a in left for b in right}
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
        if repeated := sorted(set(given) & set(parents)):
            raise UserError(f"{repeated[0]} is given and has a factor; remove one of the two")
        if left and set(left.variables) != set(parents):
            sides = f"{', '.join(sorted(left.variables))} on the left and {', '.join(sorted(parents))} on the right"
            raise UserError(f"the sides of the factorisation have different variables: {sides}; use the same on both")
        for v, v_parents in parents.items():
            if undefined := [name for name in v_parents if name not in parents and name not in given]:
                raise UserError(
                    f"{v} depends on {undefined[0]}, which has no factor; add p({undefined[0]}), or list it as given on the "
                    f"left side: p(... | {undefined[0]}) = ..."
                )
        edges = frozenset((a, v) for v, v_parents in parents.items() for a in v_parents)
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
        visited, stack = set[str](), list(self._checked(nodes))
        while stack:
            v = stack.pop()
            if v not in visited:
                visited.add(v)
                stack += self.parents(v)
        return frozenset(visited)

    def markov_blanket(self, node: str) -> frozenset[str]:
        """Return the Markov blanket: parents, children, and the children's other parents (Pearl 1988)."""
        (node,) = self._checked(node)
        children = self.children(node)
        return (self.parents(node) | children | {a for child in children for a in self.parents(child)}) - {node}

    def d_separated(self, a: Names, b: Names, given: Names = ()) -> bool:
        """Return whether a and b are independent given `given` and the graph's own given nodes.

        This holds if no path between them is active (Pearl 1988; Koller and Friedman 2009, algorithm 3.1): an observed node
        blocks a path, unless two arrows meet there; a collider blocks it unless the collider or a descendant is observed.
        """
        left, right, condition = self._checked(a), self._checked(b), self._checked(given)
        if shared := sorted(left & right | left & condition | right & condition):
            raise UserError(f"{shared[0]} is in two of the sets; d-separation needs disjoint sets of variables")
        observed = condition | (self.given - left - right)
        active_colliders = self.ancestors(observed)
        visited, stack = set(), [(v, True) for v in left]
        while stack:
            v, from_below = step = stack.pop()
            if step in visited:
                continue
            visited.add(step)
            if v in right:
                return False
            if v not in observed:
                stack += [(w, False) for w in self.children(v)]
            if v not in observed if from_below else v in active_colliders:
                stack += [(w, True) for w in self.parents(v)]
        return True

    def unrolled(self, **counts: int) -> BayesNet:
        """Return the graph with copies of the nodes v of each plate, v_1, v_2, ...: `graph.unrolled(N=3)`."""
        graph = self
        for count, n in counts.items():
            if count not in (counts_of_plates := [plate.count for plate in self.plates]):
                raise UserError(f"the graph has no plate {count}; its plates: {', '.join(counts_of_plates) or 'none'}")
            if not 1 <= n <= MAX_VALUE:
                raise UserError(f"the number of copies must be between 1 and {MAX_VALUE}, got {count}={n}")
            graph = graph._copied(count, n)
        return graph

    def _copied(self, count: str, n: int) -> BayesNet:
        repeated = {v for plate in self.plates if plate.count == count for v in plate.nodes}
        copies = {v: [f"{v}_{k + 1}" for k in range(n)] if v in repeated else [v] for v in self.nodes}

        def copies_of(nodes: Iterable[str]) -> frozenset[str]:
            return frozenset(copy for v in nodes for copy in copies[v])

        edges: set[tuple[str, str]] = set()
        for a, b in self.edges:
            parallel = zip(copies[a], copies[b], strict=True) if a in repeated and b in repeated else None
            edges |= set(parallel or ((c, d) for c in copies[a] for d in copies[b]))
        plates = tuple(replace(plate, nodes=copies_of(plate.nodes)) for plate in self.plates if plate.count != count)
        nodes = tuple(copy for v in self.nodes for copy in copies[v])
        return BayesNet(nodes, frozenset(edges), copies_of(self.observed), copies_of(self.given), plates)

    def _checked(self, names: Names) -> frozenset[str]:
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
    pending = {v: len(v_parents) for v, v_parents in parents.items()}
    ready = sorted(v for v, count in pending.items() if not count)
    order = []
    while ready:
        v = heapq.heappop(ready)
        order.append(v)
        del pending[v]
        for w in children[v]:
            pending[w] -= 1
            if not pending[w]:
                heapq.heappush(ready, w)
    if pending:
        path = [min(pending)]
        while path[-1] not in path[:-1]:
            path.append(min(a for a in parents[path[-1]] if a in pending))  # each remaining node has a remaining parent
        cycle = path[path.index(path[-1]) :][::-1]
        raise UserError(f"the graph has a cycle: {' -> '.join(cycle)}; remove one of these arrows")
    return tuple(order)
