"""Images in parquet and arrow files as Hugging Face writes them, with random access."""

from __future__ import annotations

import io
import json
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from reverie.base.errors import UserError
from reverie.data import load_data
from reverie.data.shards import shard_images
from reverie.data.shards.shard_images import ShardImages
from reverie.training.loader import batches
from tests.data.served import serving

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
CLASSES = ["cat", "dog"]
FEATURES = {"image": {"_type": "Image"}, "label": {"names": CLASSES, "_type": "ClassLabel"}}


def pixels(count: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 255, (count, 8, 8, 3), dtype=np.uint8)


def png(image: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "png")
    return file.getvalue()


def table(count: int, **more: list[object]) -> object:
    """Return a table like Hugging Face's: {bytes, path}, and labels whose names are in the schema."""
    rows = [{"bytes": png(image), "path": None} for image in pixels(count)]
    kind = arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())])
    made = arrow.table({"image": arrow.array(rows, kind), "label": arrow.array([k % 2 for k in range(count)]), **more})
    return made.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": FEATURES}})})


def saved(folder: Path, *tables: object, **state: object) -> Path:
    """Write the files of `save_to_disk`."""
    folder.mkdir(parents=True)
    names = [f"data-{k:05d}-of-{len(tables):05d}.arrow" for k in range(len(tables))]
    for name, one in zip(names, tables, strict=True):
        with arrow.ipc.new_stream(folder / name, one.schema) as stream:
            stream.write_table(one, max_chunksize=7)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names], **state}))
    (folder / "dataset_info.json").write_text(json.dumps({"features": FEATURES}))
    return folder


@pytest.mark.parametrize("far", [False, True])
def test_parquet_is_read_by_row_group(far: bool, many_blocks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "p").mkdir()
    whole = table(90)
    for k in range(3):
        parquet.write_table(whole.slice(30 * k, 30), tmp_path / "p" / f"{k}.parquet", row_group_size=8)
    with serving(tmp_path) as server:
        source = f"{server.address}/p/{{0..2}}.parquet" if far else str(tmp_path / "p")
        data = load_data(source)
        assert isinstance(data.x, ShardImages) and data.label_names == tuple(CLASSES) and data.x.blocks.index.facts.blocks == 12
        index = torch.randperm(90, generator=torch.Generator().manual_seed(0))
        x, labels = data.batch(index)
        assert np.array_equal((255 * x).round().byte().permute(0, 2, 3, 1).numpy(), pixels(90)[index.numpy()])
        assert labels is not None and labels.tolist() == [int(k) % 2 for k in index]
        monkeypatch.setattr(shard_images, "GROUP", 20_000)
        tail = list(islice(batches(load_data(source), 16, 3, 4), 3))
        assert all(torch.equal(a, b) for (a, _), (b, _) in zip(list(islice(batches(data, 16, 3), 7))[4:], tail, strict=True))


def test_one_parquet_file_with_bytes_captions_and_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rows = {
        "jpg": [png(image) for image in pixels(6)],
        "caption": [f"a thing  number {k}" for k in range(6)],
        "angle": [0.5] * 6,
    }
    parquet.write_table(arrow.table(rows), tmp_path / "one.parquet")
    data = load_data(tmp_path / "one.parquet", condition_columns="angle", labels="captions")
    assert data.conditions is not None and data.conditions.captions[3] == "a thing number 3"
    assert data.conditions.numbers is not None and data.conditions.numbers.tolist() == [[0.5]] * 6


def test_saved_datasets(tmp_path: Path, many_blocks: None) -> None:
    data = load_data(saved(tmp_path / "d", table(40).slice(0, 25), table(40).slice(25)))
    assert isinstance(data.x, ShardImages) and data.label_names == tuple(CLASSES)
    assert np.array_equal(data.x.take(torch.arange(40)).permute(0, 2, 3, 1).numpy(), pixels(40))


def test_saved_datasets_with_splits(tmp_path: Path) -> None:
    saved(tmp_path / "d" / "train", table(12))
    saved(tmp_path / "d" / "test", table(4))
    (tmp_path / "d" / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    data = load_data(tmp_path / "d")
    assert len(data) == 12 and any("only the split train is read; for test" in note for note in data.notes)
    assert len(load_data(tmp_path / "d" / "test")) == 4


@pytest.mark.parametrize("channels", [1, 3])
def test_saved_datasets_of_lists(channels: int, tmp_path: Path) -> None:
    x = pixels(9)[..., 0] if channels == 1 else pixels(9)
    made = arrow.table({"image": x.tolist(), "label": [k % 2 for k in range(9)]})
    data = load_data(saved(tmp_path / "d", made.slice(0, 5), made.slice(5)))
    assert isinstance(data.x, torch.Tensor) and data.shape == (channels, 8, 8) and data.label_names == tuple(CLASSES)
    assert np.array_equal(data.x.permute(0, 2, 3, 1).numpy(), x.reshape(9, 8, 8, channels))


@pytest.mark.parametrize(
    ("state", "message"),
    [({"_indices_data_files": [{"filename": "i.arrow"}]}, "flatten_indices"), ({"_data_files": []}, "names no arrow files"),
     ({"_data_files": [{"filename": "../data.arrow"}]}, "names no arrow files"),
     ({"_data_files": [{"filename": "lost.arrow"}]}, "there is no .*lost.arrow")],
)  # fmt: skip
def test_unreadable_saved_datasets(state: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        load_data(saved(tmp_path / "d", table(4), **state))


def test_damaged_tables_are_named(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "0.parquet").write_bytes(b"PAR1 and then nothing" * 9)
    with pytest.raises(UserError, match=r"0.parquet cannot be read as parquet: .*; save or copy it again"):
        load_data(tmp_path / "p")
    folder = saved(tmp_path / "d", table(20))
    file = folder / "data-00000-of-00001.arrow"
    file.write_bytes(file.read_bytes()[:700])
    with pytest.raises(UserError, match=r"data-00000-of-00001.arrow cannot be read as arrow"):
        load_data(folder)
    parquet.write_table(arrow.table({"x": [1.0, 2.0]}), tmp_path / "p" / "0.parquet")
    with pytest.raises(UserError, match=r"0.parquet has no column of images as bytes"):
        load_data(tmp_path / "p")
