"""Damaged, outdated and hostile shards and indexes are read or refused with a clear error."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import struct
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open

from reverie.base.errors import UserError
from reverie.base.tensors import write_tensors
from reverie.data import load_data
from reverie.data.shards.index import INDEX


def png(shade: int = 7, side: int = 8) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((side, side, 3), shade, np.uint8)).save(file, "png")
    return file.getvalue()


def member(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = size, kind, link
    return info


def tar(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    """Write a tar file of two valid images and other members."""
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as archive:
        for name, content in (("a.png", png(1)), ("a.cls", b"0")):
            archive.addfile(member(name, len(content)), io.BytesIO(content))
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
        for name, content in (("z.png", png(2)), ("z.cls", b"1")):
            archive.addfile(member(name, len(content)), io.BytesIO(content))
    return path.parent


@pytest.mark.parametrize(
    ("info", "content", "why"),
    [
        (member("../../out.png", len(png())), png(), "unsafe name"),
        (member("/etc/out.png", len(png())), png(), "unsafe name"),
        (member("link.png", kind=tarfile.SYMTYPE, link="/etc/passwd"), b"", "a link"),
        (member("hard.png", kind=tarfile.LNKTYPE, link="a.png"), b"", "a link"),
        (member("device.png", kind=tarfile.CHRTYPE), b"", "not a regular file"),
        (member("pipe.png", kind=tarfile.FIFOTYPE), b"", "not a regular file"),
        (member("empty.png"), b"", "empty"),
        (member("text.png", 5), b"hello", "not an image"),
        (member("cut.png", 50), png()[:50], "truncated|cannot be decoded"),
    ],
)
def test_unsafe_members_are_skipped_with_reasons(info: tarfile.TarInfo, content: bytes, why: str, tmp_path: Path) -> None:
    data = load_data(tar(tmp_path / "s" / "0.tar", (info, content)))
    assert len(data) == 2 and data.label_names == ("0", "1") and isinstance(data.x, torch.Tensor)
    assert data.x[:, 0, 0, 0].tolist() == [1, 2]
    [broken] = data.report["broken"]
    assert re.search(why, broken["reason"])
    shutil.rmtree(tmp_path / "s")
    with pytest.raises(UserError, match="leave out --strict"):
        load_data(tar(tmp_path / "s" / "0.tar", (info, content)), strict=True)


def test_an_image_of_too_many_pixels_is_not_decoded(tmp_path: Path) -> None:
    form = b"IHDR" + struct.pack(">II", 30_000, 30_000) + png()[24:29]
    bomb = png()[:12] + form + struct.pack(">I", zlib.crc32(form)) + png()[33:]
    data = load_data(tar(tmp_path / "s" / "0.tar", (member("bomb.png", len(bomb)), bomb)))
    assert len(data) == 2 and "megapixels" in data.report["broken"][0]["reason"]


def test_sparse_members_are_skipped(tmp_path: Path) -> None:
    folder = tar(tmp_path / "s" / "0.tar", (member("holes.png", 0, tarfile.GNUTYPE_SPARSE), b""))
    assert len(load_data(folder)) == 2


def test_excessive_headers_are_refused(tmp_path: Path) -> None:
    folder = tar(tmp_path / "s" / "0.tar", (member("long", 2**21, tarfile.GNUTYPE_LONGNAME), bytes(2**21)))
    with pytest.raises(UserError, match=r"0.tar is not a complete tar file \(a header of an invalid size\)"):
        load_data(folder)


def changed(shards: Path, how: Callable[[dict[str, torch.Tensor], dict[str, object]], None]) -> None:
    """Rewrite the index with a change and a valid checksum."""
    with safe_open(shards / INDEX, "pt") as file:
        facts = json.loads(file.metadata()["facts"])
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    how(tensors, facts)
    write_tensors(shards / INDEX, tensors, json.dumps(facts))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("offset", -1, "invalid size"), ("offset", 2**50, "outside its block"), ("size", 0, "invalid size"),
        ("size", 2**30, "invalid size"), ("block", 9999, "to no block"), ("label", 77, "unknown label"),
        ("block_start", 2**50, "ends after its shard"), ("block_shard", 500, "to no shard"), ("mode", 9, "or mode"),
        ("name_end", 2**40, "not in order"), ("caption_end", 5, "not in order"), ("height", 0, "no pixels"),
    ],
)  # fmt: skip
def test_invalid_indexes_are_refused(name: str, value: int, message: str, shards: Path) -> None:
    changed(shards, lambda tensors, facts: tensors[name].__setitem__(-1 if "block" in name else 3, value))
    with pytest.raises(UserError, match=rf"index.safetensors is not a valid index of these shards: .*{message}.*; remove .*"):
        load_data(shards)


def test_inconsistent_index_metadata_is_refused(shards: Path) -> None:
    changed(shards, lambda tensors, facts: facts.update(count=10**6))
    with pytest.raises(UserError, match="does not fit"):
        load_data(shards)
    (shards / INDEX).write_bytes((shards / INDEX).read_bytes()[:-9])
    with pytest.raises(UserError, match="truncated or damaged"):
        load_data(shards)
    (shards / INDEX).unlink()
    assert len(load_data(shards)) == 120


def test_changed_images_are_detected_when_read(shards: Path) -> None:
    changed(shards, lambda tensors, facts: tensors["check"].add_(1))
    with pytest.raises(UserError, match=r"image 7 \(cat/15.png\) of .*/00000\d.tar has changed since it was indexed"):
        load_data(shards).batch(torch.tensor([7]))


@pytest.mark.parametrize("fault", ["cut", "longer", "gone", "new"])
def test_outdated_indexes_are_refused(fault: str, shards: Path) -> None:
    shard = shards / "000002.tar"
    match fault:
        case "cut":
            shard.write_bytes(shard.read_bytes()[:-512])
        case "longer":
            shard.write_bytes(shard.read_bytes() + bytes(512))
        case "gone":
            shard.unlink()
        case "new":
            shutil.copy(shard, shards / "000999.tar")
    name = "000999.tar" if fault == "new" else "000002.tar"
    with pytest.raises(UserError, match=rf"index.safetensors is outdated: {name} (has|is) .*; .* remove .*{INDEX}"):
        load_data(shards)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.93])
def test_truncated_tar_files_are_refused(share: float, shards: Path) -> None:
    (shards / INDEX).unlink()
    content = (shards / "000001.tar").read_bytes()
    end = content.rstrip(b"\0").rfind(b"ustar")  # the last header
    (shards / "000001.tar").write_bytes(content[: int(share * end) // 512 * 512])
    with pytest.raises(UserError, match=r"000001.tar is not a complete tar file \(.*\); copy or pack it again"):
        load_data(shards)
    assert not (shards / INDEX).exists()


def test_files_that_are_not_shards(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "0.tar").write_bytes(b"not a tar file" * 99)
    with pytest.raises(UserError, match="is not a complete tar file"):
        load_data(tmp_path / "s")
    with tarfile.open(tmp_path / "s" / "0.tar", "w"):
        pass
    with pytest.raises(UserError, match="0 usable images found"):
        load_data(tmp_path / "s")


@pytest.mark.parametrize("name", [INDEX, "000001.tar"])
def test_flipped_bytes_are_detected_or_harmless(name: str, shards: Path) -> None:
    random, good = np.random.default_rng(3), (shards / name).read_bytes()
    every, truth = torch.arange(120), load_data(shards).batch(torch.arange(120))[0]
    found = 0
    for _ in range(12):
        spoiled = bytearray(good)
        for place in random.integers(0, len(good), 3 if name == INDEX else 40):
            spoiled[place] ^= int(random.integers(1, 256))
        (shards / name).write_bytes(spoiled)
        try:
            assert torch.equal(load_data(shards).batch(every)[0], truth)  # for example a byte between two images
        except UserError as error:
            found += 1
            assert name in str(error) and "\n" not in str(error)
    assert found > 3


def test_changed_tar_files_are_indexed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for shade in (5, 6):
        tar(tmp_path / "s" / "0.tar", (member("m.png", len(png(shade))), png(shade)), (member("m.cls", 1), b"1"))
        os.utime(tmp_path / "s" / "0.tar", (shade, shade))
        data = load_data(tmp_path / "s" / "0.tar")
        assert isinstance(data.x, torch.Tensor) and data.x[:, 0, 0, 0].tolist() == [1, shade, 2]
