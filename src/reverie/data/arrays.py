"""Arrays in .npy and .npz files: points or images, never unpickled."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from reverie.base.errors import UserError
from reverie.base.files import reason
from reverie.data.dataset import Dataset
from reverie.data.memory_limits import BYTES_PER_LABEL, array_memory, check_expansion
from reverie.data.reading import ReadingOptions, encode_labels, images_dataset, points_dataset

ARRAY_LIMIT = 8 * 2**30
ROUNDING = 1e-3  # maximum rounding error in levels that counts as lossless
CHUNK = 2**20  # bytes read, and numbers converted, at a time
MemoryCost = Callable[[Sequence[int], int], int]  # (shape, bytes of one value) -> bytes
X_KEYS = ("x", "images", "data", "x_train", "arr_0")
Y_KEYS = ("y", "labels", "label", "y_train", "targets")


def read_array_file(path: Path, name: str, options: ReadingOptions, wanted: tuple[str, ...] = X_KEYS) -> Dataset:
    """Read points or images from a .npy or .npz file.  wanted: names of the array, in order of preference."""
    try:
        if path.suffix.lower() == ".npz":
            x, labels = _read_npz(path, wanted)
        else:
            with path.open("rb") as file:
                x, labels = read_npy(file, path.stat().st_size, str(path)), None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {reason(error)}") from None
    return from_array(x, labels, name, str(path), options)


def read_npy(
    file: IO[bytes], available: int, where: str, packed: int | None = None, cost: MemoryCost = array_memory
) -> np.ndarray:
    """Read one array; its stated size is checked against the available bytes, and pickled objects are refused.

    packed: compressed bytes in the file, if compressed; cost: the memory that the values need.
    """
    try:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(file)
        elif version == (2, 0):
            shape, fortran_order, dtype = np.lib.format.read_array_header_2_0(file)
        else:
            raise UserError(f"{where} has the unsupported .npy version {version[0]}.{version[1]}; save plain numbers")
    except UserError:
        raise
    except Exception:  # numpy evaluates the header, and a hostile one fails in many ways
        raise UserError(f"{where} has no valid .npy header; save it again with numpy.save") from None
    if dtype.hasobject:
        raise UserError(f"{where} contains pickled Python objects, which are never loaded; save an array of numbers")
    if dtype.kind not in "buifUS":
        raise UserError(f"{where} contains values of type {dtype}; save an array of numbers")
    if any(type(n) is not int or n < 0 for n in shape):
        raise UserError(f"{where} states an invalid shape; save it again with numpy.save")
    needed = math.prod(shape) * dtype.itemsize
    if needed > available or needed > ARRAY_LIMIT:
        raise UserError(
            f"{where} states {needed} bytes of values, more than the file can contain; save it again with numpy.save"
        )
    if packed is not None:
        check_expansion(
            cost(shape, dtype.itemsize), packed, where, "if you trust the file, save it uncompressed with numpy.savez"
        )
    values = _read_values(file, needed)
    if len(values) != needed:
        raise UserError(f"{where} is truncated; save it again with numpy.save")
    if needed == 0:
        return np.empty(shape, dtype)
    return np.frombuffer(values, dtype).reshape(shape, order="F" if fortran_order else "C")


def _read_values(file: IO[bytes], needed: int) -> bytearray:
    """Read up to this many bytes, and allocate no more than the file has."""
    values = bytearray()
    while len(values) < needed and (chunk := file.read(min(CHUNK, needed - len(values)))):
        values += chunk
    return values


def _read_npz(path: Path, wanted: tuple[str, ...] = X_KEYS) -> tuple[np.ndarray, np.ndarray | None]:
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy").lower(): info for info in archive.infolist()}
            x_key = next((key for key in wanted if key in members), None)
            y_key = next((key for key in Y_KEYS if key in members), None)
            rest = [key for key in members if key != y_key]
            x_key = x_key or (rest[0] if len(rest) == 1 else None)
            if x_key is None:
                raise UserError(f"{path} contains {', '.join(list(members)[:8]) or 'nothing'}; name the data x, images or data")
            x = _read_member(archive, members[x_key], path, array_memory)
            if y_key is None:
                return x, None
            x_cost = array_memory(x.shape, x.itemsize)
            return x, _read_member(archive, members[y_key], path, lambda shape, size: x_cost + _labels_cost(shape, size))
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path} cannot be read as .npz: {' '.join(str(error).split())[:100]}; save it again") from None


def _labels_cost(shape: Sequence[int], itemsize: int) -> int:
    return math.prod(shape) * (2 * itemsize + BYTES_PER_LABEL)


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path, cost: MemoryCost) -> np.ndarray:
    where = f"{info.filename} in {path}"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise UserError(f"{where} uses an unsupported compression; save it with numpy.savez")
    with archive.open(info) as file:
        return read_npy(file, info.file_size, where, path.stat().st_size, cost)


def from_array(x: np.ndarray, labels: np.ndarray | None, name: str, source: str, options: ReadingOptions) -> Dataset:
    """Return points, (N,) or (N, D), or images, (N, H, W), (N, H, W, C) or (N, C, H, W), depending on the shape."""
    if x.dtype.kind not in "buif":
        raise UserError(f"{source} contains text; save an array of numbers")
    numbers, names = array_labels(labels, len(x) if x.ndim else 0, source)
    if x.ndim in (1, 2):
        points = x[:, None] if x.ndim == 1 else x
        return points_dataset(name, points, numbers, names, options, (), source)
    if x.ndim not in (3, 4):
        raise UserError(f"{source} has shape {x.shape}; expected points (N, D) or images (N, H, W), (N, H, W, C), (N, C, H, W)")
    notes: list[str] = []
    if x.ndim == 3:
        x = x[:, None]
    elif x.shape[3] in (1, 3, 4):
        if x.shape[1] in (1, 3, 4):
            notes.append(f"shape {x.shape} was read as (N, H, W, C)")
        x = x.transpose(0, 3, 1, 2)
    elif x.shape[1] not in (1, 3, 4):
        raise UserError(f"{source} has images of shape {x.shape[1:]}; expected 1, 3 or 4 channels, last or first")
    if x.size == 0:
        raise UserError(f"{source} contains no images (shape {x.shape}); give at least 2")
    pixels, note, rounded = to_uint8(x, source)
    dataset = images_dataset(name, pixels, numbers, names, options, [*notes, *note], source)
    return replace(dataset, report={**dataset.report, "rounded": rounded})


def to_uint8(x: np.ndarray, source: str) -> tuple[np.ndarray, list[str], bool]:
    """Convert pixels of any numeric type to uint8 by their range; return them, a note, and whether any were rounded."""
    if x.dtype == np.uint8:
        return x, [], False
    low, high = float(x.min()), float(x.max())
    if not (np.isfinite(low) and np.isfinite(high)):
        raise UserError(f"{source} contains pixels that are not finite (nan or infinity); replace them first")
    real = x.dtype.kind == "f"
    if (real or x.dtype.kind == "b") and low >= 0 and high <= 1:
        offset, scale, source_range = 0.0, 255.0, "from 0 to 1"
    elif real and -1 <= low < 0 and high <= 1:
        offset, scale, source_range = 1.0, 127.5, "from -1 to 1"
    elif low >= 0 and high <= 255:
        offset, scale, source_range = 0.0, 1.0, "from 0 to 255"
    elif not real and low >= 0 and high <= 65535:
        offset, scale, source_range = 0.0, 1 / 257, "from 0 to 65535"
    else:
        raise UserError(
            f"{source} has pixels from {low:g} to {high:g}; expected 0 to 255, or real numbers from 0 to 1 (arrays of 3"
            " and 4 dimensions are read as images)"
        )
    out, rounded = np.empty(x.shape, np.uint8), False

    def convert(chunk: np.ndarray) -> np.ndarray:
        nonlocal rounded
        scaled = (chunk.astype(np.float64) + offset) * scale
        levels = scaled.round()
        rounded = rounded or bool(np.abs(scaled - levels).max() > ROUNDING)
        return levels

    _fill(out, x, convert)
    return out, [f"pixels of type {x.dtype} {source_range} converted to 8 bits"], rounded


def _fill(out: np.ndarray, x: np.ndarray, convert: Callable[[np.ndarray], np.ndarray]) -> None:
    """Write the converted x into out, of the same shape, chunk by chunk."""
    if x.size <= CHUNK:
        out[...] = convert(x)
    elif len(x) == 1:
        _fill(out[0], x[0], convert)
    else:
        step = max(1, len(x) * CHUNK // x.size)
        for k in range(0, len(x), step):
            _fill(out[k : k + step], x[k : k + step], convert)


def array_labels(labels: np.ndarray | None, count: int, source: str) -> tuple[Tensor | None, tuple[str, ...]]:
    """Return labels as indices, and their names.  labels: (N,) or (N, 1), integers or text."""
    if labels is None:
        return None, ()
    flat = labels.reshape(-1)
    if len(flat) != count or count == 0:
        raise UserError(f"{source} has {len(flat)} labels for {count} data; give one label for each")
    distinct, inverse = np.unique(flat, return_inverse=True)
    try:
        values: list[Any] = distinct.tolist()
    except (ValueError, SystemError):  # raised by numpy for integers that are no Unicode characters
        raise UserError(f"{source} has labels that are not valid text; give each class an integer or a name") from None
    if flat.dtype.kind == "f":
        if not all(float(v).is_integer() for v in values):
            raise UserError(f"{source} has labels that are not integers; give each class an integer or a name")
        values = [int(v) for v in values]
    numbers, names = encode_labels([v.decode("latin-1") if isinstance(v, bytes) else str(v) for v in values])
    return numbers[torch.from_numpy(inverse)], names
