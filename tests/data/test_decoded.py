"""The cache of decoded images: used if no file has changed, and never if damaged."""

from __future__ import annotations

import os
import shutil
import zipfile
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from reverie.base.cache import SWITCH, Cache
from reverie.base.errors import UserError
from reverie.data import Dataset, decoded, image_folder, load_data

COUNT, SIDE = 6, 40


def picture(seed: int) -> bytes:
    file = BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (SIDE, SIDE + seed % 3, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(decoded, "MIN_PIXELS", 1)
    root = tmp_path / "images"
    for k in range(COUNT):
        (root / f"class{k % 2}").mkdir(parents=True, exist_ok=True)
        (root / f"class{k % 2}" / f"{k}.png").write_bytes(picture(k))
    return root


@pytest.fixture
def decodings(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Record which files are decoded."""
    seen: list[bytes] = []
    decode = image_folder.decode
    monkeypatch.setattr(image_folder, "decode", lambda data, recipe: (seen.append(data), decode(data, recipe))[1])
    return seen


def same(a: Dataset, b: Dataset) -> bool:
    assert isinstance(a.x, torch.Tensor) and isinstance(b.x, torch.Tensor)
    notes = [[note for note in data.notes if SWITCH not in note] for data in (a, b)]
    return (
        torch.equal(a.x, b.x) and a.fingerprint() == b.fingerprint() and a.label_names == b.label_names
        and notes[0] == notes[1] and a.report == b.report
    )  # fmt: skip


def from_cache(data: Dataset) -> bool:
    return any(SWITCH in note for note in data.notes)


def kept(images: Path) -> list[Path]:
    return list((images.parent / "cache" / "reverie" / "decoded").glob("*"))


def test_files_are_decoded_once(images: Path, decodings: list[bytes]) -> None:
    first, again = load_data(str(images), size="16"), load_data(str(images), size="16")
    assert len(decodings) == COUNT and not from_cache(first) and from_cache(again) and same(first, again)
    other = load_data(str(images), size="8")
    assert len(decodings) == 2 * COUNT and other.shape == (3, 8, 8) and not from_cache(other)
    assert from_cache(load_data(str(images), size="16", labels="none"))  # labels do not affect decoding


def test_a_file_that_changed_is_decoded_again(images: Path, decodings: list[bytes]) -> None:
    load_data(str(images), size="16")
    path = images / "class0" / "0.png"
    state, content = path.stat(), picture(3)
    shutil.copy(path, images.parent / "old.png")
    path.write_bytes(content[: state.st_size].ljust(state.st_size, b"\0"))
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))  # same size and time
    changed = load_data(str(images), size="16")
    assert not from_cache(changed) and len(decodings) >= 2 * COUNT - 1
    (images / "class1" / "new.png").write_bytes(picture(9))
    assert len(load_data(str(images), size="16")) > len(changed)


def test_a_zip_is_decoded_once(images: Path, decodings: list[bytes]) -> None:
    path = images.parent / "images.zip"
    with zipfile.ZipFile(path, "w") as file:
        for k in range(COUNT):
            file.writestr(f"{k}.png", picture(k))
    first, again = load_data(str(path), size="16"), load_data(str(path), size="16")
    assert len(decodings) == COUNT and from_cache(again) and same(first, again)


@pytest.mark.parametrize("damage", ["cut", "changed", "other data"])
def test_a_damaged_file_is_decoded_again(damage: str, images: Path, decodings: list[bytes]) -> None:
    first = load_data(str(images), size="16")
    (path,) = kept(images)
    content = path.read_bytes()
    if damage == "other data":
        load_data(str(images), size="8")
        (other,) = set(kept(images)) - {path}
        shutil.copy(other, path)
    else:
        path.write_bytes(content[:-9] if damage == "cut" else content[:-1] + bytes([content[-1] ^ 1]))
    decodings.clear()
    again = load_data(str(images), size="16")
    assert len(decodings) == COUNT and not from_cache(again) and same(first, again)
    assert from_cache(load_data(str(images), size="16"))  # it was replaced


def test_broken_files_are_cached_too(images: Path, decodings: list[bytes]) -> None:
    path = images / "class0" / "2.png"
    path.write_bytes(path.read_bytes()[:-60])
    first, again = load_data(str(images), size="16"), load_data(str(images), size="16")
    assert len(first) == COUNT - 1 and from_cache(again) and same(first, again)
    assert [row["file"] for row in again.report["broken"]] == ["class0/2.png"]
    with pytest.raises(UserError, match=r"class0/2\.png"):
        load_data(str(images), size="16", strict=True)


def test_what_is_not_cached(images: Path, decodings: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv(SWITCH, "off")
        load_data(str(images), size="16")
    with monkeypatch.context() as patch:
        patch.setattr(decoded, "MIN_PIXELS", 10**7)
        load_data(str(images), size="16")
    with monkeypatch.context() as patch:
        patch.setattr(decoded, "CACHE", Cache("decoded", 4 * COUNT * 3 * 16 * 16 - 4))
        load_data(str(images), size="16")
    assert not kept(images) and len(decodings) == 3 * COUNT


def test_concurrent_programs(images: Path) -> None:
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: load_data(str(images), size="16"), range(8)))
    assert all(same(found[0], one) for one in found) and len(kept(images)) == 1
