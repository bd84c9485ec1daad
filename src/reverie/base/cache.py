"""The user's cache folder: what can be made again is kept there within a size, the least recently used goes first.

A file of it is used only if it is whole and right in every tensor, by its checksum; anything else is made again.  Where the
folder cannot be written to, or REVERIE_CACHE=off is in the environment, everything works without it.
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

SWITCH = "REVERIE_CACHE"  # of the environment: "off" keeps nothing and reads nothing
LARGEST = 1 / 4  # of a cache that one file may take
ABANDONED = 3600.0  # seconds after which a file that was begun and never renamed is left over from a killed program

F = TypeVar("F")


def cache_folder() -> Path:
    """Return where downloads and caches are kept: $XDG_CACHE_HOME/reverie or ~/.cache/reverie."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if Path(base).is_absolute():
        return Path(base) / "reverie"
    try:
        return Path.home() / ".cache" / "reverie"
    except RuntimeError:
        raise UserError("there is no home folder to keep files in; set HOME, or XDG_CACHE_HOME to a folder") from None


@dataclass(frozen=True)
class Cache:
    """Files of tensors by key, in a folder of the cache.  most: bytes of all of them."""

    name: str
    most: int

    def read(
        self, key: str, wanted: Callable[[F], Mapping[str, TensorSpec]], facts: TypeAdapter[F]
    ) -> tuple[dict[str, Tensor], F] | None:
        """Return the tensors and facts under a key, or None where there is no file that is whole and has these forms."""
        from reverie.base.tensors import read_tensors

        path = self._path(key)
        if path is None or not path.is_file():
            return None
        try:
            found = read_tensors(path, wanted, facts, fits="what is looked for", summed=True)
        except UserError as error:
            logging.getLogger(__name__).info("not taken from the cache: %s", error)
            return None
        with suppress(OSError):
            os.utime(path)
        return found

    def write(self, key: str, tensors: Mapping[str, Tensor], facts: str) -> None:
        """Keep tensors and facts (JSON) under a key if there is room; the least recently used files make it."""
        from reverie.base.tensors import write_tensors

        path = self._path(key)
        if path is None or sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()) > LARGEST * self.most:
            return
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_tensors(path, tensors, facts)
            self._shrink(path.parent)
        except (UserError, OSError) as error:
            logging.getLogger(__name__).info("not kept in the cache: %s", error)

    def _path(self, key: str) -> Path | None:
        if os.environ.get(SWITCH, "").lower() in ("off", "0", "no"):
            return None
        with suppress(UserError):  # nowhere to keep it
            return cache_folder() / self.name / f"{key}.safetensors"
        return None

    def _shrink(self, folder: Path) -> None:
        """Remove what killed programs left, and of the others the least recently used until they fit."""
        there = []
        for path in folder.glob("*.safetensors"):  # other processes may remove files meanwhile
            with suppress(OSError):
                state = path.lstat()
                if not path.name.startswith("."):
                    there.append((state.st_mtime, state.st_size, path))
                elif time.time() - state.st_mtime > ABANDONED:
                    path.unlink()
        total = sum(size for _, size, _ in there)
        for _, size, path in sorted(there):
            if total <= self.most:
                break
            with suppress(OSError):
                path.unlink()
            total -= size
