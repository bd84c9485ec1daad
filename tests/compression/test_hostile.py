"""Files that nobody compressed: each is refused with a sentence, and nothing is written."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from reverie.base.errors import UserError
from reverie.compression.archive import compress, decompress
from reverie.compression.form import LARGEST_FILE, MAGIC, pack, pack_names, read, safe_name
from reverie.runs.run import Run


def resealed(content: bytes) -> bytes:
    """Return a damaged file whose checksum is right."""
    return MAGIC + struct.pack("<I", zlib.crc32(content[8:])) + content[8:]


def test_damaged_files_and_other_runs_are_refused(
    run: Run, digits_run: Run, images: Tensor, command: Any, tmp_path: Path
) -> None:
    path = compress(run, images[:12], tmp_path / "x.rvi", steps=3, end=0.1).path
    whole = path.read_bytes()
    with pytest.raises(UserError, match="another model"):
        decompress(digits_run, path)
    for damaged in (b"", whole[:3], whole[:20], whole[:-4], whole + b"0000", b"\x89PNG" + whole):
        path.write_bytes(damaged)
        code, _, err = command("decompress", run.path, path, "--out", tmp_path / "out/")
        assert code == 2 and err.count("\n") == 1 and ("damaged" in err or "no file of images" in err), damaged[:40]
    for k in range(8, len(whole), 61):
        path.write_bytes(changed := whole[:k] + bytes([whole[k] ^ 4]) + whole[k + 1 :])
        with pytest.raises(UserError, match="damaged"):
            read(path)
        path.write_bytes(resealed(changed))
        with pytest.raises(UserError, match=r"damaged|another model|not trusted"):
            decompress(run, path)
    for longer in (whole + b"0000", whole[:-4], whole + bytes(4)):
        path.write_bytes(resealed(longer))
        with pytest.raises(UserError, match="damaged"):
            decompress(run, path)
    for name in ("gone.rvi", "", "\0", "."):
        with pytest.raises(UserError):
            decompress(run, tmp_path / name)
    assert list(tmp_path.iterdir()) == [path]


def test_no_number_of_a_header_is_believed(run: Run, images: Tensor, tmp_path: Path) -> None:
    path = compress(run, images[:12], tmp_path / "x.rvi", steps=3, end=0.1).path
    header, _, bits = read(path)
    for change in (
        {"count": 10**7}, {"count": 10**6}, {"plain": 10**7}, {"plain": 13}, {"plain_bytes": LARGEST_FILE},
        {"names_bytes": LARGEST_FILE},
        {"steps": 1001}, {"steps": 1}, {"end": 0}, {"count": 0}, {"plain": 0}, {"count": 2**40},
        {"growth": 0}, {"begin": 0}, {"plain_bytes": 40}, {"count": 500},
    ):  # fmt: skip
        path.write_bytes(pack(header.model_copy(update=change), b"", bits))
        with pytest.raises(UserError, match="damaged"):
            decompress(run, path)


def test_names_lead_nowhere_else(run: Run, images: Tensor, tmp_path: Path) -> None:
    path = compress(run, images[:6], tmp_path / "x.rvi", names=list("abcdef"), steps=3, end=0.1).path
    header, _, bits = read(path)

    def renamed(names: list[str] | bytes) -> None:
        packed = names if isinstance(names, bytes) else pack_names(names)
        path.write_bytes(pack(header.model_copy(update={"names_bytes": len(packed)}), packed, bits))

    for wrong in ("../x", "/etc/x", "a/../../x", "", ".x", "a//b", "a\\b", "C:x", "a\x1b[2J", "x" * 2000, "a/.", "b\n"):
        assert not safe_name(wrong)
        renamed(["a", "b", "c", "d", "e", wrong])
        with pytest.raises(UserError, match=r"not trusted|damaged"):
            decompress(run, path, out=tmp_path / "out")
    bomb = zlib.compress(b"\0" * 10**7, 9)
    for damaged in (["a"], ["a"] * 6, b"none", bomb):
        renamed(damaged)
        with pytest.raises(UserError, match="damaged"):
            decompress(run, path)
    renamed(["in/a.png", "b", "c", "d", "e", "f"])
    (tmp_path / "out").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out" / "in").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="is a link"):
        decompress(run, path, out=tmp_path / "out")
    assert not list((tmp_path / "elsewhere").iterdir())
    (tmp_path / "out" / "in").unlink()
    assert torch.equal(decompress(run, path, out=tmp_path / "out").x, images[:6]) and (tmp_path / "out/in/a.png").is_file()
