"""The runs and datasets below the opened folder, by ids that are hashes of their paths."""

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

MAX_DEPTH = 3  # levels of folders that are searched for data
SKIPPED = ("node_modules", "__pycache__", "site-packages")
MAX_DATA = 200
MAX_SCANNED = 400  # files of a folder that are checked for images


@dataclass(frozen=True)
class LibraryItem:
    """A run or dataset.  name: its path below the opened folder, printable."""

    id: str
    path: Path
    name: str


def path_id(path: str) -> str:
    """Return the id of a path relative to the opened folder."""
    return hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()[:12]


class Library:
    """The runs and datasets below a folder; nothing outside of it can be addressed."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        if not self.root.is_dir():
            raise UserError(f"no such folder: {root}; give the folder of your runs and data")
        self._overviews: dict[Path, tuple[tuple[object, ...], dict[str, Any]]] = {}
        self._data: dict[str, LibraryItem] = {}

    def item(self, path: Path) -> LibraryItem:
        """Return the item of a path below the folder."""
        name = path.relative_to(self.root).as_posix()
        return LibraryItem(path_id(name), path, visible(name if name != "." else self.root.name))

    def contains(self, path: Path) -> bool:
        """Return whether a path, with all links resolved, is below the folder."""
        try:
            return path.resolve().is_relative_to(self.root)
        except (OSError, RuntimeError):
            return False

    def display_path(self, path: Path) -> str:
        """Return a path relative to the working directory if it is below it."""
        try:
            return str(path.relative_to(Path.cwd()))
        except ValueError:
            return str(path)

    def runs(self) -> list[LibraryItem]:
        """Return the runs."""
        return [self.item(path) for path in api.find_runs(self.root) if self.contains(path)]

    def run(self, key: str) -> LibraryItem:
        """Return the run with an id."""
        for item in self.runs():
            if item.id == key:
                return item
        raise UserError("no such run in the folder; reload the list of runs")

    def overview(self, run: LibraryItem) -> dict[str, Any]:
        """Return the overview of a run with its data; read again only if its files have changed."""
        stamp = tuple(_stamp(run.path / name) for name in ("config.toml", "metrics.jsonl", "model.safetensors", "checkpoints"))
        cached = self._overviews.get(run.path)
        if cached is None or cached[0] != stamp:
            cached = self._overviews[run.path] = stamp, {**api.overview(run.path).as_row(), **_data_overview(run.path)}
        return cached[1]

    def data(self) -> list[LibraryItem]:
        """Return the folders and files below the folder that may be datasets."""
        runs = {run.path for run in self.runs()}
        paths = sorted(set(_candidates(self.root, runs, 0)))[:MAX_DATA]
        self._data = {item.id: item for item in map(self.item, paths)}
        return list(self._data.values())

    def source(self, key: str) -> str:
        """Return the DATA argument for a key: the name of a built-in dataset, or the path of an id."""
        if key in api.names_of("data"):
            return key
        if key not in self._data:
            self.data()
        if key not in self._data:
            raise UserError(f"no such data in the folder: {visible(key[:80])}; choose from the list")
        api.check_place(self._data[key].path, self.root)
        return str(self._data[key].path)


def _data_overview(run: Path) -> dict[str, Any]:
    try:
        config = api.read_config(run)
    except UserError:
        return {}
    capabilities = sorted(config.model_family.capabilities)
    return {"kind": config.data.kind, "shape": config.data.shape, "classes": len(config.data.labels), "abilities": capabilities}


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _candidates(folder: Path, runs: set[Path], depth: int) -> Iterator[Path]:
    """Yield image folders, with or without class subfolders, and data files; skip links."""
    subfolders, images = [], 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith(".") or entry.name in SKIPPED or entry.is_symlink():
                    continue
                path = folder / entry.name
                if entry.is_dir(follow_symlinks=False):
                    subfolders.append(path)
                elif api.is_image(entry.name):
                    images += 1
                elif path.suffix.lower() in api.READERS:
                    yield path
    except OSError:
        return
    subfolders = [path for path in subfolders if path not in runs]
    classes = [path for path in subfolders if _has_images(path)]
    if images or len(classes) > 1:
        yield folder
    if depth < MAX_DEPTH and not images and (len(classes) < 2 or depth == 0):
        for path in subfolders:
            yield from _candidates(path, runs, depth + 1)


def _has_images(folder: Path) -> bool:
    try:
        with os.scandir(folder) as entries:
            return any(api.is_image(entry.name) for _, entry in zip(range(MAX_SCANNED), entries, strict=False))
    except OSError:
        return False
