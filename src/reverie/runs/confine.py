"""Confinement of untrusted runs: the paths that they refer to must be in one folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from reverie.base.errors import UserError
from reverie.base.files import expanded
from reverie.base.visible import visible
from reverie.data import DATASETS, FROM_FILES
from reverie.data.idx import labels_beside
from reverie.data.in_memory import MEMORY_SOURCE
from reverie.data.shards.store import is_pattern, is_remote
from reverie.runs.config import Config, DataConfig

_ROOT: ContextVar[Path | None] = ContextVar("root", default=None)


@contextmanager
def confined(root: Path) -> Iterator[None]:
    """Within this context and thread, refuse references of runs to data and runs outside of a folder."""
    before = _ROOT.set(root.resolve())
    try:
        yield
    finally:
        _ROOT.reset(before)


def check_data(config: DataConfig) -> None:
    """Refuse data of a run at a URL, in a home folder, or outside of the folder.

    Named datasets are allowed, with files in the folder, in $REVERIE_DATA, or in the locations of downloads.
    """
    if (root := _ROOT.get()) is None:
        return
    source, reading = config.source or config.name, config.reading
    data_root = os.environ.get("REVERIE_DATA")
    if "data_dir" in reading and not (data_root and expanded(reading["data_dir"]).resolve() == expanded(data_root).resolve()):
        check_place(reading["data_dir"], root)
    if source == MEMORY_SOURCE or source in DATASETS:
        if "pairs" in reading or ("data_dir" in reading and source not in FROM_FILES):
            raise UserError(f"the data of the run are {source}, which has no files, but it names some; train a new run")
        return
    if is_remote(source):
        raise UserError(f"the data of the run are at {visible(source)}, outside of {root}; use this run in a terminal")
    check_place(source, root)
    if "pairs" in reading:
        for other in (reading["pairs"], str(expanded(source).parent / Path(reading["pairs"]).name)):
            if os.path.lexists(expanded(other)):
                check_place(other, root)


def check_references(config: Config, has_copy: bool) -> None:
    """Refuse a run that refers to data, unless it has a copy, or to another run (start, teacher, codec) outside."""
    if not has_copy:
        check_data(config.data)
    for other in (config.start, config.codec):
        if other is not None and (root := _ROOT.get()) is not None:
            check_place(other.run, root)


def check_place(source: str | Path, root: Path) -> None:
    """Refuse a path or file pattern outside of a folder, or with links that leave it."""
    try:
        path = expanded(source)
        inside = all(_is_within(location / path, root) for location in (Path.cwd(), root))
    except (OSError, ValueError, RuntimeError):  # too long, a null byte, a loop of links
        inside = False
    if not inside:
        raise UserError(f"{visible(str(source))} is outside of {root}; start the studio in a folder that contains both")
    if is_pattern(str(source)):
        path = path.parent
    labels = labels_beside(path) if path.is_file() else None
    for location in (*([labels] if labels else ()), *_links(path)):
        if not _is_within(location, root):
            raise UserError(f"{visible(location.name)} in {location.parent.name} is a link that leaves {root}; remove it")


def _is_within(path: Path, root: Path) -> bool:
    return path.resolve().is_relative_to(root)


def _links(folder: Path) -> Iterator[Path]:
    """Yield the links in a folder and its subfolders, except hidden files, which are never read."""
    for parent, subfolders, files in os.walk(folder):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        for name in (*subfolders, *files):
            if (path := Path(parent) / name).is_symlink():
                yield path
