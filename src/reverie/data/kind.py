"""Kinds of data: what one datum is.  A data set has one kind, and what depends on it is a table keyed by its name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from reverie.base.errors import UserError

Kind = Literal["points", "series", "images", "text", "pairs"]

KINDS: dict[Kind, str] = {
    "points": "a point",
    "series": "a series",
    "images": "an image",
    "text": "a text",
    "pairs": "a pair",
}  # what one of them is called
WRITTEN: dict[Kind, int] = {"text": 1, "pairs": 2}  # kinds of characters, by the dimensions of one datum
DIMENSIONS: dict[int, Kind] = {1: "points", 2: "series", 3: "images"}  # of one datum: (D,), (T, C) or (C, H, W)


def kind_of(shape: Sequence[int]) -> Kind:
    """Return the kind of data by the shape of one, where nothing else tells it: (D,), (T, C) or (C, H, W)."""
    if len(shape) not in DIMENSIONS:
        raise UserError(f"data of shape {tuple(shape)} are neither points (D,) nor series (T, C) nor images (C, H, W)")
    return DIMENSIONS[len(shape)]


def describe_shape(shape: Sequence[int], kind: Kind | None = None) -> str:
    """Say what data of a shape are: images of 28x28x3, points of 2 coordinates.  kind: where the shape does not tell it."""
    if kind == "text":
        return f"windows of {shape[0]} characters"
    if kind == "pairs":
        return f"pairs of texts of up to {shape[1]} characters"
    if kind_of(shape) == "points":
        return f"points of {shape[0]} coordinate{'s' * (shape[0] != 1)}"
    if kind_of(shape) == "series":
        return f"series of {shape[0]} moments" + (f" of {shape[1]} numbers" if shape[1] > 1 else "")
    return f"images of {shape[1]}x{shape[2]}x{shape[0]}"


def format_count(count: int, shape: Sequence[int], kind: Kind | None = None) -> str:
    """Say how many data of a shape there are: 16 images of 28x28x3, 1 point of 2 coordinates."""
    many, rest = describe_shape(shape, kind).split(" ", 1)
    return f"{count:,} {many.removesuffix('s') if count == 1 and many != 'series' else many} {rest}"


def kind_of_samples(shape: Sequence[int]) -> Kind:
    """Return the kind of samples in user units by the shape of all: (N, D), or (N, H, W) and (N, H, W, C); series say so."""
    return "points" if len(shape) == 2 else "images"
