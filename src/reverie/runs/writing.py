"""Writing samples batch by batch, as an array or as a folder of images, with their labels."""

from __future__ import annotations

import csv
import math
import os
import re
from collections.abc import Iterable, Sequence
from itertools import chain, count, islice
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
from PIL import Image

from reverie.base.files import atomic
from reverie.draw.picture import to_bytes
from reverie.runs.destinations import check_output, is_folder
from reverie.runs.outputs import for_images, labels_of, sample_folder, write_manifest

if TYPE_CHECKING:
    from reverie.runs.samples import Samples

FORMULA = ("=", "+", "-", "@")  # characters that start a formula in spreadsheets


class Interrupted(KeyboardInterrupt):
    """Writing was interrupted; the message names the written files."""


def write(batches: Iterable[Samples], n: int, out: str | Path, overwrite: bool = False) -> list[Path]:
    """Write n samples from batches as an array or a folder of images, with one batch in memory.

    All files are written atomically.  On Ctrl-C, the finished images stay, with their labels, and the batches of an array
    become X.partial.npy; after a failure nothing stays.  overwrite: as in `Samples.save`.
    """
    check_output(out, overwrite)
    return _write_folder(batches, n, Path(out), overwrite) if is_folder(out) else _write_array(batches, n, Path(out))


def _write_folder(batches: Iterable[Samples], n: int, folder: Path, overwrite: bool) -> list[Path]:
    labels: list[str] = []
    manifest, stopped = for_images(n), False
    rest = iter(batches)
    try:
        first = list(islice(rest, 1))  # options may be refused until the first batch
    except KeyboardInterrupt:
        raise Interrupted("no image was finished") from None
    with sample_folder(folder, manifest, overwrite) as files:
        try:
            for batch in chain(first, rest):
                for k, image in enumerate(batch.x):
                    path = folder / manifest.name(len(files))
                    with atomic(path) as temporary:
                        Image.fromarray(to_bytes(image)).save(temporary)
                    files.append(path)
                    labels += batch.labels[k : k + 1] if batch.labels is not None else ()
            _check_count(len(files), n)
        except KeyboardInterrupt:
            if not files:
                raise Interrupted("no image was finished") from None
            write_manifest(folder, manifest.model_copy(update={"images": len(files)}))
            stopped = True
        written = [*files, *_write_labels(labels[: len(files)], folder / "labels.csv")]
    if stopped:
        raise Interrupted(f"the first {len(files):,} of {n:,} images are in {folder}")
    return written


def _write_array(batches: Iterable[Samples], n: int, path: Path) -> list[Path]:
    labels: list[str] = []
    done, partial = 0, _free_name(path.with_suffix(".partial.npy"))
    with atomic(path) as temporary:
        try:
            with temporary.open("wb") as array:
                for batch in batches:
                    if not done:
                        shape = batch.x.shape[1:]
                        _write_header(array, (n, *shape))
                        start = array.tell()
                    array.write(batch.x.astype("<f4").tobytes())
                    labels += batch.labels or ()
                    done += len(batch)
        except KeyboardInterrupt:
            if not done:
                raise Interrupted("no sample was finished") from None
            with temporary.open("rb+") as array:
                _write_header(array, (done, *shape))
                array.truncate(start + 4 * done * math.prod(shape))
            with atomic(partial) as target:
                temporary.replace(target)
            _write_labels(labels[:done], labels_of(partial))
            raise Interrupted(f"the first {done:,} of {n:,} samples are in {partial}") from None
        _check_count(done, n)
    return [path, *_write_labels(labels, labels_of(path))]


def _free_name(path: Path) -> Path:
    """Return the first of X.npy, X-2.npy, ... that neither an array nor its labels use."""
    names = (path.with_stem(f"{path.stem}-{k}") if k > 1 else path for k in count(1))
    return next(name for name in names if not os.path.lexists(name) and not os.path.lexists(labels_of(name)))


def _write_header(array: BinaryIO, shape: tuple[int, ...]) -> None:
    """Write the header of an .npy file, whose length does not depend on the number of data."""
    np.lib.format.write_array_header_1_0(array, {"descr": "<f4", "fortran_order": False, "shape": shape})


def as_text(label: str) -> str:
    """Return a label that spreadsheets do not read as a formula: prefixed with an apostrophe if needed."""
    return f"'{label}" if label[:1] in FORMULA and not re.fullmatch(r"[+-]?[\d.]+", label) else label


def _write_labels(labels: Sequence[str], path: Path) -> list[Path]:
    """Write labels next to the samples; without labels, remove those of earlier samples."""
    return write_label_rows(enumerate(labels), path)


def write_label_rows(labels: Iterable[tuple[int, str]], path: Path) -> list[Path]:
    """Write labels with the numbers of their samples; see `_write_labels`."""
    rest = iter(labels)
    if not (first := list(islice(rest, 1))):
        path.unlink(missing_ok=True)
        return []
    with atomic(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(("index", "label"))
        rows.writerows((k, as_text(label)) for k, label in chain(first, rest))
    return [path]


def _check_count(done: int, n: int) -> None:
    if done != n:
        raise ValueError(f"expected {n} samples, got {done}")
