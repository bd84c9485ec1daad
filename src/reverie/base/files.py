"""Safe file access: reads only regular files, writes atomically."""

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

TEMPORARY_NAME = re.compile(r"((?:[^/]+/)?)\.([^/]+)-[a-z0-9_]{8}(\.[^./]+)")  # a temporary name of `atomic`
MAX_TEXT = 2**26  # maximum bytes of a text file in a run


def reason(error: OSError) -> str:
    """Return the text of an operating-system error without its number."""
    return (error.strerror or str(error)).lower()


def expanded(path: str | Path) -> Path:
    """Return a path with ~ expanded; refuse one whose home folder is unknown."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UserError(f"cannot expand the home folder in {path}; write the path in full") from None


def own_file(folder: Path, name: str) -> Path:
    """Return the path of a file inside a folder, existing or not; all files of a run are opened through this function.

    A run may come from an untrusted source: symbolic links could redirect reading and writing, a FIFO would block, and a device
    could do anything.  All are refused, for the file and for the folders in between; the folder itself may be a link.
    """
    path, parts = folder, PurePath(name).parts
    for part, is_type in zip(parts, (*[stat.S_ISDIR] * (len(parts) - 1), stat.S_ISREG), strict=True):
        path = path / part
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            break
        except OSError as error:
            raise UserError(f"cannot open {path}: {reason(error)}") from None
        if not is_type(mode):
            actual = "a link" if stat.S_ISLNK(mode) else "a folder" if stat.S_ISDIR(mode) else "not a regular file"
            needed = "file" if is_type is stat.S_ISREG else "folder"
            raise UserError(f"{path} is {actual}, expected a {needed} of the run; remove it or replace it by a copy")
    return folder / name


def read_own(folder: Path, name: str, max_bytes: int = MAX_TEXT, errors: str = "strict") -> str:
    """Read a text file of a run with at most `max_bytes` bytes."""
    path = own_file(folder, name)
    with path.open("rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise UserError(f"{path} is larger than {max_bytes >> 20} MiB, the limit for such a file")
    return content.decode("utf-8", errors)


def check_folder(path: Path) -> None:
    """Refuse a folder that cannot be created or written to; create nothing."""
    ancestor = next(candidate for candidate in (path, *path.resolve().parents) if candidate.exists())
    if not ancestor.is_dir():
        raise UserError(f"cannot write to the folder {path}: {ancestor} is not a folder; choose another one with --out")
    if not os.access(ancestor, os.W_OK | os.X_OK):
        raise UserError(f"cannot write to the folder {path}: permission denied; choose another one with --out")


def make_folder(path: Path) -> list[Path]:
    """Create a folder and its parents; return those that were created, deepest first."""
    created: list[Path] = []
    try:
        for folder in reversed(list(takewhile(lambda folder: not folder.exists(), (path, *path.parents)))):
            with suppress(FileExistsError):  # another program created it
                folder.mkdir()
                created.insert(0, folder)
    except OSError as error:
        remove_empty(created)
        raise UserError(f"cannot write to the folder {path}: {reason(error)}; choose another one with --out") from error
    return created


def remove_empty(folders: Sequence[Path]) -> None:
    """Remove the folders that are empty, in this order."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextmanager
def atomic(path: Path, flushed: bool = True) -> Iterator[Path]:
    """Yield a temporary path to write to; on success it is renamed to the target, on failure it is removed.

    Missing folders are created, and removed again on failure.  flushed: sync to disk before renaming, so that the file survives
    a power failure; not needed for many small files that are verified later.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        raise UserError(f"cannot write {path}: it exists and is not a regular file; choose another path with --out")
    created = make_folder(path.parent)
    temporary = None
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=path.suffix, dir=path.parent)
        temporary = Path(name)
        os.close(handle)
        yield temporary
        if flushed:
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {reason(error)}; choose another path with --out") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        remove_empty(created)


def intended_name(name: str) -> str | None:
    """Return the final name of a temporary file of `atomic` that a killed program left; None for other names."""
    temporary = TEMPORARY_NAME.fullmatch(name)
    return None if temporary is None else "".join(temporary.groups())


def write_array(path: Path, x: np.ndarray) -> None:
    """Write an array as .npy."""
    import numpy as np

    x = np.ascontiguousarray(x)
    with atomic(path) as temporary, temporary.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(x))
        file.write(x.data)  # `np.save` does not report why it failed
