"""Parquet and arrow files with a column of images, as Hugging Face writes them: `{bytes, path}`, or bytes alone."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reverie.base.errors import UserError
from reverie.base.parse import read_json
from reverie.data.room import MEMORY_LIMIT
from reverie.data.shards.store import RangeFile, Store, Stored
from reverie.data.shards.tar import CAPTIONS, LABELS, MOST_NUMBERS, Sample, Skip, one_line
from reverie.data.sources import FILE_LIMIT

IMAGES = ("image", "img", "jpg", "png", "webp", "picture")
GROUP_LIMIT = 2**29  # bytes of the images of a row group, which are read at once


def arrow_module(name: str, what: str) -> Any:
    """Return a module of pyarrow, or say what installs it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UserError(f"{what} needs pyarrow to be read; install it with: pip install 'reverie[parquet]'") from None


@dataclass(frozen=True)
class Columns:
    """Which columns hold what.  names: of classes that the numbers of the column of labels stand for."""

    image: str
    within: str | None
    label: str | None
    caption: str | None
    numbers: tuple[str, ...]
    names: tuple[str, ...] = ()

    @property
    def all(self) -> list[str]:
        """All that are read."""
        return [self.image, *(c for c in (self.label, self.caption) if c), *self.numbers]

    def told(self, row: int, columns: Mapping[str, Sequence[Any]]) -> tuple[str | None, str, dict[str, float]]:
        """Return label, caption and numbers of a row."""
        label = columns[self.label][row] if self.label else None
        if isinstance(label, int) and 0 <= label < len(self.names):
            label = self.names[label]
        caption = columns[self.caption][row] if self.caption else None
        if isinstance(caption, list):  # several captions of one image
            caption = next((text for text in caption if isinstance(text, str)), None)
        numbers = {name.lower(): float(v) for name in self.numbers if (v := columns[name][row]) is not None}
        return None if label is None or label == -1 else str(label)[:200], one_line(caption or ""), numbers


def columns_of(schema: Any, where: str, features: Mapping[str, Any] | None = None) -> Columns | None:
    """Return which columns of a schema hold what; None where none holds images as bytes.  features: Hugging Face's words."""
    kinds = arrow_module("pyarrow", where).types

    def binary(t: Any) -> bool:
        return bool(kinds.is_binary(t) or kinds.is_large_binary(t))

    found: dict[str, str | None] = {}
    for f in schema:
        if binary(f.type):
            found[f.name] = None
        elif kinds.is_struct(f.type) and any(inner.name == "bytes" and binary(inner.type) for inner in f.type):
            found[f.name] = "bytes"
    if not found:
        return None
    image = min(found, key=lambda name: (IMAGES.index(name.lower()) if name.lower() in IMAGES else 99, found[name] is None))
    said = features if features is not None else _features(schema)
    classes = {name: f.get("names") for name, f in said.items() if isinstance(f, dict) and isinstance(f.get("names"), list)}
    simple = {f.name: f.type for f in schema if f.name != image}
    label = next((n for n in simple if n.lower() in LABELS), next((n for n in simple if n in classes), None))
    caption = next((n for n in simple if n.lower().rstrip("s") in CAPTIONS and n != label), None)
    numbers = tuple(n for n, t in simple.items() if n != label and (kinds.is_integer(t) or kinds.is_floating(t)))
    names = tuple(str(n)[:200] for n in classes.get(label) or ()) if label else ()
    return Columns(image, found[image], label, caption, numbers[:MOST_NUMBERS], names)


def has_image_column(path: Path) -> bool:
    """Tell a parquet file of images from one of numbers; what cannot be read is left to its reader."""
    try:
        parquet = importlib.import_module("pyarrow.parquet")
        return columns_of(parquet.read_schema(path), str(path)) is not None
    except Exception:  # no pyarrow, or a hostile file
        return False


def _features(schema: Any) -> dict[str, Any]:
    """Return what Hugging Face wrote into a schema about its columns."""
    try:
        said = read_json((schema.metadata or {}).get(b"huggingface", b"{}").decode("utf-8", "replace"))
        features = said["info"]["features"]
    except (ValueError, KeyError, TypeError):
        return {}
    return features if isinstance(features, dict) else {}


@contextmanager
def plain(where: str, kind: str) -> Iterator[None]:
    """Say what pyarrow has against a file in one sentence."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # pyarrow answers a hostile file with nearly any exception
        said = " ".join(str(error).split())[:100]
        raise UserError(f"{where} cannot be read as {kind}: {said}; save or copy it again") from None


def open_parquet(store: Store, file: Stored) -> Any:
    """Return a parquet file that is read by ranges."""
    parquet = arrow_module("pyarrow.parquet", store.where(file.name))
    arrow = arrow_module("pyarrow", store.where(file.name))
    return parquet.ParquetFile(arrow.PythonFile(RangeFile(store, file.name, file.size), mode="r"))


def parquet_groups(opened: Any, columns: Columns, where: str) -> list[int]:
    """Return how many bytes the images of each row group have."""
    sizes = []
    for k in range(opened.metadata.num_row_groups):
        group = opened.metadata.row_group(k)
        chunks = (group.column(j) for j in range(group.num_columns))
        sizes.append(sum(c.total_uncompressed_size for c in chunks if c.path_in_schema.split(".")[0] == columns.image))
        if sizes[-1] > GROUP_LIMIT:
            raise UserError(
                f"row group {k} of {where} has {sizes[-1] / 2**20:,.0f} MiB of images, which are read at once; write row groups"
                f" of at most {GROUP_LIMIT >> 20} MiB"
            )
    return sizes


def group_images(opened: Any, group: int, image: str, within: str | None) -> Any:
    """Return the bytes of the images of a row group, an arrow array."""
    values = opened.read_row_group(group, columns=[image], use_threads=False).column(0).combine_chunks()
    return values.field(within) if within else values


def parquet_samples(opened: Any, columns: Columns, skip: Skip, where: str) -> Iterator[Sample]:
    """Yield the images of a parquet file in order, each with its row group and its place in it."""
    for group in range(opened.metadata.num_row_groups):
        images = group_images(opened, group, columns.image, columns.within)
        rest = opened.read_row_group(group, columns=columns.all[1:], use_threads=False) if columns.all[1:] else None
        told = {name: rest.column(name).to_pylist() for name in rest.column_names} if rest is not None else {}
        for row, value in enumerate(images):
            if _usable(value, f"{where} row group {group}, row {row}", skip):
                label, caption, numbers = columns.told(row, told)
                yield Sample(f"{group}/{row}", row, value.as_py(), label, caption, numbers, group)


def _usable(value: Any, name: str, skip: Skip) -> bool:
    buffer = value.as_buffer()
    if buffer is None or not buffer.size:
        skip(name, "no bytes of an image")
    elif buffer.size > FILE_LIMIT:
        skip(name, f"too large ({buffer.size / 2**20:.0f} MiB)")
    else:
        return True
    return False


def arrow_schema(path: str, where: str) -> Any:
    """Return the schema of an arrow stream."""
    arrow = arrow_module("pyarrow", where)
    with arrow.memory_map(path) as mapped:
        return arrow.ipc.open_stream(mapped).schema


def arrow_samples(path: str, columns: Columns, skip: Skip, where: str) -> Iterator[Sample]:
    """Yield the images of an arrow stream, each with its place in the file, where it lies as it is."""
    arrow = arrow_module("pyarrow", where)
    with arrow.memory_map(path) as mapped:
        base = mapped.read_buffer()
        done = 0
        for batch in arrow.ipc.open_stream(base):
            images = batch.column(columns.image)
            images = images.field(columns.within) if columns.within else images
            told = {name: batch.column(name).to_pylist() for name in columns.all[1:]}
            begin, ends, data = _places(arrow, images)
            begin -= base.address
            for row, value in enumerate(images):
                if _usable(value, f"{where} row {done + row}", skip):
                    offset, size = begin + int(ends[row]), int(ends[row + 1] - ends[row])
                    if not 0 <= offset <= base.size - size or data is None:
                        raise UserError(f"{where} is compressed, so that no image can be read by its place; save it without")
                    label, caption, numbers = columns.told(row, told)
                    yield Sample(str(done + row), offset, value.as_py(), label, caption, numbers)
            done += len(batch)


def _places(arrow: Any, images: Any) -> tuple[int, np.ndarray, Any]:
    """Return where in memory the bytes of an arrow array begin, the offsets of each from there, and the bytes themselves."""
    _, ends, data = images.buffers()
    kind = np.int64 if arrow.types.is_large_binary(images.type) else np.int32
    found = (
        np.frombuffer(ends, kind)[images.offset : images.offset + len(images) + 1] if ends is not None else np.zeros(1, kind)
    )
    return (data.address if data is not None else 0), found, data


def read_lists(paths: Sequence[str], where: str, features: Mapping[str, Any]) -> tuple[np.ndarray, list[str] | None]:
    """Return images that are lists of numbers in arrow streams, all in memory, and their labels: (N, H, W) or (N, H, W, C)."""
    arrow = arrow_module("pyarrow", where)
    parts, labels, total = list[np.ndarray](), list[str](), 0
    named = [k for k in features if isinstance(features[k], dict) and isinstance(features[k].get("names"), list)]
    for path in paths:
        with arrow.memory_map(path) as mapped:
            for batch in arrow.ipc.open_stream(mapped):
                lists = [f.name for f in batch.schema if _depth(arrow, f.type) >= 2]
                if not lists:
                    raise UserError(f"{where} has no column of images, neither as bytes nor as lists of numbers")
                column = batch.column(min(lists, key=lambda name: name.lower() not in IMAGES))
                parts.append(_stacked(arrow, column, where))
                total += parts[-1].nbytes
                if total > MEMORY_LIMIT:
                    raise UserError(f"{where} holds more than {MEMORY_LIMIT >> 30} GiB of images as lists; save them as images")
                label = next((n for n in batch.schema.names if n in named or n.lower() in LABELS), None)
                if label is not None:
                    names = features[label]["names"] if label in named else []
                    labels += [str(names[v] if isinstance(v, int) and 0 <= v < len(names) else v)
                               for v in batch.column(label).to_pylist()]  # fmt: skip
    if not parts or any(part.shape[1:] != parts[0].shape[1:] for part in parts):
        raise UserError(f"the images of {where} are lists of different sizes; save them as images")
    x = np.concatenate(parts)
    return x, labels if len(labels) == len(x) else None


def _depth(arrow: Any, kind: Any) -> int:
    """Return how deep a type of lists of numbers is; 0 for others."""
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
