"""Atomic creation of folders: written to a temporary folder, then renamed; foreign files are never overwritten."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from reverie.base.errors import UserError
from reverie.base.files import make_folder, reason, remove_empty


@contextmanager
def atomic_folder(path: Path, is_own: Callable[[str], bool], overwrite: bool) -> Iterator[Path]:
    """Yield a temporary folder to fill; on success it is renamed to the path, on failure it is removed.

    A non-empty folder is replaced only with `overwrite`, and only if `is_own` accepts every file in it.
    """
    check_replaceable(path, is_own, overwrite)
    created = make_folder(path.parent)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        yield temporary
        temporary.chmod(0o755)
        previous = temporary.with_name(f"{temporary.name}.before")
        if path.is_dir():
            path.rename(previous)
        try:
            temporary.rename(path)
        except OSError:
            if previous.is_dir():
                previous.rename(path)
            raise
        shutil.rmtree(previous, ignore_errors=True)
    except OSError as error:
        raise UserError(f"cannot write the folder {path}: {reason(error)}; choose another path with --out") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        remove_empty(created)


def check_replaceable(path: Path, is_own: Callable[[str], bool], overwrite: bool) -> None:
    """Refuse a path that is not a folder, a non-empty folder without `overwrite`, and a folder with foreign files."""
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise UserError(f"cannot write the folder {path}: it exists and is not a folder; choose another path with --out")
    existing = sorted(str(p.relative_to(path)) for p in path.rglob("*") if not p.is_dir()) if path.is_dir() else []
    if existing and not overwrite:
        raise UserError(f"{path} is not empty; choose another --out, or replace it with --overwrite")
    if other := [name for name in existing if not is_own(name)]:
        raise UserError(f"{path} holds other files ({other[0]} ...); choose a new or empty folder with --out")
