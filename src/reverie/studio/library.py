"""What lies in the folder that the studio was opened on: runs and data, by ids that are made of their places and tell none."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reverie import api
from reverie.base.errors import UserError
from reverie.base.visible import visible

DEPTH = 3  # folders below the opened one in which data are looked for
SKIPPED = ("node_modules", "__pycache__", "site-packages")
MOST_DATA = 200
LOOKED_AT = 400  # files of a folder that are looked at to tell whether it holds images


@dataclass(frozen=True)
class Found:
    """A run or data: its id, and its place as a person would write it."""

    id: str
    path: Path
    name: str


def identity(place: str) -> str:
    """Return the id of a place, which is written from the opened folder on."""
    return hashlib.sha256(place.encode("utf-8", "surrogateescape")).hexdigest()[:12]


class Library:
    """The runs and data below a folder; nothing outside of it can be named."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        if not self.root.is_dir():
            raise UserError(f"there is no folder {root}; give the one that your runs and data are in")
        self._overviews: dict[Path, tuple[tuple[object, ...], dict[str, Any]]] = {}
        self._data: dict[str, Found] = {}

    def found(self, path: Path) -> Found:
        """Return a place below the folder with its id."""
        name = path.relative_to(self.root).as_posix()
        return Found(identity(name), path, visible(name if name != "." else self.root.name))

    def holds(self, path: Path) -> bool:
        """Tell whether a path, with all links followed, lies below the folder."""
        try:
            return path.resolve().is_relative_to(self.root)
        except (OSError, RuntimeError):
            return False

    def shown(self, path: Path) -> str:
        """Return a path as it is given on the command line where the studio was started."""
        try:
            return str(path.relative_to(Path.cwd()))
        except ValueError:
            return str(path)

    def runs(self) -> list[Found]:
        """Return the runs."""
        return [self.found(path) for path in api.find_runs(self.root) if self.holds(path)]

    def run(self, key: str) -> Found:
        """Return the run with an id."""
        for found in self.runs():
            if found.id == key:
                return found
        raise UserError("there is no such run any more; look at the list of runs again")

    def overview(self, run: Found) -> dict[str, Any]:
        """Return what there is to say of a run, with what its data are; read again only where files have changed."""
        seen = tuple(_stamp(run.path / name) for name in ("config.toml", "metrics.jsonl", "model.safetensors", "checkpoints"))
        known = self._overviews.get(run.path)
        if known is None or known[0] != seen:
            known = self._overviews[run.path] = seen, {**api.overview(run.path).as_row(), **_of_the_data(run.path)}
        return known[1]

    def data(self) -> list[Found]:
        """Return the folders and files below the folder that may be data."""
        runs = {run.path for run in self.runs()}
        places = sorted(set(_candidates(self.root, runs, 0)))[:MOST_DATA]
        self._data = {found.id: found for found in map(self.found, places)}
        return list(self._data.values())

    def source(self, key: str) -> str:
        """Return what is to be given as DATA: a name of the tables as it is, and the path of an id."""
        if key in api.names_of("data"):
            return key
        if key not in self._data:
            self.data()
        if key not in self._data:
            raise UserError("there are no such data in the folder; choose from the list")
        api.check_place(self._data[key].path, self.root)
        return str(self._data[key].path)


def _of_the_data(run: Path) -> dict[str, Any]:
    try:
        config = api.read_config(run)
    except UserError:
        return {}
    able = sorted(config.model_family.can)
    return {"kind": config.data.kind, "shape": config.data.shape, "classes": len(config.data.labels), "can": able}


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        there = path.lstat()
    except OSError:
        return None
    return there.st_mtime_ns, there.st_size


def _candidates(folder: Path, runs: set[Path], depth: int) -> Iterator[Path]:
    """Yield folders of images, with their classes as folders or without, and data files; links are left out."""
    inner, images = [], 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith(".") or entry.name in SKIPPED or entry.is_symlink():
                    continue
                path = folder / entry.name
                if entry.is_dir(follow_symlinks=False):
                    inner.append(path)
                elif api.is_image(entry.name):
                    images += 1
                elif path.suffix.lower() in api.READERS:
                    yield path
    except OSError:
        return
    inner = [path for path in inner if path not in runs]
    classes = [path for path in inner if _has_images(path)]
    if images or len(classes) > 1:
        yield folder
    if depth < DEPTH and not images and (len(classes) < 2 or depth == 0):
        for path in inner:
            yield from _candidates(path, runs, depth + 1)


def _has_images(folder: Path) -> bool:
    try:
        with os.scandir(folder) as entries:
            return any(api.is_image(entry.name) for _, entry in zip(range(LOOKED_AT), entries, strict=False))
    except OSError:
        return False
