"""`reverie pack`: deterministic, in WebDataset format, and atomic."""

from __future__ import annotations

import hashlib
import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import reverie
from reverie.base.errors import UserError
from reverie.data import load_data
from reverie.data.shards import build, packing
from reverie.data.shards.index import INDEX, read_index
from tests.files import full_disk


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_the_same_images_give_the_same_bytes(photos: Path, tmp_path: Path) -> None:
    made = reverie.pack(photos, tmp_path / "a", shard_size="50KB")
    shutil.copytree(photos, tmp_path / "copy")
    reverie.pack(tmp_path / "copy", tmp_path / "b", shard_size="50KB")
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    assert made.count == 120 and made.classes == 3 and made.shards == len(list((tmp_path / "a").glob("*.tar"))) > 3
    assert load_data(tmp_path / "a").fingerprint() == load_data(photos).fingerprint()


def test_packing_and_indexing_give_the_same_index(shards: Path) -> None:
    packed = (shards / INDEX).read_bytes()
    (shards / INDEX).unlink()
    load_data(shards)
    assert (shards / INDEX).read_bytes() == packed


def test_shards_are_in_webdataset_format(photos: Path, tmp_path: Path) -> None:
    reverie.pack(photos, tmp_path / "a")
    with tarfile.open(tmp_path / "a" / "000000.tar") as archive:
        names = archive.getnames()
        assert names[:3] == ["000000000.png", "000000000.cls", "000000000.json"]
        file = archive.extractfile(names[-2])
        assert file is not None and file.read() == b"2"
        file = archive.extractfile(names[-1])
        assert file is not None and json.loads(file.read()) == {"name": "eel/9.png", "label": "eel"}
        assert all(member.mtime == 0 and member.uid == 0 and member.uname == "" for member in archive)


def test_captions_and_numbers_are_packed(photos: Path, tmp_path: Path) -> None:
    shutil.copytree(photos / "cat", tmp_path / "cats")
    rows = [{"file_name": f"{k}.png", "text": f"cat {k} sits", "angle": k / 2} for k in range(40)]
    (tmp_path / "cats" / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    reverie.pack(tmp_path / "cats", tmp_path / "a", condition_columns="angle")
    ours = load_data(tmp_path / "a", condition_columns="angle")
    theirs = load_data(tmp_path / "cats", condition_columns="angle")
    assert ours.conditions is not None and theirs.conditions is not None
    assert ours.conditions.captions == theirs.conditions.captions and ours.conditions.form == theirs.conditions.form
    every = torch.arange(40)
    assert torch.allclose(ours.conditions.batch(every), theirs.conditions.batch(every), rtol=0, atol=0, equal_nan=True)
    assert ours.fingerprint() == theirs.fingerprint()
    with pytest.raises(UserError, match=r"no number 'height'.*they have: angle"):
        load_data(tmp_path / "a", condition_columns="height")


def test_labels_from_image_names(photos: Path, tmp_path: Path) -> None:
    reverie.pack(photos, tmp_path / "a", labels="none")
    assert load_data(tmp_path / "a", labels="folder").label_names == ("cat", "dog", "eel")
    assert load_data(tmp_path / "a", labels="none").labels is None
    for how, message in (("cls", "have no labels"), ("captions", "has a caption"), ("csv", "has shards")):
        with pytest.raises(UserError, match=message):
            load_data(tmp_path / "a", labels=how)


def test_broken_images_are_skipped_and_reported(photos: Path, tmp_path: Path) -> None:
    shutil.copytree(photos, tmp_path / "f")
    (tmp_path / "f" / "cat" / "0.png").write_bytes(b"no image")
    whole = (tmp_path / "f" / "dog" / "3.png").read_bytes()
    (tmp_path / "f" / "dog" / "3.png").write_bytes(whole[:-40])
    made = reverie.pack(tmp_path / "f", tmp_path / "a")
    assert made.count == 118 and {name for name, _ in made.broken} == {"cat/0.png", "dog/3.png"}
    assert read_index(tmp_path / "a" / INDEX, "").facts.broken_count == 2
    with pytest.raises(UserError, match="leave out --strict"):
        reverie.pack(tmp_path / "f", tmp_path / "b", strict=True)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("size", ["", "5", "-1MB", "1PB", "1e9", "nan", "999999GB"])
def test_impossible_sizes_are_refused(size: str, photos: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="write 256MB"):
        reverie.pack(photos, tmp_path / "a", shard_size=size)
    assert not (tmp_path / "a").exists()


def test_other_files_are_never_overwritten(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "diary.txt").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(UserError, match=r"not empty|other files"):
            reverie.pack(photos, tmp_path / "a", overwrite=overwrite)
    with pytest.raises(UserError, match="is inside"):
        reverie.pack(photos, photos / "shards")
    with pytest.raises(UserError, match=r"not a folder, .zip or .tar"):
        reverie.pack(tmp_path / "nothing", tmp_path / "b")
    reverie.pack(photos, tmp_path / "c")
    before = digests(tmp_path / "c")
    with full_disk(30_000), pytest.raises(UserError, match="cannot write"):
        reverie.pack(photos, tmp_path / "c", overwrite=True)
    assert digests(tmp_path / "c") == before and sorted(p.name for p in tmp_path.iterdir()) == ["a", "c"]


def test_an_interrupted_pack_leaves_nothing(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(what: str, done: int, total: int) -> None:
        if what == "packing":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reverie.pack(photos, tmp_path / "a", on_progress=stop)
    assert not list(tmp_path.iterdir())


def test_the_command(photos: Path, tmp_path: Path, command: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = command("pack", photos, "--out", tmp_path / "a", "--shard-size", "60KB", "--json")
    assert code == 0 and json.loads(out)["count"] == 120
    code, out, _ = command("inspect", tmp_path / "a", "--out", tmp_path / "sheet.png", "--json")
    found = json.loads(out)
    assert code == 0 and found["count"] == 120 and found["shards"] > 2
    assert Image.open(tmp_path / "sheet.png").size[0] > 50
    code, _, err = command("pack", photos, "--out", tmp_path / "a")
    assert code == 2 and "is not empty; choose another --out" in err


def test_read_only_shards_have_a_cached_index(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (shards / INDEX).unlink()
    (shards / INDEX).symlink_to("/nowhere/at/all")  # a folder that is not writable
    data = load_data(shards)
    assert len(data) == 120 and len(list((tmp_path / "cache" / "reverie" / "indexes").iterdir())) == 1
    monkeypatch.setattr(build, "examine", None)
    assert np.array_equal(load_data(shards).batch(torch.arange(3))[0], data.batch(torch.arange(3))[0])


def test_parse_bytes() -> None:
    assert [packing.parse_bytes(text) for text in ("256MB", "1 GiB", "10KB", "2.5mb", "20000")] == [
        256_000_000, 2**30, 10_000, 2_500_000, 20_000,
    ]  # fmt: skip
