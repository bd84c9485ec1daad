"""Images of shards by index: read from a local file, or from prefetched blocks."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor

from reverie.base.errors import UserError
from reverie.data.columnar import readable_errors
from reverie.data.lazy import LazyImages, positions
from reverie.data.pixels import BrokenImage, Recipe, decode, decoding_pool
from reverie.data.shards.fetching import fetch_pool
from reverie.data.shards.image_tables import content, group_images, open_parquet
from reverie.data.shards.index import Index, image_hash
from reverie.data.shards.store import Store, Stored
from reverie.data.sources import BYTES

GROUP = 64 * 2**20  # bytes of blocks whose images are shuffled together
CACHE = 3 * GROUP  # bytes of cached blocks
CHUNK_IMAGES = 64  # images decoded at a time

Block = Callable[[int], bytes]  # returns an image of the block by index


class Blocks:
    """The shards of an index with an LRU cache of their blocks; shared by all parts of a dataset."""

    def __init__(self, store: Store, index: Index) -> None:
        self.store, self.index = store, index
        self.tables = np.array([shard.kind == "parquet" for shard in index.facts.shards])
        self._held: OrderedDict[int, Future[Block]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def fetches_blocks(self) -> bool:
        """Whether to fetch whole blocks: from remote stores and tables."""
        return self.store.remote or bool(self.tables.any())

    def prefetch(self, block: int) -> None:
        """Fetch a block, and evict the least recently used ones."""
        self._future(block)

    def _future(self, block: int) -> Future[Block]:
        size = self.index.arrays["block_size"]
        with self._lock:
            cached = self._held.get(block)
            if cached is None or (cached.done() and cached.exception() is not None):  # failed requests are repeated
                self._held[block] = fetch_pool().submit(self._fetch, block)
                cached_bytes = sum(int(size[k]) for k in self._held)
                while cached_bytes > CACHE and len(self._held) > 1:
                    cached_bytes -= int(size[self._held.popitem(last=False)[0]])
            self._held.move_to_end(block)
            return self._held[block]

    def _fetch(self, block: int) -> Block:
        a = self.index.arrays
        shard = self.index.facts.shards[a["block_shard"][block]]
        start, size = int(a["block_start"][block]), int(a["block_size"][block])
        if shard.kind == "parquet":
            image, _, within = shard.column.rpartition(".") if shard.column.endswith(".bytes") else (shard.column, "", "")
            with (
                readable_errors(self.store.where(shard.name), "parquet"),
                open_parquet(self.store, Stored(shard.name, shard.size)) as table,
            ):
                rows = group_images(table, start, image, within or None)
            return lambda k: bytes(content(rows[int(a["offset"][k])]) or b"")
        data = self.store.read(shard.name, start, size)
        return lambda k: data[a["offset"][k] - start : a["offset"][k] - start + a["size"][k]]

    def source(self, k: int) -> Callable[[], bytes]:
        """Return a function that returns the bytes of image k; fetching starts at once."""
        a = self.index.arrays
        block = int(a["block"][k])
        shard = self.index.shard_of(k)
        with self._lock:
            cached = block in self._held
        if cached or shard.kind == "parquet":
            future = self._future(block)
            return lambda: future.result()(k)
        location = shard.name, int(a["offset"][k]), int(a["size"][k])
        if not self.store.remote:
            return lambda: self.store.read(*location)
        return fetch_pool().submit(self.store.read, *location).result


@dataclass(frozen=True)
class ShardImages(LazyImages):
    """Images of an index; `members` (N,) are their indices.

    For a random order, the blocks of all shards are shuffled and divided into groups of GROUP bytes, and images are shuffled
    within each group, so that each block is fetched once per epoch.  A single group makes the order fully random.
    """

    blocks: Blocks = field(repr=False, compare=False)
    recipe: Recipe
    members: np.ndarray = field(repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.members)

    @cached_property
    def _block(self) -> np.ndarray:
        """The block of each image, (N,)."""
        blocks: np.ndarray = self.blocks.index.arrays["block"][self.members]
        return blocks

    def take(self, index: Tensor) -> Tensor:
        """Read the chosen images; see `LazyImages`."""
        chosen = positions(index, len(self))
        out = np.empty((len(chosen), *self.shape[1:]), np.uint8)
        for window in self._windows(chosen):
            members = [int(k) for k in self.members[chosen[window]]]
            sources = [self.blocks.source(k) for k in members]
            if self.blocks.fetches_blocks:  # fetched here, because waiting decoder threads would delay the end of the program
                sources = [partial(bytes, source()) for source in sources]
            for position, image in zip(window, decoding_pool().map(self._decode, members, sources), strict=True):
                out[position] = image
        return torch.from_numpy(out)

    def _windows(self, chosen: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the positions of images that are read together: all local ones, or those of a few remote blocks."""
        if not self.blocks.fetches_blocks:
            yield np.arange(len(chosen))
            return
        block = self._block[chosen]
        ranked = np.argsort(block, kind="stable")
        new = np.diff(block[ranked], prepend=-1) != 0
        size = np.where(new, self.blocks.index.arrays["block_size"][block[ranked]], 0).cumsum() // GROUP
        parts = size * (len(chosen) + 1) + np.arange(len(chosen)) // CHUNK_IMAGES
        yield from np.split(ranked, np.flatnonzero(np.diff(parts)) + 1) if len(ranked) else ()

    def _decode(self, k: int, source: Callable[[], bytes]) -> np.ndarray:
        index = self.blocks.index
        shard = self.blocks.store.where(index.shard_of(k).name)
        try:
            with BYTES.of(int(index.arrays["size"][k])):
                data = source()
                if image_hash(data) != index.arrays["check"][k]:
                    raise UserError(
                        f"image {k:,} ({index.name(k)}) of {shard} has changed since it was indexed; restore the shard,"
                        " or remove its index and train again"
                    )
                return decode(data, self.recipe)
        except BrokenImage as error:
            raise UserError(f"image {k:,} ({index.name(k)}) of {shard} cannot be used: {error}; restore the shard") from None

    def subset(self, index: Tensor) -> ShardImages:
        """Return the chosen images; see `LazyImages`."""
        return replace(self, members=self.members[positions(index, len(self))])

    def content(self) -> bytes:
        """Return image hashes, the blocks, which determine the order, and the recipe."""
        a = self.blocks.index.arrays
        return b"".join([repr(self.recipe).encode(), a["check"][self.members].tobytes(), self._block.tobytes()])

    def order(self, random: torch.Generator) -> Tensor:
        """Return a random order, group by group: (N,) int64."""
        order = torch.randperm(len(self), generator=random)
        size = torch.from_numpy(self.blocks.index.arrays["block_size"])
        if int(size.sum()) <= GROUP:
            return order
        shuffled = torch.randperm(len(size), generator=random)
        group = torch.empty_like(shuffled)
        group[shuffled] = (size[shuffled].cumsum(0) - size[shuffled]) // GROUP
        return order[group[torch.from_numpy(self._block).long()[order]].argsort(stable=True)]

    def prefetch(self, order: Tensor, start: int) -> None:
        """Prefetch the blocks of the next images, as far as the cache has space in addition to the current ones."""
        if not self.blocks.fetches_blocks:
            return
        index = self.blocks.index
        mean = int(index.arrays["block_size"].sum()) / len(index)
        count = int(GROUP / 2 / max(1.0, mean))
        upcoming = self._block[order[start : start + max(1, count)].numpy()]
        for block in dict.fromkeys(upcoming.tolist()):
            self.blocks.prefetch(block)
