"""Kinds of data: every dataset has one kind, the key of tables that depend on it."""

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
}  # the name of one datum
WRITTEN: dict[Kind, int] = {"text": 1, "pairs": 2}  # kinds made of characters, with the number of dimensions of one datum
DIMENSIONS: dict[int, Kind] = {1: "points", 2: "series", 3: "images"}  # of one datum: (D,), (T, C) or (C, H, W)


def kind_of(shape: Sequence[int]) -> Kind:
    """Return the kind of data by the shape of one datum: (D,), (T, C) or (C, H, W)."""
    if len(shape) not in DIMENSIONS:
        raise UserError(f"data of shape {tuple(shape)} are neither points (D,) nor series (T, C) nor images (C, H, W)")
    return DIMENSIONS[len(shape)]


def describe_shape(shape: Sequence[int], kind: Kind | None = None) -> str:
    """Describe data of a shape: images of 28x28x3, points of 2 coordinates.  kind: if the shape does not determine it."""
    if kind == "text":
        return f"windows of {shape[0]} characters"
    if kind == "pairs":
        return f"pairs of texts of up to {shape[1]} characters"
    if kind_of(shape) == "points":
        return f"points of {shape[0]} coordinate{'s' * (shape[0] != 1)}"
    if kind_of(shape) == "series":
        return f"series of {shape[0]} time steps" + (f" of {shape[1]} numbers" if shape[1] > 1 else "")
    return f"images of {shape[1]}x{shape[2]}x{shape[0]}"


def format_count(count: int, shape: Sequence[int], kind: Kind | None = None) -> str:
    """Format a count of data: 16 images of 28x28x3, 1 point of 2 coordinates."""
    plural, details = describe_shape(shape, kind).split(" ", 1)
    return f"{count:,} {plural.removesuffix('s') if count == 1 and plural != 'series' else plural} {details}"


def kind_of_samples(shape: Sequence[int]) -> Kind:
    """Return the kind of samples in user units by their common shape: (N, D), or (N, H, W) and (N, H, W, C)."""
    return "points" if len(shape) == 2 else "images"
