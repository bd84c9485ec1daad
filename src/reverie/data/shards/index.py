"""The index of shards: where each image lies, what its header says and what is told of it; one file, made once.

Images are counted through all shards in order.  A block is a stretch of a shard that is fetched at once: about BLOCK bytes of
a tar or arrow file, or a row group of a parquet file.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field, TypeAdapter
from torch import Tensor

from reverie.base.config_section import ConfigSection
from reverie.base.errors import UserError
from reverie.base.tensors import TensorSpec, read_tensors, write_tensors
from reverie.data.pixels import Header
from reverie.data.shards.store import Stored
from reverie.data.sources import FILE_LIMIT

INDEX = "index.safetensors"
BLOCK = 2**20  # bytes of a shard that are fetched at once, about
MAX_BROKEN = 1000  # broken images whose reasons are kept
FLAGS = {"transparent": 1, "turned": 2, "animated": 4, "looks_grey": 8}
EACH = {
    "block": torch.int32, "offset": torch.int64, "size": torch.int32, "check": torch.int64, "label": torch.int32,
    "height": torch.int32, "width": torch.int32, "mode": torch.uint8, "flags": torch.uint8, "low": torch.uint8,
    "high": torch.uint8, "name_end": torch.int64, "caption_end": torch.int64,
}  # fmt: skip
Count = Annotated[int, Field(ge=0, le=2**40)]
Name = Annotated[str, Field(min_length=1, max_length=1000)]
Kind = Literal["tar", "parquet", "arrow"]


class ShardFacts(ConfigSection):
    """A shard as it was when the index was made.  column: that of the images, in a table."""

    name: Name
    size: Count
    tag: Annotated[str, Field(max_length=200)] = ""
    kind: Kind = "tar"
    column: Annotated[str, Field(max_length=200)] = ""


class IndexFacts(ConfigSection):
    """What an index says of itself, and how long its parts are."""

    format: Literal[1] = 1
    count: Annotated[int, Field(ge=1, le=2**31)]
    blocks: Annotated[int, Field(ge=1, le=2**31)]
    names_size: Count
    captions_size: Count
    shards: Annotated[tuple[ShardFacts, ...], Field(min_length=1, max_length=100_000)]
    labels: Annotated[tuple[Annotated[str, Field(max_length=1000)], ...], Field(max_length=100_000)] = ()
    numbers: Annotated[tuple[Annotated[str, Field(max_length=200)], ...], Field(max_length=64)] = ()
    modes: Annotated[tuple[Annotated[str, Field(max_length=20)], ...], Field(max_length=256)] = ()
    broken: Annotated[tuple[tuple[str, str], ...], Field(max_length=MAX_BROKEN)] = ()
    broken_count: Count = 0

    def forms(self) -> dict[str, TensorSpec]:
        """Return the tensors that belong to it."""
        lengths = {"block_shard": torch.int32, "block_start": torch.int64, "block_size": torch.int64}
        return {
            **{name: TensorSpec(dtype, (self.count,)) for name, dtype in EACH.items()},
            **{name: TensorSpec(dtype, (self.blocks,)) for name, dtype in lengths.items()},
            "names": TensorSpec(torch.uint8, (self.names_size,)), "captions": TensorSpec(torch.uint8, (self.captions_size,)),
            "numbers": TensorSpec(torch.int32, (self.count, len(self.numbers))),
        }  # fmt: skip


def image_hash(data: bytes) -> int:
    """Return a hash of 64 bits, by which an image is known again."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little", signed=True)


@dataclass(frozen=True)
class Index:
    """Where images are.  tensors: those of `IndexFacts.forms`; numbers are the bits of float32, NaN where not known."""

    facts: IndexFacts
    tensors: Mapping[str, Tensor]

    def __len__(self) -> int:
        return self.facts.count

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """The tensors as arrays, which share their memory."""
        return {name: tensor.numpy() for name, tensor in self.tensors.items()}

    def name(self, k: int) -> str:
        """Return the name of an image within its shard."""
        return self._text("names", "name_end", k)

    def caption(self, k: int) -> str:
        """Return the caption of an image, empty where there is none."""
        return self._text("captions", "caption_end", k)

    def _text(self, what: str, ends: str, k: int) -> str:
        end = self.arrays[ends]
        return self.arrays[what][(end[k - 1] if k else 0) : end[k]].tobytes().decode("utf-8", "replace")

    def shard_of(self, k: int) -> ShardFacts:
        """Return the shard of an image."""
        return self.facts.shards[int(self.arrays["block_shard"][int(self.arrays["block"][k])])]

    def headers(self) -> Counter[Header]:
        """Return how often each size, mode and peculiarity occurs."""
        a = self.arrays
        rows = np.stack([a[name].astype(np.int64) for name in ("height", "width", "mode", "flags")], 1)
        packed = np.ascontiguousarray(rows).view([("", np.int64)] * 4)[:, 0]
        kinds, first, counts = np.unique(packed, return_index=True, return_counts=True)
        found: Counter[Header] = Counter()
        for place in sorted(range(len(kinds)), key=lambda j: first[j]):
            height, width, mode, flags = (int(v) for v in kinds[place])
            told = (bool(flags & FLAGS[name]) for name in ("transparent", "turned", "animated"))
            found[Header(height, width, self.facts.modes[mode], *told)] += int(counts[place])
        return found

    def write(self, path: Path) -> None:
        """Write it whole or not at all."""
        write_tensors(path, self.tensors, self.facts.model_dump_json())


def read_index(path: Path, where: str) -> Index:
    """Read an index that must be right in every respect.  where: what to call it in messages."""
    advice = f"; remove {where} to have it made anew"
    tensors, facts = read_tensors(path, IndexFacts.forms, TypeAdapter(IndexFacts), fits="what it says of itself", advice=advice)
    index = Index(facts, tensors)
    if (wrong := _wrong(index)) is not None:
        raise UserError(f"{where} is no index of these shards: {wrong}{advice}")
    return index


def _wrong(index: Index) -> str | None:
    """Return what cannot be in an index, or None."""
    a, facts = index.arrays, index.facts
    shard, start, size = a["block_shard"], a["block_start"], a["block_size"]
    if shard.min() < 0 or shard.max() >= len(facts.shards) or start.min() < 0 or size.min() < 0:
        return "a block is in no shard"
    table = np.array([s.kind == "parquet" for s in facts.shards])[shard]
    if (~table & (start + size > np.array([s.size for s in facts.shards])[shard])).any():
        return "a block ends after its shard does"
    block = a["block"]
    if block.min() < 0 or block.max() >= facts.blocks or (np.diff(block) < 0).any():
        return "an image is in no block"
    if a["size"].min() < 1 or a["size"].max() > FILE_LIMIT or a["offset"].min() < 0:
        return "an image has an impossible size"
    plain = ~table[block]
    end = a["offset"] + a["size"]
    if (plain & ((a["offset"] < start[block]) | (end > start[block] + size[block]))).any():
        return "an image lies outside its block"
    if a["label"].min() < -1 or a["label"].max() >= len(facts.labels) or a["mode"].max() >= len(facts.modes):
        return "an image has an unknown label or mode"
    if a["height"].min() < 1 or a["width"].min() < 1:
        return "an image has no pixels"
    for name, text in (("name_end", "names"), ("caption_end", "captions")):
        if a[name][0] < 0 or (np.diff(a[name]) < 0).any() or a[name][-1] != len(a[text]):
            return "its texts have no order"
    return None


def check_fresh(index: Index, found: Sequence[Stored], where: str) -> None:
    """Refuse an index of shards that have changed since it was made.  found: the shards that there are; where: its name."""
    there = {file.name: file for file in found}
    advice = f"; if that is meant, remove {where} to have it made anew"
    for shard in index.facts.shards:
        now = there.pop(shard.name, None)
        if now is None:
            raise UserError(f"{where} is stale: {shard.name} is no longer there{advice}")
        if now.size != shard.size:
            raise UserError(
                f"{where} is stale: {shard.name} has {now.size:,} bytes, and had {shard.size:,} when it was made{advice}"
            )
        if now.tag and shard.tag and now.tag != shard.tag:
            raise UserError(f"{where} is stale: {shard.name} was written anew since it was made{advice}")
    if there:
        raise UserError(f"{where} is stale: {min(there)} is not in it{advice}")
