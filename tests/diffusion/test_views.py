"""Views are orthogonal and undone exactly."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from reverie.base.errors import UserError
from reverie.base.spec import build
from reverie.diffusion.jigsaw import owners
from reverie.diffusion.views import VIEWS, SizedView, View, check, read_views
from reverie.steering.illusion import Illusions
from reverie.steering.view_transitions import interpolate_views

OPTIONS = (
    "patches:count=2,seed=5",
    "pixels:seed=9",
    "inner_circle:angle=33",
    "inner_circle:angle=-200",
    "skew:slope=-0.7",
    "jigsaw:count=2,seed=3",
)


def placed(name: str, height: int = 28, width: int = 28) -> SizedView:
    return SizedView(build(VIEWS, name, "view"), height, width)


@pytest.mark.parametrize("name", [*VIEWS, *OPTIONS])
def test_every_view_is_an_orthogonal_matrix_with_an_exact_inverse(name: str) -> None:
    view = placed(name, 12, 12) if "jigsaw" not in name else placed(name, 24, 24)
    side = 12 if "jigsaw" not in name else 24
    matrix = view(torch.eye(side * side).reshape(-1, side, side)).flatten(1).T  # its columns are the views of one pixel each
    assert torch.equal(matrix @ matrix.T, torch.eye(side * side))
    x = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0))
    assert torch.equal(view.back(view(x)), x) and torch.equal(view(view.back(x)), x)
    assert torch.equal((matrix @ x[0, 0].flatten()).reshape(side, side), view(x)[0, 0])
    if name.split(":")[0] not in ("identity", "negate"):
        assert not torch.equal(view.source, torch.arange(side * side))  # it does move something


def test_views_show_what_they_say() -> None:
    x = torch.arange(16.0).reshape(4, 4)
    assert torch.equal(placed("rotate90", 4, 4)(x), x.rot90()) and torch.equal(placed("rotate180", 4, 4)(x), x.flip(0, 1))
    assert torch.equal(placed("rotate270", 4, 4)(x), x.rot90(3)) and torch.equal(placed("negate", 4, 4)(x), -x)
    assert torch.equal(placed("flip_horizontal", 4, 4)(x), x.flip(1)) and torch.equal(
        placed("flip_vertical", 4, 4)(x), x.flip(0)
    )
    assert placed("skew", 4, 4)(x)[:, 3].tolist() == [11.0, 15.0, 3.0, 7.0]  # the last column rolled by two
    patches = placed("patches:count=2", 4, 4)(x).reshape(2, 2, 2, 2).transpose(1, 2).reshape(4, 4)
    assert sorted(map(tuple, patches.tolist())) == sorted(
        map(tuple, x.reshape(2, 2, 2, 2).transpose(1, 2).reshape(4, 4).tolist())
    )


@pytest.mark.parametrize("side", [27, 28])
@pytest.mark.parametrize("quarters", [1, 2, 3, -1])
def test_quarter_turns_of_the_inner_circle_are_exact(side: int, quarters: int) -> None:
    x = torch.arange(float(side * side)).reshape(side, side)
    middle = torch.arange(side) - (side - 1) / 2
    inside = torch.hypot(middle[:, None], middle) <= side / 2
    shown = placed(f"inner_circle:angle={90 * quarters}", side, side)(x)
    assert torch.equal(shown, torch.where(inside, x.rot90(quarters), x))


def test_jigsaw_pieces_interlock_and_keep_together() -> None:
    owner = owners(56, 4)
    assert len(owner.unique()) == 16 and not torch.equal(owner, placed("identity", 56, 56)(owner // 16))
    straight = torch.arange(56) // 14
    assert (owner != straight[:, None] * 4 + straight).float().mean() > 0.05  # knobs
    shown = placed("jigsaw", 56, 56)(owner)
    slots = [shown[owner == piece].unique() for piece in range(16)]
    assert all(len(found) == 1 for found in slots)  # every slot holds one whole piece
    assert [int(found) for found in slots] != list(range(16))


def test_what_is_no_permutation_is_caught() -> None:
    class Folded(View):
        def source(self, places: torch.Tensor) -> torch.Tensor:
            return places // 2

    with pytest.raises(ValueError, match="not a signed permutation"):
        SizedView(Folded(), 4, 4)
    bad = placed("identity", 4, 4)
    bad.sign = 0.5
    with pytest.raises(ValueError, match="not a signed permutation"):
        check(bad)


def test_reading_views() -> None:
    found = read_views("identity, patches:count=7,seed=3,rotate180", (1, 28, 28))
    assert list(found) == ["identity", "patches:count=7,seed=3", "rotate180"]
    for text, shape, message in (
        ("identity,rotate45", (1, 28, 28), "did you mean 'rotate"),
        ("rotate90", (1, 28, 20), "needs square images, .*28x20"),
        ("jigsaw", (1, 28, 20), "needs square"),
        ("jigsaw:count=7", (1, 28, 28), "puzzle pieces"),
        ("patches:count=5", (1, 28, 28), "cannot be cut into 5x5"),
        ("identity,identity", (1, 28, 28), "identity, identity"),
        ("identity,", (1, 28, 28), "cannot read the views"),
        ("identity", (2,), "images"),
        ("negate:seed=1", (1, 28, 28), "takes no options"),
    ):
        with pytest.raises(UserError, match=message):
            read_views(text, shape)
    assert read_views("rotate180,flip_vertical,skew,inner_circle,pixels", (1, 28, 20))


@pytest.mark.parametrize("name", VIEWS)
def test_a_film_ends_with_the_view_itself(name: str) -> None:
    x = np.random.default_rng(0).random((2, 24, 24, 3)).astype(np.float32)
    first, second = placed("identity", 24, 24), placed(name, 24, 24)
    made = Illusions(x, [first, second], ["a", "b"])
    middle = interpolate_views(x, first, second, 0.5, 3)
    assert middle.shape == (2, 72, 72, 3) and middle.dtype == np.uint8
    for share, k in ((0.0, 0), (1.0, 1)):
        wanted = np.rint(made.in_view(k).astype(np.float64) * 255)
        got = interpolate_views(x, first, second, share, 3)[:, ::3, ::3]
        assert np.abs(got - wanted).max() <= 1
