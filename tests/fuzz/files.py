"""Whole files of every kind that is read, to be damaged."""

from __future__ import annotations

import gzip
import importlib
import io
import json
import wave
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.data.test_readers import cdb_bytes, idx_bytes, saved

RANDOM = np.random.default_rng(0)
PIXELS = RANDOM.integers(0, 256, (6, 8, 8), dtype=np.uint8)
CSV = b"x,y,label\n1,2.5,cat\n3,4,dog\n5,6,cat\n7.5,-8,dog\n1e3,2,cat\n"
METADATA = {
    "metadata.csv": b"file_name,label\n0.png,cat\n1.png,dog\n2.png,cat\n3.png,dog\n",
    "metadata.jsonl": b'{"file_name": "0.png", "label": "cat"}\n{"file_name": "1.png", "class": 7}\n{"file_name": "2.png"}\n',
}
SETTINGS = b'data = "spiral"\npoints = 16\nsteps = 1\nnetwork = {name = "mlp", hidden = 8}\nlearning-rate = 1e-3\n'
IMAGES: dict[str, dict[str, object]] = {
    "png": {}, "jpg": {}, "webp": {"lossless": True}, "bmp": {}, "gif": {}, "tif": {"compression": "tiff_deflate"}, "ppm": {},
}  # fmt: skip
MODES = {"png": ("L", "RGB", "RGBA", "LA", "P", "I;16", "1"), "tif": ("L", "F", "I;16", "RGBA"), "webp": ("RGB", "RGBA")}


def picture(kind: str, mode: str, k: int = 0) -> bytes:
    """Return a small picture of a format and mode."""
    buffer = io.BytesIO()
    grey = Image.fromarray(np.ascontiguousarray(PIXELS[k % len(PIXELS)]))
    deep = Image.fromarray(PIXELS[k % len(PIXELS)].astype(np.uint16) * 257)
    image = deep if mode == "I;16" else grey.convert("RGB").convert(mode) if mode in ("P", "RGBA") else grey.convert(mode)
    form = {"jpg": "jpeg", "tif": "tiff"}.get(kind, kind)
    image.save(buffer, form, **IMAGES[kind])
    return buffer.getvalue()


def archive(files: dict[str, bytes]) -> bytes:
    """Return a zip file."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in files.items():
            made.writestr(zipfile.ZipInfo(name), content)
    return buffer.getvalue()


def parquet() -> bytes:
    """Return a table of numbers and words."""
    arrow = importlib.import_module("pyarrow")
    buffer = io.BytesIO()
    table = arrow.table({"a": [1.0, 2.0, 3.0, 4.0], "b": [1, 2, 3, 4], "label": ["p", "q", "p", "q"], "c": [[1], [2], [], [3]]})
    importlib.import_module("pyarrow.parquet").write_table(table, buffer)
    return buffer.getvalue()


def images_table() -> Any:
    """Return images as Hugging Face has them, with words and numbers beside them."""
    arrow: Any = importlib.import_module("pyarrow")
    kind = arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())])
    images = arrow.array([{"bytes": picture("png", "L", k), "path": f"{k}.png"} for k in range(6)], kind)
    words = arrow.array(["p", "q"] * 3).dictionary_encode()
    return arrow.table(
        {"image": images, "label": words, "captions": [["a b", "c"], [], ["d"]] * 2, "age": [1.5, 2.5, None] * 2}
    )


def lists_table() -> Any:
    """Return images that are lists of numbers, with their labels."""
    return importlib.import_module("pyarrow").table({"image": PIXELS.tolist(), "label": [0, 1] * 3})


def shard(table: Any) -> bytes:
    """Return a table as a parquet file."""
    buffer = io.BytesIO()
    importlib.import_module("pyarrow.parquet").write_table(table, buffer, row_group_size=4)
    return buffer.getvalue()


def stream(table: Any) -> bytes:
    """Return a table as an arrow stream."""
    buffer = io.BytesIO()
    with importlib.import_module("pyarrow.ipc").new_stream(buffer, table.schema) as writer:
        writer.write_table(table, max_chunksize=4)
    return buffer.getvalue()


def sound() -> bytes:
    """Two channels of 16 bits, of 300 moments."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(np.arange(600, dtype="<i2").tobytes())
    return buffer.getvalue()


def _pictures() -> dict[str, bytes]:
    modes = {kind: MODES.get(kind, ("L", "RGB") if kind != "gif" else ("P",)) for kind in IMAGES}
    return {f"{mode.replace(';', '')}.{kind}": picture(kind, mode) for kind, found in modes.items() for mode in found}


PICTURES = _pictures()
TEXT = "The naïve fox 狐 jumps over the lazy dog, سلام. And again.\n" * 8
# Each is a file, or the files of a folder, by the name it is read by.
DATA: dict[str, Callable[[], bytes | dict[str, bytes]]] = {
    "a.npy": lambda: saved(only=PIXELS),
    "b.npy": lambda: saved(only=PIXELS.reshape(12, -1)[:, :3].astype(np.float64)),
    "a.npz": lambda: saved(x=PIXELS.astype(np.float32) / 255, y=np.array(["a", "b"] * 3)),
    "b.npz": lambda: saved(images=np.stack([PIXELS] * 3, -1), labels=np.arange(6) % 2),
    "a.csv": lambda: CSV,
    "a.wav": sound,
    "a.txt": lambda: TEXT.encode(),
    "b.txt": lambda: TEXT.encode("utf-16"),
    "fortunes": lambda: TEXT.replace(".", ".\n%\n").encode(),
    "a.jsonl": lambda: "\n".join(json.dumps({"text": line}) for line in TEXT.split(".")).encode(),
    "c.csv": lambda: ("id,text\n" + "".join(f'{k},"{line}"\n' for k, line in enumerate(TEXT.split(".")))).encode(),
    "texts": lambda: {"a.txt": TEXT.encode(), "deep/b.txt": TEXT.upper().encode()},
    "a.parquet": parquet,
    "b.parquet": lambda: shard(images_table()),
    "b.arrow": lambda: {"0.arrow": stream(images_table())},
    "c.arrow": lambda: {
        "0.arrow": stream(lists_table()), "state.json": b'{"_data_files": [{"filename": "0.arrow"}]}',
        "dataset_info.json": b'{"features": {"label": {"names": ["cat", "dog"]}}}',
    },
    "a.cdb": lambda: cdb_bytes([np.eye(6, 9, dtype=np.uint8), np.ones((4, 4), np.uint8)] * 2, [1, 2, 1, 2]),
    "b.cdb": lambda: cdb_bytes([PIXELS[0][:3, :4], PIXELS[1][:3, :4]], [1, 2], grey=True, fixed=(3, 4)),
    "a-idx3-ubyte": lambda: idx_bytes(PIXELS),
    "a-idx3-ubyte.gz": lambda: gzip.compress(idx_bytes(PIXELS), mtime=0),
    "b-idx2-ubyte": lambda: idx_bytes(PIXELS.reshape(6, -1)[:, :5]),
    "pair": lambda: {
        "train-images-idx3-ubyte": idx_bytes(PIXELS),
        "train-labels-idx1-ubyte.gz": gzip.compress(idx_bytes(np.arange(6) % 2), mtime=0),
    },
    "a.zip": lambda: archive({f"{'ab'[k % 2]}/{k}.png": picture("png", "L", k) for k in range(4)}),
    "b.zip": lambda: archive({**{f"{k}.png": picture("png", "RGB", k) for k in range(4)}, **METADATA}),
    "classes": lambda: {f"{'ab'[k % 2]}/{k}.png": picture("png", "L", k) for k in range(6)},
    "named": lambda: {**{f"{k}.png": picture("png", "L", k) for k in range(4)}, **METADATA},
    **{f"of-{name.replace('.', '-')}": (lambda name=name: {name: PICTURES[name]}) for name in PICTURES},
}  # fmt: skip


def place(root: Path, name: str, content: bytes | dict[str, bytes]) -> Path:
    """Write a file, or a folder of files, and return its path."""
    path = root / name
    for inner, part in content.items() if isinstance(content, dict) else {"": content}.items():
        file = path / inner if inner else path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(part)
    return path
