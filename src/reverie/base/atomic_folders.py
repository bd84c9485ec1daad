"""Folders that are made at once: written aside and put in place whole, and never over files of others."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from reverie.base.errors import UserError
from reverie.base.files import make_folder, reason, remove_empty


@contextmanager
def atomic_folder(path: Path, ours: Callable[[str], bool], overwrite: bool) -> Iterator[Path]:
    """Yield a folder aside to fill; on success it takes the place of the wanted one, on failure it is removed.

    A folder that is there and not empty is replaced only if so asked, and only if all that is in it are files of ours.
    """
    check_replaceable(path, ours, overwrite)
    made = make_folder(path.parent)
    aside = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        yield aside
        aside.chmod(0o755)
        before = aside.with_name(f"{aside.name}.before")
        if path.is_dir():
            path.rename(before)
        try:
            aside.rename(path)
        except OSError:
            if before.is_dir():
                before.rename(path)
            raise
        shutil.rmtree(before, ignore_errors=True)
    except OSError as error:
        raise UserError(f"cannot write the folder {path}: {reason(error)}; choose another place with --out") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        remove_empty(made)


def check_replaceable(path: Path, ours: Callable[[str], bool], overwrite: bool) -> None:
    """Refuse a place that holds anything, unless it is to be replaced and all of it is of ours."""
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise UserError(f"cannot write the folder {path}: it is there and is no folder; choose another place with --out")
    there = sorted(str(p.relative_to(path)) for p in path.rglob("*") if not p.is_dir()) if path.is_dir() else []
    if there and not overwrite:
        raise UserError(f"{path} is not empty; choose another --out, or give --overwrite to replace it")
    if other := [name for name in there if not ours(name)]:
        raise UserError(f"{path} holds other files ({other[0]} ...); choose a new or empty folder with --out")
