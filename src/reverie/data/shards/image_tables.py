"""Parquet and arrow files with a column of images, as Hugging Face writes them: `{bytes, path}`, or bytes alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reverie.base.errors import UserError
from reverie.base.parse import read_json
from reverie.data.columnar import ParquetTable, arrow_batches, arrow_module
from reverie.data.memory_limits import MEMORY_LIMIT, check_expansion
from reverie.data.shards.store import RangeFile, Store, Stored
from reverie.data.shards.tar import CAPTIONS, LABELS, MAX_NUMBERS, Sample, Skip, clean_caption
from reverie.data.sources import FILE_LIMIT

IMAGES = ("image", "img", "jpg", "png", "webp", "picture")
GROUP_LIMIT = 2**29  # maximum bytes of a row group, which is read at once
ADVICE = "save it again, with each image once"


@dataclass(frozen=True)
class ImageTableColumns:
    """The roles of columns.

    within: the struct field of the image bytes, if nested; names: class names that the integers of the label column refer to.
    """

    image: str
    within: str | None
    label: str | None
    caption: str | None
    numbers: tuple[str, ...]
    names: tuple[str, ...] = ()

    @property
    def bytes(self) -> str:
        """The column of image bytes, nested or not."""
        return f"{self.image}.{self.within}" if self.within else self.image

    @property
    def rest(self) -> list[str]:
        """The other columns to read."""
        return [*(c for c in (self.label, self.caption) if c), *self.numbers]

    def annotations(self, row: int, columns: Mapping[str, Any]) -> tuple[str | None, str, dict[str, float]]:
        """Return label, caption and numbers of a row of arrow arrays."""
        label = columns[self.label][row].as_py() if self.label else None
        if isinstance(label, int) and 0 <= label < len(self.names):
            label = self.names[label]
        caption = columns[self.caption][row] if self.caption else None
        if caption is not None and hasattr(caption, "values"):  # several captions per image
            caption = next((text for text in caption.values or () if text.is_valid), None)
        text = (caption.as_py() if caption is not None else None) or ""
        numbers = {name.lower(): float(v) for name in self.numbers if (v := columns[name][row].as_py()) is not None}
        return None if label is None or label == -1 else str(label)[:200], clean_caption(text), numbers


def is_single(kind: Any) -> bool:
    """Return whether a type has one string, number or boolean per row, as labels have."""
    kinds = arrow_module("pyarrow", "a label").types
    return bool(_is_text(kind) or kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_boolean(kind))


def _is_text(kind: Any) -> bool:
    kinds = arrow_module("pyarrow", "a text").types
    kind = kind.value_type if kinds.is_dictionary(kind) else kind
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind))


def columns_of(schema: Any, where: str, features: Mapping[str, Any] | None = None) -> ImageTableColumns | None:
    """Return the roles of a schema's columns; None without images as bytes.  features: as Hugging Face stores them."""
    kinds = arrow_module("pyarrow", where).types

    def binary(t: Any) -> bool:
        return bool(kinds.is_binary(t) or kinds.is_large_binary(t))

    image_columns: dict[str, str | None] = {}
    for f in schema:
        if binary(f.type):
            image_columns[f.name] = None
        elif kinds.is_struct(f.type) and any(inner.name == "bytes" and binary(inner.type) for inner in f.type):
            image_columns[f.name] = "bytes"
    if not image_columns:
        return None
    image = min(
        image_columns,
        key=lambda name: (IMAGES.index(name.lower()) if name.lower() in IMAGES else 99, image_columns[name] is None),
    )
    stored = features if features is not None else _features(schema)
    classes = {name: f.get("names") for name, f in stored.items() if isinstance(f, dict) and isinstance(f.get("names"), list)}
    types = {f.name: f.type for f in schema if f.name != image}
    scalars = [n for n, t in types.items() if is_single(t)]
    texts = [n for n, t in types.items() if _is_text(t.value_type if kinds.is_list(t) or kinds.is_large_list(t) else t)]
    label = next((n for n in scalars if n.lower() in LABELS), next((n for n in scalars if n in classes), None))
    caption = next((n for n in texts if n.lower().rstrip("s") in CAPTIONS and n != label), None)
    numbers = tuple(n for n, t in types.items() if n != label and (kinds.is_integer(t) or kinds.is_floating(t)))
    names = tuple(str(n)[:200] for n in classes.get(label) or ()) if label else ()
    return ImageTableColumns(image, image_columns[image], label, caption, numbers[:MAX_NUMBERS], names)


def has_image_column(path: Path) -> bool:
    """Return whether a parquet file has images rather than numbers; unreadable files are left to their reader."""
    try:
        schema = arrow_module("pyarrow.parquet", path).read_schema(path)
        return columns_of(schema, str(path)) is not None
    except Exception:  # no pyarrow, or a hostile file
        return False


def _features(schema: Any) -> dict[str, Any]:
    """Return the column features that Hugging Face stored in a schema."""
    try:
        stored = read_json((schema.metadata or {}).get(b"huggingface", b"{}").decode("utf-8", "replace"))
        features = stored["info"]["features"]
    except (ValueError, KeyError, TypeError):
        return {}
    return features if isinstance(features, dict) else {}


def open_parquet(store: Store, file: Stored) -> ParquetTable:
    """Return a parquet file that is read by ranges."""
    return ParquetTable(RangeFile(store, file.name, file.size), file.size, store.where(file.name))


def parquet_groups(opened: ParquetTable, columns: ImageTableColumns) -> list[int]:
    """Return an upper bound on the bytes of the columns of each row group; refuse too large ones."""
    opened.check([columns.bytes, *columns.rest], ADVICE)
    return [_group_cost(opened, k, [columns.bytes, *columns.rest]) for k in range(opened.groups)]


def _group_cost(opened: ParquetTable, group: int, columns: Sequence[str]) -> int:
    size = opened.cost(group, columns)
    if size > GROUP_LIMIT:
        raise UserError(
            f"row group {group} of {opened.where} has {size / 2**20:,.0f} MiB and is read at once; write row groups of at"
            f" most {GROUP_LIMIT >> 20} MiB"
        )
    return size


def group_images(opened: ParquetTable, group: int, image: str, within: str | None) -> Any:
    """Return the image bytes of a row group, a dictionary array."""
    name = f"{image}.{within}" if within else image
    _group_cost(opened, group, [name])
    values = opened.read_group(group, [name]).column(0).combine_chunks()
    return values.field(within) if within else values


def content(value: Any) -> Any:
    """Return the bytes of an arrow scalar without a copy; None for null."""
    value = value.value if hasattr(value, "index") else value  # of a dictionary
    return value.as_buffer() if value is not None else None


class _ExpansionLimit:
    """Counts the expanded bytes of rows, because many rows may refer to one value."""

    def __init__(self, packed: int, where: str) -> None:
        self.packed, self.where, self.total = packed, where, 0

    def add(self, size: int) -> None:
        """Count a row; refuse a file that expands too much."""
        self.total += size
        check_expansion(self.total, self.packed, self.where, ADVICE)


def parquet_samples(opened: ParquetTable, size: int, columns: ImageTableColumns, skip: Skip) -> Iterator[Sample]:
    """Yield the images of a parquet file in order, with row group and row.  size: bytes of the file."""
    limit = _ExpansionLimit(size, opened.where)
    for group in range(opened.groups):
        _group_cost(opened, group, [columns.bytes, *columns.rest])
        images = group_images(opened, group, columns.image, columns.within)
        rest = opened.read_group(group, columns.rest) if columns.rest else None
        batch_columns = {name: rest.column(name).combine_chunks() for name in columns.rest} if rest is not None else {}
        for row, value in enumerate(images):
            if (data := _usable(value, f"{opened.where} row group {group}, row {row}", skip)) is not None:
                label, caption, numbers = columns.annotations(row, batch_columns)
                limit.add(data.size + len(caption))
                yield Sample(f"{group}/{row}", row, data.to_pybytes(), label, caption, numbers, group)


def _usable(value: Any, name: str, skip: Skip) -> Any:
    """Return the bytes of an image, None if missing or too large."""
    buffer = content(value)
    if buffer is None or not buffer.size:
        skip(name, "no image bytes")
    elif buffer.size > FILE_LIMIT:
        skip(name, f"too large ({buffer.size / 2**20:.0f} MiB)")
    else:
        return buffer
    return None


def arrow_schema(path: str, where: str) -> Any:
    """Return the schema of an arrow stream."""
    arrow = arrow_module("pyarrow", where)
    with arrow.memory_map(path) as mapped:
        return arrow.ipc.open_stream(mapped).schema


def arrow_samples(path: str, columns: ImageTableColumns, skip: Skip, where: str) -> Iterator[Sample]:
    """Yield the images of an arrow stream, each with its offset in the file, where it is stored uncompressed."""
    arrow = arrow_module("pyarrow", where)
    with arrow_batches(path, where) as (buffer, batches):
        limit, done = _ExpansionLimit(buffer.size, where), 0
        for batch in batches:
            images = batch.column(columns.image)
            images = images.field(columns.within) if columns.within else images
            batch_columns = {name: batch.column(name) for name in columns.rest}
            begin, ends = _value_offsets(arrow, images)
            begin -= buffer.address
            for row, value in enumerate(images):
                if (data := _usable(value, f"{where} row {done + row}", skip)) is not None:
                    label, caption, numbers = columns.annotations(row, batch_columns)
                    limit.add(data.size + len(caption))
                    yield Sample(str(done + row), begin + int(ends[row]), data.to_pybytes(), label, caption, numbers)
            done += len(batch)


def _value_offsets(arrow: Any, images: Any) -> tuple[int, np.ndarray]:
    """Return the memory address of the bytes of an arrow array, and the offsets of its values."""
    _, ends, data = images.buffers()
    kind = np.int64 if arrow.types.is_large_binary(images.type) else np.int32
    offsets = (
        np.frombuffer(ends, kind)[images.offset : images.offset + len(images) + 1] if ends is not None else np.zeros(1, kind)
    )
    return (data.address if data is not None else 0), offsets


def read_lists(paths: Sequence[str], where: str, features: Mapping[str, Any]) -> tuple[np.ndarray, list[str] | None]:
    """Return images stored as nested lists in arrow streams, and their labels: (N, H, W) or (N, H, W, C)."""
    parts, labels, total = list[np.ndarray](), list[str](), 0
    for path in paths:
        with arrow_batches(path, where) as (_, batches):
            for batch in batches:
                part, part_labels = _images_from_lists(batch, where, features)
                parts.append(part)
                labels += part_labels
                total += part.nbytes
                if total > MEMORY_LIMIT:
                    raise UserError(f"{where} has more than {MEMORY_LIMIT >> 30} GiB of images as lists; save them as images")
    if not parts or any(part.shape[1:] != parts[0].shape[1:] for part in parts):
        raise UserError(f"the images of {where} are lists of different sizes; save them as images")
    x = np.concatenate(parts)
    return x, labels if len(labels) == len(x) else None


def _images_from_lists(batch: Any, where: str, features: Mapping[str, Any]) -> tuple[np.ndarray, list[str]]:
    """Return images that a batch stores as nested lists, and their labels, if any."""
    arrow = arrow_module("pyarrow", where)
    lists = [f.name for f in batch.schema if _depth(arrow, f.type) >= 2]
    if not lists:
        raise UserError(f"{where} has no column of images, neither as bytes nor as lists of numbers; give other files")
    images = _stacked(arrow, batch.column(min(lists, key=lambda name: name.lower() not in IMAGES)), where)
    class_names = {k: f["names"] for k, f in features.items() if isinstance(f, dict) and isinstance(f.get("names"), list)}
    label = next(
        (f.name for f in batch.schema if (f.name in class_names or f.name.lower() in LABELS) and is_single(f.type)), None
    )
    names = class_names.get(label, []) if label is not None else []
    values = (value.as_py() for value in batch.column(label)) if label is not None else ()
    return images, [str(names[v] if isinstance(v, int) and 0 <= v < len(names) else v)[:200] for v in values]


def _depth(arrow: Any, kind: Any) -> int:
    """Return the nesting depth of a type of lists of numbers; 0 for other types."""
    depth, kind = 0, getattr(kind, "storage_type", kind)
    while arrow.types.is_list(kind) or arrow.types.is_large_list(kind) or arrow.types.is_fixed_size_list(kind):
        depth, kind = depth + 1, kind.value_type
    return depth if arrow.types.is_integer(kind) or arrow.types.is_floating(kind) else 0


def _stacked(arrow: Any, column: Any, where: str) -> np.ndarray:
    """Return nested lists of one shape as an array."""
    column = getattr(column, "storage", column)
    shape = [len(column)]
    while _depth(arrow, column.type):
        lengths = np.unique(arrow_module("pyarrow.compute", where).list_value_length(column).to_numpy(zero_copy_only=False))
        if len(lengths) != 1 or not lengths[0] > 0:
            raise UserError(f"the images of {where} are lists of different sizes; save them as images")
        shape.append(int(lengths[0]))
        column = column.flatten()
    return np.asarray(column.to_numpy(zero_copy_only=False)).reshape(shape)
