"""Metadata columns to condition on: numbers, or the name of another image."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from torch import Tensor, arange

from reverie.base.errors import UserError
from reverie.data.lazy import FileImages
from reverie.data.memory_limits import MEMORY_LIMIT
from reverie.data.metadata import read_metadata_column
from reverie.data.pixels import GREY, BrokenImage, Recipe, read_header
from reverie.data.sources import FileEntry

MAX_COLUMNS = 64


def parse_column_names(text: str | None) -> tuple[str, ...]:
    """Parse comma-separated column names."""
    names = tuple(name.strip().lower() for name in text.split(",")) if text else ()
    if len(names) > MAX_COLUMNS or "" in names or len(set(names)) != len(names):
        raise UserError(f"cannot read the columns {text!r}; write up to {MAX_COLUMNS} different names, separated by commas")
    return names


@dataclass(frozen=True)
class MetadataColumns:
    """Metadata of each image by name: numbers, and a paired image.  paired: names of the paired images."""

    numbers: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    images: Mapping[str, FileEntry] = field(default_factory=dict)
    column: str | None = None

    @property
    def paired(self) -> set[str]:
        """The images that are only conditions of others."""
        return {entry.name for entry in self.images.values()}

    def numbers_of(self, entries: Sequence[FileEntry]) -> dict[str, list[float]]:
        """Return each column for these images, NaN for missing values."""
        return {column: [values_of.get(e.name, math.nan) for e in entries] for column, values_of in self.numbers.items()}

    def images_of(self, entries: Sequence[FileEntry], recipe: Recipe) -> Tensor | FileImages | None:
        """Return the paired images of these images, fitted to the same size: in memory if they are small enough."""
        if self.column is None:
            return None
        paired = tuple(self.images[entry.name] for entry in entries)
        try:
            grey = all(read_header(entry.read()).kind in GREY for entry in paired)
            digests = tuple(hashlib.blake2b(entry.read(), digest_size=16).digest() for entry in paired)
        except (BrokenImage, OSError) as error:
            raise UserError(
                f"an image of the column {self.column!r} cannot be used: {error}; fix it or remove its row"
            ) from None
        paired_recipe = Recipe(recipe.height, recipe.width, 1 if grey else 3, recipe.fit)
        lazy = FileImages(paired, digests, paired_recipe)
        size = len(paired) * paired_recipe.channels * paired_recipe.height * paired_recipe.width
        return lazy.take(arange(len(paired))) if size <= MEMORY_LIMIT else lazy


def read_columns(
    entries: Sequence[FileEntry], metadata: Mapping[str, FileEntry], numbers: Sequence[str], image: str | None, where: str
) -> MetadataColumns:
    """Read the requested columns of a folder's metadata."""
    names = [entry.name for entry in entries]
    number_columns = {
        column: _numbers(names, read_metadata_column(names, metadata, column, where), column) for column in numbers
    }
    if image is None:
        return MetadataColumns(number_columns)
    by_name = {entry.name: entry for entry in entries}
    pairs: dict[str, FileEntry] = {}
    for name, value in zip(names, read_metadata_column(names, metadata, image, where), strict=True):
        if value is None:
            continue
        path = str(PurePosixPath(value.replace("\\", "/").removeprefix("./")))
        if path not in by_name:
            raise UserError(
                f"the column {image!r} names {path[:200]!r} for {name}, which is not a usable image of {where}; fix or"
                " remove the row"
            )
        pairs[name] = by_name[path]
    if not pairs:
        raise UserError(
            f"the column {image!r} names no image for any of the {len(names)} images of {where}; choose another column"
        )
    return MetadataColumns(number_columns, pairs, image)


def _numbers(names: Sequence[str], values: Sequence[str | None], column: str) -> dict[str, float]:
    values_of: dict[str, float] = {}
    for name, value in zip(names, values, strict=True):
        if value is None:
            continue
        try:
            values_of[name] = float(value)
        except ValueError:
            raise UserError(f"the column {column!r} has {value[:60]!r} for {name}, which is not a number; fix it") from None
        if not math.isfinite(values_of[name]):
            raise UserError(f"the column {column!r} has {value[:60]!r} for {name}; give finite numbers, or leave cells empty")
    return values_of
