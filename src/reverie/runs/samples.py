"""What sampling gives: an array that can show and save itself."""

from __future__ import annotations

import csv
import io
import math
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, count, islice
from pathlib import Path
from typing import BinaryIO, overload

import numpy as np
from numpy.typing import DTypeLike
from PIL import Image

from reverie.base.errors import UserError
from reverie.base.files import atomic, check_folder
from reverie.data.kind import Kind, counted, kind_of, kind_of_samples
from reverie.data.windows import text_of, texts_of
from reverie.draw.picture import (
    Film,
    contact_sheet,
    image_frames,
    most_filmed,
    most_on_sheet,
    png_bytes,
    point_frames,
    save,
    scatter,
    to_bytes,
    write_film,
)
from reverie.draw.series import lines, series_frames
from reverie.runs.outputs import Manifest, check_labels, check_place, for_images, labels_of, sample_folder, write_manifest

SUFFIXES = (".npy", ".png", ".gif", ".mp4", ".txt", ".csv")
TEXTS: dict[Kind, str] = {"text": ".txt", "pairs": ".csv"}  # what is written of kinds that are no numbers
BETWEEN = "\n" + "-" * 60 + "\n"  # texts of one file
FORMULA = ("=", "+", "-", "@")  # what spreadsheets take for the beginning of one


def is_folder(out: str | Path) -> bool:
    """Tell whether an output is a folder: it ends in a slash, exists as one, or has no suffix."""
    return str(out).endswith("/") or Path(out).is_dir() or not Path(out).suffix


def check_output(out: str | Path, overwrite: bool = False) -> None:
    """Refuse an output that cannot be written, or would replace other files, before any work is done for it."""
    path = Path(out)
    if not is_folder(out) and path.suffix.lower() not in SUFFIXES:
        raise UserError(f"cannot write {path}: choose a name that ends in {', '.join(SUFFIXES)}, or a folder")
    check_folder(path if is_folder(out) else path.parent)
    if is_folder(out):
        check_place(path, overwrite)
    elif path.suffix.lower() == ".npy" and not overwrite:
        check_labels(path)


def check_kind(out: str | Path, kind: Kind) -> None:
    """Refuse to write text as anything but text, and anything else as text."""
    suffix = "" if is_folder(out) else Path(out).suffix.lower()
    if kind in TEXTS and suffix != TEXTS[kind]:
        raise UserError(f"cannot write {kind} to {out}; choose a name that ends in {TEXTS[kind]}, or leave --out out to see it")
    if kind not in TEXTS and suffix in TEXTS.values():
        raise UserError(f"cannot write {kind} to {out}; choose a name that ends in {', '.join(SUFFIXES[:-2])}, or a folder")


def check_room(out: str | Path, n: int, shape: tuple[int, ...]) -> None:
    """Refuse more data of a shape, (D,) or (C, H, W), than one picture or film can show, before they are drawn."""
    if wants_film(out):
        check_film(n, shape)
    elif not streams(out, shape) and kind_of(shape) == "images" and n > (most := most_on_sheet(shape[1], shape[2])):
        bare = Path(out).with_suffix("")
        raise UserError(
            f"{out} cannot show {n:,} images: a sheet holds at most {most:,} of {shape[1]}x{shape[2]} pixels; "
            f"ask for fewer with -n, or write a folder (--out {bare}/) or an array (--out {bare}.npy)"
        )


def check_film(n: int, shape: tuple[int, ...]) -> None:
    """Refuse a film whose frames would take too much memory."""
    if n > (most := most_filmed(shape)):
        what = f"images of {shape[1]}x{shape[2]} pixels" if kind_of(shape) == "images" else kind_of(shape)
        raise UserError(
            f"a film shows at most {most:,} {what}, whose frames are all held in memory, got {n:,}; film fewer of them, "
            "or write them without the way to them, as a folder or as X.npy"
        )


def wants_film(out: str | Path) -> bool:
    """Tell whether this output shows the way and not only the end."""
    return not is_folder(out) and Path(out).suffix.lower() in (".gif", ".mp4")


def streams(out: str | Path, shape: tuple[int, ...]) -> bool:
    """Tell whether this output of data of this shape is written batch by batch: an array, or a folder of images."""
    return kind_of(shape) == "images" if is_folder(out) else Path(out).suffix.lower() == ".npy"


def counted_samples(x: np.ndarray) -> str:
    """Say how many samples there are, and what: 16 images of 28x28x3.  x: (N, D), (N, H, W) or (N, H, W, C)."""
    channels = x.shape[3:] or (1,)
    return counted(len(x), x.shape[1:] if kind_of_samples(x.shape) == "points" else (*channels, *x.shape[1:3]))


@dataclass(frozen=True, repr=False)
class Samples:
    """Samples in user units, their labels, and the frames on the way where they were kept.

    x: float32, (N, D) points, or (N, H, W) or (N, H, W, C) images in [0, 1], or (N, T, C) series if it is said; or, if that is
    said, texts as codes of characters, (N, L), see `reverie.data.windows`, or, paired, sources and targets, (N, 2, L);
    titles: what a sheet says under each image.
    """

    x: np.ndarray
    labels: Sequence[str] | None = None
    film: Film = ()
    titles: Sequence[str] | None = None
    series: bool = False
    text: bool = False
    paired: bool = False

    def __len__(self) -> int:
        return len(self.x)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.x, dtype=dtype)

    @property
    def kind(self) -> Kind:
        """What one of them is."""
        if self.text or self.paired:
            return "text" if self.text else "pairs"
        return "series" if self.series else kind_of_samples(self.x.shape)

    def __repr__(self) -> str:
        names = sorted(set(self.labels or ()))
        labels = f", {len(names)} labels" if len(names) > 1 else f", label {names[0]}" if names else ""
        if self.text or self.paired:
            noun = "text" if self.text else "pair"
            return f"Samples({len(self):,} {noun}{'s' * (len(self) != 1)})"
        return f"Samples({counted(len(self), self.x.shape[1:]) if self.series else counted_samples(self.x)}{labels})"

    @overload
    def __getitem__(self, key: int) -> np.ndarray: ...

    @overload
    def __getitem__(self, key: slice) -> Samples: ...

    def __getitem__(self, key: int | slice) -> np.ndarray | Samples:
        """Return sample k as an array, or the samples of a slice."""
        if isinstance(key, slice):
            labels, titles = (given[key] if given is not None else None for given in (self.labels, self.titles))
            return Samples(self.x[key], labels, titles=titles, series=self.series, text=self.text, paired=self.paired)
        return np.asarray(self.x[key])

    @property
    def texts(self) -> list[str]:
        """The samples as strings, of pairs the targets; where one text ended and another began there is a line's end."""
        if self.paired:
            return [target for _, target in self.pairs]
        if not self.text:
            raise UserError(f"these samples are {self.kind} and no texts; their numbers are in .x")
        return ["\n".join(texts_of(row)) for row in self.x]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The samples as pairs of strings: a source, and what answers it."""
        if not self.paired:
            raise UserError(f"these samples are {self.kind} and no pairs; their numbers are in .x")
        return [(text_of(source), text_of(target)) for source, target in self.x]

    @property
    def images(self) -> list[Image.Image]:
        """The samples as PIL images, which can be shown, changed and saved."""
        if self.kind != "images":
            raise UserError(f"these samples are {self.kind} and no images; their numbers are in .x")
        return [Image.fromarray(to_bytes(image)) for image in self.x]

    def picture(self) -> bytes:
        """Return a PNG: a sheet of the images, one image alone as it is, or a scatter of the points."""
        if self.kind == "images" and len(self) == 1:
            return _png(to_bytes(self.x[0]))
        return self._repr_png_()

    def _repr_png_(self) -> bytes:
        if self.text or self.paired:
            raise UserError(f"texts are no picture; they are in .texts, and .save writes them as X{TEXTS[self.kind]}")
        if self.kind == "series":
            return png_bytes(lines(self.x))
        if self.kind != "images":
            return png_bytes(scatter(self.x, self.labels))
        return _png(contact_sheet(to_bytes(self.x), self.titles))

    def save(self, path: str | Path, overwrite: bool = False) -> list[Path]:
        """Write .npy, .png, .gif or .mp4, or a folder with an image file each; return the files written.

        overwrite: replace samples that were put into the folder, or labels beside the array, before.
        """
        check_output(path, overwrite)
        kind = "" if is_folder(path) else Path(path).suffix.lower()
        path = Path(path)
        check_kind(path, self.kind)
        match kind:
            case ".txt":
                with atomic(path) as aside:
                    aside.write_bytes((BETWEEN.join(self.texts) + "\n").encode("utf-8", "backslashreplace"))
            case ".csv":
                with atomic(path) as aside, aside.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file:
                    rows = csv.writer(file)
                    rows.writerow(("source", "target"))
                    rows.writerows(self.pairs)
            case ".npy":
                return write([self], len(self), path, overwrite)
            case ".png":
                with atomic(path) as aside:
                    aside.write_bytes(self.picture())
            case ".gif" | ".mp4":
                if not self.film:
                    raise UserError(f"cannot write the film {path}: sample with film=True to keep the frames")
                if self.kind == "series":
                    frames = series_frames(self.film)
                elif self.kind == "images":
                    frames = image_frames(self.film, self.x, self.titles)
                else:
                    frames = point_frames(self.film, self.labels)
                write_film(path, frames)
            case _ if self.kind == "images":
                return write([self], len(self), f"{path}/", overwrite)
            case _:
                with sample_folder(path, Manifest(), overwrite) as files:
                    files += write([self], len(self), path / "points.npy")
                    save(lines(self.x) if self.kind == "series" else scatter(self.x, self.labels), path / "picture.png")
                return [*files, path / "picture.png"]
        return [path]


class Interrupted(KeyboardInterrupt):
    """Writing was interrupted; the message says what was kept."""


def write(batches: Iterable[Samples], n: int, out: str | Path, overwrite: bool = False) -> list[Path]:
    """Write n samples that come in batches as an array, or as a folder of images; no more than one batch is held.

    The array and the labels beside it appear when all is written, and so does each image.  On Ctrl-C the images that are
    there stay, with their labels, and the batches of an array are kept as X.partial.npy; after a failure nothing stays.
    overwrite: as in `Samples.save`.
    """
    check_output(out, overwrite)
    return _write_folder(batches, n, Path(out), overwrite) if is_folder(out) else _write_array(batches, n, Path(out))


def _write_folder(batches: Iterable[Samples], n: int, folder: Path, overwrite: bool) -> list[Path]:
    labels: list[str] = []
    manifest, stopped = for_images(n), False
    rest = iter(batches)
    try:
        first = list(islice(rest, 1))  # until it is drawn something may still be refused
    except KeyboardInterrupt:
        raise Interrupted("no image was finished, so nothing was kept") from None
    with sample_folder(folder, manifest, overwrite) as files:
        try:
            for batch in chain(first, rest):
                for k, image in enumerate(batch.x):
                    path = folder / manifest.name(len(files))
                    with atomic(path) as aside:
                        Image.fromarray(to_bytes(image)).save(aside)
                    files.append(path)
                    labels += batch.labels[k : k + 1] if batch.labels is not None else ()
            _check_all_came(len(files), n)
        except KeyboardInterrupt:
            if not files:
                raise Interrupted("no image was finished, so nothing was kept") from None
            write_manifest(folder, manifest.model_copy(update={"images": len(files)}))
            stopped = True
        written = [*files, *_write_labels(labels[: len(files)], folder / "labels.csv")]
    if stopped:
        raise Interrupted(f"the first {len(files):,} of {n:,} images are in {folder} and stay there")
    return written


def _write_array(batches: Iterable[Samples], n: int, path: Path) -> list[Path]:
    labels: list[str] = []
    done, kept = 0, _free_name(path.with_suffix(".partial.npy"))
    with atomic(path) as aside:
        try:
            with aside.open("wb") as array:
                for batch in batches:
                    if not done:
                        shape = batch.x.shape[1:]
                        _write_header(array, (n, *shape))
                        begin = array.tell()
                    array.write(batch.x.astype("<f4").tobytes())
                    labels += batch.labels or ()
                    done += len(batch)
        except KeyboardInterrupt:
            if not done:
                raise Interrupted("nothing was finished, so nothing was kept") from None
            with aside.open("rb+") as array:
                _write_header(array, (done, *shape))
                array.truncate(begin + 4 * done * math.prod(shape))
            with atomic(kept) as place:
                aside.replace(place)
            _write_labels(labels[:done], labels_of(kept))
            raise Interrupted(f"the first {done:,} of {n:,} samples are in {kept}") from None
        _check_all_came(done, n)
    return [path, *_write_labels(labels, labels_of(path))]


def _free_name(path: Path) -> Path:
    """Return a name like this one, X.npy, X-2.npy, ..., that neither an array nor its labels have yet."""
    names = (path.with_stem(f"{path.stem}-{k}") if k > 1 else path for k in count(1))
    return next(name for name in names if not os.path.lexists(name) and not os.path.lexists(labels_of(name)))


def _write_header(array: BinaryIO, shape: tuple[int, ...]) -> None:
    """Write the header of an .npy file, which is equally long for every number of data."""
    np.lib.format.write_array_header_1_0(array, {"descr": "<f4", "fortran_order": False, "shape": shape})


def _as_text(label: str) -> str:
    """Return a label that no spreadsheet takes for a formula: what could begin one has an apostrophe before it."""
    return f"'{label}" if label[:1] in FORMULA and not re.fullmatch(r"[+-]?[\d.]+", label) else label


def _write_labels(labels: Sequence[str], path: Path) -> list[Path]:
    """Write labels beside the samples; without any, those of other samples that were here before are removed."""
    return write_label_rows(enumerate(labels), path)


def write_label_rows(labels: Iterable[tuple[int, str]], path: Path) -> list[Path]:
    """Write labels by the numbers of their samples, as `_write_labels`."""
    rest = iter(labels)
    if not (first := list(islice(rest, 1))):
        path.unlink(missing_ok=True)
        return []
    with atomic(path) as aside, aside.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(("index", "label"))
        rows.writerows((k, _as_text(label)) for k, label in chain(first, rest))
    return [path]


def _check_all_came(done: int, n: int) -> None:
    if done != n:
        raise ValueError(f"{n} samples were announced and {done} came")


def _png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="png")
    return buffer.getvalue()
