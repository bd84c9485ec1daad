"""Arrays: .npy and .npz files of points or images, never unpickled."""

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
ROUNDED = 1e-3  # of a level, more than which is no level in other words
PIECE = 2**20  # bytes that are read, and numbers that are changed, at a time
Cost = Callable[[Sequence[int], int], int]  # of a shape and the bytes of one value
X_KEYS = ("x", "images", "data", "x_train", "arr_0")
Y_KEYS = ("y", "labels", "label", "y_train", "targets")


def read_array_file(path: Path, name: str, options: ReadingOptions, wanted: tuple[str, ...] = X_KEYS) -> Dataset:
    """Return the points or images of a .npy or .npz file; wanted: names of the array, the first there is."""
    try:
        if path.suffix.lower() == ".npz":
            x, labels = _read_npz(path, wanted)
        else:
            with path.open("rb") as file:
                x, labels = read_npy(file, path.stat().st_size, str(path)), None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {reason(error)}") from None
    return from_array(x, labels, name, str(path), options)


def read_npy(file: IO[bytes], available: int, where: str, packed: int | None = None, cost: Cost = array_memory) -> np.ndarray:
    """Read one array, its stated size checked against the bytes there are; pickled objects are refused.

    packed: the bytes of the file that the values were compressed into, if they were; cost: how many bytes they will take.
    """
    try:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            shape, by_column, dtype = np.lib.format.read_array_header_1_0(file)
        elif version == (2, 0):
            shape, by_column, dtype = np.lib.format.read_array_header_2_0(file)
        else:
            raise UserError(f"{where} is of .npy version {version[0]}.{version[1]}, which is not read; save plain numbers")
    except UserError:
        raise
    except Exception:  # the header is text that numpy parses, and a hostile one fails in many ways
        raise UserError(f"{where} has no valid .npy header; save it again with numpy.save") from None
    if dtype.hasobject:
        raise UserError(f"{where} holds pickled Python objects, which are never loaded; save an array of numbers")
    if dtype.kind not in "buifUS":
        raise UserError(f"{where} holds values of type {dtype}; save an array of numbers")
    if any(type(n) is not int or n < 0 for n in shape):
        raise UserError(f"{where} states a size that is no whole number from 0 on; save it again with numpy.save")
    needed = math.prod(shape) * dtype.itemsize
    if needed > available or needed > ARRAY_LIMIT:
        raise UserError(f"{where} states {needed} bytes of values, more than it can hold; save it again with numpy.save")
    if packed is not None:
        check_expansion(cost(shape, dtype.itemsize), packed, where, "if you trust it, save it unpacked with numpy.savez")
    values = _read_values(file, needed)
    if len(values) != needed:
        raise UserError(f"{where} ends before its values do; save it again with numpy.save")
    if needed == 0:
        return np.empty(shape, dtype)
    return np.frombuffer(values, dtype).reshape(shape, order="F" if by_column else "C")


def _read_values(file: IO[bytes], needed: int) -> bytearray:
    """Return so many bytes, or fewer where there are no more; only as many are set aside as there are."""
    values = bytearray()
    while len(values) < needed and (piece := file.read(min(PIECE, needed - len(values)))):
        values += piece
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
                raise UserError(f"{path} holds {', '.join(list(members)[:8]) or 'nothing'}; name the data x, images or data")
            x = _read_member(archive, members[x_key], path, array_memory)
            if y_key is None:
                return x, None
            held = array_memory(x.shape, x.itemsize)
            return x, _read_member(archive, members[y_key], path, lambda shape, size: held + _labels_cost(shape, size))
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path} cannot be read as .npz: {' '.join(str(error).split())[:100]}; save it again") from None


def _labels_cost(shape: Sequence[int], itemsize: int) -> int:
    return math.prod(shape) * (2 * itemsize + BYTES_PER_LABEL)


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path, cost: Cost) -> np.ndarray:
    where = f"{info.filename} in {path}"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise UserError(f"{where} is packed by a method that is not read; save it with numpy.savez")
    with archive.open(info) as file:
        return read_npy(file, info.file_size, where, path.stat().st_size, cost)


def from_array(x: np.ndarray, labels: np.ndarray | None, name: str, source: str, options: ReadingOptions) -> Dataset:
    """Tell points from images by the shape: (N,) or (N, D) are points, (N, H, W), (N, H, W, C), (N, C, H, W) images."""
    if x.dtype.kind not in "buif":
        raise UserError(f"{source} holds text, not numbers; save an array of numbers")
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
        raise UserError(f"{source} holds no images (its shape is {x.shape})")
    pixels, note, rounded = to_uint8(x, source)
    made = images_dataset(name, pixels, numbers, names, options, [*notes, *note], source)
    return replace(made, report={**made.report, "rounded": rounded})


def to_uint8(x: np.ndarray, source: str) -> tuple[np.ndarray, list[str], bool]:
    """Bring pixels of any numeric type to uint8 by the range they are in, say so, and tell whether any had to be rounded."""
    if x.dtype == np.uint8:
        return x, [], False
    low, high = float(x.min()), float(x.max())
    if not (np.isfinite(low) and np.isfinite(high)):
        raise UserError(f"{source} holds pixels that are not finite (nan or infinity); mend them first")
    real = x.dtype.kind == "f"
    if (real or x.dtype.kind == "b") and low >= 0 and high <= 1:
        offset, scale, said = 0.0, 255.0, "from 0 to 1"
    elif real and -1 <= low < 0 and high <= 1:
        offset, scale, said = 1.0, 127.5, "from -1 to 1"
    elif low >= 0 and high <= 255:
        offset, scale, said = 0.0, 1.0, "from 0 to 255"
    elif not real and low >= 0 and high <= 65535:
        offset, scale, said = 0.0, 1 / 257, "from 0 to 65535"
    else:
        raise UserError(
            f"{source} has pixels from {low:g} to {high:g}; expected 0 to 255, or 0 to 1 as real numbers (3 and 4 dimensions "
            "are read as images)"
        )
    out, rounded = np.empty(x.shape, np.uint8), False

    def change(piece: np.ndarray) -> np.ndarray:
        nonlocal rounded
        wanted = (piece.astype(np.float64) + offset) * scale
        found = wanted.round()
        rounded = rounded or bool(np.abs(wanted - found).max() > ROUNDED)
        return found

    _fill(out, x, change)
    return out, [f"pixels of type {x.dtype} {said} brought to 8 bits"], rounded


def _fill(out: np.ndarray, x: np.ndarray, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """Write what x is changed to into out, of one shape, piece by piece."""
    if x.size <= PIECE:
        out[...] = change(x)
    elif len(x) == 1:
        _fill(out[0], x[0], change)
    else:
        step = max(1, len(x) * PIECE // x.size)
        for k in range(0, len(x), step):
            _fill(out[k : k + step], x[k : k + step], change)


def array_labels(labels: np.ndarray | None, count: int, source: str) -> tuple[Tensor | None, tuple[str, ...]]:
    """Return labels as numbers and their names.  labels: (N,) or (N, 1), integers or text."""
    if labels is None:
        return None, ()
    flat = labels.reshape(-1)
    if len(flat) != count or count == 0:
        raise UserError(f"{source} has {len(flat)} labels for {count} members; there must be one each")
    different, which = np.unique(flat, return_inverse=True)
    try:
        values: list[Any] = different.tolist()
    except (ValueError, SystemError):  # numpy answers either to a number that no letter has
        raise UserError(f"{source} has labels that are no text; give each class a whole number or a name") from None
    if flat.dtype.kind == "f":
        if not all(float(v).is_integer() for v in values):
            raise UserError(f"{source} has labels that are not whole numbers; give each class a whole number or a name")
        values = [int(v) for v in values]
    numbers, names = encode_labels([v.decode("latin-1") if isinstance(v, bytes) else str(v) for v in values])
    return numbers[torch.from_numpy(which)], names
