"""The user's cache folder: a size-limited LRU cache of files that can be recomputed.

A file is used only if its checksum and all tensor specs match; otherwise it is recomputed.  Without a writable folder, or with
REVERIE_CACHE=off in the environment, everything works without the cache.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from reverie.base.errors import UserError

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from torch import Tensor

    from reverie.base.tensors import TensorSpec

SWITCH = "REVERIE_CACHE"  # environment variable: "off" disables the cache
MAX_SHARE = 1 / 4  # maximum share of the cache for one file
STALE_AFTER = 3600.0  # seconds after which an unfinished temporary file counts as left over from a killed program

F = TypeVar("F")


def cache_folder() -> Path:
    """Return the folder of downloads and caches: $XDG_CACHE_HOME/reverie or ~/.cache/reverie."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if Path(base).is_absolute():
        return Path(base) / "reverie"
    try:
        return Path.home() / ".cache" / "reverie"
    except RuntimeError:
        raise UserError("no home folder for the cache; set HOME, or set XDG_CACHE_HOME to a folder") from None


@dataclass(frozen=True)
class Cache:
    """Tensor files by key in one subfolder of the cache.  max_bytes: total size of all files."""

    name: str
    max_bytes: int

    def read(
        self, key: str, wanted: Callable[[F], Mapping[str, TensorSpec]], facts: TypeAdapter[F]
    ) -> tuple[dict[str, Tensor], F] | None:
        """Return the tensors and metadata of a key, or None if no intact file with the wanted tensor specs exists."""
        from reverie.base.tensors import read_tensors

        path = self._path(key)
        if path is None or not path.is_file():
            return None
        try:
            entry = read_tensors(path, wanted, facts, fits="the cache entry", require_checksum=True)
        except UserError as error:
            logging.getLogger(__name__).info("cache entry ignored: %s", error)
            return None
        with suppress(OSError):
            os.utime(path)
        return entry

    def write(self, key: str, tensors: Mapping[str, Tensor], facts: str) -> None:
        """Store tensors and metadata (JSON) under a key, and evict the least recently used files if space is needed."""
        from reverie.base.tensors import write_tensors

        path = self._path(key)
        if (
            path is None
            or sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()) > MAX_SHARE * self.max_bytes
        ):
            return
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_tensors(path, tensors, facts)
            self._shrink(path.parent)
        except (UserError, OSError) as error:
            logging.getLogger(__name__).info("cache entry not stored: %s", error)

    def _path(self, key: str) -> Path | None:
        if os.environ.get(SWITCH, "").lower() in ("off", "0", "no"):
            return None
        with suppress(UserError):  # no cache folder
            return cache_folder() / self.name / f"{key}.safetensors"
        return None

    def _shrink(self, folder: Path) -> None:
        """Remove temporary files of killed programs, then the least recently used files until the rest fits."""
        files = []
        for path in folder.glob("*.safetensors"):  # other processes may remove files concurrently
            with suppress(OSError):
                state = path.lstat()
                if not path.name.startswith("."):
                    files.append((state.st_mtime, state.st_size, path))
                elif time.time() - state.st_mtime > STALE_AFTER:
                    path.unlink()
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= self.max_bytes:
                break
            with suppress(OSError):
                path.unlink()
            total -= size
