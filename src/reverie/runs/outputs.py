"""Output folders of samples: a manifest lists the files of Reverie, and no others are replaced or removed."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from reverie.base.errors import UserError
from reverie.base.files import atomic, intended_name, make_folder, own_file, read_own, remove_empty

MANIFEST = ".reverie.json"
MAX_MANIFEST = 2**16  # bytes
NUMBERED = re.compile(r"([0-9]{1,20})\.png")

Named = Literal["labels.csv", "points.npy", "points.labels.csv", "picture.png", "sheet.png"]
NAMES: tuple[Named, ...] = get_args(Named)


class Manifest(BaseModel):
    """The files of Reverie in a folder.

    images: number of images; digits: of the numbers in their names; named: other files; request: hash of the request, which a
    second call must match to resume.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    images: int = Field(default=0, ge=0)
    digits: int = Field(default=1, ge=1)
    named: tuple[Named, ...] = NAMES
    request: str | None = Field(
        default=None,
        pattern="[0-9a-f]{64}",
        validation_alias=AliasChoices("request", "asked"),  # the old name
    )

    def name(self, k: int) -> str:
        """Return the name of image k."""
        return f"{k:0{self.digits}d}.png"

    def holds(self, name: str) -> bool:
        """Return whether a file is in the manifest."""
        number = NUMBERED.fullmatch(name)
        return name in self.named or (number is not None and int(number[1]) < self.images and name == self.name(int(number[1])))


def for_images(n: int, request: str | None = None) -> Manifest:
    """Return the manifest of n images, with their labels and their sheet."""
    return Manifest(images=n, digits=len(str(max(n - 1, 0))), request=request)


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a folder; empty if there is no valid one."""
    try:
        return Manifest.model_validate_json(read_own(folder, MANIFEST, MAX_MANIFEST))
    except (OSError, UserError, UnicodeDecodeError, ValidationError):
        return Manifest(named=())


def check_place(folder: Path, overwrite: bool) -> list[str]:
    """Refuse a folder with files named like samples, unless they are in the manifest and `overwrite` is set.

    Returns the files to remove: these, and temporary files of a killed program.
    """
    names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    existing = [name for name in names if name in NAMES or NUMBERED.fullmatch(name)]
    manifest = read_manifest(folder)
    temporary = temporary_files(folder, manifest) if names else []
    if others := [name for name in existing if not manifest.holds(name)]:
        raise UserError(
            f"{folder} contains {others[0]}, which is not a sample of Reverie and is not replaced; choose another --out"
        )
    if existing and not overwrite:
        raise UserError(
            f"{folder} already contains samples ({existing[0]} ...); choose another --out, or add --overwrite to replace them"
        )
    for name in (*existing, *temporary):
        own_file(folder, name)
    return [*existing, *temporary]


def temporary_files(folder: Path, manifest: Manifest) -> list[str]:
    """Return the names of temporary files of a killed program."""
    names = ((entry.name, intended_name(entry.name)) for entry in folder.iterdir())
    return sorted(name for name, target in names if target is not None and (manifest.holds(target) or target == MANIFEST))


@contextmanager
def sample_folder(folder: Path, manifest: Manifest, overwrite: bool) -> Iterator[list[Path]]:
    """Yield a list to which the caller appends each written file; after a failure these files are removed.

    With `overwrite`, removes earlier samples first.  Writes the manifest before the files, so that it lists them even if the
    program is killed.
    """
    earlier = check_place(folder, overwrite)
    created = make_folder(folder)
    written: list[Path] = []
    try:
        for name in earlier:
            own_file(folder, name).unlink(missing_ok=True)
        write_manifest(folder, manifest)
        yield written
    except BaseException:
        for file in (*written, folder / MANIFEST):
            file.unlink(missing_ok=True)
        raise
    finally:
        remove_empty(created)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest of a folder."""
    with atomic(own_file(folder, MANIFEST)) as temporary:
        temporary.write_text(manifest.model_dump_json(), encoding="utf-8")


def labels_of(array: Path) -> Path:
    """Return the file of the labels of an array X.npy: X.labels.csv."""
    return array.with_suffix(".labels.csv")


def check_labels(array: Path) -> None:
    """Refuse to overwrite a file of labels, unless it belongs to the array that is replaced."""
    labels = labels_of(array)
    if os.path.lexists(labels) and not _are_labels(labels, array):
        raise UserError(f"{labels} already exists; choose another --out, or add --overwrite to replace it with {array.name}")


def _are_labels(labels: Path, array: Path) -> bool:
    """Return whether a file contains labels of Reverie, numbered from 0, one for each datum of an array."""
    try:
        with own_file(labels.parent, labels.name).open(newline="", encoding="utf-8") as file:
            first, *rows = (row[:1] for row in csv.reader(file))
        count = len(np.load(own_file(array.parent, array.name), mmap_mode="r"))
        return first == ["index"] and rows == [[str(k)] for k in range(count)]
    except (OSError, EOFError, TypeError, ValueError, csv.Error):
        return False
