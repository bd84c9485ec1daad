"""Writing files so that nothing is ever half written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from reverie.base.errors import UserError

if TYPE_CHECKING:
    import numpy as np


def reason(error: OSError) -> str:
    """Say an operating-system error without its number."""
    return (error.strerror or str(error)).lower()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a path aside to write to; on success it is flushed and renamed to the wanted one, on failure removed."""
    path = path.resolve()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=path.suffix, dir=path.parent)
    except OSError as error:
        raise UserError(f"cannot write {path}: {reason(error)}; choose another place with --out") from error
    os.close(handle)
    aside = Path(name)
    try:
        yield aside
        with aside.open("rb+") as file:
            os.fsync(file.fileno())
        aside.chmod(0o666 & ~_umask())
        aside.replace(path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {reason(error)}; choose another place with --out") from error
    finally:
        aside.unlink(missing_ok=True)


def write_array(path: Path, x: np.ndarray) -> None:
    """Write an array as .npy."""
    import numpy as np

    with atomic(path) as aside, aside.open("wb") as file:
        np.save(file, x)


def writable_folder(path: Path) -> Path:
    """Make a folder if needed and check that files can be written into it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise UserError(f"cannot write to the folder {path}: {reason(error)}; choose another one with --out") from error
    return path
