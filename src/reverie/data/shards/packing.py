"""Packing a folder of images into shards: tar files in WebDataset format with an index."""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from reverie.base.atomic_folders import atomic_folder
from reverie.base.deprecations import renamed_options
from reverie.base.errors import UserError
from reverie.base.files import expanded
from reverie.base.progress import OnProgress
from reverie.data.image_folder import ARCHIVES, list_images, nothing_found, read_entry, read_headers, skipped_note
from reverie.data.image_labels import LabelSource, find_labels
from reverie.data.metadata_columns import parse_column_names, read_columns
from reverie.data.pixels import BrokenImage, decoding_pool, quiet_pillow
from reverie.data.reading import ReadingOptions, encode_labels
from reverie.data.shards.build import CHUNK_BYTES, CHUNK_IMAGES, IndexBuilder, Inspection, examine
from reverie.data.shards.index import INDEX, ShardFacts
from reverie.data.shards.tar import Sample
from reverie.data.sources import BYTES, FileEntry

SHARD = re.compile(r"\d{6}\.tar")
UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
MIN_SHARD, MAX_SHARD = 10**4, 10**11  # minimum and maximum bytes of a shard


@dataclass(frozen=True)
class Packed:
    """The result of packing: counts of images, shards, bytes and classes, and skipped files with reasons."""

    out: Path
    count: int
    shards: int
    size: int
    classes: int
    broken: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]

    def figures(self) -> dict[str, Any]:
        """Return the result for programs."""
        broken = [{"file": file, "reason": why} for file, why in self.broken]
        return {"out": str(self.out), "count": self.count, "shards": self.shards, "bytes": self.size,
                "classes": self.classes, "broken": broken}  # fmt: skip

    def __str__(self) -> str:
        what = f"{self.classes} classes, " if self.classes else ""
        line = f"packed {self.count:,} images ({what}{self.size / 1e6:,.1f} MB) into {self.shards:,} shards in {self.out}"
        return "\n".join([line, *skipped_note(self.broken)])


def parse_bytes(text: str) -> int:
    """Parse "256MB" or "1GiB"."""
    match = re.fullmatch(r"\s*(\d{1,12}(?:\.\d{1,3})?)\s*([kmg]i?b)?\s*", text, re.IGNORECASE)
    size = int(float(match[1]) * UNITS[(match[2] or "").upper()]) if match else 0
    if not MIN_SHARD <= size <= MAX_SHARD:
        raise UserError(f"cannot read the shard size {text!r}; write 256MB, or anything from 10KB to 100GB")
    return size


@renamed_options
def pack(
    source: str | Path, out: str | Path, *, shard_size: str = "256MB", labels: str = "auto",
    condition_columns: str | None = None, strict: bool = False, overwrite: bool = False, on_progress: OnProgress | None = None,
) -> Packed:  # fmt: skip
    """Write images into shards, in the order of training: `reverie.pack("photos/", "shards/")`.

    source: a folder, .zip or .tar; shard_size: approximate size of each tar file; condition_columns: metadata columns. Image
    files are stored unchanged, with labels as .cls, captions as .txt, and names, labels and numbers as .json.  The folder
    appears only when complete; the same images give the same bytes.
    """
    path, target, size = expanded(source), expanded(out), parse_bytes(shard_size)
    if not path.is_dir() and (path.suffix.lower() not in ARCHIVES or not path.is_file()):
        raise UserError(f"{path} is not a folder, .zip or .tar of images; give one of these")
    if path.is_dir() and path.resolve() in (target.resolve(), *target.resolve().parents):
        raise UserError(f"{target} is inside {path}, whose images would be packed twice; choose an --out outside of it")
    numbers = parse_column_names(condition_columns)
    options = ReadingOptions(labels=labels, strict=strict, on_progress=on_progress, condition_numbers=numbers)
    with quiet_pillow(), atomic_folder(target, _is_own, overwrite) as temporary:
        return _write(path, target, temporary, size, options)


def _is_own(name: str) -> bool:
    return name == INDEX or SHARD.fullmatch(name) is not None


def _write(path: Path, target: Path, temporary: Path, size: int, options: ReadingOptions) -> Packed:
    listing = list_images(path)
    entries, _ = read_headers(listing, options)
    if not entries:
        raise nothing_found(path, listing.broken)
    label_source = find_labels([entry.name for entry in entries], listing.metadata, options.labels, str(path))
    columns = read_columns(entries, listing.metadata, options.condition_numbers, None, str(path))
    builder = IndexBuilder(options.strict)
    for name, why in listing.broken:
        builder.skip(name, why)
    samples = _annotated(entries, label_source, columns.numbers_of(entries), builder)
    writer = ShardWriter(temporary, size, builder, _numbers(label_source))
    with writer:
        for done, (entry, sample) in enumerate(samples, 1):
            if writer.queue(entry, sample) or done == len(samples):
                writer.flush()
                options.report_progress("packing", done, len(samples))
    index = builder.index(str(path))
    index.write(temporary / INDEX)
    return Packed(target, len(index), len(builder.shards), sum(shard.size for shard in builder.shards), len(index.facts.labels),
                  tuple(builder.broken), tuple(label_source.notes))  # fmt: skip


def _annotated(
    entries: Sequence[FileEntry], label_source: LabelSource, numbers: Mapping[str, Sequence[float]], builder: IndexBuilder
) -> list[tuple[FileEntry, Sample]]:
    """Return each image with its annotations; images without a label are skipped, as in training."""
    captioned, samples = label_source.kind == "captions", []
    for k, entry in enumerate(entries):
        value = label_source.values[k] if label_source.values is not None else None
        if label_source.values is not None and value is None and not captioned:
            builder.skip(entry.name, label_source.missing)
            continue
        present = {name: values[k] for name, values in numbers.items() if values[k] == values[k]}
        label = None if captioned else value
        samples.append((entry, Sample(entry.name, 0, b"", label, (value or "") if captioned else "", present)))
    return samples


def _numbers(label_source: LabelSource) -> dict[str, int]:
    """Return the index of each class, as stored in .cls files."""
    values = [value for value in label_source.values or () if value is not None]
    if not values or label_source.kind == "captions":
        return {}
    codes, _ = encode_labels(values)
    return dict(zip(values, codes.tolist(), strict=True))


class ShardWriter:
    """Writes tar files one after another, starting a new one at the given size."""

    def __init__(self, folder: Path, size: int, builder: IndexBuilder, classes: Mapping[str, int]) -> None:
        self.folder, self.size, self.builder, self.classes = folder, size, builder, classes
        self.waiting: list[tuple[FileEntry, Sample]] = []
        self.number = 0
        self.shards = 0
        self.archive: tarfile.TarFile | None = None

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    def queue(self, entry: FileEntry, sample: Sample) -> bool:
        """Queue an image for the next `flush`; return whether to flush now."""
        self.waiting.append((entry, sample))
        return len(self.waiting) == CHUNK_IMAGES or sum(entry.size for entry, _ in self.waiting) > CHUNK_BYTES

    def flush(self) -> None:
        """Write the queued images in order, without broken ones."""
        for (_, sample), (data, inspection) in zip(self.waiting, decoding_pool().map(_inspect, self.waiting), strict=True):
            if isinstance(inspection, str):
                self.builder.skip(sample.name, inspection)
            else:
                sample.data = data
                self._write(sample, inspection)
        self.waiting = []

    def _write(self, sample: Sample, inspection: Inspection) -> None:
        if self.archive is None:
            self.archive = tarfile.open(self._path(), "w", format=tarfile.USTAR_FORMAT)  # noqa: SIM115, closed by _end
            self.builder.begin(ShardFacts(name=self._path().name, size=0))
        key, suffix = f"{self.number:09d}", PurePosixPath(sample.name).suffix.lower()
        sample.offset = self._add(key + suffix, sample.data)
        for ending, text in self._annotation_files(sample):
            self._add(key + ending, text.encode())
        self.builder.grow(sample, inspection)
        sample.data = b""
        self.number += 1
        if self.archive.offset >= self.size:
            self._end()

    def _annotation_files(self, sample: Sample) -> Iterator[tuple[str, str]]:
        """Yield the annotation files of an image."""
        facts: dict[str, object] = {"name": sample.name.encode("utf-8", "replace").decode(), **sample.numbers}
        if sample.label is not None:
            yield ".cls", str(self.classes[sample.label])
            facts["label"] = sample.label
        if sample.caption:
            yield ".txt", sample.caption
        yield ".json", json.dumps(facts, sort_keys=True)

    def _add(self, name: str, data: bytes) -> int:
        """Write one file, and return the offset of its content."""
        assert self.archive is not None
        member = tarfile.TarInfo(name)
        member.size, member.mode = len(data), 0o644
        self.archive.addfile(member, io.BytesIO(data))
        return self.archive.offset - -(-len(data) // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE

    def _path(self) -> Path:
        return self.folder / f"{self.shards:06d}.tar"

    def _end(self) -> None:
        """Close the current shard."""
        if self.archive is not None:
            self.archive.close()
            shard = self.builder.shards[-1].model_copy(update={"size": self._path().stat().st_size})
            self.builder.shards[-1] = shard
            self.archive, self.shards = None, self.shards + 1


def _inspect(waiting: tuple[FileEntry, Sample]) -> tuple[bytes, Inspection | str]:
    entry, _ = waiting
    try:
        with BYTES.of(entry.size):
            data = read_entry(entry)
        return data, examine(data)
    except BrokenImage as error:
        return b"", str(error)
