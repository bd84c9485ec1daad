"""Readers of idx, cdb, arrays and tables, with real files, known values and hostile bytes."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reverie.base.errors import UserError
from reverie.data import Dataset, load_data
from reverie.data.cdb import read_cdb
from reverie.data.idx import read_idx

SHARED = Path(os.environ.get("REVERIE_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
needs_mnist = pytest.mark.skipif(not (SHARED / "mnist").is_dir(), reason="the MNIST files are not on this machine")
needs_hoda = pytest.mark.skipif(not (SHARED / "hoda").is_dir(), reason="the Hoda files are not on this machine")
MNIST_PIXELS = "741c988805d008ac"  # first 16 digits of the SHA-256 checksum of all training pixels
fuzzed = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


def idx_bytes(x: np.ndarray) -> bytes:
    return bytes([0, 0, 8, x.ndim]) + struct.pack(f">{x.ndim}I", *x.shape) + x.astype(np.uint8).tobytes()


def runs_of(image: np.ndarray) -> bytes:
    """Encode a 0/1 image in the run-length format: each row starts with background."""
    out = bytearray()
    for row in image:
        colour, run = 0, 0
        for pixel in row:
            if pixel != colour:
                out.append(run)
                colour, run = pixel, 0
            run += 1
        out.append(run)
    return bytes(out)


def cdb_bytes(images: list[np.ndarray], labels: list[int], grey: bool = False, fixed: tuple[int, int] = (0, 0)) -> bytes:
    """Encode a .cdb file.  fixed: (height, width) in the header."""
    counts = [labels.count(k) for k in range(128)]
    head = struct.pack("<HBBBBI128IB", 2005, 8, 4, *fixed, len(images), *counts, int(grey))
    out = bytearray(head.ljust(1024, b"\0"))
    for image, label in zip(images, labels, strict=True):
        body = image.T.tobytes() if grey else runs_of(image)
        shape = b"" if all(fixed) else bytes([image.shape[1], image.shape[0]])
        out += bytes([255, label]) + shape + struct.pack("<H", len(body)) + body
    return bytes(out)


@pytest.fixture(scope="module")
def hoda() -> Dataset:
    return load_data("hoda", data_dir=SHARED, size="32")


@needs_mnist
def test_mnist_matches_its_checksum() -> None:
    data = load_data("mnist", data_dir=SHARED)
    assert isinstance(data.x, torch.Tensor) and data.x.shape == (60_000, 1, 28, 28) and data.x.dtype == torch.uint8
    assert data.label_counts() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert data.label_names == tuple("0123456789") and data.shape == (1, 28, 28) and data.kind == "images"
    assert hashlib.sha256(data.x.numpy().tobytes()).hexdigest()[:16] == MNIST_PIXELS
    same = load_data(str(SHARED / "mnist"))
    assert isinstance(same.x, torch.Tensor) and torch.equal(same.x, data.x) and "training" in same.notes[0]


@needs_mnist
def test_idx_files_use_the_labels_beside_them() -> None:
    data = load_data(str(SHARED / "mnist" / "t10k-images-idx3-ubyte.gz"))
    assert len(data) == 10_000 and data.label_counts() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    content = gzip.decompress((SHARED / "mnist" / "t10k-images-idx3-ubyte.gz").read_bytes())
    assert hashlib.sha256(content).hexdigest().startswith("0fa7898d509279e4")
    assert isinstance(data.x, torch.Tensor) and data.x.numpy().tobytes() == content[16:]


@needs_hoda
@pytest.mark.parametrize(("file", "count"), [("Test 20000.cdb", 20_000), ("RemainingSamples.cdb", 22_352)])
def test_hoda_headers_match(file: str, count: int) -> None:
    path = SHARED / "hoda" / file
    records = read_cdb(path)
    stated = struct.unpack_from("<128I", path.read_bytes(), 10)
    assert len(records) == count and np.bincount(records.labels, minlength=128).tolist() == list(stated)
    pixels = records.pixels()
    assert len(pixels) == int((records.heights * records.widths).sum()) and set(np.unique(pixels)) == {0, 255}


@needs_hoda
def test_hoda_images_are_centred_and_labelled(hoda: Dataset) -> None:
    assert isinstance(hoda.x, torch.Tensor) and hoda.x.shape == (42_352, 1, 32, 32)
    assert hoda.label_counts() == [4070, 4330, 3923, 4334, 4333, 4110, 4254, 4363, 4264, 4371]
    x = hoda.x.float()
    assert 10 < float(x.mean()) < 40 and float(x[:, :, 0].max()) < 30  # little ink, none at the border
    ink = x.sum((0, 1))
    centre = float((ink.sum(1) * torch.arange(32)).sum() / ink.sum()), float((ink.sum(0) * torch.arange(32)).sum() / ink.sum())
    assert centre == pytest.approx((15.5, 15.5), abs=1)
    assert hoda.labels is not None
    zero, one = hoda.x[hoda.labels == 0].float().mean(0)[0], hoda.x[hoda.labels == 1].float().mean(0)[0]
    assert float(zero.sum()) < float(one.sum())  # a dot compared with a stroke


@given(data=st.data())
def test_run_lengths_are_decoded(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    shapes = data.draw(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 255)), min_size=1, max_size=4))
    random = np.random.default_rng(data.draw(st.integers(0, 999)))
    images = [(random.random(shape) < random.random()).astype(np.uint8) for shape in shapes]
    path = tmp_path_factory.mktemp("cdb") / "a.cdb"
    path.write_bytes(cdb_bytes(images, list(range(len(images)))))
    records = read_cdb(path)
    expected = np.concatenate([255 * image.reshape(-1) for image in images])
    assert np.array_equal(records.pixels(), expected) and records.labels.tolist() == list(range(len(images)))


def test_grey_and_fixed_size_cdb(tmp_path: Path) -> None:
    image = np.arange(12, dtype=np.uint8).reshape(3, 4)
    for fixed in ((0, 0), (3, 4)):
        (tmp_path / "a.cdb").write_bytes(cdb_bytes([image, image + 1], [7, 2], grey=True, fixed=fixed))
        records = read_cdb(tmp_path / "a.cdb")
        assert np.array_equal(records.pixels().reshape(2, 3, 4), np.stack([image, image + 1])) and records.labels.tolist() == [
            7,
            2,
        ]
    square = np.ones((5, 5), np.uint8)
    (tmp_path / "a.cdb").write_bytes(cdb_bytes([square], [3]))
    data = load_data(str(tmp_path), size="9")  # 5 and a margin of 2 on each side: no resizing
    assert isinstance(data.x, torch.Tensor) and data.label_names == ("3",)
    assert data.x[0, 0].tolist() == np.pad(255 * square, 2).tolist()


def reads_or_refuses(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    try:
        data = load_data(str(path))
    except UserError as error:
        assert "\n" not in str(error) and str(path.name) in str(error)
    else:
        assert len(data) > 0 and len(data) == data.x.shape[0]


def mutate(data: st.DataObject, content: bytes) -> bytes:
    out = bytearray(content)
    for _ in range(data.draw(st.integers(0, 4))):
        out[data.draw(st.integers(0, len(out) - 1))] = data.draw(st.integers(0, 255))
    return bytes(out[: data.draw(st.integers(0, len(out)))]) if data.draw(st.booleans()) else bytes(out)


DIGITS = [np.eye(6, 9, dtype=np.uint8), np.ones((4, 4), np.uint8)]
VALID_FILES = {
    "a.cdb": cdb_bytes(DIGITS, [1, 2]),
    "b.cdb": cdb_bytes([np.zeros((3, 4), np.uint8)] * 2, [1, 2], grey=True, fixed=(3, 4)),
    "a-idx3-ubyte": idx_bytes(np.zeros((3, 5, 4))),
    "a-idx3-ubyte.gz": gzip.compress(idx_bytes(np.zeros((3, 5, 4))), mtime=0),
}


def saved(**arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    if set(arrays) == {"only"}:
        np.save(buffer, arrays["only"])
    else:
        np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


VALID_FILES["a.npy"] = saved(only=np.zeros((3, 5, 4), np.uint8))
VALID_FILES["a.npz"] = saved(x=np.zeros((3, 5)), y=np.array([1, 2, 1]))
VALID_FILES["a.csv"] = b"x,y,label\n1,2.5,cat\n3,4,dog\n5,6,cat\n"


@pytest.mark.parametrize("name", VALID_FILES)
@fuzzed
@given(data=st.data())
def test_damaged_files_are_read_or_refused(name: str, tmp_path: Path, data: st.DataObject) -> None:
    reads_or_refuses(tmp_path / name, mutate(data, VALID_FILES[name]))


@pytest.mark.parametrize("name", VALID_FILES)
@fuzzed
@given(content=st.binary(max_size=2000))
def test_random_bytes_are_refused(name: str, tmp_path: Path, content: bytes) -> None:
    start = data_start(name)
    reads_or_refuses(tmp_path / name, start + content)


def data_start(name: str) -> bytes:
    """Return valid first bytes, so that random bytes reach the inner checks."""
    return {"a.cdb": VALID_FILES["a.cdb"][:1024], "b.cdb": VALID_FILES["b.cdb"][:1024], "a-idx3-ubyte": b"\0\0\x08\x03"}.get(
        name, b""
    )


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("a-idx3-ubyte", b"\0\0\x08\x03" + b"\xff" * 12, r"more than .* can contain"),
        ("a-idx3-ubyte.gz", gzip.compress(b"\0\0\x08\x03" + b"\xff" * 12), r"more than .* can contain"),
        ("a-idx3-ubyte.gz", gzip.compress(idx_bytes(np.zeros((2, 9, 9))))[:-12], "damaged gzip|fewer"),
        ("a-idx3-ubyte", b"\0\0\x0d\x03" + b"\0\0\0\x01" * 3 + b"\0\0\0\0", "0x0d"),
        ("a-idx1-ubyte", idx_bytes(np.zeros(5)), "labels, not images"),
        ("a.cdb", b"\0" * 100, "header alone"),
        ("a.cdb", struct.pack("<HBBBBI", 2005, 1, 1, 0, 0, 2**32 - 1).ljust(1100, b"\0"), "records"),
        ("a.cdb", cdb_bytes(DIGITS, [1, 2])[:-1], "record 2 of 2"),
    ],
    ids=range(8),
)
def test_lengths_are_checked_before_anything_is_allocated(tmp_path: Path, name: str, content: bytes, match: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=match):
        load_data(str(tmp_path / name))


def test_mismatched_labels_are_refused(tmp_path: Path) -> None:
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx_bytes(np.zeros((3, 2, 2))))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx_bytes(np.zeros(4)))
    with pytest.raises(UserError, match="4 labels but"):
        load_data(str(tmp_path))
    assert read_idx(tmp_path / "train-images-idx3-ubyte").shape == (3, 2, 2)


RAMP = np.arange(2 * 6 * 5 * 3).reshape(2, 6, 5, 3)


@pytest.mark.parametrize(
    ("x", "expected", "note"),
    [
        (RAMP.astype(np.uint8), RAMP.transpose(0, 3, 1, 2), None),
        (RAMP.transpose(0, 3, 1, 2).astype(np.uint8), RAMP.transpose(0, 3, 1, 2), None),
        (np.asfortranarray(RAMP[..., 0].astype(np.uint8)), RAMP[:, None, ..., 0], None),
        (RAMP[..., 0] / 255, RAMP[:, None, ..., 0], "from 0 to 1"),
        (RAMP[..., 0] / 127.5 - 1, RAMP[:, None, ..., 0], "from -1 to 1"),
        (RAMP[..., 0].astype(np.float32), RAMP[:, None, ..., 0], "from 0 to 255"),
        ((RAMP[..., 0] * 257).astype(np.uint16), RAMP[:, None, ..., 0], "from 0 to 65535"),
        (RAMP[..., 0] > 90, 255 * (RAMP[:, None, ..., 0] > 90), "from 0 to 1"),
    ],
)
def test_arrays_of_images(tmp_path: Path, x: np.ndarray, expected: np.ndarray, note: str | None) -> None:
    np.save(tmp_path / "a.npy", x)
    data = load_data(str(tmp_path / "a.npy"), size="6x5")
    assert isinstance(data.x, torch.Tensor) and data.x.tolist() == (expected % 256).tolist()
    assert (note is None) == (data.notes == ()) and (note is None or note in data.notes[0])
    values, _ = data.batch(torch.tensor([1, 0]))
    assert values.dtype == torch.float32 and torch.equal(values, data.x[[1, 0]] / 255)


def test_arrays_of_points_with_labels(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(20, 3))
    np.savez(tmp_path / "a.npz", x=x, y=np.array(["10", "9"] * 10))
    data = load_data(str(tmp_path / "a.npz"))
    assert data.x.shape == (20, 3) and data.kind == "points"
    assert data.label_names == ("9", "10") and data.label_counts() == [10, 10]
    assert data.batch(torch.tensor([0]))[0].tolist() == x[:1].astype(np.float32).tolist()
    assert load_data(str(tmp_path / "a.npz"), labels="none").labels is None
    np.savez(tmp_path / "b.npz", images=np.zeros((4, 2, 2), np.uint8), labels=np.array([5, 3, 5, 3]))
    assert load_data(str(tmp_path / "b.npz")).label_names == ("3", "5")


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (pytest.fail, ("a pickle was loaded",))


@pytest.mark.parametrize("name", ["a.npy", "a.npz"])
def test_pickles_are_never_loaded(tmp_path: Path, name: str) -> None:
    x = np.array([Evil(), Evil()], dtype=object)
    np.save(tmp_path / name, x) if name == "a.npy" else np.savez(tmp_path / name, x=x)
    with pytest.raises(UserError, match="never loaded"):
        load_data(str(tmp_path / name))


@pytest.mark.parametrize(
    ("x", "match"),
    [
        (np.full((3, 4, 4), np.nan), "not finite"),
        (np.full((3, 4, 4), 1e9), "from 1e\\+09"),
        (np.array([[1.0, np.inf]]), "row 1 .* not finite"),
        (np.zeros((0, 2)), "no points"),
        (np.zeros((0, 2, 2)), "no images"),
        (np.zeros((2, 5, 5, 7)), "channels"),
        (np.zeros((2, 2, 2, 2, 2)), "expected points"),
        (np.zeros(()), "expected points"),
        (np.array([["a"]]), "text"),
    ],
)
def test_arrays_of_other_shapes_are_refused(tmp_path: Path, x: np.ndarray, match: str) -> None:
    np.save(tmp_path / "a.npy", x)
    with pytest.raises(UserError, match=match):
        load_data(str(tmp_path / "a.npy"))


def test_overstated_sizes_are_refused(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"shape": (2**40, 2), "fortran_order": False, "descr": "<f8"})
    (tmp_path / "a.npy").write_bytes(buffer.getvalue() + b"\0" * 64)
    with pytest.raises(UserError, match=r"more than .* can contain"):
        load_data(str(tmp_path / "a.npy"))
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", buffer.getvalue() + b"\0" * 64)
    with pytest.raises(UserError, match=r"more than .* can contain"):
        load_data(str(tmp_path / "a.npz"))


@pytest.mark.parametrize(
    ("text", "x", "names"),
    [
        ("1,2\n3,4\n", [[1, 2], [3, 4]], ()),
        ("a,b\n1,2\n3,4\n", [[1, 2], [3, 4]], ()),
        ("\ufeffa;Class;b\n1;cat;2\n3;dog;4\n", [[1, 2], [3, 4]], ("cat", "dog")),
        ("a\tb\ttarget\n1\t2\t10\n\n3\t4\t9\n", [[1, 2], [3, 4]], ("9", "10")),
        ('name,a,b\n"x, y",1,2\n"z",3,4e0\n', [[1, 2], [3, 4]], ()),
        ("5\n6\n", [[5], [6]], ()),
    ],
)
def test_tables_of_points(tmp_path: Path, text: str, x: list[list[int]], names: tuple[str, ...]) -> None:
    (tmp_path / "a.csv").write_text(text, encoding="utf-8")
    data = load_data(str(tmp_path / "a.csv"))
    assert isinstance(data.x, torch.Tensor) and data.x.tolist() == x and data.label_names == names
    assert (data.report.get("left_out", {}).keys() == {"name"}) == text.startswith("name")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "empty"), ("a,b\n", "no rows"), ("a,b\n1,2\n3\n", "line 3 .*has 1 cell"), ("a,b\nx,y\n", "no column of numbers"),
        ("a,b\n" + "1,2\n" * 200 + "1,oops\n", "line 202 .*oops.*column b|oops.* line 202"),
        ("a,b\n1,2\n1,inf\n", "row 2 .*column b"),
    ],
)  # fmt: skip
def test_invalid_tables_are_refused(tmp_path: Path, text: str, match: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(UserError, match=match):
        load_data(str(tmp_path / "a.csv"))


FLOWERS = "width,species,name,note\n" + "".join(
    f"{k},{('rose', 'lily')[k % 2]},plant no {k},{'long ' * 30}\n" for k in range(120)
)  # fmt: skip


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_repeating_words_are_labels(tmp_path: Path, kind: str) -> None:
    path = str(tmp_path / f"flowers.{kind}")
    (tmp_path / "flowers.csv").write_text(FLOWERS)
    if kind == "parquet":
        arrow = pytest.importorskip("pyarrow", reason="the parquet extra is not installed")
        cells = [line.split(",") for line in FLOWERS.splitlines()]
        columns = {name: [row[k] for row in cells[1:]] for k, name in enumerate(cells[0])}
        table = arrow.table({**columns, "width": [float(v) for v in columns["width"]]})
        pytest.importorskip("pyarrow.parquet").write_table(table, path)
    data = load_data(path)
    assert data.shape == (1,) and data.label_names == ("lily", "rose") and data.label_counts() == [60, 60]
    assert data.notes[0].startswith("2 classes from the column species")
    assert data.notes[1].endswith(": name, note")
    none = load_data(path, labels="none")
    assert none.labels is None and list(none.report["left_out"]) == ["species", "name", "note"]
    chosen = load_data(path, labels="name")
    assert len(chosen.label_names) == 120 and chosen.notes[0].endswith(": species, note")
    for wrong, match in (("specie", "did you mean 'species'"), ("folder", "use auto, none, or a column: width, species")):
        with pytest.raises(UserError, match=match):
            load_data(path, labels=wrong)


def test_ambiguous_label_columns_are_noted(tmp_path: Path) -> None:
    rows = "".join(f"{k},{'ab'[k % 2]},{'cd'[k // 2 % 2]},{('', 'x', '7')[k % 3]}\n" for k in range(12))
    (tmp_path / "a.csv").write_text("x,first,second,third\n" + rows)
    data = load_data(str(tmp_path / "a.csv"))
    assert data.labels is None and "columns first and second could each be the label" in data.notes[0]
    assert "--labels first" in data.notes[0] and data.notes[1].endswith(": third")
    assert load_data(str(tmp_path / "a.csv"), labels="second").label_names == ("c", "d")


def test_parquet(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="the parquet extra is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = arrow.table({"a": [1.0, 2.0], "word": ["p", "q"], "b": [3, 4], "label": ["dog", "cat"]})
    parquet.write_table(table, tmp_path / "a.parquet")
    data = load_data(str(tmp_path / "a.parquet"))
    assert isinstance(data.x, torch.Tensor) and data.x.tolist() == [[1, 3], [2, 4]]
    assert data.label_names == ("cat", "dog") and data.labels is not None and data.labels.tolist() == [1, 0]
    assert "word" in data.notes[0]
    (tmp_path / "a.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-20])
    with pytest.raises(UserError, match="cannot be read as parquet"):
        load_data(str(tmp_path / "a.parquet"))


def test_points_have_no_size(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1,2\n3,4\n")
    for source in ("spiral", str(tmp_path / "a.csv")):
        with pytest.raises(UserError, match="no size"):
            load_data(source, size="32")


@pytest.mark.parametrize("points", [-1, 0, 1, 10**9 + 1])
def test_invalid_point_counts_are_refused_for_files_too(tmp_path: Path, points: int) -> None:
    (tmp_path / "a.csv").write_text("1,2\n3,4\n")
    with pytest.raises(UserError, match=f"2 to 1,000,000,000, got {points}"):
        load_data(str(tmp_path / "a.csv"), points)


def test_binarised_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REVERIE_DATA", raising=False)
    drawn = np.random.default_rng(0).random((12, 28, 28)) < 0.3
    np.savez_compressed(tmp_path / "binarized_mnist.npz", train=drawn[:9], valid=drawn[9:11], test=drawn[11:])
    data = load_data("binarized-mnist", data_dir=tmp_path)
    assert isinstance(data.x, torch.Tensor) and data.x.shape == (9, 1, 28, 28) and data.labels is None
    assert np.array_equal(data.x[:, 0].numpy() == 255, drawn[:9]) and set(data.x.unique().tolist()) == {0, 255}
    with pytest.raises(UserError, match="with an array `train` of images"):
        load_data("binarized-mnist", data_dir=tmp_path / "other")
    np.savez(tmp_path / "binarized_mnist.npz", test=drawn, valid=drawn)
    with pytest.raises(UserError, match="contains test, valid"):
        load_data("binarized-mnist", data_dir=tmp_path)
