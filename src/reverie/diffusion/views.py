"""Views: ways to look at an image that only move its pixels, and the denoiser that sees one image through several.

A view is a signed permutation of pixels, so it is orthogonal, takes unit noise to unit noise, and is undone exactly.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from reverie.base.errors import UserError
from reverie.base.scalar import Time
from reverie.base.spec import build
from reverie.data.kind import kind_of
from reverie.diffusion.denoiser import Denoiser
from reverie.diffusion.jigsaw import jigsaw
from reverie.diffusion.pair import Pair

Seed = Annotated[int, Field(ge=0, lt=2**31)]
Count = Annotated[int, Field(ge=2, le=64)]


class View(ABC):
    """A rule for pixels.  turn: degrees by which the whole image is turned, counter-clockwise, where that is all it does."""

    sign = 1.0
    turn: float | None = None

    @abstractmethod
    def source(self, places: Tensor) -> Tensor:
        """Return which place of the image each place of the view shows.  places: (H, W), the numbers 0 .. H W - 1."""


class Identity(View):
    """The image as it is."""

    turn = 0.0

    def source(self, places: Tensor) -> Tensor:
        """Return every place."""
        return places


class FlipHorizontal(View):
    """Left and right exchanged."""

    def source(self, places: Tensor) -> Tensor:
        """Return the columns in reverse."""
        return places.flip(1)


class FlipVertical(View):
    """Top and bottom exchanged."""

    def source(self, places: Tensor) -> Tensor:
        """Return the rows in reverse."""
        return places.flip(0)


class _Rotation(View):
    quarters = 0

    def source(self, places: Tensor) -> Tensor:
        """Return the places of the turned image."""
        if self.quarters % 2:
            _need_square(places, f"rotate{90 * self.quarters}")
        return places.rot90(self.quarters)


class Rotate90(_Rotation):
    """Turned by 90 degrees, counter-clockwise; for square images."""

    quarters, turn = 1, 90.0


class Rotate180(_Rotation):
    """Upside down."""

    quarters, turn = 2, 180.0


class Rotate270(_Rotation):
    """Turned by 270 degrees, counter-clockwise; for square images."""

    quarters, turn = 3, 270.0


class Negate(View):
    """Every pixel negated: light becomes dark."""

    sign = -1.0

    def source(self, places: Tensor) -> Tensor:
        """Return every place."""
        return places


@dataclass(frozen=True)
class Patches(View):
    """The image cut into count x count patches, which a seed shuffles."""

    count: Count = 4
    seed: Seed = 0

    def source(self, places: Tensor) -> Tensor:
        """Return the places of the shuffled patches."""
        (height, width), n = places.shape, self.count
        if height % n or width % n:
            raise UserError(f"an image of {height}x{width} cannot be cut into {n}x{n} equal patches; give patches:count=K")
        patches = places.reshape(n, height // n, n, width // n).transpose(1, 2).reshape(n * n, height // n, width // n)
        patches = patches[_shuffle(n * n, self.seed)]
        return patches.reshape(n, n, height // n, width // n).transpose(1, 2).reshape(height, width)


@dataclass(frozen=True)
class Pixels(View):
    """All pixels shuffled by a seed."""

    seed: Seed = 0

    def source(self, places: Tensor) -> Tensor:
        """Return the shuffled places."""
        return places.flatten()[_shuffle(places.numel(), self.seed)].reshape(places.shape)


@dataclass(frozen=True)
class InnerCircle(View):
    """The disc in the middle turned by an angle in degrees, counter-clockwise, with the rest left in place.

    The disc is cut into rings a pixel wide, in each of which the pixels, in the order of their angle, move on by the
    nearest whole number of places: any angle is a permutation, and quarter turns of square images are exact.
    """

    angle: Annotated[float, Field(ge=-360, le=360)] = 90.0

    def source(self, places: Tensor) -> Tensor:
        """Return the places, moved within each ring."""
        height, width = places.shape
        y = (torch.arange(height, dtype=torch.float64) - (height - 1) / 2)[:, None].expand(height, width).flatten()
        x = (torch.arange(width, dtype=torch.float64) - (width - 1) / 2).expand(height, width).flatten()
        radius = torch.hypot(x, y)
        ring = (radius + 0.5).floor()
        order = [(float(-a), float(r)) for a, r in zip(torch.atan2(y, x).mul(1e9).round(), radius, strict=True)]
        moved = places.flatten().clone()
        for k in range(1, int(min(height, width) / 2) + 1):
            inside = torch.nonzero((ring == k) & (radius <= min(height, width) / 2))[:, 0].tolist()
            inside.sort(key=lambda place: order[place])  # counter-clockwise: on the screen y grows downwards
            steps = round(len(inside) * self.angle / 360)
            shown = inside[-steps:] + inside[:-steps]
            moved[torch.tensor(inside, dtype=torch.int64)] = places.flatten()[torch.tensor(shown, dtype=torch.int64)]
        return moved.reshape(places.shape)


@dataclass(frozen=True)
class Skew(View):
    """Each column rolled down by slope more pixels than the one before it, none in the middle."""

    slope: Annotated[float, Field(ge=-16, le=16)] = 1.0

    def source(self, places: Tensor) -> Tensor:
        """Return the rolled columns."""
        middle = (places.shape[1] - 1) / 2
        columns = [column.roll(math.floor(self.slope * (k - middle) + 0.5)) for k, column in enumerate(places.unbind(1))]
        return torch.stack(columns, dim=1)


@dataclass(frozen=True)
class Jigsaw(View):
    """A puzzle of count x count interlocking pieces, put together again in another way that fits; for square images."""

    count: Count = 4
    seed: Seed = 0

    def source(self, places: Tensor) -> Tensor:
        """Return the places of the puzzle put together otherwise."""
        _need_square(places, "jigsaw")
        side = places.shape[0]
        if side % self.count or side // self.count < 6:
            raise UserError(
                f"an image of {side}x{side} cannot be cut into {self.count}x{self.count} puzzle pieces of at least 6 pixels;"
                " give jigsaw:count=K"
            )
        return places.flatten()[jigsaw(side, self.count, self.seed)].reshape(places.shape)


VIEWS: dict[str, type[View]] = {
    "identity": Identity,
    "flip_horizontal": FlipHorizontal,
    "flip_vertical": FlipVertical,
    "rotate90": Rotate90,
    "rotate180": Rotate180,
    "rotate270": Rotate270,
    "patches": Patches,
    "pixels": Pixels,
    "negate": Negate,
    "inner_circle": InnerCircle,
    "skew": Skew,
    "jigsaw": Jigsaw,
}


def _need_square(places: Tensor, name: str) -> None:
    height, width = places.shape
    if height != width:
        raise UserError(f"the view {name} needs square images, and these are {height}x{width}; rotate180 and flips do not")


def _shuffle(n: int, seed: int) -> Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


class Placed:
    """A view of images of one size.  Called, it shows images; `back` takes what was shown back."""

    def __init__(self, view: View, height: int, width: int) -> None:
        self.view, self.sign = view, view.sign
        self.source = view.source(torch.arange(height * width).reshape(height, width)).flatten()
        self.inverse = self.source.argsort()
        check(self)

    def __call__(self, x: Tensor) -> Tensor:
        """Return images as the view shows them.  x: (..., H, W)."""
        return self._move(x, self.source)

    def back(self, x: Tensor) -> Tensor:
        """Return the images that the view shows like this.  x: (..., H, W)."""
        return self._move(x, self.inverse)

    def _move(self, x: Tensor, source: Tensor) -> Tensor:
        moved = x.flatten(-2)[..., source.to(x.device)].reshape(x.shape)
        return moved if self.sign == 1 else self.sign * moved


def check(placed: Placed) -> None:
    """Verify that a view is orthogonal and exactly invertible: each pixel is shown once, with a sign of +-1."""
    places = torch.arange(len(placed.source))
    whole = torch.equal(placed.source.sort().values, places)
    if not (whole and torch.equal(placed.source[placed.inverse], places) and abs(placed.sign) == 1):
        raise ValueError(f"{type(placed.view).__name__} is not a signed permutation of pixels")


def read_views(views: str | Sequence[str], shape: tuple[int, ...]) -> dict[str, Placed]:
    """Return the views named, by how they were written, as in `identity,patches:count=7,seed=3`.  shape: (C, H, W)."""
    if kind_of(shape) != "images":
        raise UserError("views are of images, and this is a run of points")
    named: list[str] = []
    for word in views.split(",") if isinstance(views, str) else views:
        if isinstance(views, str) and named and "=" in word and ":" not in word:  # an option of the view before
            named[-1] += f",{word.strip()}"
        else:
            named.append(word.strip())
    if not named or not all(named):
        raise UserError(f"cannot read the views {views!r}; write names with commas between, such as identity,rotate180")
    if len(set(named)) < len(named):
        raise UserError(f"the views {', '.join(named)} name one of them twice; give each once")
    return {name: Placed(build(VIEWS, name, "view"), shape[1], shape[2]) for name in named}


class Illusion(Denoiser):
    """One image that is something else in every view (arXiv:2311.17919).

    x0 = mean_v back_v(x0_v),  eps alike, where (x0_v, eps_v) is the inner estimate of view_v(x) under that view's own
    condition.  Views are orthogonal, so what the inner denoiser sees is data in unit noise, and all views go in one batch.
    conds: (V, B) or (V, B, R), or None.
    """

    def __init__(self, inner: Denoiser, views: Sequence[Placed], conds: Tensor | None = None) -> None:
        super().__init__()
        self.inner, self.schedule, self.views, self.conds = inner, inner.schedule, tuple(views), conds

    def forward(self, x: Tensor, t: Time, cond: Tensor | None = None) -> Pair:
        """Return the mean of what the views say.  x: (B, C, H, W)."""
        n = len(self.views)
        many = t.repeat(n) if isinstance(t, Tensor) and t.ndim else t
        conds = self.conds.flatten(0, 1).to(x.device) if self.conds is not None else None
        seen = self.inner(torch.cat([view(x) for view in self.views]), many, conds)
        x0, eps = (
            torch.stack([view.back(part) for view, part in zip(self.views, both.chunk(n), strict=True)]).mean(0)
            for both in (seen.x0, seen.eps)
        )
        return Pair(x0, eps)
