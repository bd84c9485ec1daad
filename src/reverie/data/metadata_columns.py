"""Columns of metadata that tell numbers of each image, or name another image that belongs to it."""

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
    """Read the names of columns with commas between."""
    names = tuple(name.strip().lower() for name in text.split(",")) if text else ()
    if len(names) > MAX_COLUMNS or "" in names or len(set(names)) != len(names):
        raise UserError(f"cannot read the columns {text!r}; write up to {MAX_COLUMNS} different names with commas between")
    return names


@dataclass(frozen=True)
class MetadataColumns:
    """What metadata tell of each image by name: numbers, and the image that belongs to it.  paired: names of those images."""

    numbers: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    images: Mapping[str, FileEntry] = field(default_factory=dict)
    column: str | None = None

    @property
    def paired(self) -> set[str]:
        """The files that are conditions of others, and no data themselves."""
        return {entry.name for entry in self.images.values()}

    def numbers_of(self, entries: Sequence[FileEntry]) -> dict[str, list[float]]:
        """Return each column for the given images, NaN where it says nothing."""
        return {column: [told.get(e.name, math.nan) for e in entries] for column, told in self.numbers.items()}

    def images_of(self, entries: Sequence[FileEntry], recipe: Recipe) -> Tensor | FileImages | None:
        """Return the images that belong to the given ones, fitted like these: in memory where there is room."""
        if self.column is None:
            return None
        theirs = tuple(self.images[entry.name] for entry in entries)
        try:
            grey = all(read_header(entry.read()).kind in GREY for entry in theirs)
            digests = tuple(hashlib.blake2b(entry.read(), digest_size=16).digest() for entry in theirs)
        except (BrokenImage, OSError) as error:
            raise UserError(f"an image of the column {self.column!r} cannot be used: {error}; mend or remove its row") from None
        form = Recipe(recipe.height, recipe.width, 1 if grey else 3, recipe.fit)
        lazy = FileImages(theirs, digests, form)
        size = len(theirs) * form.channels * form.height * form.width
        return lazy.take(arange(len(theirs))) if size <= MEMORY_LIMIT else lazy


def read_columns(
    entries: Sequence[FileEntry], metadata: Mapping[str, FileEntry], numbers: Sequence[str], image: str | None, where: str
) -> MetadataColumns:
    """Return what the asked columns of a folder's metadata say of its images."""
    names = [entry.name for entry in entries]
    found = {column: _numbers(names, read_metadata_column(names, metadata, column, where), column) for column in numbers}
    if image is None:
        return MetadataColumns(found)
    by_name = {entry.name: entry for entry in entries}
    pairs: dict[str, FileEntry] = {}
    for name, value in zip(names, read_metadata_column(names, metadata, image, where), strict=True):
        if value is None:
            continue
        path = str(PurePosixPath(value.replace("\\", "/").removeprefix("./")))
        if path not in by_name:
            raise UserError(f"the column {image!r} names {path[:200]!r} for {name}, which is no usable image of {where}")
        pairs[name] = by_name[path]
    if not pairs:
        raise UserError(f"the column {image!r} names no image for any of the {len(names)} images of {where}")
    return MetadataColumns(found, pairs, image)


def _numbers(names: Sequence[str], values: Sequence[str | None], column: str) -> dict[str, float]:
    told: dict[str, float] = {}
    for name, value in zip(names, values, strict=True):
        if value is None:
            continue
        try:
            told[name] = float(value)
        except ValueError:
            raise UserError(f"the column {column!r} says {value[:60]!r} of {name}, which is no number; mend it") from None
        if not math.isfinite(told[name]):
            raise UserError(f"the column {column!r} says {value[:60]!r} of {name}; give finite numbers, or nothing")
    return told
