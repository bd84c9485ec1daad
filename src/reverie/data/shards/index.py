"""The index of shards: position, header and annotations of each image, in one file that is built once.

Images are numbered through all shards in order.  A block is a part of a shard that is fetched at once: about BLOCK bytes of a
tar or arrow file, or a row group of a parquet file.
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
BLOCK = 2**20  # approximate bytes of a block
MAX_BROKEN = 1000  # broken images with stored reasons
FLAGS = {"transparent": 1, "rotated": 2, "animated": 4, "looks_grey": 8}
PER_IMAGE = {
    "block": torch.int32, "offset": torch.int64, "size": torch.int32, "check": torch.int64, "label": torch.int32,
    "height": torch.int32, "width": torch.int32, "mode": torch.uint8, "flags": torch.uint8, "low": torch.uint8,
    "high": torch.uint8, "name_end": torch.int64, "caption_end": torch.int64,
}  # fmt: skip
Count = Annotated[int, Field(ge=0, le=2**40)]
Name = Annotated[str, Field(min_length=1, max_length=1000)]
Kind = Literal["tar", "parquet", "arrow"]


class ShardFacts(ConfigSection):
    """A shard at the time of indexing.  column: the image column of a table."""

    name: Name
    size: Count
    tag: Annotated[str, Field(max_length=200)] = ""
    kind: Kind = "tar"
    column: Annotated[str, Field(max_length=200)] = ""


class IndexFacts(ConfigSection):
    """The metadata of an index, which determines the shapes of its tensors."""

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

    def tensor_specs(self) -> dict[str, TensorSpec]:
        """Return the specs of its tensors."""
        lengths = {"block_shard": torch.int32, "block_start": torch.int64, "block_size": torch.int64}
        return {
            **{name: TensorSpec(dtype, (self.count,)) for name, dtype in PER_IMAGE.items()},
            **{name: TensorSpec(dtype, (self.blocks,)) for name, dtype in lengths.items()},
            "names": TensorSpec(torch.uint8, (self.names_size,)), "captions": TensorSpec(torch.uint8, (self.captions_size,)),
            "numbers": TensorSpec(torch.int32, (self.count, len(self.numbers))),
        }  # fmt: skip


def image_hash(data: bytes) -> int:
    """Return a 64-bit hash that identifies an image."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little", signed=True)


@dataclass(frozen=True)
class Index:
    """The positions of images.  tensors: see `IndexFacts.tensor_specs`; numbers are the bits of float32, NaN if unknown."""

    facts: IndexFacts
    tensors: Mapping[str, Tensor]

    def __len__(self) -> int:
        return self.facts.count

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """The tensors as arrays that share their memory."""
        return {name: tensor.numpy() for name, tensor in self.tensors.items()}

    def name(self, k: int) -> str:
        """Return the name of an image within its shard."""
        return self._text("names", "name_end", k)

    def caption(self, k: int) -> str:
        """Return the caption of an image, empty without one."""
        return self._text("captions", "caption_end", k)

    def _text(self, what: str, ends: str, k: int) -> str:
        end = self.arrays[ends]
        return self.arrays[what][(end[k - 1] if k else 0) : end[k]].tobytes().decode("utf-8", "replace")

    def shard_of(self, k: int) -> ShardFacts:
        """Return the shard of an image."""
        return self.facts.shards[int(self.arrays["block_shard"][int(self.arrays["block"][k])])]

    def headers(self) -> Counter[Header]:
        """Return the count of each header."""
        a = self.arrays
        rows = np.stack([a[name].astype(np.int64) for name in ("height", "width", "mode", "flags")], 1)
        packed = np.ascontiguousarray(rows).view([("", np.int64)] * 4)[:, 0]
        kinds, first, counts = np.unique(packed, return_index=True, return_counts=True)
        counts_by_header: Counter[Header] = Counter()
        for k in sorted(range(len(kinds)), key=lambda j: first[j]):
            height, width, mode, flags = (int(v) for v in kinds[k])
            flags_of_header = (bool(flags & FLAGS[name]) for name in ("transparent", "rotated", "animated"))
            counts_by_header[Header(height, width, self.facts.modes[mode], *flags_of_header)] += int(counts[k])
        return counts_by_header

    def write(self, path: Path) -> None:
        """Write the index atomically."""
        write_tensors(path, self.tensors, self.facts.model_dump_json())


def read_index(path: Path, where: str) -> Index:
    """Read and validate an index.  where: its name in messages."""
    advice = f"; remove {where} to rebuild it"
    tensors, facts = read_tensors(path, IndexFacts.tensor_specs, TypeAdapter(IndexFacts), fits="its metadata", advice=advice)
    index = Index(facts, tensors)
    if (problem := _problem(index)) is not None:
        raise UserError(f"{where} is not a valid index of these shards: {problem}{advice}")
    return index


def _problem(index: Index) -> str | None:
    """Return what is wrong with an index, or None."""
    a, facts = index.arrays, index.facts
    shard, start, size = a["block_shard"], a["block_start"], a["block_size"]
    if shard.min() < 0 or shard.max() >= len(facts.shards) or start.min() < 0 or size.min() < 0:
        return "a block belongs to no shard"
    table = np.array([s.kind == "parquet" for s in facts.shards])[shard]
    if (~table & (start + size > np.array([s.size for s in facts.shards])[shard])).any():
        return "a block ends after its shard does"
    block = a["block"]
    if block.min() < 0 or block.max() >= facts.blocks or (np.diff(block) < 0).any():
        return "an image belongs to no block"
    if a["size"].min() < 1 or a["size"].max() > FILE_LIMIT or a["offset"].min() < 0:
        return "an image has an invalid size"
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
            return "its texts are not in order"
    return None


def check_fresh(index: Index, found: Sequence[Stored], where: str) -> None:
    """Refuse an index of shards that have changed.  found: the existing shards; where: the name of the index."""
    existing = {file.name: file for file in found}
    advice = f"; if the change is intended, remove {where} to rebuild it"
    for shard in index.facts.shards:
        now = existing.pop(shard.name, None)
        if now is None:
            raise UserError(f"{where} is outdated: {shard.name} is missing{advice}")
        if now.size != shard.size:
            raise UserError(
                f"{where} is outdated: {shard.name} has {now.size:,} bytes, and had {shard.size:,} when it was indexed{advice}"
            )
        if now.tag and shard.tag and now.tag != shard.tag:
            raise UserError(f"{where} is outdated: {shard.name} has been rewritten{advice}")
    if existing:
        raise UserError(f"{where} is outdated: {min(existing)} is not in it{advice}")
