"""What sampling gives: an array that can show and save itself."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike
from PIL import Image

from reverie.errors import UserError
from reverie.files import atomic, writable_folder
from reverie.picture import Film, contact_sheet, image_frames, png_bytes, point_frames, save, scatter, to_bytes, write_film

SUFFIXES = (".npy", ".png", ".gif", ".mp4")


def is_folder(out: str | Path) -> bool:
    """Tell whether an output is a folder: it ends in a slash, exists as one, or has no suffix."""
    return str(out).endswith("/") or Path(out).is_dir() or not Path(out).suffix


def check_output(out: str | Path) -> None:
    """Refuse an output that cannot be written, before any work is done for it."""
    path = Path(out)
    if not is_folder(out) and path.suffix.lower() not in SUFFIXES:
        raise UserError(f"cannot write {path}: choose a name that ends in {', '.join(SUFFIXES)}, or a folder")
    writable_folder(path if is_folder(out) else path.parent)


def wants_film(out: str | Path) -> bool:
    """Tell whether this output shows the way and not only the end."""
    return not is_folder(out) and Path(out).suffix.lower() in (".gif", ".mp4")


def streams(out: str | Path, shape: tuple[int, ...]) -> bool:
    """Tell whether this output of data of this shape is written batch by batch: an array, or a folder of images."""
    return len(shape) > 1 if is_folder(out) else Path(out).suffix.lower() == ".npy"


@dataclass(frozen=True)
class Samples:
    """Samples in user units, their labels, and the frames on the way where they were kept.

    x: float32, (N, D) points, or (N, H, W) or (N, H, W, C) images in [0, 1].
    """

    x: np.ndarray
    labels: Sequence[str] | None = None
    film: Film = ()

    def __len__(self) -> int:
        return len(self.x)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.x, dtype=dtype)

    @property
    def are_images(self) -> bool:
        """Tell images from points."""
        return self.x.ndim > 2

    def picture(self) -> bytes:
        """Return a PNG: a grid of the images, or a scatter of the points."""
        if not self.are_images:
            return png_bytes(scatter(self.x, self.labels))
        buffer = io.BytesIO()
        Image.fromarray(contact_sheet(to_bytes(self.x))).save(buffer, format="png")
        return buffer.getvalue()

    def _repr_png_(self) -> bytes:
        return self.picture()

    def save(self, path: str | Path) -> list[Path]:
        """Write .npy, .png, .gif or .mp4, or a folder with an image file each; return the files written."""
        check_output(path)
        kind = "" if is_folder(path) else Path(path).suffix.lower()
        path = Path(path)
        match kind:
            case ".npy":
                return write([self], len(self), path)
            case ".png":
                with atomic(path) as aside:
                    aside.write_bytes(self.picture())
            case ".gif" | ".mp4":
                if not self.film:
                    raise UserError(f"cannot write the film {path}: sample with film=True to keep the frames")
                frames = image_frames(self.film, self.x) if self.are_images else point_frames(self.film, self.labels)
                write_film(path, frames)
            case _ if self.are_images:
                return write([self], len(self), path)
            case _:
                save(scatter(self.x, self.labels), path / "picture.png")
                return [*write([self], len(self), path / "points.npy"), path / "picture.png"]
        return [path]


def write(batches: Iterable[Samples], n: int, out: str | Path) -> list[Path]:
    """Write n samples that come in batches as an array, or as a folder of images; no more than one batch is held.

    The array and the labels beside it appear when all is written, and so does each image.
    """
    path, folder = Path(out), is_folder(out)
    labels = path / "labels.csv" if folder else path.with_suffix(".labels.csv")
    files: list[Path] = []
    done = 0
    with ExitStack() as stack:
        array = None if folder else stack.enter_context(stack.enter_context(atomic(path)).open("wb"))
        rows = None
        for batch in batches:
            if array is not None:
                if not done:
                    files.append(path)
                    header = {"descr": "<f4", "fortran_order": False, "shape": (n, *batch.x.shape[1:])}
                    np.lib.format.write_array_header_1_0(array, header)
                array.write(batch.x.astype("<f4").tobytes())
            else:
                files += _write_images(batch.x, path, done, len(str(n - 1)))
            if batch.labels is not None:
                if rows is None:
                    rows = csv.writer(stack.enter_context(stack.enter_context(atomic(labels)).open("w", newline="")))
                    rows.writerow(("index", "label"))
                rows.writerows(enumerate(batch.labels, done))
            done += len(batch)
        if done != n:
            raise ValueError(f"{n} samples were announced and {done} came")
    if rows is None:
        labels.unlink(missing_ok=True)  # labels of other samples that were here before would be wrong
        return files
    return [*files, labels]


def _write_images(images: np.ndarray, folder: Path, first: int, digits: int) -> Iterator[Path]:
    for k, image in enumerate(images, first):
        path = folder / f"{k:0{digits}d}.png"
        with atomic(path) as aside:
            Image.fromarray(to_bytes(image)).save(aside)
        yield path
