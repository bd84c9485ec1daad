"""Graphical models: arrows and factorisations both ways, d-separation against networkx and against Gaussians, families."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reverie.base.errors import UserError
from reverie.families import FAMILIES
from reverie.families.bayes_net import BayesNet, Plate
from reverie.families.graphical import GRAPHICAL, GraphicalModel

FAITHFUL = 1e-7  # partial correlations of random models are larger where the graph does not make them 0
ROUNDING = 1e-10


@st.composite
def graphs(draw: st.DrawFn, most: int = 7) -> BayesNet:
    n = draw(st.integers(2, most))
    names = draw(st.permutations([f"v_{k}" for k in range(n)]))
    pairs = list(combinations(names, 2))
    kept = draw(st.lists(st.booleans(), min_size=len(pairs), max_size=len(pairs)))
    return BayesNet(tuple(names), frozenset(pair for pair, on in zip(pairs, kept, strict=True) if on))


@st.composite
def questions(draw: st.DrawFn) -> tuple[BayesNet, set[str], set[str], set[str]]:
    graph = draw(graphs())
    names = draw(st.permutations(graph.nodes))
    sides = [0, 1, *draw(st.lists(st.integers(0, 3), min_size=len(names) - 2, max_size=len(names) - 2))]
    a, b, c = ({v for v, side in zip(names, sides, strict=True) if side == k} for k in range(3))
    return graph, a, b, c


def in_networkx(graph: BayesNet) -> networkx.DiGraph:
    other = networkx.DiGraph(list(graph.edges))
    other.add_nodes_from(graph.nodes)
    return other


@settings(max_examples=200, deadline=None)
@given(questions())
def test_d_separation_is_that_of_networkx(question: tuple[BayesNet, set[str], set[str], set[str]]) -> None:
    graph, a, b, c = question
    assert graph.d_separated(a, b, c) == networkx.is_d_separator(in_networkx(graph), a, b, c) == graph.d_separated(b, a, c)


@settings(max_examples=60, deadline=None)
@given(graphs(5), st.integers(0, 10**9))
def test_d_separation_is_where_partial_correlations_of_linear_gaussian_models_are_zero(graph: BayesNet, seed: int) -> None:
    random, at = np.random.default_rng(seed), {v: k for k, v in enumerate(graph.nodes)}
    weights = np.zeros((len(at), len(at)))
    for a, b in graph.edges:
        weights[at[b], at[a]] = random.choice([-1, 1]) * random.uniform(0.5, 1.5)
    solution = np.linalg.inv(np.eye(len(at)) - weights)
    covariance = solution @ np.diag(random.uniform(0.5, 2, len(at))) @ solution.T
    for a, b in combinations(graph.nodes, 2):
        others = [v for v in graph.nodes if v not in (a, b)]
        for c in (c for n in range(len(others) + 1) for c in combinations(others, n)):
            rows = [at[v] for v in (a, b, *c)]
            precision = np.linalg.inv(covariance[np.ix_(rows, rows)])
            partial = abs(precision[0, 1]) / np.sqrt(precision[0, 0] * precision[1, 1])
            assert partial < ROUNDING if graph.d_separated(a, b, c) else partial > FAITHFUL


def test_chain_fork_and_collider() -> None:
    for arrows in ("a -> m -> b", "m -> a, b"):
        graph = BayesNet.from_arrows(arrows)
        assert not graph.d_separated("a", "b") and graph.d_separated("a", "b", "m")
    meeting = BayesNet.from_arrows("a, b -> m -> below -> deep; m -> beside")
    assert meeting.d_separated("a", "b")
    assert not any(meeting.d_separated("a", "b", known) for known in ("m", "below", "deep", "beside"))
    assert meeting.d_separated("a", "deep", "below") and not meeting.d_separated("a", "beside", "below")


@settings(max_examples=100, deadline=None)
@given(graphs())
def test_order_and_markov_blanket(graph: BayesNet) -> None:
    place = {v: k for k, v in enumerate(graph.nodes)}
    assert all(place[a] < place[b] for a, b in graph.edges)
    for v in graph.nodes:
        blanket = graph.markov_blanket(v)
        others = set(graph.nodes) - blanket - {v}
        assert not others or graph.d_separated(v, others, blanket)
        for one in blanket:  # and none of it can be left out
            assert not graph.d_separated(v, one, blanket - {one})
        assert graph.ancestors(v) == networkx.ancestors(in_networkx(graph), v) | {v}


@settings(max_examples=100, deadline=None)
@given(graphs(), st.data())
def test_a_graph_is_its_factorisation_and_its_arrows(graph: BayesNet, data: st.DataObject) -> None:
    roots = [v for v in graph.nodes if not graph.parents(v)]
    given_nodes = data.draw(st.sets(st.sampled_from(roots), max_size=len(graph.nodes) - 1))
    observed = data.draw(st.sets(st.sampled_from(graph.nodes)))
    whole = BayesNet(graph.nodes, graph.edges, frozenset(observed), frozenset(given_nodes))
    assert BayesNet.from_arrows(whole.arrows(), observed, given_nodes) == whole
    assert BayesNet.from_factorisation(whole.factorisation("q"), observed) == whole


def test_factorisations_are_read_as_they_are_written_in_books() -> None:
    graph = BayesNet.from_factorisation("p(z2) p(z1 | z2) p(x | z1)")
    assert graph == BayesNet.from_arrows("z2 -> z1 -> x") and graph.nodes == ("z2", "z1", "x")
    assert graph.factorisation() == "p(x, z1, z2) = p(z2) p(z1 | z2) p(x | z1)"
    two = BayesNet.from_factorisation("p(x_1, x_2, z_1, z_2) = p(x_1|z_1, z_2) p(x_2|z_2) p(z_1) p(z_2|z_1)")
    assert two == BayesNet.from_arrows("z_1 -> z_2 -> x_1, x_2; z_1 -> x_1")
    assert two.d_separated("x_2", ["x_1", "z_1"], "z_2") and not two.d_separated("x_1", "x_2", "z_1")
    assert BayesNet.from_factorisation("q(z | x)").given == {"x"}
    chain = BayesNet.from_factorisation("q(x_{1:T} | x_0) = prod_{t=1}^T q(x_t | x_{t-1})", T=4)
    assert chain.nodes == ("x_0", "x_1", "x_2", "x_3", "x_4") and chain.given == {"x_0"} and len(chain.edges) == 4
    above = BayesNet.from_factorisation("prod_{t=1}^{T} p(z_t | z_{t+1:T})", T=5)
    assert len(above.edges) == 10 and above.nodes[0] == "z_5"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("p(x | z) p(y)", "z, which has no factor"),
        ("p(a | b) p(b | c) p(c | a)", "cycle: a -> c -> b -> a"),
        ("p(a | a)", "a is given and has a factor"),
        ("p(a | a) p(b)", "cycle: a -> a"),
        ("p(x) p(x | z) p(z)", "two factors"),
        ("p(x, y) p(z)", "share a factor"),
        ("p(x, y) = p(x)", "x, y on the left and x on the right"),
        ("p(x | z) = p(x | z) p(z)", "z is given and has a factor"),
        ("p(x) + p(z)", r"invalid factorisation: '\+ p\(z\)'"),
        ("p(x", "invalid factorisation"),
        ("p( | z)", "invalid factor"),
        ("p(3)", "invalid variable: '3'"),
        ("prod_{t=1}^N p(x_t)", "'N' has no value"),
        ("prod_{t=0}^T p(x_{t-1})", "name: 'x_-1'"),
        ("prod_{t=1}^99999 p(x_t)", "more than 1000"),
    ],
)
def test_an_invalid_factorisation_raises_a_user_error(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        BayesNet.from_factorisation(text, T=3)


def test_invalid_queries_raise_user_errors() -> None:
    graph = BayesNet.from_arrows("a -> b -> c", observed=["c"])
    for ask, message in (
        (lambda: graph.d_separated("a", "x"), "unknown variable 'x'"),
        (lambda: graph.d_separated("a", "b", ["a"]), "a is in two of the sets"),
        (lambda: graph.markov_blanket("d"), "unknown variable 'd'"),
        (lambda: graph.unrolled(N=2), "no plate N"),
        (lambda: BayesNet.from_arrows("a -> b -> a"), "cycle"),
        (lambda: BayesNet.from_arrows("a -> 2"), "invalid variable name: '2'"),
        (lambda: BayesNet.from_arrows("a -> b", given=["b"]), "b is given and has parents"),
        (lambda: BayesNet.from_arrows("a -> b", observed=["c"]), "unknown variable 'c'"),
        (lambda: BayesNet.from_factorisation("p(x_T)", T=10**9), "between 0 and 1000"),
    ):
        with pytest.raises(UserError, match=message):
            ask()


def test_copies_of_a_plate_are_independent_given_what_they_share() -> None:
    users, items = Plate("U", frozenset({"u", "r"})), Plate("I", frozenset({"i", "r"}))
    graph = replace(BayesNet.from_arrows("s -> u -> r; i -> r", observed="r"), plates=(users, items))
    whole = graph.unrolled(U=2, I=3)
    assert len(whole.nodes) == 1 + 2 + 3 + 6 and len(whole.edges) == 2 + 6 + 6 and not whole.plates
    assert whole.parents("r_2_3") == {"u_2", "i_3"} and len(whole.observed) == 6
    assert whole.d_separated("u_1", "u_2", "s") and not whole.d_separated("u_1", "u_2")
    assert not whole.d_separated("r_1_1", "r_1_2", "s") and whole.d_separated("r_1_1", "r_1_2", ["s", "u_1"])
    with pytest.raises(UserError, match="between 1 and 1000"):
        graph.unrolled(U=0)


def test_every_family_has_a_graph() -> None:
    assert set(FAMILIES) <= set(GRAPHICAL)
    assert all(family.graph is GRAPHICAL[name] for name, family in FAMILIES.items())


@pytest.mark.parametrize("model", GRAPHICAL.values(), ids=GRAPHICAL)
def test_data_are_independent_and_encoders_assume_nothing_that_the_model_does_not(model: GraphicalModel) -> None:
    graph, encoder = model.graph(4), model.encoder_graph(4)
    data = set(model.data(4))
    assert graph.observed == data and all(graph.children(v) <= data for v in data)
    twice = graph.unrolled(N=2)
    assert twice.d_separated([f"{v}_1" for v in graph.nodes], [f"{v}_2" for v in graph.nodes])
    if encoder is None:
        return
    assert encoder.given == data and encoder.given.isdisjoint(graph.given)
    latents = [v for v in encoder.nodes if v not in data]
    for a, b in combinations(latents, 2):
        others = [v for v in latents if v not in (a, b)]
        for c in (c for n in range(len(others) + 1) for c in combinations(others, n)):
            assert not encoder.d_separated(a, b, c) or graph.d_separated(a, b, [*data, *c])


def test_what_sets_the_hierarchies_apart() -> None:
    ladder, chain, diffusion = (GRAPHICAL[name].graph(4) for name in ("hvae", "mhvae", "diffusion"))
    assert chain.d_separated("x", ["z_2", "z_3", "z_4"], "z_1") and not ladder.d_separated("x", "z_4", ["z_1", "z_2", "z_3"])
    assert diffusion.d_separated("x_0", "x_4", "x_2") and chain.markov_blanket("z_2") == {"z_1", "z_3"}
    assert GRAPHICAL["hvae"].levels() == ("z_3", "z_2", "z_1") and GRAPHICAL["vae"].levels() == ()
    assert GRAPHICAL["diffusion"].levels() == ("x_3", "x_2", "x_1")
