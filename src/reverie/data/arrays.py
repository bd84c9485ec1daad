"""Arrays: .npy and .npz files of points or images, never unpickled."""

from __future__ import annotations

import math
import zipfile
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from torch import Tensor

from reverie.base.errors import UserError
from reverie.base.files import reason
from reverie.data.dataset import Dataset
from reverie.data.form import CHUNK, Options, encode_labels, images_dataset, points_dataset

ARRAY_LIMIT = 8 * 2**30
DEFLATE_MOST = 1100  # deflate cannot shrink further than this
X_KEYS = ("x", "images", "data", "x_train", "arr_0")
Y_KEYS = ("y", "labels", "label", "y_train", "targets")


def read_array_file(path: Path, name: str, options: Options) -> Dataset:
    """Return the points or images of a .npy or .npz file."""
    try:
        if path.suffix.lower() == ".npz":
            x, labels = _read_npz(path)
        else:
            with path.open("rb") as file:
                x, labels = read_npy(file, path.stat().st_size, str(path)), None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {reason(error)}") from None
    return from_array(x, labels, name, str(path), options)


def read_npy(file: BinaryIO, available: int, where: str) -> np.ndarray:
    """Read one array, its stated size checked against the bytes there are; pickled objects are refused."""
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
    if any(n < 0 for n in shape):
        raise UserError(f"{where} states a negative size; save it again with numpy.save")
    needed = math.prod(shape) * dtype.itemsize
    if needed > available or needed > ARRAY_LIMIT:
        raise UserError(f"{where} states {needed} bytes of values, more than it can hold; save it again with numpy.save")
    values = file.read(needed)
    if len(values) != needed:
        raise UserError(f"{where} ends before its values do; save it again with numpy.save")
    if needed == 0:
        return np.empty(shape, dtype)
    return np.frombuffer(values, dtype).reshape(shape, order="F" if by_column else "C")


def _read_npz(path: Path) -> tuple[np.ndarray, np.ndarray | None]:
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy").lower(): info for info in archive.infolist()}
            x_key = next((key for key in X_KEYS if key in members), None)
            y_key = next((key for key in Y_KEYS if key in members), None)
            rest = [key for key in members if key != y_key]
            x_key = x_key or (rest[0] if len(rest) == 1 else None)
            if x_key is None:
                raise UserError(f"{path} holds {', '.join(list(members)[:8]) or 'nothing'}; name the data x, images or data")
            x = _read_member(archive, members[x_key], path)
            return x, _read_member(archive, members[y_key], path) if y_key is not None else None
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path} cannot be read as .npz: {' '.join(str(error).split())[:100]}; save it again") from None


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> np.ndarray:
    where = f"{info.filename} in {path}"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise UserError(f"{where} is packed by a method that is not read; save it with numpy.savez")
    if info.file_size > ARRAY_LIMIT or info.file_size > DEFLATE_MOST * info.compress_size + 1024:
        raise UserError(f"{where} states {info.file_size} bytes, more than it can hold; save it again with numpy.savez")
    with archive.open(info) as file:
        return read_npy(file, info.file_size, where)  # type: ignore[arg-type]


def from_array(x: np.ndarray, labels: np.ndarray | None, name: str, source: str, options: Options) -> Dataset:
    """Tell points from images by the shape: (N,) or (N, D) are points, (N, H, W), (N, H, W, C), (N, C, H, W) images."""
    if x.dtype.kind not in "buif":
        raise UserError(f"{source} holds text, not numbers; save an array of numbers")
    numbers, names = array_labels(labels, len(x) if x.ndim else 0, source)
    if x.ndim in (1, 2):
        points = x.reshape(len(x), -1) if x.ndim == 1 else x
        with np.errstate(over="ignore"):
            return points_dataset(name, points.astype(np.float64), numbers, names, options, (), source)
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
    pixels, note = eight_bits(x, source)
    return images_dataset(name, pixels, numbers, names, options, [*notes, *note], source)


def eight_bits(x: np.ndarray, source: str) -> tuple[np.ndarray, list[str]]:
    """Bring pixels of any numeric type to uint8 by the range they are in, and say so."""
    if x.dtype == np.uint8:
        return x, []
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
    out = np.empty(x.shape, np.uint8)
    for k in range(0, len(x), CHUNK):
        out[k : k + CHUNK] = ((x[k : k + CHUNK].astype(np.float64) + offset) * scale).round()
    return out, [f"pixels of type {x.dtype} {said} brought to 8 bits"]


def array_labels(labels: np.ndarray | None, count: int, source: str) -> tuple[Tensor | None, tuple[str, ...]]:
    """Return labels as numbers and their names.  labels: (N,) or (N, 1), integers or text."""
    if labels is None:
        return None, ()
    flat = labels.reshape(-1)
    if len(flat) != count or count == 0:
        raise UserError(f"{source} has {len(flat)} labels for {count} members; there must be one each")
    values: list[Any] = flat.tolist()
    if flat.dtype.kind == "f":
        if not all(float(v).is_integer() for v in values):
            raise UserError(f"{source} has labels that are not whole numbers; give each class a whole number or a name")
        values = [int(v) for v in values]
    return encode_labels([v.decode("latin-1") if isinstance(v, bytes) else str(v) for v in values])
