"""Hostile parquet and arrow files: none crashes the process, exhausts memory or takes long."""

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from reverie.base.errors import UserError
from reverie.data import load_data

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
MEBIBYTES, REFUSING, SECONDS = 700, 64, 20  # maximum, in MiB, if a file is refused
READING = """
import json, resource, sys, time
from reverie.base.errors import UserError
from reverie.data import load_data
from tests.files import forget, peak
load_data("spiral", points=4)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**32, used + 2**32))
for path in sys.argv[1:]:
    forget()
    before, begun, message = peak(), time.process_time(), ""
    try:
        load_data(path)
    except UserError as error:
        message = str(error)
    print(json.dumps([path, message, (peak() - before) / 2**20, time.process_time() - begun]), flush=True)
"""


def png(shade: int = 7) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((8, 8, 3), shade, np.uint8)).save(file, "png")
    return file.getvalue()


def stream(table: object, compression: str | None = None) -> bytes:
    sink = arrow.BufferOutputStream()
    options = arrow.ipc.IpcWriteOptions(compression=compression)
    with arrow.ipc.new_stream(sink, table.schema, options=options) as writer:  # type: ignore[attr-defined]
        writer.write_table(table)
    return bytes(sink.getvalue())


def packed(table: object, **options: object) -> bytes:
    sink = arrow.BufferOutputStream()
    parquet.write_table(table, sink, **{"compression": "zstd", "store_schema": False, **options})
    return bytes(sink.getvalue())


def small(count: int = 3) -> object:
    """Return images with words and numbers."""
    words = {"label": [f"class {k % 2}" for k in range(count)], "caption": [f"a thing {k}" for k in range(count)]}
    return arrow.table({"image": [png(k) for k in range(count)], **words, "age": [float(k) for k in range(count)]})


def same(value: str | bytes, count: int) -> object:
    """Return a repeated value that is stored once."""
    return arrow.DictionaryArray.from_arrays(arrow.array(np.zeros(count, np.int8)), arrow.array([value]))


def repeated(caption: int, rows: int) -> object:
    """Return one image and one caption, each referenced by many rows."""
    words = same("x" * caption, rows)
    return arrow.table({"image": arrow.array([png()] * rows), "caption": words, "label": words})


def understated() -> bytes:
    """Return a file whose footer states 1 byte for a column of 64 MiB."""
    table = arrow.table({"image": [png()], "caption": ["x" * 2**26]})
    whole = packed(table, use_dictionary=False, data_page_size=2**30, write_statistics=False)
    (length,) = struct.unpack("<I", whole[-8:-4])
    footer = whole[-8 - length : -8]
    size = parquet.read_metadata(io.BytesIO(whole)).row_group(0).column(1).total_uncompressed_size
    number = bytearray()
    value = 2 * size
    while value > 127:
        number.append(value & 127 | 128)
        value >>= 7
    number.append(value)
    assert footer.count(bytes(number)) >= 1
    one = bytes([2 | 128, *[128] * (len(number) - 2), 0])
    return whole[: -8 - length] + footer.replace(bytes(number), one) + whole[-8:]


FILES: dict[str, Callable[[], bytes]] = {
    "compressed.arrow": lambda: stream(arrow.table({"image": [png()], "other": ["x" * 2**26]}), "zstd"),
    "caption.arrow": lambda: stream(repeated(40_000, 20_000)),
    "caption.parquet": lambda: packed(repeated(100_000, 20_000)),
    "image.parquet": lambda: packed(arrow.table({"image": same(bytes(2**18), 8000)}), dictionary_pagesize_limit=2**20),
    "captions.parquet": lambda: packed(
        arrow.table({"image": [png()], "captions": arrow.ListArray.from_arrays([0, 4000], same("x" * 10**6, 4000))})
    ),
    "nothing.parquet": lambda: packed(arrow.table({"image": arrow.nulls(2**24, arrow.binary())})),
    "understated.parquet": understated,
}
READ = {"captions.parquet", "caption.parquet", "caption.arrow"}  # these are never decompressed


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, float, float]]:
    """Read each hostile file in its own process: outcome, MiB and seconds."""
    root, paths = tmp_path_factory.mktemp("hostile"), []
    for name, made in FILES.items():
        path = root / name.replace(".", "-") / f"0.{name.rpartition('.')[2]}"
        path.parent.mkdir()
        path.write_bytes(made())
        assert path.stat().st_size < 2**22
        paths.append(str(path.parent))
    out = subprocess.run(
        [sys.executable, "-c", READING, *paths], capture_output=True, text=True, timeout=300,
        env={**os.environ, "XDG_CACHE_HOME": str(root / "cache")}, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert out.returncode == 0, out.stderr[-2000:]
    rows = [json.loads(line) for line in out.stdout.splitlines()]
    return {name: tuple(row[1:]) for name, row in zip(FILES, rows, strict=True)}


@pytest.mark.parametrize("name", FILES)
def test_hostile_files_need_little_memory_and_time(name: str, read: dict[str, tuple[str, float, float]]) -> None:
    message, memory, seconds = read[name]
    assert memory < (MEBIBYTES if name in READ else REFUSING) and seconds < SECONDS, read[name]
    assert bool(message) != (name in READ) and "\n" not in message, message
    assert "0." + name.rpartition(".")[2] in message or not message


def test_modified_arrow_streams_never_crash(tmp_path: Path) -> None:
    whole, paths = stream(small()), []
    for place in range(0, len(whole) - 4, 4):
        for value in (2**31 - 1, 2**28):
            path = tmp_path / f"{place}-{value}" / "0.arrow"
            path.parent.mkdir()
            path.write_bytes(whole[:place] + struct.pack("<I", value) + whole[place + 4 :])
            paths.append(str(path.parent))
    out = subprocess.run([sys.executable, "-c", READING, *paths], capture_output=True, text=True, timeout=300,
                         cwd=Path(__file__).parents[2])  # fmt: skip
    assert out.returncode == 0, (len(out.stdout.splitlines()), out.stderr[-2000:])
    rows = [json.loads(line) for line in out.stdout.splitlines()]
    assert max(memory for _, _, memory, _ in rows) < MEBIBYTES
    assert sum("cannot be read as arrow" in message for _, message, _, _ in rows) > len(rows) / 4


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_labels_and_captions_of_every_type_are_read(kind: str, tmp_path: Path) -> None:
    for number, (labels, captions) in enumerate(
        [
            (["p", "q", "p", None], [["one", "two"], [], None, [None, "three"]]),
            (arrow.array(["p", "q", "p", None]).dictionary_encode(), arrow.array(["one", "", None, "three"], "large_string")),
        ]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        table = arrow.table({"image": [png(k) for k in range(4)], "label": labels, "captions": captions})
        (folder / f"0.{kind}").write_bytes(stream(table) if kind == "arrow" else packed(table))
        captioned = load_data(folder, labels="captions")
        assert captioned.conditions is not None and list(captioned.conditions.captions) == ["one", "", "", "three"]
        assert load_data(folder, labels="cls").label_names == ("p", "q")


def test_list_columns_are_not_labels(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "0.parquet").write_bytes(packed(arrow.table({"image": [png(k) for k in range(4)], "label": [[1]] * 4})))
    assert load_data(tmp_path / "p").labels is None
    with pytest.raises(UserError, match="no labels"):
        load_data(tmp_path / "p", labels="cls")
