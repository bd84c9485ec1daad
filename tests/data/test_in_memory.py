"""Data in memory: recognized by their interface, and refused if ambiguous."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from reverie.base.errors import UserError
from reverie.data import load_data

RANDOM = np.random.default_rng(0)


def pixels(*shape: int) -> np.ndarray:
    return RANDOM.integers(0, 256, shape).astype(np.uint8)


@pytest.mark.parametrize(
    ("x", "shape"),
    [
        (RANDOM.normal(size=(9, 3)), (3,)),
        (RANDOM.normal(size=9), (1,)),
        ([[1.0, 2.0], [3.0, 4.0]], (2,)),
        (torch.rand(9, 3, requires_grad=True), (3,)),
        (pixels(9, 8, 6), (1, 8, 6)),
        (pixels(9, 8, 6, 3), (3, 8, 6)),
        (pixels(9, 3, 8, 6), (3, 8, 6)),
        (torch.rand(9, 1, 8, 6), (1, 8, 6)),
        (torch.rand(9, 3, 8, 6, dtype=torch.bfloat16), (3, 8, 6)),
        ([torch.rand(3, 8, 6) for _ in range(5)], (3, 8, 6)),
    ],
)
def test_shapes_determine_kind_and_channels(x: Any, shape: tuple[int, ...]) -> None:
    data = load_data(x)
    assert data.shape == shape and len(data) == len(x) and data.labels is None
    assert data.kind == ("points" if len(shape) == 1 else "images")


def test_channel_axes() -> None:
    last = pixels(5, 8, 6, 3)
    first = last.transpose(0, 3, 1, 2)
    assert np.array_equal(load_data(last).x, first) and np.array_equal(load_data(first).x, first)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (pixels(9, 3, 8, 3), "second or last"),
        (pixels(8, 8, 3), "one image"),
        (RANDOM.random((9, 8, 8)) * 255, "divide by 255"),
        (RANDOM.random((9, 8, 8)) * 2 - 1, r"\(x \+ 1\) / 2"),
        (RANDOM.normal(size=(9, 8, 8)), "normalization"),
        (pixels(9, 8, 8) // 255, "all would be black"),
        (pixels(9, 8, 8).astype(int) * 20, "bytes from 0 to 255"),
        (np.full((9, 8, 8), np.nan), "not finite"),
        (np.ones((4, 2)) * 1j, "complex128"),
        (np.array(["a", "b"]), "give numbers"),
        (pixels(2, 2, 2, 2, 2), "expected points"),
        ([[1, 2], [3]], "different shapes"),
        ([], "empty"),
        (["a.png", Path("b.png")], "the folder of the files"),
        ({"train": 1}, "give one of its values"),
        ((k for k in range(3)), "generator"),
        (3, "of type int"),
        (Image.fromarray(pixels(8, 8)), "list of images"),
        ((pixels(9, 8, 8), [0, 1]), "2 labels for 9"),
        ((pixels(9, 8, 8), np.zeros((9, 3))), "one integer or name"),
        ((pixels(9, 8, 8), np.linspace(0, 1, 9)), "not integers"),
        ([Image.fromarray(pixels(8, 8)), pixels(8, 8)], "member 1 has the type ndarray"),
        ([pixels(8, 8), Image.fromarray(pixels(8, 8))], "member 0 has the type ndarray"),
        ([(pixels(8, 8), 1), pixels(8, 8)], "only some members"),
    ],
)
def test_ambiguous_data_are_refused(x: Any, message: str) -> None:
    with pytest.raises(UserError, match=message) as refused:
        load_data(x)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 320


def test_real_numbers_equal_bytes() -> None:
    x = pixels(9, 8, 8)
    assert np.array_equal(load_data(x / np.float32(255)).x, load_data(x).x)
    assert load_data(x > 127).report["range"] == [0, 255]
    assert load_data(x.astype(int)).fingerprint() == load_data(x).fingerprint()


def test_data_in_memory_equal_files(tmp_path: Path) -> None:
    x, y = pixels(9, 8, 8, 3), np.array(["10", "9", "9"] * 3)
    np.savez(tmp_path / "a.npz", x=x, y=y)
    assert load_data((x, y)).fingerprint() == load_data(str(tmp_path / "a.npz")).fingerprint()
    assert load_data((x, y)).fingerprint() != load_data(x).fingerprint() == load_data((x, y), labels="none").fingerprint()


@pytest.mark.parametrize("labels", [[0, 1, 2] * 3, torch.tensor([0, 1, 2] * 3), np.array([[0.0], [1.0], [2.0]] * 3)])
def test_labels_of_every_kind(labels: Any) -> None:
    data = load_data((RANDOM.normal(size=(9, 2)), labels))
    assert data.label_names == ("0", "1", "2") and data.label_counts() == [3, 3, 3]


def test_pil_images_are_fitted_like_a_folder(tmp_path: Path) -> None:
    images = [Image.fromarray(pixels(10 + k, 12, 3)) for k in range(4)] + [Image.fromarray(pixels(9, 9))]
    for k, image in enumerate(images):
        image.save(tmp_path / f"{k}.png")
    here, there = load_data(images), load_data(str(tmp_path))
    assert np.array_equal(here.x, there.x) and here.shape == (3, 10, 10)
    assert here.report["sizes"] == there.report["sizes"] and here.report["modes"] == there.report["modes"]
    assert load_data(images, size="4", channels=1).shape == (1, 4, 4)


class TorchSet(torch.utils.data.Dataset[tuple[Any, int]]):
    """Like a torchvision dataset: pairs by index, and class names."""

    classes = ("cat", "dog")

    def __init__(self, members: list[Any]) -> None:
        self.members = members

    def __len__(self) -> int:
        return len(self.members)

    def __getitem__(self, k: int) -> tuple[Any, int]:
        return self.members[k], k % 2


@pytest.mark.parametrize("form", ["image", "tensor"])
def test_torch_datasets(form: str) -> None:
    x = pixels(6, 8, 8)
    members = [Image.fromarray(one) if form == "image" else torch.from_numpy(one)[None] / 255 for one in x]
    data = load_data(TorchSet(members))
    assert np.array_equal(data.x[:, 0], x) and data.label_names == ("cat", "dog") and data.label_counts() == [3, 3]


class Column:
    """Like a polars column."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values

    def to_numpy(self) -> np.ndarray:
        return np.array(self.values)


class PolarsFrame:
    """The used interface of polars.DataFrame: column names and columns."""

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self.data, self.columns = columns, list(columns)

    def __len__(self) -> int:
        return len(next(iter(self.data.values())))

    def __getitem__(self, name: str) -> Column:
        return Column(self.data[name])


TABLE = {"a": [1.0, 2.0, 3.0, 4.0], "b": [1, 2, 3, 4], "kind": ["u", "v", "u", "v"], "note": ["w", "x", "y", "z"]}


def frame(library: str) -> Any:
    if library == "pandas":
        return pytest.importorskip("pandas").DataFrame(TABLE, index=[7, 8, 9, 10])
    return PolarsFrame(TABLE)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames_equal_csv_files(library: str, tmp_path: Path) -> None:
    rows = [",".join(TABLE), *(",".join(map(str, row)) for row in zip(*TABLE.values(), strict=True))]
    (tmp_path / "a.csv").write_text("\n".join(rows))
    here, there = load_data(frame(library)), load_data(str(tmp_path / "a.csv"))
    assert here.x.tolist() == there.x.tolist() == [[1, 1], [2, 2], [3, 3], [4, 4]] and here.label_names == ("u", "v")
    assert here.fingerprint() == there.fingerprint() and here.notes == there.notes
    assert load_data(frame(library), labels="b").label_names == ("1", "2", "3", "4")
    with pytest.raises(UserError, match="unknown label column of the table"):
        load_data(frame(library), labels="c")


def test_pandas_series_and_missing_values() -> None:
    pandas = pytest.importorskip("pandas")
    assert load_data(pandas.Series([1.0, 2.0], index=[5, 6])).x.tolist() == [[1], [2]]
    data = load_data(pandas.DataFrame({"a": pandas.array([1, None, 3, 5], dtype="Int64")}), columns="a")
    assert data.x.tolist() == [[1], [3], [5]]  # a row without any number is left out


class ClassLabel:
    names = ("cat", "dog")


class HuggingFaceSet:
    """The used interface of datasets.Dataset: column names, features, and columns as lists."""

    def __init__(self, columns: dict[str, list[Any]], features: dict[str, Any]) -> None:
        self.data, self.column_names, self.features = columns, list(columns), features

    def __len__(self) -> int:
        return len(next(iter(self.data.values())))

    def __getitem__(self, key: str | int) -> Any:
        return self.data[key] if isinstance(key, str) else {name: column[key] for name, column in self.data.items()}


def test_hugging_face_datasets() -> None:
    x = pixels(4, 8, 8)
    columns = {"id": list(range(4)), "image": [Image.fromarray(one) for one in x], "animal": [0, 1, 1, 0]}
    data = load_data(HuggingFaceSet(columns, {"animal": ClassLabel()}))
    assert np.array_equal(data.x[:, 0], x) and data.label_names == ("cat", "dog") and data.label_counts() == [2, 2]
    assert load_data(HuggingFaceSet(columns, {}), labels="none").labels is None
    points = load_data(HuggingFaceSet({"a": [1.0, 2.0], "b": [3.0, 4.0], "label": [0, 1]}, {"label": ClassLabel()}))
    assert points.x.tolist() == [[1, 3], [2, 4]] and points.label_names == ("cat", "dog")


@pytest.mark.parametrize("shape", [(9, 2), (9, 8, 8)])
def test_arrays_have_no_label_columns(shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match=r"give a pair \(x, labels\)"):
        load_data(pixels(*shape), labels="kind")


def test_flattened_images_are_noted() -> None:
    data = load_data(pixels(9, 784))
    assert data.kind == "points" and "(N, 28, 28)" in data.notes[-1]
