"""What a run refers to outside of its folder, kept within one folder where runs may come from anyone."""

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
    """Refuse all data and runs outside of a folder that runs refer to, while this lasts, in this thread."""
    before = _ROOT.set(root.resolve())
    try:
        yield
    finally:
        _ROOT.reset(before)


def check_data(known: DataConfig) -> None:
    """Refuse data of a run that lie elsewhere: at an address, in a home folder, or outside of the folder.

    Sets by name are allowed, with their files where the owner keeps them: in the folder, in $REVERIE_DATA, or where the system
    and earlier downloads put them.
    """
    if (root := _ROOT.get()) is None:
        return
    source, reading = known.source or known.name, known.reading
    own = os.environ.get("REVERIE_DATA")
    if "data_dir" in reading and not (own and expanded(reading["data_dir"]).resolve() == expanded(own).resolve()):
        check_place(reading["data_dir"], root)
    if source == MEMORY_SOURCE or source in DATASETS:
        if "pairs" in reading or ("data_dir" in reading and source not in FROM_FILES):
            raise UserError(f"the data of the run are {source}, and yet it names files of them; train a new run")
        return
    if is_remote(source):
        raise UserError(f"the data of the run lie at {visible(source)}, outside of {root}; use this run in a terminal")
    check_place(source, root)
    if "pairs" in reading:
        for other in (reading["pairs"], str(expanded(source).parent / Path(reading["pairs"]).name)):
            if os.path.lexists(expanded(other)):
                check_place(other, root)


def check_references(config: Config, kept: bool) -> None:
    """Refuse a run that refers to data, if it has kept none, or to another run as a start, teacher or codec, outside."""
    if not kept:
        check_data(config.data)
    for other in (config.start, config.codec):
        if other is not None and (root := _ROOT.get()) is not None:
            check_place(other.run, root)


def check_place(source: str | Path, root: Path) -> None:
    """Refuse a path, or a pattern of files, that lies outside of a folder, or among whose files a link leads out of it."""
    try:
        path = expanded(source)
        inside = all(_is_within(place / path, root) for place in (Path.cwd(), root))
    except (OSError, ValueError, RuntimeError):  # too long, a null byte, a loop of links
        inside = False
    if not inside:
        raise UserError(f"{visible(str(source))} lies outside of {root}; open the studio on a folder that holds both")
    if is_pattern(str(source)):
        path = path.parent
    beside = labels_beside(path) if path.is_file() else None
    for place in (*([beside] if beside else ()), *_links(path)):
        if not _is_within(place, root):
            raise UserError(f"{visible(place.name)} in {place.parent.name} is a link that leads out of {root}; remove it")


def _is_within(path: Path, root: Path) -> bool:
    return path.resolve().is_relative_to(root)


def _links(folder: Path) -> Iterator[Path]:
    """Yield the links in a folder and below it; hidden files are never read as data."""
    for place, inner, files in os.walk(folder):
        inner[:] = [name for name in inner if not name.startswith(".")]
        for name in (*inner, *files):
            if (path := Path(place) / name).is_symlink():
                yield path
