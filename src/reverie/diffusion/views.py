"""Views: signed permutations of pixels, and the denoiser of images that match a condition in each of several views.

A view is a signed permutation of pixels, so it is orthogonal, maps unit Gaussian noise to unit Gaussian noise, and has an
exact inverse.
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
    """A permutation of pixels.  turn: counter-clockwise rotation in degrees, if the view is a rotation."""

    sign = 1.0
    turn: float | None = None

    @abstractmethod
    def source(self, indices: Tensor) -> Tensor:
        """Return the index of the source pixel at each position of the view.  indices: (H, W), 0 to H W - 1."""


class Identity(View):
    """The identity (arXiv:2311.17919)."""

    turn = 0.0

    def source(self, indices: Tensor) -> Tensor:
        """Return the indices unchanged."""
        return indices


class FlipHorizontal(View):
    """Horizontal flip (arXiv:2311.17919)."""

    def source(self, indices: Tensor) -> Tensor:
        """Return the columns in reverse."""
        return indices.flip(1)


class FlipVertical(View):
    """Vertical flip (arXiv:2311.17919)."""

    def source(self, indices: Tensor) -> Tensor:
        """Return the rows in reverse."""
        return indices.flip(0)


class _Rotation(View):
    quarters = 0

    def source(self, indices: Tensor) -> Tensor:
        """Return the indices of the rotated image."""
        if self.quarters % 2:
            _need_square(indices, f"rotate{90 * self.quarters}")
        return indices.rot90(self.quarters)


class Rotate90(_Rotation):
    """Rotation by 90 degrees, counter-clockwise (arXiv:2311.17919); for square images."""

    quarters, turn = 1, 90.0


class Rotate180(_Rotation):
    """Rotation by 180 degrees (arXiv:2311.17919)."""

    quarters, turn = 2, 180.0


class Rotate270(_Rotation):
    """Rotation by 270 degrees, counter-clockwise (arXiv:2311.17919); for square images."""

    quarters, turn = 3, 270.0


class Negate(View):
    """Every pixel negated (arXiv:2311.17919): light becomes dark."""

    sign = -1.0

    def source(self, indices: Tensor) -> Tensor:
        """Return the indices unchanged."""
        return indices


@dataclass(frozen=True)
class Patches(View):
    """count x count patches, shuffled by a seed (arXiv:2311.17919)."""

    count: Count = 4
    seed: Seed = 0

    def source(self, indices: Tensor) -> Tensor:
        """Return the indices of the shuffled patches."""
        (height, width), n = indices.shape, self.count
        if height % n or width % n:
            raise UserError(f"an image of {height}x{width} cannot be cut into {n}x{n} equal patches; give patches:count=K")
        patches = indices.reshape(n, height // n, n, width // n).transpose(1, 2).reshape(n * n, height // n, width // n)
        patches = patches[_shuffle(n * n, self.seed)]
        return patches.reshape(n, n, height // n, width // n).transpose(1, 2).reshape(height, width)


@dataclass(frozen=True)
class Pixels(View):
    """All pixels shuffled by a seed (arXiv:2311.17919)."""

    seed: Seed = 0

    def source(self, indices: Tensor) -> Tensor:
        """Return the shuffled indices."""
        return indices.flatten()[_shuffle(indices.numel(), self.seed)].reshape(indices.shape)


@dataclass(frozen=True)
class InnerCircle(View):
    """The central disc rotated by an angle in degrees, counter-clockwise (arXiv:2311.17919).

    In each ring of one pixel width the pixels, sorted by angle, are shifted cyclically by the nearest number of positions: any
    angle is a permutation, and multiples of 90 degrees are exact for square images.
    """

    angle: Annotated[float, Field(ge=-360, le=360)] = 90.0

    def source(self, indices: Tensor) -> Tensor:
        """Return the indices, rotated within each ring."""
        height, width = indices.shape
        y = (torch.arange(height, dtype=torch.float64) - (height - 1) / 2)[:, None].expand(height, width).flatten()
        x = (torch.arange(width, dtype=torch.float64) - (width - 1) / 2).expand(height, width).flatten()
        radius = torch.hypot(x, y)
        ring = (radius + 0.5).floor()
        order = [(float(-a), float(r)) for a, r in zip(torch.atan2(y, x).mul(1e9).round(), radius, strict=True)]
        moved = indices.flatten().clone()
        for k in range(1, int(min(height, width) / 2) + 1):
            inside = torch.nonzero((ring == k) & (radius <= min(height, width) / 2))[:, 0].tolist()
            inside.sort(key=lambda index: order[index])  # counter-clockwise, because y increases downwards
            steps = round(len(inside) * self.angle / 360)
            sources = inside[-steps:] + inside[:-steps]
            moved[torch.tensor(inside, dtype=torch.int64)] = indices.flatten()[torch.tensor(sources, dtype=torch.int64)]
        return moved.reshape(indices.shape)


@dataclass(frozen=True)
class Skew(View):
    """Each column rolled down by `slope` pixels more than its left neighbour, 0 in the middle (arXiv:2311.17919)."""

    slope: Annotated[float, Field(ge=-16, le=16)] = 1.0

    def source(self, indices: Tensor) -> Tensor:
        """Return the rolled columns."""
        middle = (indices.shape[1] - 1) / 2
        columns = [column.roll(math.floor(self.slope * (k - middle) + 0.5)) for k, column in enumerate(indices.unbind(1))]
        return torch.stack(columns, dim=1)


@dataclass(frozen=True)
class Jigsaw(View):
    """A jigsaw puzzle of count x count pieces, rearranged (arXiv:2311.17919); for square images."""

    count: Count = 4
    seed: Seed = 0

    def source(self, indices: Tensor) -> Tensor:
        """Return the indices of the rearranged puzzle."""
        _need_square(indices, "jigsaw")
        side = indices.shape[0]
        if side % self.count or side // self.count < 6:
            raise UserError(
                f"an image of {side}x{side} cannot be cut into {self.count}x{self.count} puzzle pieces of at least 6 pixels;"
                " give jigsaw:count=K"
            )
        return indices.flatten()[jigsaw(side, self.count, self.seed)].reshape(indices.shape)


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


def _need_square(indices: Tensor, name: str) -> None:
    height, width = indices.shape
    if height != width:
        raise UserError(f"the view {name} needs square images, got {height}x{width}; rotate180 and flips work for all sizes")


def _shuffle(n: int, seed: int) -> Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


class SizedView:
    """A view of images of one size; `back` applies its inverse."""

    def __init__(self, view: View, height: int, width: int) -> None:
        self.view, self.sign = view, view.sign
        self.source = view.source(torch.arange(height * width).reshape(height, width)).flatten()
        self.inverse = self.source.argsort()
        check(self)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the views of images.  x: (..., H, W)."""
        return self._move(x, self.source)

    def back(self, x: Tensor) -> Tensor:
        """Return the images of views.  x: (..., H, W)."""
        return self._move(x, self.inverse)

    def _move(self, x: Tensor, source: Tensor) -> Tensor:
        moved = x.flatten(-2)[..., source.to(x.device)].reshape(x.shape)
        return moved if self.sign == 1 else self.sign * moved


def check(placed: SizedView) -> None:
    """Raise an error unless a view is a signed permutation of pixels."""
    indices = torch.arange(len(placed.source))
    is_permutation = torch.equal(placed.source.sort().values, indices)
    if not (is_permutation and torch.equal(placed.source[placed.inverse], indices) and abs(placed.sign) == 1):
        raise ValueError(f"{type(placed.view).__name__} is not a signed permutation of pixels")


def read_views(views: str | Sequence[str], shape: tuple[int, ...]) -> dict[str, SizedView]:
    """Return the named views by their specs, as in `identity,patches:count=7,seed=3`.  shape: (C, H, W)."""
    if kind_of(shape) != "images":
        raise UserError("views need images, but this run models other data; give a run of images")
    named: list[str] = []
    for part in views.split(",") if isinstance(views, str) else views:
        if isinstance(views, str) and named and "=" in part and ":" not in part:  # an option of the previous view
            named[-1] += f",{part.strip()}"
        else:
            named.append(part.strip())
    if not named or not all(named):
        raise UserError(f"cannot read the views {views!r}; separate names by commas, such as identity,rotate180")
    if len(set(named)) < len(named):
        raise UserError(f"the views {', '.join(named)} contain a duplicate; name each once")
    return {name: SizedView(build(VIEWS, name, "view"), shape[1], shape[2]) for name in named}


class Illusion(Denoiser):
    """One image that matches another condition in every view (visual anagrams, arXiv:2311.17919).

    x0 = mean_v back_v(x0_v), and likewise eps, where (x0_v, eps_v) is the inner estimate of view_v(x) for the condition of the
    view.  Views are orthogonal, so the noise of every view is unit Gaussian; all views are evaluated in one batch.
    conds: (V, B) or (V, B, R), or None.
    """

    def __init__(self, inner: Denoiser, views: Sequence[SizedView], conds: Tensor | None = None) -> None:
        super().__init__()
        self.inner, self.schedule, self.views, self.conds = inner, inner.schedule, tuple(views), conds

    def forward(self, x: Tensor, t: Time, cond: Tensor | None = None) -> Pair:
        """Return the mean of the estimates of all views.  x: (B, C, H, W)."""
        n = len(self.views)
        times = t.repeat(n) if isinstance(t, Tensor) and t.ndim else t
        conds = self.conds.flatten(0, 1).to(x.device) if self.conds is not None else None
        estimates = self.inner(torch.cat([view(x) for view in self.views]), times, conds)
        x0, eps = (
            torch.stack([view.back(part) for view, part in zip(self.views, stacked.chunk(n), strict=True)]).mean(0)
            for stacked in (estimates.x0, estimates.eps)
        )
        return Pair(x0, eps)
