"""Memory limits are checked before data are read: a small file never needs much memory."""

from __future__ import annotations

import gzip
import importlib
import io
import struct
import subprocess
import sys
import threading
import time
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from reverie.base.errors import UserError
from reverie.data import Dataset, load_data, pixels
from reverie.data.copies import count_duplicates
from reverie.data.dataset import evenly_spaced_indices
from reverie.data.memory_limits import Quota
from tests.data.test_readers import cdb_bytes

MEGABYTES = 1000 * 2**20  # maximum for a file below 10 MB
MEASURE = """
import sys, torch, PIL.Image
from pathlib import Path
from reverie.base.errors import UserError
from reverie.data import load_data
def peak():
    return 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
before = peak()
try:
    load_data(sys.argv[1]).fingerprint()
except UserError:
    pass
print(peak() - before)
"""


@contextmanager
def peak() -> Iterator[list[int]]:
    """Return the peak memory of Python and numpy."""
    held = [0]
    tracemalloc.start()
    yield held
    held[0] = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


def header(shape: tuple[object, ...], dtype: str) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": dtype, "fortran_order": False, "shape": shape})  # type: ignore[arg-type]
    return buffer.getvalue()


def npz(path: Path, shape: tuple[int, ...], dtype: str) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", header(shape, dtype) + bytes(int(np.prod(shape)) * np.dtype(dtype).itemsize))
    return path


def idx(path: Path, shape: tuple[int, ...]) -> Path:
    head = bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)
    path.write_bytes(gzip.compress(head + bytes(int(np.prod(shape)))))
    return path


def cdb(path: Path, large: int, small: int) -> Path:
    """Write images of 255 x 255, in 261 bytes each, and of one pixel."""
    head = struct.pack("<HBBBBI128IB", 2005, 8, 4, 0, 0, large + small, *[0] * 128, 0).ljust(1024, b"\0")
    path.write_bytes(head + (b"\xff\x01\xff\xff\xff\0" + b"\xff" * 255) * large + b"\xff\x02\x01\x01\x01\0\x01" * small)
    return path


def parquet(path: Path, rows: int, label: list[str] | None = None) -> Path:
    arrow = pytest.importorskip("pyarrow", reason="the parquet extra is not installed")
    table = arrow.table({"a": np.zeros(rows, np.float32), **({"label": label} if label else {})})
    importlib.import_module("pyarrow.parquet").write_table(
        table, path, compression="zstd", row_group_size=rows, use_dictionary=label is None
    )
    return path


BOMBS: dict[str, Callable[[Path], Path]] = {
    "points.npz": lambda root: npz(root / "a.npz", (27_000_000, 1), "|u1"),
    "images.npz": lambda root: npz(root / "a.npz", (70_000_000, 1, 1), "|u1"),
    "points-idx.gz": lambda root: idx(root / "a-idx2-ubyte.gz", (27_000_000, 1)),
    "images-idx.gz": lambda root: idx(root / "a-idx3-ubyte.gz", (27_000_000, 1, 1)),
    "numbers.parquet": lambda root: parquet(root / "a.parquet", 12_000_000),
    "words.parquet": lambda root: parquet(root / "a.parquet", 3_200, ["x" * 60_000] * 3_200),
    "large.cdb": lambda root: cdb(root / "a.cdb", 8_200, 0),
    "small.cdb": lambda root: cdb(root / "a.cdb", 1, 8_200),
}


@pytest.mark.parametrize("name", BOMBS)
def test_decompression_bombs_are_refused_before_reading(tmp_path: Path, name: str) -> None:
    path = BOMBS[name](tmp_path)
    assert path.stat().st_size < 10_000_000
    with peak() as held, pytest.raises(UserError, match="decompression bomb"):
        load_data(str(path))
    assert held[0] < 64 * 2**20


def test_the_same_numbers_uncompressed_are_read(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((300_000, 1), np.uint8))
    with peak() as held:
        data = load_data(str(tmp_path / "a.npy"))
    assert data.shape == (1,) and data.report["duplicates"] == 299_999
    assert held[0] < 300_000 * 21 + 32 * 2**20  # the counted cost, and pieces


def test_a_wide_cell_does_not_widen_its_column(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,label\n" + "1,b\n2,c\n" * 1000 + f"3,{'d' * 100_000}\n")
    with peak() as held:
        data = load_data(str(tmp_path / "a.csv"))
    assert len(data) == 2001 and data.label_counts() == [1000, 1000, 1] and held[0] < 16 * 2**20


def test_metadata_are_read_line_by_line(tmp_path: Path) -> None:
    for k in range(4):
        Image.new("L", (8, 8), 60 * k).save(tmp_path / f"{k}.png")
    rows = "".join(f"{k:05d}.png,{k % 2}\n" for k in range(40_000))
    (tmp_path / "metadata.csv").write_text("file_name,label\n0.png,a\n1.png,b\n2.png,a\n3.png,b\n" + rows)
    with peak() as held:
        data = load_data(str(tmp_path))
    assert data.label_counts() == [2, 2] and any("40000 rows of metadata.csv" in note for note in data.notes)
    assert held[0] < 4 * 2**20
    (tmp_path / "metadata.csv").write_text("file_name,label\n" + "," * 2**20)
    assert any("one line per image" in note for note in load_data(str(tmp_path)).notes)


def test_evenly_spaced_indices() -> None:
    assert (
        evenly_spaced_indices(9, 3).tolist() == [0, 4, 8]
        and evenly_spaced_indices(1, 5).tolist() == [0]
        and evenly_spaced_indices(3, 9).tolist() == [0, 1, 2]
    )
    many = 2**24 + 4  # float32 cannot represent the last digits
    assert Dataset("many", torch.zeros(many, 1)).subsample(10).shape == (10, 1)
    assert evenly_spaced_indices(many, 10)[-1] == many - 1


@pytest.mark.parametrize("shape", [(50, 1), (50, 2), (50, 7), (50, 40), (50, 1, 9, 9)])
def test_duplicates_are_counted_by_their_bytes(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    assert count_duplicates(x) == 0
    x[[3, 7, 49]] = x[5]
    x[1] = x[0]
    assert count_duplicates(x) == 4 == len(x) - len({row.tobytes() for row in x})
    assert count_duplicates(np.asfortranarray(x)) == 4


@pytest.mark.parametrize(("mode", "low", "high"), [("I;16", 0, 65535), ("F", 0.0, 1.0), ("F", -3.0, 5.0), ("F", 0.0, 200.0)])
def test_deep_pixels_are_converted_strip_by_strip(monkeypatch: pytest.MonkeyPatch, mode: str, low: float, high: float) -> None:
    values = np.random.default_rng(0).uniform(low, high, (23, 7))
    values.flat[:2] = low, high
    deep = values.astype(np.uint16 if mode == "I;16" else np.float32)
    base, top = (low, high - low) if low < 0 else (0, {1.0: 1.0, 200.0: 255.0}.get(high, 65535.0))
    monkeypatch.setattr(pixels, "STRIP", 20)  # two rows and a remainder
    found = np.asarray(pixels.convert_mode(Image.fromarray(deep), 1))
    assert np.array_equal(found, ((deep.astype(np.float64) - base) * (255 / top)).round().astype(np.uint8))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA"])
def test_transparency_is_composited_strip_by_strip(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (23, 7, 4), dtype=np.uint8)).convert(mode)
    over = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    monkeypatch.setattr(pixels, "STRIP", 20)
    for channels, plain in ((1, "L"), (3, "RGB")):
        assert np.array_equal(np.asarray(pixels.convert_mode(image, channels)), np.asarray(over.convert(plain)))


def test_quotas_are_never_exceeded() -> None:
    share, held, most, lock = Quota(10), 0, 0, threading.Lock()

    def work(amount: int) -> None:
        nonlocal held, most
        with share.of(amount):
            with lock:
                held += min(amount, 10)
                most = max(most, held)
            time.sleep(0.002)
            with lock:
                held -= min(amount, 10)

    threads = [threading.Thread(target=work, args=(amount,)) for amount in (3, 7, 4, 10, 99, 1, 6, 5) * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert held == 0 and 3 < most <= 10


def nameless(name: str) -> bytes:
    """Return a zip file with an empty entry name."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(name, b"something")
    out = bytearray(buffer.getvalue())
    for mark, at in ((b"PK\3\4", 26), (b"PK\1\2", 28)):
        struct.pack_into("<HH", out, out.index(mark) + at, 0, 1)
    return bytes(out)


@pytest.mark.parametrize(
    ("file", "content", "match"),
    [
        ("a.zip", nameless("a"), "0 usable images.*unsafe name"),
        ("a.npz", nameless("a"), "unsupported compression|no valid .npy header"),
        ("a.npy", header((True, 2), "<f8") + bytes(16), "invalid shape"),
        ("a.npy", header((2, -1), "<f8") + bytes(16), "invalid shape"),
        ("a.cdb", cdb_bytes([np.ones((4, 4), np.uint8)], [1])[:-1] + b"\x05", "pixels of record 1"),
    ],
    ids=range(5),
)  # fmt: skip
def test_odd_names_and_sizes_are_refused(tmp_path: Path, file: str, content: bytes, match: str) -> None:
    (tmp_path / file).write_bytes(content)
    with pytest.raises(UserError, match=match):
        load_data(str(tmp_path / file))


def test_invalid_text_labels_are_refused(tmp_path: Path) -> None:
    labels = np.array([0x110000, 0x41], np.uint32).view("<U1")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", header((2, 2), "<f8") + bytes(32))
        archive.writestr("y.npy", header((2,), "<U1") + labels.tobytes())
    with pytest.raises(UserError, match="not valid text"):
        load_data(str(tmp_path / "a.npz"))


def pictures(root: Path, kind: str, mode: str, height: int = 8000, **options: object) -> Path:
    """Write four images of up to 64 megapixels, each of one colour."""
    for k in range(4):
        Image.new(mode, (8000, height - k)).save(root / f"{k}.{kind}", **options)  # type: ignore[arg-type]
    return root


LARGE: dict[str, Callable[[Path], Path]] = {
    "png 16-bit": lambda root: pictures(root, "png", "I;16"),
    "png RGBA": lambda root: pictures(root, "png", "RGBA"),
    "tif float": lambda root: pictures(root, "tif", "F", compression="tiff_deflate"),
    "webp": lambda root: pictures(root, "webp", "RGBA", 4000, lossless=True, method=0),
    "jpg": lambda root: pictures(root, "jpg", "RGB", progressive=True),
    "points.npz": lambda root: npz(root / "a.npz", (25_000_000, 1), "|u1"),
    "deep.npz": lambda root: npz(root / "a.npz", (300, 300, 300, 3), "<f4"),
    "words.parquet": lambda root: parquet(root / "a.parquet", 2_900, ["x" * 60_000] * 2_900),
    "numbers.parquet": lambda root: parquet(root / "a.parquet", 7_500_000),
}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to measure memory")
@pytest.mark.parametrize("name", LARGE)
def test_a_small_file_costs_less_than_a_gigabyte(tmp_path: Path, name: str) -> None:
    path = LARGE[name](tmp_path)
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 10_000_000
    cost = subprocess.run([sys.executable, "-c", MEASURE, str(path)], check=True, capture_output=True, text=True).stdout
    assert int(cost) < MEGABYTES
