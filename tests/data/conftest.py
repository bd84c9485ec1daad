"""A folder of small images of three classes, and the same images in shards of many small blocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from reverie.data.shards import build, packing, read, shard_images

CLASSES, EACH = ("cat", "dog", "eel"), 40


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 images of 8 x 8 in three folders."""
    root, random = tmp_path_factory.mktemp("data") / "photos", np.random.default_rng(0)
    for name in CLASSES:
        (root / name).mkdir(parents=True)
        for k in range(EACH):
            Image.fromarray(random.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(root / name / f"{k}.png")
    return root


@pytest.fixture
def many_blocks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Use blocks of about five images, groups of about four blocks, and no images in memory."""
    monkeypatch.setattr(build, "BLOCK", 12_000)
    monkeypatch.setattr(shard_images, "GROUP", 50_000)
    monkeypatch.setattr(shard_images, "CACHE", 150_000)
    monkeypatch.setattr(read, "MEMORY_LIMIT", 0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def shards(many_blocks: None, photos: Path, tmp_path: Path) -> Path:
    """The photos in about ten shards."""
    packing.pack(photos, tmp_path / "shards", shard_size="30KB")
    return tmp_path / "shards"
