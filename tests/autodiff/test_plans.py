"""Plans that are made at one point and used at others, for functions that sort, select, compare and branch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from reverie.autodiff import color, detect, diagonal, recorded_jacobian, sparse_hessian, sparse_jacobian
from reverie.base.errors import UserError

N = 12
WEIGHTS = torch.arange(1, N + 1).double()
TABLE = torch.tensor([2, 0, 1])


def draw(seed: int) -> Tensor:
    return torch.randn(N, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def rank(x: Tensor) -> Tensor:
    return x.argsort().argsort()


def assigned(x: Tensor, where: Tensor, value: Tensor | float) -> Tensor:
    y = x.sin()
    y[where] = value
    return y


def bins(x: Tensor) -> Tensor:
    return torch.bucketize(x.detach(), torch.tensor([-1.0, 0.0, 1.0], dtype=x.dtype))


def in_bins(x: Tensor) -> Tensor:
    return torch.zeros(4, dtype=x.dtype).index_add(0, bins(x), x.exp())


def sparse_places(x: Tensor) -> Tensor:
    places = torch.stack([torch.arange(N), rank(x)])
    return torch.sparse_coo_tensor(places, WEIGHTS, (N, N)) @ x


# Each gives the right derivatives wherever its plan was made.
RIGHT = {
    "max along a side": lambda x: x.view(3, 4).max(1).values,
    "min along a side": lambda x: x.view(3, 4).min(0).values,
    "max of all": lambda x: x.max()[None],
    "amax": lambda x: x.view(3, 4).amax(1),
    "median": lambda x: x.view(3, 4).median(1).values,
    "topk": lambda x: x.view(3, 4).topk(2, 1).values,
    "sort": lambda x: x.view(4, 3).sort(1).values,
    "cummax": lambda x: x.view(3, 4).cummax(1).values,
    "cummin": lambda x: x.cummin(0).values,
    "argsort as an index": lambda x: x[x.argsort()] * WEIGHTS,
    "argsort of one side as an index": lambda x: x.view(3, 4)[:, x.view(3, 4)[0].argsort()],
    "argmax as an index of rows": lambda x: x.view(3, 4)[x.view(3, 4).argmax(0)],
    "index and constant index": lambda x: x.view(3, 4)[TABLE, x.view(3, 4).argmax(1)],
    "gather": lambda x: x.view(3, 4).gather(1, x.view(3, 4).argsort(1)[:, :2]),
    "index select": lambda x: x.view(3, 4).index_select(0, x[:3].argsort()),
    "take": lambda x: x.take(x.argsort()[:5]),
    "take along a side": lambda x: torch.take_along_dim(x.view(3, 4), x.view(3, 4).argmax(1, keepdim=True), 1),
    "embedding": lambda x: torch.nn.functional.embedding(x[:4].argsort(), x.view(4, 3)),
    "masked assignment": lambda x: assigned(x, x > 0, 0.0),
    "assignment by order": lambda x: assigned(x.view(3, 4), x[:3].argsort()[:2], x[4:8] ** 2),
    "masked fill": lambda x: (x**2).masked_fill(x > 0.5, 1.0),
    "rank scatter": lambda x: torch.zeros_like(x).scatter(0, rank(x), x.exp()),
    "rank scatter in place": lambda x: torch.zeros_like(x).scatter_(0, rank(x), x.exp()) * x,
    "scatter of a number": lambda x: x.exp().scatter(0, x[:3].argsort(), 2.0),
    "scatter add": lambda x: torch.zeros(4, dtype=x.dtype).scatter_add(0, bins(x), x.exp()),
    "scatter reduce": lambda x: torch.ones(4, dtype=x.dtype).scatter_reduce(0, bins(x), x.exp(), "amax"),
    "bins": in_bins,
    "bins of rounded numbers": lambda x: torch.zeros(9, dtype=x.dtype).index_add(0, x.round().long().clamp(-4, 4) + 4, x**3),
    "index put": lambda x: x.index_put((x[:4].argsort(),), x[4:8] ** 2, accumulate=True),
    "where": lambda x: torch.where(x > 0, x**2, x.flip(0).sin()),
    "where of another's sign": lambda x: torch.where(x.roll(1) > 0, x**3, x[0]),
    "one-hot": lambda x: torch.nn.functional.one_hot(x.argmax(), N).double() * x**2,
    "places of a sparse matrix": sparse_places,
    "max pool": lambda x: torch.nn.functional.max_pool1d(x.view(1, 3, 4), 2, 1),
    "clamp": lambda x: x.clamp(-0.5, 0.5) ** 3,
}

# In these values of x decide which operations follow, or of how many numbers.
DECIDING = {
    "one index": lambda x: x[x.argmax()][None] ** 3,
    "branch": lambda x: x[:3] ** 2 if x.sum() > 0 else x.flip(0)[:3] ** 2,
    "branch on a number": lambda x: x[:3] ** 2 if float(x.sum()) > 0 else x[3:6] ** 2,
    "branch between results": lambda x: (x**2, x.flip(0) ** 2)[int(x[0] > 0)],
    "list": lambda x: x[torch.tensor(x.detach().argsort().tolist()[:4])] ** 2,
    "mask": lambda x: (x[x > 0] ** 3).sum()[None],
    "masked select": lambda x: (x.masked_select(x > 0) ** 3).sum()[None],
    "nonzero": lambda x: (x[(x > 0).nonzero()[:, 0]] ** 3).sum()[None],
    "masked assignment of x": lambda x: assigned(x, x > 0.3, x[3] ** 2),
    "masked rows": lambda x: assigned(x.view(3, 4), x.view(3, 4)[:, 0] > 0, x[4:8] ** 2),
    "masked assignment of as many": lambda x: assigned(x, x > 0, x[x > 0] ** 2),
}  # fmt: skip


def of_one_number(g):
    return lambda x: (g(x) ** 2 + g(x)).sum()


def derivatives(f, x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.autograd.functional.jacobian(f, x).reshape(-1, N), torch.autograd.functional.hessian(of_one_number(f), x)


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.filterwarnings("ignore:no sparsity rule")
def test_a_plan_holds_at_points_of_another_order(name: str) -> None:
    f = RIGHT[name]
    g = of_one_number(f)
    plan, second = color(detect(f, draw(0))), color(detect(g, draw(0), "hessian"), "star")
    for seed in range(1, 4):
        x = draw(seed)
        jacobian, hessian = derivatives(f, x)
        if name != "places of a sparse matrix":  # torch.func cannot map over sparse constants
            torch.testing.assert_close(sparse_jacobian(f, x, plan).to_dense(), jacobian)
            torch.testing.assert_close(sparse_hessian(g, x, second).to_dense(), hessian)
        assert (jacobian != 0).numpy()[~plan.pattern.toarray()].sum() == 0
        assert (hessian != 0).numpy()[~second.pattern.toarray()].sum() == 0


@pytest.mark.parametrize("name", DECIDING)
@pytest.mark.filterwarnings("ignore:no sparsity rule")
def test_a_plan_is_refused_where_the_function_takes_another_path(name: str) -> None:
    f = DECIDING[name]
    g = of_one_number(f)
    plan, second = color(detect(f, draw(0))), color(detect(g, draw(0), "hessian"), "star")
    near = draw(0) * 1.001
    torch.testing.assert_close(sparse_jacobian(f, near, plan).to_dense(), derivatives(f, near)[0])
    torch.testing.assert_close(sparse_hessian(g, near, second).to_dense(), derivatives(f, near)[1])
    refused = 0
    for seed in range(1, 5):
        x = draw(seed)
        for ask, h, made, truth in zip(
            (sparse_jacobian, sparse_hessian), (f, g), (plan, second), derivatives(f, x), strict=True
        ):
            try:
                found = ask(h, x, made).to_dense()
            except UserError as error:
                assert "execution path" in str(error) and "color(detect(f, x))" in str(error)
                refused += 1
            else:
                torch.testing.assert_close(found, truth)
        torch.testing.assert_close(sparse_jacobian(f, x).to_dense(), derivatives(f, x)[0])  # a plan of its own
    assert refused


def test_the_example_of_two_maxima() -> None:
    f = lambda x: x.view(2, 3).max(1).values.pow(3).sum()  # noqa: E731
    plan = color(detect(f, torch.tensor([3.0, 1, 2, 0, 5, 4]), "hessian"), "star")
    found = sparse_hessian(f, torch.tensor([0, 1, 2, 3, 1.5, -4]), plan).to_dense()
    torch.testing.assert_close(found, torch.diag(torch.tensor([0.0, 0, 12, 18, 0, 0])))


def test_indices_made_of_x_are_as_sparse_as_their_side() -> None:
    f = lambda x: x.view(3, 4).gather(1, x.view(3, 4).argsort(1))  # noqa: E731
    blocks = torch.block_diag(*[torch.ones(4, 4)] * 3).bool().numpy()
    assert (detect(f, draw(0)).toarray() == blocks).all()
    assert (detect(lambda x: x[torch.arange(N - 1, -1, -1)], draw(0)).toarray() == torch.eye(N).flip(0).bool().numpy()).all()


def test_members_and_recordings_are_compared_too() -> None:
    def member_wise(x: Tensor) -> Tensor:
        return torch.stack([row**2 if row[0] > 0 else row.roll(1) ** 2 for row in x])

    x = torch.tensor([[1.0, 2, 3], [4.0, 5, 6]], dtype=torch.float64)
    torch.testing.assert_close(diagonal(member_wise, x), 2 * x)
    with pytest.raises(UserError, match="execution path"):
        diagonal(member_wise, torch.cat([x, -x]))

    def selected(x: Tensor) -> Tensor:
        return (x[x > 0] ** 2).sum()[None]

    jacobian = recorded_jacobian(selected, x[0])
    torch.testing.assert_close(jacobian(2 * x[0]).to_dense(), 4 * x[:1])
    with pytest.raises(UserError, match="execution path"):
        jacobian(-x[0])
    with pytest.raises(UserError, match="execution path"):
        recorded_jacobian(selected, -x[0], color(detect(selected, x[0])))


def test_what_is_read_from_constants_decides_nothing() -> None:
    index = torch.tensor([1, 0])
    f = lambda x: x[int(index[0]) :][index] * float(WEIGHTS[2]) + x[WEIGHTS < 3]  # noqa: E731
    assert detect(f, draw(0)).path is None
