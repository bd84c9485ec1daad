"""Building an index: every shard is read once, and every image decoded to verify it."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from reverie.base.errors import UserError
from reverie.base.visible import visible
from reverie.data.columnar import readable_errors
from reverie.data.pixels import GREY, BrokenImage, Header, Recipe, decode, decoding_pool, quiet_pillow, read_header
from reverie.data.reading import ReadingOptions, natural_key
from reverie.data.shards.image_tables import (
    arrow_samples,
    arrow_schema,
    columns_of,
    open_parquet,
    parquet_groups,
    parquet_samples,
)
from reverie.data.shards.index import BLOCK, FLAGS, MAX_BROKEN, PER_IMAGE, Index, IndexFacts, ShardFacts, image_hash
from reverie.data.shards.store import LocalStore, Store, Stored
from reverie.data.shards.tar import MAX_NUMBERS, Sample, tar_samples
from reverie.data.sources import BYTES

DECODED_SIDE = 64  # maximum side of the decoded image
CHUNK_IMAGES, CHUNK_BYTES = 64, 2**26  # images and bytes submitted to the threads at a time
CODES = {torch.int32: "i", torch.int64: "q", torch.uint8: "B"}
Inspection = tuple[int, Header, int, int, bool]


def examine(data: bytes) -> Inspection | str:
    """Return hash, header, minimum and maximum value of an image, and whether it looks grey; or why it is broken."""
    try:
        with BYTES.of(len(data)):
            header = read_header(data)
            channels = 1 if header.kind in GREY else 3
            recipe = Recipe(min(header.height, DECODED_SIDE), min(header.width, DECODED_SIDE), channels, "stretch")
            pixels = decode(data, recipe)
    except BrokenImage as error:
        return str(error)
    grey = channels == 1 or bool((pixels[0] == pixels[1]).all() and (pixels[1] == pixels[2]).all())
    return image_hash(data), header, int(pixels.min()), int(pixels.max()), grey


class IndexBuilder:
    """Builds an index shard by shard."""

    def __init__(self, strict: bool = False) -> None:
        self.strict = strict
        self.each = {name: array(CODES[dtype]) for name, dtype in PER_IMAGE.items()}
        self.blocks = {"block_shard": array("i"), "block_start": array("q"), "block_size": array("q")}
        self.texts = {"names": bytearray(), "captions": bytearray()}
        self.labels: dict[str, int] = {}
        self.modes: dict[str, int] = {}
        self.numbers: dict[str, array[float]] = {}
        self.shards: list[ShardFacts] = []
        self.broken: list[tuple[str, str]] = []
        self.broken_count = 0
        self.fresh = True  # whether the current shard has no block yet

    def skip(self, name: str, why: str) -> None:
        """Skip an image."""
        name = visible(name)[:300]
        if self.strict:
            raise UserError(f"{name}: {why}; fix or remove it, or leave out --strict to skip such files")
        self.broken_count += 1
        if len(self.broken) < MAX_BROKEN:
            self.broken.append((name, why[:300]))

    def begin(self, shard: ShardFacts) -> None:
        """Start the next shard."""
        self.shards.append(shard)
        self.fresh = True

    def block(self, start: int, size: int) -> int:
        """Add a block of the current shard, and return its index."""
        for name, value in (("block_shard", len(self.shards) - 1), ("block_start", start), ("block_size", size)):
            self.blocks[name].append(value)
        return len(self.blocks["block_start"]) - 1

    def add(self, sample: Sample, inspection: Inspection, block: int) -> None:
        """Add an image of a block."""
        check, header, low, high, grey = inspection
        flags = sum(bit for name, bit in FLAGS.items() if (grey if name == "looks_grey" else getattr(header, name)))
        self.texts["names"] += visible(sample.name)[:1000].encode("utf-8", "replace")
        self.texts["captions"] += sample.caption.encode("utf-8", "replace")
        values = {
            "block": block, "offset": sample.offset, "size": len(sample.data), "check": check,
            "label": -1 if sample.label is None else self.labels.setdefault(visible(sample.label), len(self.labels)),
            "height": header.height, "width": header.width, "mode": self.modes.setdefault(header.mode, len(self.modes)),
            "flags": flags, "low": low, "high": high, "name_end": len(self.texts["names"]),
            "caption_end": len(self.texts["captions"]),
        }  # fmt: skip
        count = len(self.each["block"])
        for name, value in values.items():
            self.each[name].append(value)
        for name, number in sample.numbers.items():
            if name not in self.numbers and len(self.numbers) < MAX_NUMBERS:
                self.numbers[name] = array("f", np.full(count, math.nan, np.float32).tobytes())
            if name in self.numbers:
                self.numbers[name].append(number)
        for column in self.numbers.values():
            if len(column) <= count:
                column.append(math.nan)

    def grow(self, sample: Sample, inspection: Inspection) -> None:
        """Add an uncompressed image of a shard: to the last block, or to a new one if that would become too long."""
        start, size = self.blocks["block_start"], self.blocks["block_size"]
        end = sample.offset + len(sample.data)
        if self.fresh or not start[-1] <= sample.offset or end - start[-1] > BLOCK:
            self.block(sample.offset, 0)
            self.fresh = False
        size[-1] = max(size[-1], end - start[-1])
        self.add(sample, inspection, len(start) - 1)

    def index(self, where: str) -> Index:
        """Return the index."""
        count = len(self.each["block"])
        if not count:
            why = "".join(
                f": {self.broken_count} cannot be used, the first ({name}) because: {why}" for name, why in self.broken[:1]
            )
            raise UserError(f"0 usable images found in {where}{why}")
        names = sorted(self.labels, key=lambda name: (natural_key(name), name))
        rank = {name: k for k, name in enumerate(names)}
        facts = IndexFacts(
            count=count, blocks=len(self.blocks["block_start"]), names_size=len(self.texts["names"]),
            captions_size=len(self.texts["captions"]), shards=tuple(self.shards), labels=tuple(names),
            numbers=tuple(self.numbers), modes=tuple(self.modes), broken=tuple(self.broken), broken_count=self.broken_count,
        )  # fmt: skip
        arrays = {name: np.array(values) for name, values in {**self.each, **self.blocks}.items()}
        if names:
            rank_of_index = np.array([rank[label] for label in self.labels], np.int32)
            arrays["label"] = np.where(arrays["label"] >= 0, rank_of_index[arrays["label"]], np.int32(-1))
        for name, text in self.texts.items():
            arrays[name] = np.frombuffer(bytes(text), np.uint8).copy()
        columns = [np.array(column, np.float32) for column in self.numbers.values()]
        arrays["numbers"] = np.stack(columns, 1).view(np.int32) if columns else np.empty((count, 0), np.int32)
        return Index(facts, {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in arrays.items()})


def shard_kind(name: str) -> str | None:
    """Return the type of a shard file by its suffix; None for other files."""
    ending = name.lower().rpartition(".")[2]
    return ending if ending in ("tar", "parquet", "arrow") and not name.startswith(".") else None


def build_index(store: Store, files: Sequence[Stored], options: ReadingOptions) -> Index:
    """Read all shards and build their index."""
    builder = IndexBuilder(options.strict)
    total, done = sum(file.size for file in files), 0
    with quiet_pillow():
        for file in files:
            for samples in _add_shard(store, file, builder):
                reached = done + (samples[-1][0].offset if samples and samples[-1][0].block is None else 0)
                options.report_progress(f"indexing {file.name}", min(reached, total), total)
            done += file.size
            options.report_progress(f"indexing {file.name}", done, total)
    return builder.index(store.address)


def _add_shard(store: Store, file: Stored, builder: IndexBuilder) -> Iterator[list[tuple[Sample, Inspection]]]:
    """Add one shard to an index; yield its images in chunks."""
    where, kind = store.where(file.name), shard_kind(file.name)
    if kind == "tar":
        builder.begin(ShardFacts(name=file.name, size=file.size, tag=file.tag))
        with store.open(file.name, file.size) as opened:
            yield from _add_uncompressed(tar_samples(opened, file.size, where, builder.skip), builder)
        return
    with readable_errors(where, str(kind)):
        if kind == "parquet":
            with open_parquet(store, file) as table:
                columns = columns_of(table.schema, where)
                if columns is None:
                    raise UserError(f"{where} has no column of images as bytes; give other files")
                facts = ShardFacts(name=file.name, size=file.size, tag=file.tag, kind="parquet", column=columns.bytes)
                builder.begin(facts)
                first = len(builder.blocks["block_start"])
                for k, size in enumerate(parquet_groups(table, columns)):
                    builder.block(k, size)
                for chunk in _examined(parquet_samples(table, file.size, columns, builder.skip), builder):
                    for sample, inspection in chunk:
                        builder.add(sample, inspection, first + (sample.block or 0))
                    yield chunk
            return
        if not isinstance(store, LocalStore):
            raise UserError(
                f"{where} is an arrow file, which can only be read from a local disk; copy the dataset to this machine"
            )
        columns = columns_of(arrow_schema(str(store.root / file.name), where), where)
        if columns is None:
            raise UserError(f"{where} has no column of images as bytes; give other files")
        builder.begin(ShardFacts(name=file.name, size=file.size, tag=file.tag, kind="arrow"))
        samples = arrow_samples(str(store.root / file.name), columns, builder.skip, where)
        yield from _add_uncompressed(samples, builder)


def _add_uncompressed(samples: Iterator[Sample], builder: IndexBuilder) -> Iterator[list[tuple[Sample, Inspection]]]:
    for chunk in _examined(samples, builder):
        for sample, inspection in chunk:
            builder.grow(sample, inspection)
        yield chunk


def _chunks(samples: Iterator[Sample]) -> Iterator[list[Sample]]:
    """Yield samples in chunks of limited count and size."""
    chunk: list[Sample] = []
    for sample in samples:
        chunk.append(sample)
        if len(chunk) == CHUNK_IMAGES or sum(len(s.data) for s in chunk) > CHUNK_BYTES:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _examined(samples: Iterator[Sample], builder: IndexBuilder) -> Iterator[list[tuple[Sample, Inspection]]]:
    """Yield the decodable images in chunks."""
    for chunk in _chunks(samples):
        examined = []
        for sample, inspection in zip(chunk, decoding_pool().map(examine, [s.data for s in chunk]), strict=True):
            if isinstance(inspection, str):
                builder.skip(sample.name, inspection)
            else:
                examined.append((sample, inspection))
        yield examined
