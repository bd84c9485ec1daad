"""Images that do not fit into memory: like a uint8 tensor of shape (N, C, H, W) whose images are read on demand."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from reverie.base.errors import UserError
from reverie.data.pixels import BrokenImage, Recipe, decode, decoding_pool
from reverie.data.sources import BYTES, FileEntry


class LazyImages(ABC):
    """Images by index that are not in memory.  recipe: the size and mode of each."""

    recipe: Recipe

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, C, H, W)."""
        return (len(self), self.recipe.channels, self.recipe.height, self.recipe.width)

    @property
    def decoded(self) -> bool:
        """Whether pixels are already decoded, so that prefetching gains nothing."""
        return False

    @abstractmethod
    def take(self, index: Tensor) -> Tensor:
        """Read the chosen images.  index: (B,) int64 or (N,) bool; returns (B, C, H, W) uint8."""

    @abstractmethod
    def subset(self, index: Tensor) -> LazyImages:
        """Return the chosen images without reading them.  index: (B,) int64 or (N,) bool."""

    @abstractmethod
    def content(self) -> bytes:
        """Return bytes that identify these images, for a fingerprint."""

    def content_hashes(self) -> np.ndarray | None:
        """Return hashes that are equal for copies, (N,); None if unknown."""
        return None

    def order(self, random: torch.Generator) -> Tensor:
        """Return a random order that can be read efficiently: (N,) int64."""
        return torch.randperm(len(self), generator=random)

    def prefetch(self, order: Tensor, start: int) -> None:
        """Announce that images will be requested in this order, from index `start` on."""
        return


def positions(index: Tensor, count: int) -> np.ndarray:
    """Convert an index of either kind into positions, validated like a tensor's index: (B,) int64."""
    return torch.arange(count)[index].reshape(-1).numpy()


@dataclass(frozen=True)
class FileImages(LazyImages):
    """Images of a folder or an archive.

    They are read from a file of fitted pixels if the disk has space for one (store: rows of (C, H, W), where image k has row
    store_rows[k]), or else decoded on demand by threads.
    """

    entries: tuple[FileEntry, ...]
    digests: tuple[bytes, ...]
    recipe: Recipe
    store: np.ndarray | None = field(default=None, compare=False, repr=False)
    store_rows: np.ndarray | None = field(default=None, compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def decoded(self) -> bool:
        """Whether a file of pixels exists."""
        return self.store is not None

    def take(self, index: Tensor) -> Tensor:
        """Read the chosen images; see `LazyImages`."""
        chosen = positions(index, len(self))
        if self.store is not None and self.store_rows is not None:
            return torch.from_numpy(self.store[self.store_rows[chosen]])
        out = np.empty((len(chosen), *self.shape[1:]), np.uint8)
        for k, image in enumerate(decoding_pool().map(self._read, chosen)):
            out[k] = image
        return torch.from_numpy(out)

    def subset(self, index: Tensor) -> FileImages:
        """Return the chosen images; see `LazyImages`."""
        chosen = positions(index, len(self))
        return replace(
            self, entries=tuple(self.entries[k] for k in chosen), digests=tuple(self.digests[k] for k in chosen),
            store_rows=self.store_rows[chosen] if self.store_rows is not None else None,
        )  # fmt: skip

    def content_hashes(self) -> np.ndarray:
        """Return the hashes of the files; see `LazyImages`."""
        return np.array([int.from_bytes(digest[:8], "little") for digest in self.digests], np.uint64)

    def content(self) -> bytes:
        """Return names, sizes and content hashes, and the recipe."""
        rows = [(entry.name, entry.size, digest.hex()) for entry, digest in zip(self.entries, self.digests, strict=True)]
        return repr((self.recipe, rows)).encode()

    def _read(self, k: int) -> np.ndarray:
        entry = self.entries[k]
        try:
            with BYTES.of(entry.size):
                return decode(entry.read(), self.recipe)
        except (BrokenImage, OSError) as error:
            raise UserError(f"{entry.name} was readable during the scan but is not any more: {error}; restore it") from None
