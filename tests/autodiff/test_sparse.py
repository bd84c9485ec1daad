"""Detection, colouring and decompression against dense matrices, definitions and the figures of papers."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from torch import Tensor, nn
from torch.nn import functional

from reverie.autodiff import color, detect, diagonal, divergence, hutchinson, recorded_jacobian, sparse_hessian, sparse_jacobian
from reverie.autodiff.sparse import (
    ORDERS,
    PROBLEMS,
    check,
    check_acyclic,
    check_columns,
    check_diagonal,
    check_star,
    decompress,
    exact_color,
)
from reverie.base.errors import ReverieWarning, UserError

SYMMETRIC = ("star", "acyclic")


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def random_pattern(n: int, m: int, density: float, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random((n, m)) < density


def random_graph(n: int, density: float, seed: int) -> np.ndarray:
    half = np.triu(random_pattern(n, n, density, seed), 1)
    return half | half.T | np.eye(n, dtype=bool)


def banded(n: int, width: int) -> sparse.csr_array:
    return sparse.diags_array([np.ones(n)] * (2 * width + 1), offsets=range(-width, width + 1), shape=(n, n)).tocsr()


def recovered(matrix: np.ndarray, problem: str, order: str = "natural") -> tuple[int, np.ndarray]:
    """Compress a matrix that is at hand, decompress it, and return the number of colours and what came back."""
    coloring = color(matrix, problem, order)
    check(coloring)
    columns, rows = coloring.compress(matrix)
    values = decompress(coloring, torch.from_numpy(columns), torch.from_numpy(rows))
    back = np.zeros(matrix.shape)
    back[coloring.recovery.rows, coloring.recovery.columns] = values.numpy()
    return coloring.number, back


# The documents' examples.
RECTANGLE = np.zeros((4, 5), bool)
for _row, _columns in enumerate(((2, 4), (4, 5), (2, 3), (1, 3))):
    RECTANGLE[_row, [c - 1 for c in _columns]] = True
SQUARE = np.eye(4, dtype=bool)
for _a, _b in ((1, 2), (1, 3), (2, 4)):
    SQUARE[_a - 1, _b - 1] = SQUARE[_b - 1, _a - 1] = True


@pytest.mark.parametrize("problem,colors", [("columns", 2), ("rows", 2)])
def test_the_4_by_5_example(problem: str, colors: int) -> None:
    matrix = RECTANGLE * np.random.default_rng(0).normal(size=(4, 5))
    number, back = recovered(matrix, problem)
    assert number == colors
    np.testing.assert_array_equal(back, matrix)


@pytest.mark.parametrize("problem,colors", [("columns", 3), ("star", 3), ("acyclic", 2)])
def test_the_symmetric_4_by_4_example(problem: str, colors: int) -> None:
    half = np.random.default_rng(0).normal(size=(4, 4))
    matrix = SQUARE * (half + half.T)
    number, back = recovered(matrix, problem)
    assert number == colors
    np.testing.assert_allclose(back, matrix, atol=1e-15)


@pytest.mark.parametrize("order", [o for o in ORDERS if o != "random"])
@pytest.mark.parametrize("width,expected", [(1, (3, 3, 2)), (5, (11, 11, 6)), (10, (21, 21, 11))])
def test_band_matrices(width: int, expected: tuple[int, int, int], order: str) -> None:
    # With w bands on each side: 2w + 1 directly, also with symmetry (Coleman and Moré 1984), w + 1 by substitution (Powell
    # and Toint 1979, Coleman and Cai 1986).  w + 1 neighbouring columns all meet, so fewer than w + 1 is impossible.
    matrix = banded(120, width)
    assert tuple(color(matrix, p, order).number for p in ("columns", "star", "acyclic")) == expected


@given(n=st.integers(1, 14), m=st.integers(1, 14), density=st.floats(0, 0.7), seed=st.integers(0, 10_000))
def test_every_colouring_passes_its_check_and_gives_the_matrix_back(n: int, m: int, density: float, seed: int) -> None:
    values = np.random.default_rng(seed + 1).normal(size=(max(n, m), max(n, m)))
    rectangle = random_pattern(n, m, density, seed)
    graph = random_graph(n, density, seed)
    for order in ORDERS:
        for problem in PROBLEMS:
            if problem == "diagonal":
                square = random_pattern(n, n, density, seed)
                _, back = recovered(square * values[:n, :n], problem, order)
                np.testing.assert_array_equal(back.diagonal(), (square * values[:n, :n]).diagonal())
                continue
            matrix = graph * (values + values.T)[:n, :n] if problem in SYMMETRIC else rectangle * values[:n, :m]
            _, back = recovered(matrix, problem, order)
            np.testing.assert_allclose(back, matrix, atol=1e-10)
    both, single = color(rectangle, "both").number, [color(rectangle, p).number for p in ("columns", "rows")]
    assert both <= min(single)


@pytest.mark.parametrize("n", [*range(3, 20), 30])
def test_star_never_takes_more_colours_than_columns(n: int) -> None:
    for pattern in (ring(n), random_graph(n, 0.3, n)):
        for order in ORDERS:
            star = color(pattern, "star", order)
            check(star)
            assert star.number <= color(pattern, "columns", order).number
    if n == 30:
        assert color(ring(n), "star").number == 3


def test_a_hessian_without_a_diagonal_takes_the_fewer_products() -> None:
    f = lambda x: (x[1:] * x[:-1]).sum()  # noqa: E731
    x, products = draw(12), []
    pattern = detect(f, x, "hessian")
    assert (color(pattern, "columns").number, color(pattern, "star").number) == (2, 3)

    class Count(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            products.extend(len(t) for t in [result] if isinstance(t, Tensor) and t.ndim == 2 and t.shape[1] == 11)
            return result

    with Count():
        found = sparse_hessian(f, x)
    torch.testing.assert_close(found.to_dense(), torch.func.hessian(f)(x))
    assert max(products) == 2


def chromatic(matrix: np.ndarray, allowed) -> int:
    """Return the fewest colours for which some colouring is allowed, by trying all."""
    n = len(matrix)
    for k in range(1, n + 1):
        for colors in itertools.product(range(k), repeat=n):
            if allowed(np.array(colors)):
                return k
    raise AssertionError


def passes(test, *args) -> bool:
    try:
        test(*args)
    except UserError:
        return False
    return True


def is_star(graph: np.ndarray, colors: np.ndarray) -> bool:
    """The definition itself: proper, and every path of four vertices has three colours."""
    n = len(graph)
    edges = graph & ~np.eye(n, dtype=bool)
    if any(edges[a, b] and colors[a] == colors[b] for a in range(n) for b in range(n)):
        return False
    paths = itertools.permutations(range(n), 4)
    return all(len({colors[v] for v in p}) > 2 for p in paths if all(edges[a, b] for a, b in itertools.pairwise(p)))


@pytest.mark.parametrize("seed", range(6))
def test_exact_chromatic_numbers_are_in_order_and_greedy_is_never_below(seed: int) -> None:
    graph = random_graph(6, 0.2 + 0.1 * seed, seed)
    tests = (check_diagonal, check_acyclic, check_star)
    exact = [chromatic(graph, lambda c, test=test: passes(test, graph, c)) for test in tests]
    rows = [np.flatnonzero(row) for row in graph]
    exact.append(chromatic(graph, lambda c: all(len(set(c[row])) == len(row) for row in rows)))
    assert exact == sorted(exact)
    kinds = ("diagonal", "acyclic", "star", "columns")
    assert [exact_color(graph, kind).number for kind in kinds] == exact
    for order in ORDERS:
        found = [color(graph, p, order).number for p in ("diagonal", "acyclic", "star", "columns")]
        assert all(a >= b for a, b in zip(found, exact, strict=True))


def ring(n: int) -> np.ndarray:
    return np.logical_or.reduce([np.roll(np.eye(n, dtype=bool), k, 0) for k in (-1, 0, 1)])


@pytest.mark.parametrize(
    "graph,expected",
    [
        (ring(4), (2, 3, 3, 4)),  # two colours would leave a cycle
        (ring(5), (3, 3, 4, 5)),  # the only ring whose star number is 4 (Fertin, Raspaud and Reed, 2004)
        (ring(6), (2, 3, 3, 3)),
        (ring(7), (3, 3, 3, 4)),
        (SQUARE, (2, 2, 3, 3)),  # a path of four
        (np.ones((5, 5), bool), (5, 5, 5, 5)),
        (np.kron([[0, 1], [1, 0]], np.ones((3, 3))).astype(bool) | np.eye(6, dtype=bool), (2, 4, 4, 6)),  # K(3, 3): n + 1
    ],
    ids=["four-cycle", "5-ring", "6-ring", "7-ring", "path", "complete", "bipartite"],
)
def test_chromatic_numbers_of_known_graphs(graph: np.ndarray, expected: tuple[int, ...]) -> None:
    found = [exact_color(graph, kind) for kind in ("diagonal", "acyclic", "star", "columns")]
    assert tuple(c.number for c in found) == expected
    for coloring in found:
        check(coloring)


def test_columns_that_meet_twice_take_two_colours() -> None:
    twice = np.array([[0, 0, 1], [1, 1, 0], [1, 1, 0]])
    assert exact_color(twice, "columns").number == color(twice).number == 2
    with pytest.raises(UserError, match="at most 12"):
        exact_color(np.eye(13))
    with pytest.raises(UserError, match="4 x 5"):
        exact_color(RECTANGLE, "star")
    with pytest.raises(UserError, match="symmetric"):
        exact_color(np.tri(3), "acyclic")


def test_checks_agree_with_the_definitions() -> None:
    graph = random_graph(5, 0.5, 3)
    verdicts = set()
    for colors in itertools.product(range(3), repeat=5):
        truth = is_star(graph, np.array(colors))
        assert passes(check_star, graph, np.array(colors)) == truth
        verdicts.add(truth)
    assert verdicts == {True, False}
    with pytest.raises(UserError, match="only two colours"):
        check_acyclic(ring(4), np.array([0, 1, 0, 1]))
    check_acyclic(ring(4), np.array([0, 1, 0, 2]))
    for test in (check_star, check_acyclic):
        with pytest.raises(UserError, match="symmetric"):
            test(np.tril(ring(4)), np.array([0, 1, 0, 1]))
    with pytest.raises(UserError, match=r"column 0 .*no colour"):
        check_columns(np.eye(2), np.array([-1, 0]))


def test_an_arrow_is_cheap_from_both_sides_only() -> None:
    arrow = np.eye(40, dtype=bool)
    arrow[0] = arrow[:, 0] = True
    numbers = {p: color(arrow, p).number for p in PROBLEMS}
    assert numbers == {"columns": 40, "rows": 40, "both": 3, "star": 2, "acyclic": 2, "diagonal": 2}


def test_mistakes_raise() -> None:
    with pytest.raises(UserError, match="symmetric"):
        color(RECTANGLE, "star")
    with pytest.raises(UserError, match="did you mean 'star'"):
        color(SQUARE, "stars")
    with pytest.raises(UserError, match="square"):
        color(RECTANGLE, "diagonal")
    plan = color(detect(torch.sin, draw(4)))
    with pytest.raises(UserError, match="plan is for 4 inputs, but x has 5"):
        sparse_jacobian(torch.sin, draw(5), plan)
    with pytest.raises(UserError, match="plan is for 4 outputs, but f has 1"):
        sparse_jacobian(lambda x: x.sum()[None], draw(4), plan)
    with pytest.raises(UserError, match="scalar"):
        sparse_hessian(torch.sin, draw(4))
    with pytest.raises(UserError, match="two-dimensional"):
        color(np.ones(3))
    with pytest.raises(UserError, match="nearly full"):
        color(sparse.csr_array(np.ones((1, 20_000), bool)), order="smallest-last")
    with pytest.raises(UserError, match="floating-point"):
        detect(torch.sin, torch.arange(3))
    with pytest.raises(UserError, match="plan is for 4 outputs, but f has 1"):
        sparse_jacobian(lambda x: x.sum()[None], draw(4), color(np.eye(4), "rows"))
    for problem in ("star", "diagonal"):
        with pytest.raises(UserError, match=f"'columns' or 'rows' or 'both', .*'{problem}'"):
            sparse_jacobian(torch.sin, draw(4), color(np.eye(4), problem))
    with pytest.raises(UserError, match="'diagonal'"):
        sparse_hessian(lambda x: x.sin().sum(), draw(4), color(np.eye(4), "diagonal"))
    for problem in ("columns", "rows", "star", "acyclic"):
        with pytest.raises(UserError, match=f"'diagonal', .*'{problem}'"):
            divergence(torch.sin, draw(2, 4), color(np.eye(4), problem))


# Detection.  Each function maps (2, 4, 6) numbers to something; all of a kind that the rules know.
W = draw(4, 4, seed=7)
KERNEL = draw(4, 2, 3, seed=8)
SCALE = draw(6, seed=10)
SPARSE = (draw(6, 6, seed=9) > 0.8).double().to_sparse()
INDEX = torch.tensor([3, 0, 0])
ORDER = torch.tensor([1, 3, 0, 2])


def written(shape: tuple[int, ...], *steps) -> Tensor:
    """Return zeros after the steps, which write to them in place."""
    y = torch.zeros(shape, dtype=torch.float64)
    for step in steps:
        step(y)
    return y


def real_part_replaced(x: Tensor) -> Tensor:
    z = torch.complex(x, x.sin())
    z.real[0] = 1.0
    return z.abs()


def gradient_in_a_norm(norm):
    """Return x -> the gradient in the input of a normalisation whose weight is made of x."""
    at, c = draw(2, 4, 6, seed=11), draw(2, 4, 6, seed=12)
    return lambda x: torch.func.grad(lambda u: (norm(u, x) * c).sum())(at)


def attended(x: Tensor, key: Tensor, mask: Tensor | None = None) -> Tensor:
    return functional.scaled_dot_product_attention(x, key, key.sin(), attn_mask=mask, enable_gqa=key.shape[1] != x.shape[1])


FUNCTIONS = {
    "fill with a tensor": lambda x: written((4,), lambda y: y[1:3].fill_(x[0, 0, 0] ** 2), lambda y: y[:1].copy_(x[1, 1, 1])),
    "assign a number": lambda x: written((4,), lambda y: y.__setitem__(slice(1, 3), x[0, 1, 2] ** 2)),
    "fill": lambda x: torch.cat([torch.fill(x[0], x[1, 2, 3]), torch.fill(x[0], 2.0)]),
    "complex index": lambda x: torch.complex(x, x.sin())[:, ORDER].abs() + torch.complex(x, x.cos()).flip(1).abs(),
    "complex move": lambda x: torch.fft.fft(x).roll(1, 1).abs() + torch.cat([torch.complex(x, x)] * 2)[:2].abs(),
    "cat with integers": lambda x: torch.cat([x[0, 0], torch.tensor([100, 2]), x[0, 1]]),
    "scatter reduce": lambda x: x.scatter_reduce(1, ORDER[None, :2, None].expand(2, 2, 6), x[:, 2:].cos(), "sum"),
    "real part of a complex number": real_part_replaced,
    "attention with a mask": lambda x: attended(draw(1, 2, 4, 6), draw(1, 2, 6, 6), x[None]),
    "attention with a mask for all": lambda x: attended(x[:, None], x[:, None].exp(), x[:1, 0, :4].T @ x[:1, 1, :4]),
    "attention of grouped queries": lambda x: attended(x[None].repeat(1, 2, 1, 1), x[None].exp()),
    "attention to those before": lambda x: functional.scaled_dot_product_attention(
        x[None].repeat(1, 2, 1, 1), x[None].exp(), x[None].sin(), is_causal=True, enable_gqa=True
    ),
    "attention to constants": lambda x: attended(x[None], draw(1, 2, 5, 6)),
    "gradient in a layer norm": gradient_in_a_norm(lambda u, x: functional.layer_norm(u, (6,), x[0, 0].sin())),
    "gradient in a group norm": gradient_in_a_norm(lambda u, x: functional.group_norm(u, 2, x[0, :, 0].sin())),
    "gradient in a batch norm": gradient_in_a_norm(
        lambda u, x: functional.batch_norm(u, None, None, x[0, :, 0].sin(), training=True)
    ),
    "views in place": lambda x: x.clone().unsqueeze_(0).squeeze_(0).transpose_(0, 1).as_strided_((2, 4, 6), (24, 6, 1)),
    "elementwise": lambda x: torch.where(x > 0, x.sin() * x.exp(), x.abs().sqrt()),
    "broadcast": lambda x: x * x[:1, :, :1] + x[..., -1:],
    "sum": lambda x: x.sum(1),
    "mean": lambda x: x.mean((0, 2), keepdim=True),
    "norms": lambda x: x.norm(dim=1) + x.amax(1) + x.logsumexp(1) + x.std(1) + x.prod(1),
    "sort": lambda x: x.sort(2).values[..., :2],
    "softmax": lambda x: x.softmax(1) + x.log_softmax(1) + x.cumsum(1),
    "index": lambda x: x[:, INDEX] + x.index_select(1, INDEX),
    "gather": lambda x: x.gather(1, torch.tensor([0, 2]).reshape(1, 2, 1).expand(2, 2, 6)),
    "index add": lambda x: torch.zeros_like(x).index_add(1, INDEX, x[:, :3]),
    "index put": lambda x: x.index_put((torch.tensor([0, 1, 0]), INDEX), x[0, :3], accumulate=True),
    "write to a view": lambda x: (lambda y: (y[:, 1].copy_(x[:, 2]), y[:, 0].mul_(x[:, 3]), y)[-1])(x.clone()),
    "scatter": lambda x: torch.zeros_like(x).scatter_add(1, torch.zeros(2, 4, 6, dtype=torch.long), x),
    "move": lambda x: torch.cat([x.roll(1, 2), x.flip(1)], 0).transpose(0, 1).reshape(8, -1).repeat(2, 1),
    "triangle": lambda x: x.tril() + torch.stack([x[1], x[0]]),
    "matmul": lambda x: W @ x,
    "bmm": lambda x: torch.einsum("bij,bkj->bik", x, x),
    "linear": lambda x: functional.linear(x.transpose(1, 2), W, W[0]),
    "sparse matrix": lambda x: SPARSE @ x[0, 0] + torch.sparse.mm(SPARSE, x[1].T)[:, 0],
    "conv1d": lambda x: functional.conv1d(x, KERNEL, padding=2, stride=2, dilation=2, groups=2, bias=W[0]),
    "conv transpose": lambda x: functional.conv_transpose1d(x, KERNEL, stride=2, padding=1),
    "conv2d": lambda x: functional.conv2d(x[:, None], KERNEL[:1, None], padding=1),
    "constant pad": lambda x: functional.pad(x, (1, 2), value=3.0),
    "reflect pad": lambda x: functional.pad(x, (1, 2), mode="reflect"),
    "circular pad": lambda x: functional.pad(x, (1, 2), mode="circular"),
    "replicate pad": lambda x: functional.pad(x, (1, 2), mode="replicate"),
    "max pool": lambda x: functional.max_pool2d(x, 2),
    "avg pool": lambda x: functional.avg_pool2d(x, 3, 1, 1) + functional.avg_pool1d(x, 3, 1, 1),
    "adaptive pool": lambda x: functional.adaptive_avg_pool2d(x, (3, 4)),
    "nearest": lambda x: functional.interpolate(x[:, None], scale_factor=2),
    "bilinear": lambda x: functional.interpolate(x[:, None], size=(7, 5), mode="bilinear"),
    "bicubic": lambda x: functional.interpolate(x[:, None], scale_factor=1.5, mode="bicubic", align_corners=True),
    "unfold": lambda x: functional.unfold(x[:, None], 2, padding=1),
    "pixel shuffle": lambda x: functional.pixel_shuffle(x[:, :, :, None], 2) + functional.pixel_shuffle(x[..., None], 2),
    "layer norm": lambda x: functional.layer_norm(x, (6,), SCALE, SCALE + 1),
    "group norm": lambda x: functional.group_norm(x, 2, W[0], W[1]),
    "batch norm": lambda x: functional.batch_norm(x, None, None, training=True),
    "attention": lambda x: functional.scaled_dot_product_attention(x[:, None], x[:, None].sin(), x[:, None] ** 2),
    "activations": lambda x: functional.gelu(x) + functional.silu(x) + functional.elu(x) + functional.softplus(x) + x.relu(),
    "fft": lambda x: torch.fft.rfft(x, dim=2).abs(),
    "difference": lambda x: x.diff(dim=2) ** 2,
    "to float32 and back": lambda x: x.float().double(),
}


def numeric(f, x: Tensor) -> np.ndarray:
    dense = torch.autograd.functional.jacobian(f, x)  # torch.func cannot map over sparse constants
    return (dense.reshape(-1, x.numel()) != 0).numpy()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_global_pattern_holds_the_numeric_one(name: str) -> None:
    f, x = FUNCTIONS[name], draw(2, 4, 6, seed=3)
    pattern = detect(f, x).toarray()
    assert (numeric(f, x) <= pattern).all()
    assert pattern.shape == (f(x).numel(), 48)


EXACT = {"elementwise", "broadcast", "sum", "mean", "index", "gather", "index add", "index put", "write to a view", "scatter",
         "move", "triangle", "matmul", "linear", "sparse matrix", "conv1d", "conv transpose", "conv2d", "constant pad",
         "reflect pad", "circular pad", "replicate pad", "avg pool", "adaptive pool", "nearest", "bilinear", "bicubic",
         "unfold", "pixel shuffle", "layer norm", "group norm", "batch norm", "activations", "difference", "fill with a tensor",
         "assign a number", "fill", "complex index", "cat with integers", "scatter reduce",
         "gradient in a layer norm", "gradient in a group norm", "views in place",
         "attention with a mask", "attention of grouped queries"}  # fmt: skip


@pytest.mark.parametrize("name", sorted(EXACT))
def test_the_pattern_of_smooth_operations_is_exact(name: str) -> None:
    f = FUNCTIONS[name]
    found = sum(numeric(f, draw(2, 4, 6, seed=s)).astype(int) for s in range(4)) > 0  # branches of where, relu, max
    np.testing.assert_array_equal(detect(f, draw(2, 4, 6)).toarray(), found)


@pytest.mark.parametrize(
    "name", [n for n in FUNCTIONS if n != "to float32 and back" and not n.startswith(("fft", "attention"))]
)
def test_the_hessian_pattern_holds_the_numeric_one(name: str) -> None:
    g, x = FUNCTIONS[name], draw(2, 4, 6, seed=3)
    f = lambda x: (g(x) ** 2).sum() + g(x).sum()  # noqa: E731
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReverieWarning)  # some operations have no rule for their second derivative
        pattern = detect(f, x, "hessian").toarray()
    dense = torch.autograd.functional.hessian(f, x).reshape(48, 48).numpy()
    assert ((np.abs(dense) > 1e-12) <= pattern).all()


BLOCKS = ("elementwise", "broadcast", "index", "write to a view", "scatter", "triangle", "matmul", "softmax", "group norm",
          "layer norm", "activations", "index add", "index put")  # fmt: skip


@settings(max_examples=15)
@given(names=st.lists(st.sampled_from(BLOCKS), min_size=1, max_size=5), seed=st.integers(0, 100))
def test_detection_never_misses_an_entry_of_a_random_network(names: list[str], seed: int) -> None:
    def f(x: Tensor) -> Tensor:
        for name in names:
            y = FUNCTIONS[name](x)
            x = y if y.shape == x.shape else torch.cat([y, x], 1)[:, :4]
        return x

    x = draw(2, 4, 6, seed=seed)
    found = detect(f, x)
    assert (numeric(f, x) <= found.toarray()).all()
    assert (detect(f, x, method="local").toarray() <= found.toarray()).all()
    dense = torch.func.jacrev(f)(x).reshape(-1, 48)
    for problem in ("columns", "rows", "both"):
        torch.testing.assert_close(sparse_jacobian(f, x, color(found, problem)).to_dense(), dense)


def test_an_unknown_operation_is_dense_and_named() -> None:
    f = lambda x: torch.linalg.solve(torch.eye(3, dtype=x.dtype) + torch.outer(x, x), x)  # noqa: E731
    with pytest.warns(ReverieWarning, match="linalg_solve"):
        pattern = detect(f, draw(3))
    assert pattern.nnz == 9
    assert detect(lambda x: torch.ones(3) + x.detach().round(), draw(3)).nnz == 0


PLACES = torch.tensor([[0, 2, 5, 1], [3, 3, 0, 4]])


def added_by_lists(x: Tensor) -> Tensor:
    y = [torch.zeros(4, dtype=x.dtype), x.clone()]
    torch._foreach_add_(y, [x.sin(), x.exp()])
    return torch.cat(y)


def sparse_and_written(x: Tensor) -> Tensor:
    y = torch.sparse_coo_tensor(PLACES, x, (6, 6)).coalesce()
    return y.add_(SPARSE).to_dense()


UNKNOWN = {
    "sparse matrix of x": lambda x: torch.sparse_coo_tensor(PLACES, x, (6, 6)) @ SCALE,
    "product with a sparse matrix of x": lambda x: torch.sparse.mm(torch.sparse_coo_tensor(PLACES, x, (6, 6)), SCALE[:, None]),
    "to sparse and back": lambda x: (x * x).to_sparse().to_dense(),
    "sum of a sparse matrix": lambda x: torch.sparse.sum(torch.sparse_coo_tensor(PLACES, x, (6, 6)), 0).to_dense(),
    "sparse rows": lambda x: (
        torch.sparse_csr_tensor(torch.tensor([0, 3, 4]), torch.tensor([0, 1, 2, 0]), x, (2, 3)) @ SCALE[:3]
    ),
    "sparse and written in place": sparse_and_written,
    "lists written in place": added_by_lists,
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_no_rule_follows_is_named_and_misses_nothing(name: str) -> None:
    f, x = UNKNOWN[name], draw(4)
    truth = numeric(f, x)
    assert truth.any()
    with pytest.warns(ReverieWarning, match="no sparsity rule"):
        assert (truth <= detect(f, x).toarray()).all()


@pytest.mark.parametrize("reduce,tensor", [("add", True), ("multiply", True), ("multiply", False)])
def test_scatter_with_a_reduction_keeps_what_was_there(reduce: str, tensor: bool) -> None:
    def f(x: Tensor) -> Tensor:  # torch has no derivative of it
        return x.scatter(0, torch.tensor([3, 0]), x[1:3] if tensor else 2.0, reduce=reduce)

    expected = np.eye(4, dtype=bool)
    if tensor:
        expected[3, 1] = expected[0, 2] = True
    np.testing.assert_array_equal(detect(f, draw(4)).toarray(), expected)


def test_a_function_that_gives_no_dense_tensor_is_refused() -> None:
    for f, message in ((lambda x: x.to_sparse(), "layout torch.sparse_coo"), (lambda x: (x, x), "a tuple")):
        with pytest.raises(UserError, match=message):
            detect(f, draw(4))


def tridiagonal(x: Tensor) -> Tensor:
    padded = functional.pad(x, (1, 1))
    return x**3 - padded[2:] * x + padded[:-2].sin()


def laplacian_energy(x: Tensor) -> Tensor:
    return (x.diff(dim=0) ** 4).sum() + (x.diff(dim=1) ** 2).cosh().sum() + x.exp().sum()


@pytest.mark.parametrize("method", ["global", "local"])
def test_both_methods_find_a_tridiagonal_pattern(method: str) -> None:
    pattern = detect(tridiagonal, draw(300), method=method)
    assert (pattern != banded(300, 1).astype(bool)).nnz == 0


def test_local_detection_takes_few_products() -> None:
    calls = []

    class Count(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            calls.append(func is torch.ops.aten.cos.default)
            return func(*args, **(kwargs or {}))

    with Count():
        detect(tridiagonal, draw(1024), method="local")
    assert sum(calls) <= 12 * 6  # not 1,024


@pytest.mark.parametrize("problem", ["columns", "rows", "both"])
@pytest.mark.parametrize("order", ORDERS)
def test_sparse_jacobian_is_the_dense_one(problem: str, order: str) -> None:
    f, x = FUNCTIONS["conv1d"], draw(2, 4, 6)
    plan = color(detect(f, x), problem, order)
    dense = torch.func.jacrev(f)(x).reshape(-1, 48)
    torch.testing.assert_close(sparse_jacobian(f, x, plan).to_dense(), dense)
    torch.testing.assert_close(sparse_jacobian(f, x, plan, chunk=2).to_dense(), dense)
    again = sparse_jacobian(f, 2 * x, plan, format="scipy")
    np.testing.assert_allclose(again.toarray(), torch.func.jacrev(f)(2 * x).reshape(-1, 48).numpy())


@pytest.mark.parametrize("problem", ["columns", "star", "acyclic"])
def test_sparse_hessian_is_the_dense_one(problem: str) -> None:
    x = draw(6, 7) / 3
    plan = color(detect(laplacian_energy, x, "hessian"), problem)
    dense = torch.func.hessian(laplacian_energy)(x).reshape(42, 42)
    torch.testing.assert_close(sparse_hessian(laplacian_energy, x, plan).to_dense(), dense)
    np.testing.assert_allclose(sparse_hessian(laplacian_energy, x, plan, "scipy").toarray(), dense.numpy(), atol=1e-12)
    assert sparse_hessian(laplacian_energy, x).to_dense().shape == (42, 42)


@pytest.mark.parametrize("problem", ["columns", "rows", "both"])
def test_a_recorded_jacobian_holds_for_other_x(problem: str) -> None:
    weight = draw(6)

    def f(x: Tensor) -> Tensor:
        return (x[1:] * x[:-1]).sin() * weight

    plan = color(detect(f, draw(7)), problem)
    jacobian = recorded_jacobian(f, draw(7), plan)
    for x in (draw(7) - 1, 3 * draw(7)):
        torch.testing.assert_close(jacobian(x).to_dense(), torch.func.jacrev(f)(x))
    with pytest.raises(UserError, match="recorded for"):
        jacobian(draw(8))
    weight.mul_(2)
    torch.testing.assert_close(jacobian(draw(7)).to_dense(), torch.func.jacrev(f)(draw(7)))


def test_a_recorded_jacobian_takes_x_of_any_strides() -> None:
    def f(x: Tensor) -> Tensor:
        return x.contiguous().view(-1) ** 2 * torch.arange(6)

    x = draw(3, 2).T
    for at, other in ((x, x.contiguous()), (x.contiguous(), x)):
        found = recorded_jacobian(f, at)(other).to_dense()
        torch.testing.assert_close(found, torch.func.jacrev(f)(x).reshape(6, 6))


def test_a_matrix_given_away_shares_nothing_with_its_plan() -> None:
    plan = color(detect(tridiagonal, draw(5)))
    first = sparse_jacobian(tridiagonal, draw(5), plan, format="scipy")
    expected = first.toarray()
    first.data[::2] = 0
    first.eliminate_zeros()
    np.testing.assert_array_equal(plan.pattern.toarray(), expected != 0)


def test_sparse_jacobians_are_differentiable_and_keep_the_dtype() -> None:
    x = draw(6).requires_grad_()
    sparse_jacobian(tridiagonal, x, color(detect(tridiagonal, x))).to_dense().square().sum().backward()
    expected = torch.func.grad(lambda x: torch.func.jacrev(tridiagonal)(x).square().sum())(x.detach())
    torch.testing.assert_close(x.grad, expected)
    assert sparse_jacobian(tridiagonal, draw(6).float()).dtype == torch.float32


def test_empty_and_constant_functions() -> None:
    jacobian = sparse_jacobian(lambda x: torch.ones(3, dtype=x.dtype) + 0 * x.round()[:3], draw(4))
    assert jacobian.shape == (3, 4) and jacobian._nnz() == 0
    assert color(np.zeros((3, 0))).number == 0
    for method in ("global", "local"):
        assert detect(lambda x: x.sum()[None], draw(0), method=method).shape == (1, 0)


def net(channels: int = 1) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        sides = [(channels, 8), (8, 8), (8, channels)]
        layers = [layer for i, o in sides for layer in (nn.Conv2d(i, o, 3, padding=1), nn.SiLU())]
    return nn.Sequential(*layers[:-1]).double().requires_grad_(False)


def test_the_diagonal_alone_needs_fewer_colours() -> None:
    f, x = net(), draw(3, 1, 12, 12)
    pattern = detect(f, x[:1])
    plan = color(pattern, "diagonal")
    assert (plan.number, color(pattern).number) == (16, 49)  # squares of 4 x 4 and 7 x 7 pixels
    dense = torch.func.vmap(torch.func.jacrev(lambda one: f(one[None])[0].reshape(-1)))(x).reshape(3, 144, 144)
    expected = dense.diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(diagonal(f, x, plan).flatten(1), expected)
    torch.testing.assert_close(divergence(f, x, plan, chunk=4), expected.sum(1))
    random = torch.Generator().manual_seed(0)
    probes = (torch.rand(4000, *x.shape, generator=random) < 0.5).double() * 2 - 1
    estimate = hutchinson(f, x, probes)
    off = dense - torch.diag_embed(expected)
    deviation = ((off + off.mT).square().sum((1, 2)) / 2 / 4000).sqrt()  # variance of v^T J v for signs: |sym off|² / 2
    assert ((estimate - expected.sum(1)).abs() < 4 * deviation).all()
