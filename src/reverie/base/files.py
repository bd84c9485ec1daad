"""Files: read only where they are what they seem to be, written so that nothing is ever half written or lost."""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from reverie.base.errors import UserError

if TYPE_CHECKING:
    import numpy as np

ASIDE = re.compile(r"((?:[^/]+/)?)\.([^/]+)-[a-z0-9_]{8}(\.[^./]+)")  # a name that `atomic` writes to before it renames
MOST_TEXT = 2**26  # bytes of a text file of ours, at most


def reason(error: OSError) -> str:
    """Say an operating-system error without its number."""
    return (error.strerror or str(error)).lower()


def expanded(path: str | Path) -> Path:
    """Return a path with ~ in full; refuse one whose home folder is not known."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UserError(f"cannot tell whose home folder {path} begins with; write the path in full") from None


def own_file(folder: Path, name: str) -> Path:
    """Return the path of a file of ours in a folder, there or not; every file of a run is opened by way of this.

    A run may come from anyone: a link in it would lead reading and writing to other files, a FIFO would never end, and a
    device might do anything.  They are refused, at the file itself and at the folders between; the folder may be a link.
    """
    path, parts = folder, PurePath(name).parts
    for part, wanted in zip(parts, (*[stat.S_ISDIR] * (len(parts) - 1), stat.S_ISREG), strict=True):
        path = path / part
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            break
        except OSError as error:
            raise UserError(f"cannot open {path}: {reason(error)}") from None
        if not wanted(mode):
            found = "a link" if stat.S_ISLNK(mode) else "a folder" if stat.S_ISDIR(mode) else "no regular file"
            needed = "file" if wanted is stat.S_ISREG else "folder"
            raise UserError(f"{path} is {found} where a {needed} of the run's own should be; remove it, or put a copy there")
    return folder / name


def read_own(folder: Path, name: str, most: int = MOST_TEXT, errors: str = "strict") -> str:
    """Read a text file of ours that has at most so many bytes."""
    path = own_file(folder, name)
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise UserError(f"{path} is larger than the {most >> 20} MiB that such a file may have")
    return content.decode("utf-8", errors)


def check_folder(path: Path) -> None:
    """Refuse a folder that could not be made or written to; nothing is made yet."""
    there = next(place for place in (path, *path.resolve().parents) if place.exists())
    if not there.is_dir():
        raise UserError(f"cannot write to the folder {path}: {there} is not a folder; choose another one with --out")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UserError(f"cannot write to the folder {path}: permission denied; choose another one with --out")


def make_folder(path: Path) -> list[Path]:
    """Make a folder and those above it, and return the ones that were not there, the deepest first."""
    made: list[Path] = []
    try:
        for place in reversed(list(takewhile(lambda place: not place.exists(), (path, *path.parents)))):
            with suppress(FileExistsError):  # another program was quicker
                place.mkdir()
                made.insert(0, place)
    except OSError as error:
        remove_empty(made)
        raise UserError(f"cannot write to the folder {path}: {reason(error)}; choose another one with --out") from error
    return made


def remove_empty(folders: Sequence[Path]) -> None:
    """Remove folders that hold nothing, in this order."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextmanager
def atomic(path: Path, flushed: bool = True) -> Iterator[Path]:
    """Yield a path aside to write to; on success it is flushed and renamed to the wanted one, on failure removed.

    The folder is made if need be, and goes again with a failure.  flushed: whether it is on the disk before it is renamed, so
    that it is whole even after the power fails; not for many small files, which are looked at again.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        raise UserError(f"cannot write {path}: it is there, and is no regular file; choose another place with --out")
    made = make_folder(path.parent)
    aside = None
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=path.suffix, dir=path.parent)
        aside = Path(name)
        os.close(handle)
        yield aside
        if flushed:
            with aside.open("rb+") as file:
                os.fsync(file.fileno())
        aside.chmod(0o666 & ~_umask())
        aside.replace(path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {reason(error)}; choose another place with --out") from error
    finally:
        if aside is not None:
            aside.unlink(missing_ok=True)
        remove_empty(made)


def intended_name(name: str) -> str | None:
    """Return what a file was to be called that a killed program had begun to write; None if it is no such file."""
    aside = ASIDE.fullmatch(name)
    return None if aside is None else "".join(aside.groups())


def write_array(path: Path, x: np.ndarray) -> None:
    """Write an array as .npy."""
    import numpy as np

    x = np.ascontiguousarray(x)
    with atomic(path) as aside, aside.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(x))
        file.write(x.data)  # `np.save` does not say why it failed
