"""Data in memory: arrays, tensors, images, tables and datasets of other libraries, recognized by their interface.

None of those libraries is imported: an object with columns is a table, an object with a length and indexing is a list.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, TypeGuard

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from reverie.base.errors import UserError
from reverie.base.visible import visible
from reverie.data.arrays import array_labels, from_array
from reverie.data.cells import Cells, distinct_names, plain_number
from reverie.data.conditions import make_conditions
from reverie.data.dataset import Dataset
from reverie.data.image_folder import choose_recipe, conversions, modes_of, sizes_of
from reverie.data.pixels import BrokenImage, decoding_pool, fitted, header_of, quiet_pillow
from reverie.data.point_table import Column, find_label, table_dataset
from reverie.data.reading import ReadingOptions, class_counts, images_dataset, shown_sizes

MEMORY_SOURCE = "(memory)"  # the source recorded for data in memory: neither a name nor a path
NAME = "data"
CHANNELS = (1, 3, 4)
SAMPLE_SIZE = 100  # values sampled to determine the type of a column
MIN_FLATTENED = 64  # coordinates from which points may be flattened images


class Members(Protocol):
    """An array, a tensor, a list, a table, a dataset of torch or Hugging Face: any object with a length and indexing."""

    def __len__(self) -> int: ...

    def __getitem__(self, key: Any, /) -> Any: ...


DataSource = str | Path | Members


def is_in_memory(data: object) -> TypeGuard[Members]:
    """Return whether this is data rather than a name or a path."""
    return not isinstance(data, str | PathLike)


def from_memory(data: Any, options: ReadingOptions) -> Dataset:
    """Return data in memory as a dataset.

    (N,) and (N, D) are points; (N, H, W), (N, H, W, C) and (N, C, H, W) images, bytes from 0 to 255 or real numbers from 0 to
    1; a list of PIL images is fitted like a folder; (x, labels) and lists of (x, label) have labels, or captions if requested;
    in a table, columns of numbers are coordinates, as in a .csv file, or a column of PIL images contains the images.
    """
    if isinstance(data, Mapping):
        parts = ", ".join(map(str, list(data)[:6]))
        raise UserError(f"the data are a mapping with the keys {parts}; give one of its values, or a pair (x, labels)")
    if isinstance(data, Tensor):
        return _from_numbers(_numpy(data), "the tensor", options)
    if isinstance(data, np.ndarray):
        return _from_numbers(data, "the array", options)
    if isinstance(data, Image.Image):
        raise UserError("the data are a single image; give a list of images")
    if (table := _table(data)) is not None:
        return _from_table(table, options)
    if callable(getattr(data, "__array__", None)):
        return _from_numbers(np.asarray(data), f"the {type(data).__name__}", options)
    try:
        count = len(data)
        first = data[0] if count else None
    except (TypeError, IndexError, KeyError):
        raise UserError(
            f"data of type {type(data).__name__} have no length or cannot be indexed; give an array, a tensor, a list of"
            " images, a table, or the name or path of data"
        ) from None
    if not count:
        raise UserError("the data are empty; give at least 2 members")
    if isinstance(data, tuple) and count == 2 and not isinstance(first, Image.Image):
        return _labelled(data[0], data[1], options)
    if _is_pair(first):
        pairs = [data[k] for k in range(count)]
        if not all(_is_pair(pair) for pair in pairs):
            raise UserError("only some members of the data are pairs (x, label); give pairs only, or no pairs")
        names = getattr(data, "classes", None)  # as torchvision datasets have it
        return _labelled([x for x, _ in pairs], _named([label for _, label in pairs], names), options)
    return _from_list([data[k] for k in range(count)], options)


def _labelled(x: Any, labels: Any, options: ReadingOptions) -> Dataset:
    """Return data with separately given labels."""
    dataset = from_memory(x, replace(options, labels="none"))
    if options.labels == "none":
        return dataset
    if options.labels == "captions":
        captions = [visible(" ".join(str(label).split())) for label in labels]
        if dataset.kind != "images" or len(captions) != len(dataset) or not any(captions):
            raise UserError(f"captions need one text for each image; got {len(captions)} for {len(dataset)} {dataset.kind}")
        return replace(dataset, conditions=make_conditions(captions), report={**dataset.report, "labels_by": "captions"})
    if options.labels != "auto":
        raise UserError(f"labels by {options.labels!r} do not apply to data with given labels; leave labels out")
    values = _numpy(labels) if isinstance(labels, Tensor) else np.asarray(labels)
    if values.dtype.kind == "O":
        values = np.array([str(value) for value in values.reshape(-1)])
    if values.dtype.kind not in "buifUS" or values.size != max(values.shape, default=0):
        raise UserError(
            f"the labels have the shape {values.shape} and the type {values.dtype}; in a pair (x, labels) give one"
            " integer or name for each datum"
        )
    numbers, names = array_labels(values, len(dataset), "the pair (x, labels)")
    return replace(
        dataset, labels=numbers, label_names=names, report={**dataset.report, "classes": class_counts(numbers, names)}
    )


def _is_pair(member: Any) -> bool:
    """Return whether a member is (x, label) rather than two numbers: x is an image or a sequence, and the label is a scalar."""
    if not isinstance(member, tuple | list) or len(member) != 2:
        return False
    x, label = member
    is_datum = isinstance(x, Image.Image | list | tuple) or getattr(x, "ndim", 0) > 0
    return is_datum and (isinstance(label, str | int | float) or getattr(label, "ndim", 1) == 0)


def _named(labels: Sequence[Any], names: Sequence[str] | None) -> list[Any]:
    """Return labels as Python values: numbers, or the class names of their indices."""
    values: list[Any] = [label.item() if isinstance(label, Tensor | np.generic) else label for label in labels]
    if names is None or not all(isinstance(k, int) and 0 <= k < len(names) for k in values):
        return values
    return [str(names[k]) for k in values]


def _from_list(members: Sequence[Any], options: ReadingOptions) -> Dataset:
    if any(isinstance(member, Image.Image) for member in members):
        return _from_images(members, options)
    if all(isinstance(member, str | PathLike) for member in members):
        raise UserError("the data are a list of strings or paths; give the folder of the files, or opened images")
    try:
        x = np.stack([_numpy(member) if isinstance(member, Tensor) else np.asarray(member) for member in members])
    except ValueError:
        raise UserError("the data have different shapes; give arrays of one shape, or PIL images, which are fitted") from None
    return _from_numbers(x, "the list", options)


def _numpy(x: Tensor) -> np.ndarray:
    x = x.detach().cpu()
    return np.asarray((x.float() if x.dtype == torch.bfloat16 else x).numpy())


def _from_numbers(x: np.ndarray, source: str, options: ReadingOptions) -> Dataset:
    """Return an array as points or images; refuse ambiguous shapes."""
    if x.dtype.kind not in "buif":
        raise UserError(f"{source} contains values of type {x.dtype}; give numbers")
    if options.labels not in ("auto", "none"):
        raise UserError(f"{source} has no labels by {options.labels!r}; give a pair (x, labels)")
    if x.ndim in (3, 4) and x.size:
        _check_axes(x.shape, source)
        _check_range(x, source)
    dataset = from_array(x, None, NAME, source, options)
    side = math.isqrt(dataset.shape[0])
    if dataset.kind == "points" and dataset.shape[0] >= MIN_FLATTENED and side**2 == dataset.shape[0]:
        note = f"points of {dataset.shape[0]} coordinates; if these are images, give them as (N, {side}, {side})"
        dataset = replace(dataset, notes=(*dataset.notes, note))
    return dataset


def _check_axes(shape: tuple[int, ...], source: str) -> None:
    if len(shape) == 3 and shape[2] in CHANNELS[1:]:
        raise UserError(
            f"{source} has the ambiguous shape {shape}: one image (H, W, C), or {shape[0]} images of width {shape[2]};"
            " give images as (N, H, W), (N, H, W, C) or (N, C, H, W)"
        )
    if len(shape) == 4 and shape[1] in CHANNELS and shape[3] in CHANNELS:
        raise UserError(
            f"{source} has the ambiguous shape {shape}: channels second or last; give images of more than 4 x 4 pixels,"
            " or grey ones as (N, H, W)"
        )


def _check_range(x: np.ndarray, source: str) -> None:
    """Refuse pixels whose white level is ambiguous: it is 255 for integers, and 1 for real numbers and booleans."""
    low, high = float(x.min()), float(x.max())
    # Values that are not finite are refused later.
    if x.dtype.kind == "b" or not (math.isfinite(low) and math.isfinite(high)):
        return
    problem = f"{source} contains pixels of type {x.dtype} from {low:g} to {high:g}"
    if x.dtype.kind in "ui":
        if high <= 1:
            raise UserError(f"{problem}, where white is 255, so all would be black; give bool, or multiply by 255")
        if low < 0 or high > 255:
            raise UserError(f"{problem}; give bytes from 0 to 255, or real numbers from 0 to 1")
        return
    if low >= 0 and high <= 1:
        return
    advice = "undo their normalization"
    if low >= 0 and high <= 255:
        advice = "divide by 255, or give them as uint8"
    elif low >= -1 and high <= 1:
        advice = "give (x + 1) / 2 if their range is -1 to 1"
    raise UserError(f"{problem}, outside 0 (black) to 1 (white); {advice}")


def _from_images(images: Sequence[Any], options: ReadingOptions) -> Dataset:
    """Return PIL images of any sizes and modes, read like a folder."""
    for k, image in enumerate(images):
        if not isinstance(image, Image.Image):
            raise UserError(f"member {k} has the type {type(image).__name__} in a list of PIL images; give only images")
    try:
        with quiet_pillow():
            headers = Counter(header_of(image) for image in images)
            recipe, notes = choose_recipe(headers, options)
            x = np.stack(list(decoding_pool().map(lambda image: fitted(image, recipe), images)))
    except BrokenImage as error:
        raise UserError(f"an image of the list cannot be used: {error}; fix or remove it") from None
    notes += conversions(headers, recipe.channels, options.channels)
    size = (recipe.height, recipe.width)
    fit_to = replace(options, size=size, channels=recipe.channels, fit=recipe.fit)
    dataset = images_dataset(NAME, x, None, (), fit_to, notes, "the list of images")
    return replace(dataset, report={**dataset.report, "sizes": shown_sizes(sizes_of(headers)), "modes": modes_of(headers)})


@dataclass(frozen=True)
class _Table:
    """Columns by index, and the class names that the integers of a column refer to, if any."""

    columns: Sequence[str]
    read: Callable[[int], Any]
    classes: Callable[[int], Sequence[str] | None]

    def values(self, k: int) -> np.ndarray:
        """Return one column unconverted: numbers, dates or objects."""
        column = self.read(k)
        to_numpy = getattr(column, "to_numpy", None)
        return np.asarray(to_numpy()) if callable(to_numpy) else _objects(column)

    def column(self, name: str, k: int, values: np.ndarray) -> Column:
        """Return one column for the table reader; objects are parsed like the cells of a file."""

        def words() -> list[str]:
            scalars = [value.item() if isinstance(value, np.generic) else value for value in values]
            values_without_zeros = [int(v) if isinstance(v, float) and v.is_integer() else v for v in scalars]
            return ["" if v is None or v != v else str(v).strip() for v in _named(values_without_zeros, self.classes(k))]

        if values.ndim != 1 or any(isinstance(value, list | dict | tuple | Image.Image) for value in values[:SAMPLE_SIZE]):
            return Column(name, None, words, "lists" if values.ndim != 1 else "objects", 2**31)
        if values.dtype.kind in "uif":
            return Column(name, values.astype(np.float64), words, "numbers")
        if values.dtype.kind == "M":
            timestamps = np.where(np.isnat(values), np.nan, values.astype("datetime64[us]").astype(np.int64) / 1e6)
            return Column(name, None, words, "dates", timestamps=lambda: timestamps)
        if values.dtype.kind == "b":
            return Column(name, None, words, longest=5)
        cells, texts = Cells(name, plain_number), [_cell(value) for value in values]
        cells.add(texts, range(1, len(texts) + 1))
        return cells.column(lambda: texts if self.classes(k) is None else words())


def _cell(value: Any) -> str:
    """Return a value as the text of a table cell."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return str(value)


def _objects(column: Sequence[Any]) -> np.ndarray:
    """Return a list as an array; images stay objects."""
    if not any(isinstance(value, Image.Image) for value in column):
        return np.asarray(column)
    values = np.empty(len(column), object)
    for k, value in enumerate(column):
        values[k] = value
    return values


def _table(data: Any) -> _Table | None:
    """Return the columns of a pandas or polars frame or a Hugging Face dataset; None for objects without columns."""
    names: Any = getattr(data, "column_names", None)
    if names is not None and not callable(names):
        features = getattr(data, "features", None) or {}

        def classes_of(k: int) -> Sequence[str] | None:
            return getattr(features.get(names[k]), "names", None)

        return _Table(names, lambda k: list(data[names[k]]), classes_of)
    columns = getattr(data, "columns", None)
    if columns is None or isinstance(columns, str) or not isinstance(columns, Iterable):
        return None
    keys = list(columns)
    index: Any = getattr(data, "index", None)
    if getattr(getattr(index, "dtype", None), "kind", "") == "M":  # the time index of a pandas frame
        names = [str(getattr(index, "name", None) or "index"), *map(str, keys)]
        return _Table(names, lambda k: index if k == 0 else data[keys[k - 1]], lambda k: None)
    return _Table([str(name) for name in keys], lambda k: data[keys[k]], lambda k: None)


def _from_table(table: _Table, options: ReadingOptions) -> Dataset:
    """Return columns of numbers as points, or a column of PIL images as images, with the labels of another column."""
    width = len(table.columns)
    if not width:
        raise UserError("the table has no columns; expected rows of numbers, or images")
    column_values = [table.values(k) for k in range(width)]
    if not len(column_values[0]):
        raise UserError("the table has no rows; expected rows of numbers, or images")
    names = distinct_names(table.columns)
    columns = [table.column(name, k, column_values[k]) for k, name in enumerate(names)]
    class_columns = [name for k, name in enumerate(names) if table.classes(k) is not None]
    if len(class_columns) == 1 and options.labels == "auto":
        options = replace(options, labels=class_columns[0])
    image_columns = [values for values in column_values if values.ndim == 1 and isinstance(values[0], Image.Image)]
    if image_columns:
        labels, image_options = find_label(columns, options, "the table")[1], replace(options, labels="auto")
        return (
            _labelled(list(image_columns[0]), labels, image_options)
            if labels
            else _from_images(list(image_columns[0]), image_options)
        )
    return table_dataset(NAME, columns, options, "the table")
