"""Modes, dual numbers, graphs, profiles, second order and implicit functions against torch.func and closed forms."""

from __future__ import annotations

import math
import operator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from reverie.autodiff import (
    Dual,
    bilinear,
    derivative,
    functionalize,
    hessian,
    hvp,
    implicit,
    jacobian,
    jvp,
    linear_program,
    profile,
    record,
    second_derivative,
    vjp,
)
from reverie.autodiff.dual import SLOPES
from reverie.autodiff.second import PRODUCTS
from reverie.base.errors import ReverieWarning, UserError
from reverie.gallery.autodiff import _dense, hessian_runs


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def network(n: int, m: int, seed: int):
    """A random smooth function of n numbers to m."""
    a, b = draw(6, n, seed=seed), draw(m, 6, seed=seed + 1)
    return lambda x: b @ torch.tanh(a @ x + 0.3) + (x * x).sum()


@settings(max_examples=20)
@given(n=st.integers(1, 5), m=st.integers(1, 5), seed=st.integers(0, 1000))
def test_products_are_those_of_the_dense_jacobian_and_of_differences(n: int, m: int, seed: int) -> None:
    f, x, v, u = network(n, m, seed), draw(n, seed=seed), draw(n, seed=seed + 2), draw(m, seed=seed + 3)
    dense = torch.func.jacrev(f)(x)
    for mode in ("auto", "forward", "reverse"):
        torch.testing.assert_close(jacobian(f, x, mode), dense)
        torch.testing.assert_close(jacobian(f, x, mode, memory=1), dense)  # one product at a time
    value, pushed = jvp(f, x, v)
    torch.testing.assert_close(pushed, dense @ v)
    torch.testing.assert_close(value, f(x))
    torch.testing.assert_close(vjp(f, x, u)[1], u @ dense)
    h = 1e-6
    torch.testing.assert_close(pushed, (f(x + h * v) - f(x - h * v)) / (2 * h), rtol=1e-5, atol=1e-6)


def test_several_tensors_and_parameters_of_a_module() -> None:
    f = lambda a, b: a @ b.sin()  # noqa: E731
    x = (draw(3, 4), draw(4, seed=1))
    expected = torch.func.jacrev(f, argnums=(0, 1))(*x)
    for mode in ("forward", "reverse"):
        torch.testing.assert_close(jacobian(f, x, mode), expected)
    v = (draw(3, 4, seed=2), draw(4, seed=3))
    torch.testing.assert_close(jvp(f, x, v)[1], sum(torch.tensordot(j, t, t.ndim) for j, t in zip(expected, v, strict=True)))
    assert [g.shape for g in vjp(f, x, draw(3))[1]] == [(3, 4), (4,)]
    net = nn.Linear(4, 2).double()
    weight, bias = jacobian(*functionalize(net, draw(4)))
    torch.testing.assert_close(bias, torch.eye(2, dtype=torch.float64))
    torch.testing.assert_close(weight[0, 0], draw(4))


@pytest.mark.parametrize("n,m,used", [(2, 9, "forward"), (9, 2, "reverse")])
def test_the_cheaper_mode_is_chosen(n: int, m: int, used: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from reverie.autodiff import modes

    other = "reverse" if used == "forward" else "forward"
    monkeypatch.setitem(modes.MODES, other, None)  # would fail if called
    assert jacobian(network(n, m, 0), draw(n)).shape == (m, n)


def test_wrong_inputs_raise() -> None:
    with pytest.raises(UserError, match="floating-point"):
        jvp(torch.sin, torch.arange(3), torch.arange(3))
    with pytest.raises(UserError, match=r"v must have the shapes \[\(3,\)\]"):
        jvp(torch.sin, draw(3), draw(4))
    with pytest.raises(UserError, match="scalar"):
        hvp(torch.sin, draw(3), draw(3))
    with pytest.raises(UserError, match="empty"):
        jacobian(torch.sin, draw(0))
    with pytest.raises(UserError, match="ReLU has no parameters"):
        functionalize(nn.ReLU(), draw(3))
    with pytest.raises(UserError, match="did you mean 'forward'"):
        jacobian(torch.sin, draw(3), "forwards")


@pytest.mark.parametrize("name", SLOPES)
def test_each_function_of_dual_numbers_is_torchs(name: str) -> None:
    x = torch.tensor([0.2, 0.45, 0.9], dtype=torch.float64)
    f, one = getattr(torch, name), torch.ones(3, dtype=torch.float64)
    value, slope = torch.func.jvp(f, (x,), (one,))
    dual = f(Dual(x, one))
    torch.testing.assert_close((dual.value, dual.tangent), (value, slope), rtol=1e-13, atol=0)
    method = getattr(Dual(x, one), name)()
    torch.testing.assert_close(method.tangent, slope, rtol=1e-13, atol=0)
    second = torch.func.jvp(lambda a: torch.func.jvp(f, (a,), (one,))[1], (x,), (one,))[1]
    torch.testing.assert_close(derivative(f, x, 2), second, rtol=1e-12, atol=1e-12)


def test_dual_arithmetic_with_numbers_and_tensors_on_both_sides() -> None:
    t, one = torch.tensor(2.0, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64)
    forms = (
        lambda x: t * x - x / t + (t - x) / x + t**x + x**t,
        lambda x: 2 * x - x / 2 + (2 - x) / x + 2**x + x**3 + 1 / x - (x - 1) * (x + x),
    )
    for f in forms:
        dual = f(Dual(3.0, 1.0))
        expected = torch.func.jvp(f, (torch.tensor(3.0, dtype=torch.float64),), (one,))
        torch.testing.assert_close((dual.value, dual.tangent), expected)
    assert float(derivative(lambda x: x + x**2, 3.0)) == 7  # the example of the lecture notes
    assert float(derivative(lambda x: x**3, -2.0, 2)) == -12
    with pytest.raises(UserError, match="not torch's 'cumsum'"):
        torch.cumsum(Dual(3.0, 1.0), 0)  # type: ignore[call-overload]


def test_dual_numbers_broadcast_and_take_what_torch_takes() -> None:
    assert float((Dual(3.0, 1.0) + torch.zeros(4)).sum().tangent) == 4
    nested = derivative(lambda x: derivative(lambda y: (x * y + torch.ones(3)).sum(), 1.0), 2.0)
    assert float(nested) == 3
    x = Dual(draw(2, 3), draw(2, 3, seed=1))
    torch.testing.assert_close(torch.sum(x, dim=0).tangent, draw(2, 3, seed=1).sum(0))
    torch.testing.assert_close(x.mean(dim=1, keepdim=True).tangent, draw(2, 3, seed=1).mean(1, keepdim=True))
    with pytest.raises(UserError, match="'add' without alpha"):
        torch.add(x, x, alpha=3)
    with pytest.raises(UserError, match="tangent of shape"):
        Dual(1.0, torch.ones(4))


@pytest.mark.parametrize("power", [0, 2, torch.tensor(0.0), torch.tensor(2.0)], ids=["0", "2", "tensor 0", "tensor 2"])
@pytest.mark.parametrize("base", [0.0, -3.0])
def test_powers_of_dual_numbers_that_are_not_positive(base: float, power: float | Tensor) -> None:
    n = float(power)
    for order, expected in enumerate((base**n, n * base if n else 0.0, n, 0.0)):
        assert float(derivative(lambda x: x**power, base, order)) == expected


def test_dual_numbers_are_compared_and_branched_on_by_value() -> None:
    x, two = Dual(torch.tensor([1.0, 2.0, 3.0]), 1.0), torch.tensor(2.0)
    for name in ("lt", "le", "gt", "ge", "eq", "ne"):
        compare = getattr(operator, name)
        expected = compare(torch.tensor([1.0, 2.0, 3.0]), 2.0)
        for other in (2.0, two, Dual(2.0, 5.0), Dual(Dual(2.0, 5.0), 1.0)):
            assert torch.equal(compare(x, other), expected)
        assert torch.equal(compare(two, x), compare(2.0, torch.tensor([1.0, 2.0, 3.0])))
        assert torch.equal(getattr(torch, name)(x, two), expected)
    steps = lambda x: x * x if x < 1 else 3 * x  # noqa: E731
    assert (float(derivative(steps, 0.5)), float(derivative(steps, 2.0))) == (1, 3)
    bend = lambda x: torch.where(x > 0, x**2, -x)  # noqa: E731
    at = torch.tensor([-1.0, 4.0], dtype=torch.float64)
    assert derivative(bend, at).tolist() == [-1, 8] and derivative(bend, at, 2).tolist() == [0, 2]
    assert derivative(lambda x: torch.where(x > 0, 1.0, x), at).tolist() == [1, 0]
    assert not Dual(0.0, 1.0) and {x: 1}[x] == 1


def test_dual_numbers_are_indexed() -> None:
    value, tangent = draw(4, 3), draw(4, 3, seed=1)
    x = Dual(value, tangent)
    for where in (0, (slice(1, 3), 2), torch.tensor([3, 0]), value > 0, (..., None)):
        torch.testing.assert_close((x[where].value, x[where].tangent), (value[where], tangent[where]))
    assert len(x) == 4 and x.shape == (4, 3) and len(list(x)) == 4
    nested = derivative(lambda x: derivative(lambda y: (x * y)[0] * y[1], torch.ones(2)), torch.ones(2))
    assert nested.shape == ()
    with pytest.raises(UserError, match="index"):
        x[Dual(1.0, 1.0)]


@pytest.mark.parametrize("shapes", [((3, 4), (4, 2)), ((3, 4), (4,)), ((4,), (4, 2)), ((4,), (4,)), ((5, 3, 4), (5, 4, 2))])
def test_products_of_matrices_of_dual_numbers(shapes: tuple[tuple[int, ...], ...]) -> None:
    a, b = (draw(*shape, seed=k) for k, shape in enumerate(shapes))
    da, db = (draw(*shape, seed=k + 2) for k, shape in enumerate(shapes))
    for left, right in ((Dual(a, da), Dual(b, db)), (a, Dual(b, db)), (Dual(a, da), b)):
        along = tuple(t.tangent if isinstance(t, Dual) else torch.zeros_like(t) for t in (left, right))
        expected = torch.func.jvp(torch.matmul, (a, b), along)
        for product in (left @ right, torch.matmul(left, right)):  # type: ignore[call-overload, operator]
            torch.testing.assert_close((product.value, product.tangent), expected)


@pytest.mark.parametrize("base", [-2.0, 0.0, 1.5])
def test_dual_exponents_of_any_base(base: float) -> None:
    a, b = torch.tensor(base, dtype=torch.float64), torch.tensor(3.0, dtype=torch.float64)
    expected = torch.func.jvp(torch.pow, (a, b), (torch.ones_like(a), torch.ones_like(a)))
    found = Dual(a, 1.0) ** Dual(b, 1.0)
    torch.testing.assert_close((found.value, found.tangent), expected, equal_nan=True)
    along_base = Dual(a, 1.0) ** Dual(b, 0.0)  # where torch multiplies the missing slope by zero and gets no number
    assert (float(along_base.value), float(along_base.tangent)) == (base**3, 3 * base**2)
    for left in (base, a):
        constant = left ** Dual(b, 0.0)
        assert (float(constant.value), float(constant.tangent)) == (base**3, 0)
    assert math.isnan(float((base ** Dual(b, 1.0)).tangent)) == (base < 0)
    second = derivative(lambda x: x ** Dual(b, 0.0), a, 2)
    assert float(second.value if isinstance(second, Dual) else second) == 6 * base


def test_nested_dual_numbers_of_several_variables() -> None:
    w = draw(4, 3)
    f = lambda x: torch.tanh(w @ x)[1:].sum() * torch.exp(x[0]) + x @ x * x[2] ** 3  # noqa: E731
    x, v, u = draw(3, seed=1), draw(3, seed=2), draw(3, seed=3)
    found = second_derivative(f, x, v, u)
    gradient, dense = torch.func.grad(f)(x), torch.func.hessian(f)(x)
    parts = (found.value.value, found.value.tangent, found.tangent.value, found.tangent.tangent)
    torch.testing.assert_close(parts, (f(x), gradient @ u, gradient @ v, u @ dense @ v))
    eye = torch.eye(3, dtype=torch.float64)
    entries = [[second_derivative(f, x, i, j).tangent.tangent for j in eye] for i in eye]
    torch.testing.assert_close(torch.stack([torch.stack(row) for row in entries]), dense)
    for flat, slope in ((lambda x: torch.ones(()), 0), (lambda x: x[0], v[0])):
        found = second_derivative(flat, x, v, u)
        assert float(found.tangent.value) == slope and float(found.tangent.tangent) == 0


def test_nested_derivatives_are_not_confused() -> None:
    # d/dx (x d/dy (x + y)) = 1: the inner e must not be taken for the outer one
    assert float(derivative(lambda x: x * derivative(lambda y: x + y, 1.0), 1.0)) == 1
    assert float(derivative(lambda x: x * derivative(lambda y: x * y, 2.0), 3.0)) == 6
    nested = Dual(Dual(2.0, 1.0), Dual(1.0, 0.0)) ** 3  # x³ at 2: 8, 12, 12, 12
    assert isinstance(nested.value, Dual) and isinstance(nested.tangent, Dual)
    assert [float(a) for a in (nested.value.value, nested.value.tangent, nested.tangent.value, nested.tangent.tangent)] == [
        8, 12, 12, 12]  # fmt: skip


def test_the_graph_of_x_plus_x_squared_at_3() -> None:
    graph = record(lambda x: x + x**2, torch.tensor(3.0, dtype=torch.float64))
    assert [(n.name, n.op, float(n.value)) for n in graph.nodes] == [("x", "input", 3), ("s1", "power", 9), ("s2", "+", 12)]
    assert [float(a) for a in graph.nodes[1].locals] == [6] and [float(a) for a in graph.nodes[2].locals] == [1, 1]
    one = torch.tensor(1.0, dtype=torch.float64)
    assert [float(t) for t in graph.tangents(one)] == [1, 6, 7]
    assert [float(r) for r in graph.adjoints()] == [7, 1, 1]


def test_sweeps_over_a_recorded_graph_are_torchs_products() -> None:
    w = draw(4, 3)

    def f(a: Tensor, b: Tensor) -> Tensor:
        h = torch.tanh(w @ a) * b
        return h.softmax(0) @ h + (h * h).sum()

    x, v = (draw(3, seed=1), draw(4, seed=2)), (draw(3, seed=3), draw(4, seed=4))
    graph = record(f, x)
    torch.testing.assert_close(graph.tangents(v)[graph.output], jvp(f, x, v)[1])
    torch.testing.assert_close(graph.adjoints()[:2], torch.func.grad(f, (0, 1))(*x))
    with pytest.raises(UserError, match="does not depend on x"):
        record(lambda x: torch.ones(2), draw(2))
    with pytest.raises(UserError, match="in-place"):
        record(lambda x: x.sin().add_(1), draw(2))


def test_second_order_sweeps_over_a_recorded_graph_give_the_hessian() -> None:
    w = draw(4, 3)

    def f(a: Tensor, b: Tensor) -> Tensor:
        h = torch.tanh(w @ a) * b.unsqueeze(0)[0]
        return h.softmax(0) @ h + (h * h).sum() ** 2 + a[1:].prod()

    x, v = (draw(3, seed=1), draw(4, seed=2)), (draw(3, seed=3), draw(4, seed=4))
    torch.testing.assert_close(record(f, x).second_adjoints(v)[:2], hvp(f, x, v))
    # x + x² at 3: r' = 2 at x, 0 on the way
    graph = record(lambda x: x + x**2, torch.tensor(3.0, dtype=torch.float64))
    assert [float(r) for r in graph.second_adjoints(torch.tensor(1.0, dtype=torch.float64))] == [2, 0, 0]
    # sin(a b) + exp(b): the adjoint of s = a b is cos(s), whose derivative along (1, 1) is -sin(s) (a + b)
    pair = (torch.tensor(0.5, dtype=torch.float64), torch.tensor(2.0, dtype=torch.float64))
    found = record(lambda a, b: torch.sin(a * b) + b.exp(), pair).second_adjoints((torch.ones_like(pair[0]),) * 2)
    assert math.isclose(float(found[2]), -math.sin(1) * 2.5)


def test_a_graph_transposes_and_detaches_as_torch_does() -> None:
    weight, x = draw(3, 3), draw(3, 3, seed=1)
    torch.testing.assert_close(record(lambda x: (x.t() * weight).sum(), x).adjoints()[0], weight.T)
    three = torch.tensor(3.0, dtype=torch.float64)
    assert float(record(lambda x: x * x.detach(), three).adjoints()[0]) == 3
    assert float(record(lambda x: x * (x.detach() + 1), three).adjoints()[0]) == 4


def chain(depth: int):
    def f(x: Tensor) -> Tensor:
        for _ in range(depth):
            x = torch.tanh(x)
        return x

    return f


def test_memory_grows_and_shrinks_in_reverse_and_is_constant_in_forward() -> None:
    x, size = draw(1000), 8000
    short, long = (profile(chain(k), x, rounds=1) for k in (10, 40))
    assert short.forward.peak_bytes == long.forward.peak_bytes <= 6 * size
    assert long.reverse.peak_bytes - short.reverse.peak_bytes == 30 * size  # every layer's value is kept
    memory = long.reverse.memory
    top = memory.index(max(memory))
    assert 0.4 < top / len(memory) < 0.8 and memory[-1] < memory[top] / 10
    assert (long.value.flops, long.inputs, long.outputs) == (40_000, 1000, 1000)
    assert (
        profile(lambda x: x @ torch.ones(1000, 7, dtype=x.dtype), draw(5, 1000), rounds=1).value.flops
        == 2 * 5 * 1000 * 7 + 7000
    )


def test_products_with_vectors_are_counted_as_matrix_products_are() -> None:
    w, x, b = draw(5, 7), draw(7), draw(5)
    for f, flops in ((lambda x: w @ x, 70), (lambda x: x @ x, 14), (lambda x: torch.addmv(b, w, x), 75)):
        assert profile(f, x, rounds=0).value.flops == flops


@pytest.mark.parametrize("mode", PRODUCTS)
def test_a_whole_hessian_costs_as_many_runs_as_table_1_3_says(mode: str) -> None:
    # n² runs by forward on forward and n by the others, each of a few times the operations of f
    sizes = (16, 64)
    found = [(hessian_runs(n, mode, rounds=0), profile(_dense(n, 1), torch.ones(n), rounds=0).value.flops) for n in sizes]
    for n, ((runs, one, _), value) in zip(sizes, found, strict=True):
        assert runs == (n**2 if mode == "forward-on-forward" else n)
        assert 2 <= one.flops / value <= 12
    growth = [runs * one.flops / value for (runs, one, _), value in found]
    power = math.log(growth[1] / growth[0], 4)
    assert abs(power - (2 if mode == "forward-on-forward" else 1)) < 0.15


@pytest.mark.parametrize("mode", PRODUCTS)
@pytest.mark.parametrize("seed", range(3))
def test_every_combination_of_modes_gives_the_hessian(mode: str, seed: int) -> None:
    g = network(5, 3, seed)
    f = lambda x: (g(x) ** 2).sum().sin()  # noqa: E731
    x, v, w = draw(5, seed=seed), draw(5, seed=seed + 1), draw(5, seed=seed + 2)
    dense = torch.func.hessian(f)(x)
    torch.testing.assert_close(hvp(f, x, v, mode), dense @ v)
    torch.testing.assert_close(hessian(f, x, mode), dense)
    torch.testing.assert_close(bilinear(f, x, v, w), w @ dense @ v)
    h = 1e-5
    slopes = torch.func.grad(f)
    torch.testing.assert_close(hvp(f, x, v, mode), (slopes(x + h * v) - slopes(x - h * v)) / (2 * h), rtol=1e-4, atol=1e-5)
    two = lambda a, b: (a.sin() * b).prod()  # noqa: E731
    pair, along = (draw(2), draw(2, seed=1)), (draw(2, seed=2), draw(2, seed=3))
    blocks = torch.func.hessian(two, (0, 1))(*pair)
    torch.testing.assert_close(hessian(two, pair, mode), blocks)
    expected = tuple(row[0] @ along[0] + row[1] @ along[1] for row in blocks)
    torch.testing.assert_close(hvp(two, pair, along, mode), expected)


def babylonian(a: Tensor) -> Tensor:
    x = torch.ones_like(a)
    for _ in range(60):
        x = (x + a / x) / 2
    return x


LINEAR = ("lu", "gmres")


@pytest.mark.parametrize("linear", LINEAR)
def test_square_root_by_iteration_to_third_order(linear: str) -> None:
    root = implicit(lambda x, a: x - (x + a / x) / 2, babylonian, linear)
    a = torch.tensor([0.25, 2.0, 9.0], dtype=torch.float64)
    for mode in ("forward", "reverse"):
        torch.testing.assert_close(jacobian(root, a, mode), torch.diag(0.5 * a**-0.5))
    torch.testing.assert_close(hvp(lambda a: root(a).sum(), a, torch.ones_like(a)), -0.25 * a**-1.5)
    one = torch.tensor(2.0, dtype=torch.float64)
    slope = torch.func.grad(torch.func.grad(torch.func.grad(root)))
    torch.testing.assert_close(slope(one), torch.tensor(0.375 * 2**-2.5, dtype=torch.float64))
    batch = torch.func.vmap(torch.func.grad(lambda s: root(s)))(a)
    torch.testing.assert_close(batch, 0.5 * a**-0.5)
    plain = a.clone().requires_grad_()
    root(plain).sum().backward()
    torch.testing.assert_close(plain.grad, 0.5 * a**-0.5)


def test_one_factorisation_serves_all_products(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    factor = torch.linalg.lu_factor_ex
    monkeypatch.setattr(torch.linalg, "lu_factor_ex", lambda a: calls.append(1) or factor(a))
    root = implicit(lambda x, a: x * x - a, lambda a: a.sqrt())
    a = torch.rand(20, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 1
    jacobian(root, a, "reverse")
    jacobian(root, a, "forward")
    assert len(calls) == 2  # one for each Jacobian of twenty products


def test_circle_and_its_forbidden_point() -> None:
    circle = implicit(lambda y, x: x * x + y * y - 1, lambda x: -(1 - x * x).clamp(min=0).sqrt())
    x = torch.tensor(0.6, dtype=torch.float64)
    torch.testing.assert_close(torch.func.grad(circle)(x), torch.tensor(0.75, dtype=torch.float64))  # -x / y on y < 0
    one = torch.tensor(1.0, dtype=torch.float64)
    assert float(circle(one)) == 0
    for ask in (lambda: torch.func.grad(circle)(one), lambda: jvp(circle, one, one)):
        with pytest.raises(UserError, match=r"singular.*implicit function theorem does not hold"):
            ask()
    near = torch.sqrt(1 - torch.tensor(1e-20, dtype=torch.float64))
    with pytest.raises(UserError, match="singular"):
        torch.func.grad(circle)(near)


def test_an_ill_conditioned_equation_warns_and_gmres_that_fails_is_an_error() -> None:
    a = torch.diag(torch.tensor([1.0, 1e-12], dtype=torch.float64))
    b = torch.ones(2, dtype=torch.float64)
    solution = implicit(lambda w, b: a @ w - b, lambda b: torch.linalg.solve(a, b))
    with pytest.warns(ReverieWarning, match="about 12 of the 16 digits"):
        jacobian(solution, b)
    milder = torch.diag(torch.tensor([1.0, 1e-9], dtype=torch.float64))
    singular = torch.tensor([[1.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    for linear in ("gmres", "cg"):
        lost = implicit(lambda w, b: singular @ w - b, lambda b: torch.zeros_like(b), linear)
        for along in ([1.0, -1.0], [1.0, 1.0]):  # out of and in the range of the matrix
            with pytest.raises(UserError, match="singular or ill-conditioned"):
                jvp(lost, b, torch.tensor(along, dtype=torch.float64))
        near = implicit(lambda w, b: milder @ w - b, lambda b: torch.linalg.solve(milder, b), linear)
        with pytest.warns(ReverieWarning, match="about 8 of the 16 digits"):
            jvp(near, b, torch.tensor([1.0, 0.0], dtype=torch.float64))
    skew = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    with pytest.raises(UserError, match="not symmetric positive definite"):
        jvp(implicit(lambda w, b: skew @ w - b, lambda b: -skew @ b, "cg"), b, b)


@pytest.mark.parametrize("linear", ["lu", "gmres", "cg"])
def test_an_equation_of_another_shape_than_its_solution_is_refused(linear: str) -> None:
    root = implicit(lambda w, a: (w * w - a).sum(), torch.sqrt, linear)
    with pytest.raises(UserError, match=r"shape of w, \(2,\), .*\(\)"):
        torch.func.grad(lambda a: root(a).sum())(torch.ones(2, dtype=torch.float64))


@pytest.mark.parametrize("linear", ["lu", "gmres", "cg"])
def test_ridge_regression_in_its_penalty(linear: str) -> None:
    x, y = draw(30, 4), draw(30, seed=1)
    gram, right, eye = x.T @ x, x.T @ y, torch.eye(4, dtype=torch.float64)
    ridge = implicit(lambda w, p: x.T @ (x @ w - y) + p * w, lambda p: torch.linalg.solve(gram + p * eye, right), linear)
    p = torch.tensor(2.5, dtype=torch.float64)
    inverse = torch.linalg.inv(gram + p * eye)
    torch.testing.assert_close(jacobian(ridge, p, "forward"), -inverse @ ridge(p))
    torch.testing.assert_close(jacobian(ridge, p, "reverse"), -inverse @ ridge(p))


def test_large_and_matrix_free() -> None:
    n = 3000  # a dense dF/dw would take 72 MB and be factorised in seconds

    def laplace(w: Tensor, load: Tensor) -> Tensor:
        padded = torch.nn.functional.pad(w, (1, 1))
        return 3 * w - padded[2:] - padded[:-2] - load

    def solve(load: Tensor) -> Tensor:
        from scipy.linalg import solveh_banded

        return torch.from_numpy(solveh_banded([[-1.0] * n, [3.0] * n], load.numpy()))

    load, v = draw(n), draw(n, seed=1)
    for linear in ("gmres", "cg"):
        _, pushed = jvp(implicit(laplace, solve, linear), load, v)
        torch.testing.assert_close(pushed, solve(v), rtol=1e-9, atol=1e-9)


A = torch.tensor([[1.0, 1.0, 1.0, 0.0], [1.0, 3.0, 0.0, 1.0]], dtype=torch.float64)
B = torch.tensor([4.0, 6.0], dtype=torch.float64)
C = torch.tensor([-3.0, -5.0, 0.0, 0.0], dtype=torch.float64)


def test_linear_program_and_its_derivatives() -> None:
    found = linear_program(A, B, C)  # the vertex of the first two: x1 + x2 = 4, x1 + 3 x2 = 6
    torch.testing.assert_close(found.x, torch.tensor([3.0, 1.0, 0.0, 0.0], dtype=torch.float64))
    torch.testing.assert_close(found.value, B @ found.y)
    basis = torch.linalg.inv(A[:, :2])
    for mode in ("forward", "reverse"):
        x_a, x_b, x_c = jacobian(lambda a, b, c: linear_program(a, b, c).x, (A, B, C), mode)
        torch.testing.assert_close(x_b[:2], basis)
        torch.testing.assert_close(x_b[2:], torch.zeros(2, 2, dtype=torch.float64))
        torch.testing.assert_close(x_c, torch.zeros(4, 4, dtype=torch.float64))
        expected = -torch.einsum("ik,j->ikj", basis, found.x)  # d x_B = -A_B^-1 dA x
        torch.testing.assert_close(x_a[:2], expected)
    v_a, v_b, v_c = jacobian(lambda a, b, c: linear_program(a, b, c).value, (A, B, C))
    torch.testing.assert_close((v_b, v_c, v_a), (found.y, found.x, -torch.outer(found.y, found.x)))  # envelope theorem


@pytest.mark.parametrize("scale", [1e-10, 1e10])
def test_a_linear_program_has_no_unit(scale: float) -> None:
    found, scaled = linear_program(A, B, C), linear_program(A, scale * B, scale * C)
    torch.testing.assert_close((scaled.x, scaled.y), (scale * found.x, scale * found.y), rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    "a,b,c,message",
    [
        (A, torch.tensor([2.0, 6.0], dtype=torch.float64), C, "degenerate vertex"),
        (A, B, torch.tensor([-1.0, -1.0, 0.0, 0.0], dtype=torch.float64), "not unique"),
        (A, -B, C, "infeasible"),
        (torch.tensor([[1.0, -1.0]]).double(), torch.ones(1).double(), -torch.ones(2).double(), "unbounded"),
        (A, B, B, "A must be"),
    ],
    ids=["degenerate", "not unique", "infeasible", "unbounded", "shapes"],
)  # fmt: skip
def test_linear_programs_without_derivatives_are_errors(a: Tensor, b: Tensor, c: Tensor, message: str) -> None:
    with pytest.raises(UserError, match=message):
        linear_program(a, b, c)


def sinkhorn_map(f: Tensor, cost: Tensor, a: Tensor, b: Tensor, reg: float) -> Tensor:
    """Update both potentials once and fix the free constant by f[0] = 0."""
    g = -reg * torch.logsumexp((f[:, None] - cost) / reg + a.log()[:, None], 0)
    new = -reg * torch.logsumexp((g - cost) / reg + b.log(), 1)
    return new - new[0]


@pytest.mark.parametrize("linear", LINEAR)
def test_sinkhorn_potentials(linear: str) -> None:
    reg, n, m = 0.5, 5, 6
    cost = torch.rand(n, m, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    a, b = torch.full((n,), 1 / n, dtype=torch.float64), torch.full((m,), 1 / m, dtype=torch.float64)

    def solve(cost: Tensor) -> Tensor:
        f = torch.zeros(n, dtype=torch.float64)
        for _ in range(300):
            f = sinkhorn_map(f, cost, a, b, reg)
        return f

    potential = implicit(lambda f, cost: f - sinkhorn_map(f, cost, a, b, reg), solve, linear)
    h, v = 1e-5, draw(n, m)
    expected = (solve(cost + h * v) - solve(cost - h * v)) / (2 * h)
    torch.testing.assert_close(jvp(potential, cost, v)[1], expected, rtol=1e-6, atol=1e-8)

    def value(cost: Tensor) -> Tensor:
        f = potential(cost)
        g = -reg * torch.logsumexp((f[:, None] - cost) / reg + a.log()[:, None], 0)
        return a @ f + b @ g

    f = solve(cost)
    g = -reg * torch.logsumexp((f[:, None] - cost) / reg + a.log()[:, None], 0)
    coupling = a[:, None] * b * ((f[:, None] + g - cost) / reg).exp()
    torch.testing.assert_close(torch.func.grad(value)(cost), coupling)  # envelope: the plan is the gradient of the value
    assert math.isclose(float(coupling.sum()), 1)
