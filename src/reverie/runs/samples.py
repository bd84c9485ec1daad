"""Samples: an array that can be shown and saved."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, overload

import numpy as np
from numpy.typing import DTypeLike
from PIL import Image

from reverie.base.errors import UserError
from reverie.base.files import atomic
from reverie.data.kind import Kind, format_count, kind_of_samples
from reverie.data.text_windows import text_of, texts_of
from reverie.draw.picture import (
    Film,
    contact_sheet,
    image_frames,
    png_bytes,
    save,
    to_bytes,
    write_film,
)
from reverie.draw.scatter import point_frames, scatter
from reverie.draw.series_plot import lines, series_frames
from reverie.runs.destinations import TEXTS, check_kind, check_output, is_folder
from reverie.runs.outputs import Manifest, sample_folder
from reverie.runs.writing import as_text, write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEPARATOR = "\n" + "-" * 60 + "\n"  # between the texts of a file


def describe_samples(x: np.ndarray) -> str:
    """Describe samples by number and shape: 16 images of 28x28x3.  x: (N, D), (N, H, W) or (N, H, W, C)."""
    channels = x.shape[3:] or (1,)
    return format_count(len(x), x.shape[1:] if kind_of_samples(x.shape) == "points" else (*channels, *x.shape[1:3]))


@dataclass(frozen=True, repr=False)
class Samples:
    """Samples in user units with their labels, and the frames of their trajectory, if requested.

    x: float32: points (N, D), images (N, H, W) or (N, H, W, C) in [0, 1], series (N, T, C); texts as character
    codes (N, L), see `reverie.data.text_windows`, or pairs of source and target (N, 2, L); series, text, paired: whether x is
    one of these; titles: of the images on a sheet; columns: names of the coordinates, or of the channels of a series.
    """

    x: np.ndarray
    labels: Sequence[str] | None = None
    film: Film = ()
    titles: Sequence[str] | None = None
    series: bool = False
    text: bool = False
    paired: bool = False
    columns: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.x)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.x, dtype=dtype)

    @property
    def kind(self) -> Kind:
        """The kind of data."""
        if self.text or self.paired:
            return "text" if self.text else "pairs"
        return "series" if self.series else kind_of_samples(self.x.shape)

    def __repr__(self) -> str:
        names = sorted(set(self.labels or ()))
        labels = f", {len(names)} labels" if len(names) > 1 else f", label {names[0]}" if names else ""
        if self.text or self.paired:
            noun = "text" if self.text else "pair"
            return f"Samples({len(self):,} {noun}{'s' * (len(self) != 1)})"
        return f"Samples({format_count(len(self), self.x.shape[1:]) if self.series else describe_samples(self.x)}{labels})"

    @overload
    def __getitem__(self, key: int) -> np.ndarray: ...

    @overload
    def __getitem__(self, key: slice) -> Samples: ...

    def __getitem__(self, key: int | slice) -> np.ndarray | Samples:
        """Return sample k as an array, or the samples of a slice."""
        if isinstance(key, slice):
            labels, titles = (values[key] if values is not None else None for values in (self.labels, self.titles))
            return replace(self, x=self.x[key], labels=labels, film=(), titles=titles)
        return np.asarray(self.x[key])

    @property
    def texts(self) -> list[str]:
        """The samples as strings; for pairs, the targets.  Consecutive texts are separated by a newline."""
        if self.paired:
            return [target for _, target in self.pairs]
        if not self.text:
            raise UserError(f"these samples are {self.kind}, not text; use .x")
        return ["\n".join(texts_of(row)) for row in self.x]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The samples as pairs of strings: source and target."""
        if not self.paired:
            raise UserError(f"these samples are {self.kind}, not pairs; use .x")
        return [(text_of(source), text_of(target)) for source, target in self.x]

    def rows(self) -> Iterator[Sequence[str]]:
        """Yield the rows of a table with a header: one per point with its label, or per time step of each series."""
        if self.kind not in ("points", "series"):
            raise UserError(f"these samples are {self.kind}, which have no table; use .x")
        names = list(self.columns) or [f"x{k + 1}" for k in range(self.x.shape[-1])]
        number, moment, label = (_unused_name(name, names) for name in ("series", "moment", "label"))
        head = [number, moment, *names] if self.series else names
        yield [*map(as_text, head), *([label] if self.labels is not None else [])]
        for k, values in enumerate(self.x.astype(np.float32)):
            last = [as_text(self.labels[k])] if self.labels is not None else []
            for i, row in enumerate(np.atleast_2d(values).astype(str)):
                yield [*((str(k), str(i)) if self.series else ()), *row, *last]

    @property
    def images(self) -> list[Image.Image]:
        """The samples as PIL images."""
        if self.kind != "images":
            raise UserError(f"these samples are {self.kind}, not images; use .x")
        return [Image.fromarray(to_bytes(image)) for image in self.x]

    def picture(self) -> bytes:
        """Return a PNG: a sheet of the images, a single image, or a scatter plot."""
        if self.kind == "images" and len(self) == 1:
            return _png(to_bytes(self.x[0]))
        return self._repr_png_()

    def _repr_png_(self) -> bytes:
        if self.text or self.paired:
            raise UserError(f"text cannot be drawn; use .texts, or .save as X{TEXTS[self.kind]}")
        if self.kind != "images":
            return png_bytes(self._figure())
        return _png(contact_sheet(to_bytes(self.x), self.titles))

    def _figure(self) -> Figure:
        """Plot points or series with the names of their columns."""
        if self.kind == "series":
            return lines(self.x, columns=self.columns)
        return scatter(self.x, self.labels, columns=self.columns)

    def save(self, path: str | Path, overwrite: bool = False) -> list[Path]:
        """Write .npy, .csv, .png, .gif or .mp4, or a folder with one file per image; return the files written.

        overwrite: replace earlier samples in the folder, or the labels file next to the array.
        """
        check_output(path, overwrite)
        kind = "" if is_folder(path) else Path(path).suffix.lower()
        path = Path(path)
        check_kind(path, self.kind)
        match kind:
            case ".txt":
                with atomic(path) as temporary:
                    temporary.write_bytes((SEPARATOR.join(self.texts) + "\n").encode("utf-8", "backslashreplace"))
            case ".csv":
                with (
                    atomic(path) as temporary,
                    temporary.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file,
                ):
                    csv.writer(file).writerows([("source", "target"), *self.pairs] if self.paired else self.rows())
            case ".npy":
                return write([self], len(self), path, overwrite)
            case ".png":
                with atomic(path) as temporary:
                    temporary.write_bytes(self.picture())
            case ".gif" | ".mp4":
                if not self.film:
                    raise UserError(f"cannot write the film {path}: the frames are missing; sample with film=True")
                if self.kind == "series":
                    frames = series_frames(self.film)
                elif self.kind == "images":
                    frames = image_frames(self.film, self.x, self.titles)
                else:
                    frames = point_frames(self.film, self.labels, self.columns)
                write_film(path, frames)
            case _ if self.kind == "images":
                return write([self], len(self), f"{path}/", overwrite)
            case _:
                with sample_folder(path, Manifest(), overwrite) as files:
                    files += write([self], len(self), path / "points.npy")
                    save(self._figure(), path / "picture.png")
                return [*files, path / "picture.png"]
        return [path]


def _unused_name(name: str, taken: Sequence[str]) -> str:
    """Return a column name that is not in use."""
    while name in taken:
        name += "_"
    return name


def _png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="png")
    return buffer.getvalue()
