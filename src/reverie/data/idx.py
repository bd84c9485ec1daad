"""The idx format of MNIST: two zero bytes, type, number of dimensions, dimensions as big-endian u32, values."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from reverie.base.errors import UserError
from reverie.base.files import reason
from reverie.data.memory_limits import array_memory, check_expansion

UBYTE = 0x08
SIZE_LIMIT = 4 * 2**30
MAX_GZIP_RATIO = 1032  # maximum compression ratio of gzip
CHUNK_BYTES = 2**22
TRAIN_IMAGES, TRAIN_LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
TEST_IMAGES, TEST_LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"


def looks_like_idx(path: Path) -> bool:
    """Return whether a file is an idx file, by its first four bytes, decompressed if it is gzip."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            start = gzip.GzipFile(fileobj=raw).read(4) if packed else raw.read(4)
    except (OSError, EOFError, zlib.error):
        return False
    return len(start) == 4 and start[:2] == b"\0\0" and start[2] in (8, 9, 11, 12, 13, 14) and 1 <= start[3] <= 4


def read_idx(path: Path) -> np.ndarray:
    """Return the values of an idx file, plain or gzip, as a uint8 array of the stated shape."""
    try:
        on_disk = path.stat().st_size
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            stream = gzip.GzipFile(fileobj=raw) if packed else raw
            start = stream.read(4)
            if len(start) < 4 or start[:2] != b"\0\0":
                raise UserError(
                    f"{path} is not an idx file: it does not start with two zero bytes, a type and a dimension count;"
                    " give another file"
                )
            if start[2] != UBYTE:
                raise UserError(
                    f"{path} contains idx values of type 0x{start[2]:02x}; only unsigned bytes (0x08) are supported"
                )
            if not 1 <= start[3] <= 4:
                raise UserError(
                    f"{path} is not an idx file of images or labels: it states {start[3]} dimensions; give another file"
                )
            dimensions = stream.read(4 * start[3])
            if len(dimensions) < 4 * start[3]:
                raise UserError(f"{path} ends in its header; get the file again")
            shape = tuple(int(n) for n in np.frombuffer(dimensions, ">u4"))
            expected = math.prod(shape)
            header = 4 + 4 * start[3]
            max_values = on_disk * MAX_GZIP_RATIO if packed else on_disk - header
            if expected > max_values or expected > SIZE_LIMIT:
                raise UserError(
                    f"{path} states {' x '.join(map(str, shape))} values, more than it can contain; get the file again"
                )
            check_expansion(array_memory(shape, 1), on_disk, str(path), "if you trust the file, decompress it with gunzip")
            values = bytearray()  # grows with the actual data
            while len(values) <= expected and (chunk := stream.read(min(CHUNK_BYTES, expected + 1 - len(values)))):
                values += chunk
    except OSError as error:
        raise UserError(f"{path} cannot be read: {reason(error)}; get the file again") from None
    except (EOFError, zlib.error):
        raise UserError(f"{path} is a damaged gzip file; get the file again") from None
    if len(values) != expected:
        more = "more" if len(values) > expected else "fewer"
        raise UserError(f"{path} contains {more} values than the stated {' x '.join(map(str, shape))}; get the file again")
    return np.frombuffer(values, np.uint8).reshape(shape)


def find_pair(folder: Path, images: str = TRAIN_IMAGES, labels: str = TRAIN_LABELS) -> tuple[Path, Path] | None:
    """Return the images and labels files of a folder, plain or .gz, also with a dot instead of the first dash."""
    paths = [_variant(folder, name) for name in (images, labels)]
    return (paths[0], paths[1]) if paths[0] is not None and paths[1] is not None else None


def labels_beside(images: Path) -> Path | None:
    """Return the labels file of an images file: the same name with labels for images and idx1 for idx3."""
    name = images.name.removesuffix(".gz").replace("images", "labels").replace("idx3", "idx1")
    return _variant(images.parent, name) if name != images.name.removesuffix(".gz") else None


def _variant(folder: Path, name: str) -> Path | None:
    for file_name in (name, name.replace("-idx", ".idx")):
        for path in (folder / file_name, folder / f"{file_name}.gz"):
            if path.is_file():
                return path
    return None


def read_pair(images: Path, labels: Path | None) -> tuple[np.ndarray, np.ndarray | None]:
    """Return images (N, H, W) and labels (N,), both uint8 and of equal count."""
    x = read_idx(images)
    if x.ndim == 1:
        raise UserError(f"{images} contains labels, not images; give the images file")
    if labels is None:
        return x, None
    y = read_idx(labels)
    if y.ndim != 1 or len(y) != len(x):
        raise UserError(f"{labels} has {len(y)} labels but {images.name} has {len(x)} images; get both files again")
    return x, y
