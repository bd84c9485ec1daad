"""Files that nobody compressed: each is refused with a sentence, and nothing is written."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from reverie.base.errors import UserError
from reverie.compression.archive import compress, decompress
from reverie.compression.container import MAGIC, MAX_FILE_BYTES, pack, pack_names, read, safe_name
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
        {"count": 10**7}, {"count": 10**6}, {"plain": 10**7}, {"plain": 13}, {"plain_bytes": MAX_FILE_BYTES},
        {"names_bytes": MAX_FILE_BYTES},
        {"steps": 1001}, {"steps": 1}, {"end": 0}, {"count": 0}, {"plain": 0}, {"count": 2**40},
        {"growth": 0}, {"begin": 0}, {"plain_bytes": 40}, {"count": 500},
    ):  # fmt: skip
        path.write_bytes(pack(header.model_copy(update=change), b"", bits))
        with pytest.raises(UserError, match="damaged"):
            decompress(run, path)


READING = """
import json, resource, sys, time
from reverie.base.errors import UserError
from reverie.compression.archive import decompress
from reverie.runs.run import load
from tests.files import forget, peak
run = load(sys.argv[1], "cpu")
for path in sys.argv[2:]:
    forget()
    before, begun, said = peak(), time.process_time(), ""
    try:
        decompress(run, path)
    except UserError as error:
        said = str(error)
    print(json.dumps([said, (peak() - before) / 2**20, time.process_time() - begun]), flush=True)
"""


def test_small_files_of_many_images_or_steps_are_refused_before_anything_is_computed(
    run: Run, images: Tensor, tmp_path: Path
) -> None:
    header, _, _ = read(compress(run, images[:12], tmp_path / "x.rvi", steps=3, end=0.1).path)
    wrong = {"images": (622_000, {"count": 10**7}), "steps": (12_500, {"count": 64 * 12_500, "steps": 1000}),
             "zeros": (4, {"count": 256, "steps": 1000, "growth": 0})}  # fmt: skip
    for name, (size, change) in wrong.items():
        words = np.random.default_rng(0).integers(0, 2**32, size // 4, dtype=np.uint32).tobytes()
        (tmp_path / name).write_bytes(pack(header.model_copy(update={**change, "names_bytes": 0}), b"", words))
    out = subprocess.run(
        [sys.executable, "-c", READING, str(run.path), *(str(tmp_path / name) for name in wrong)],
        capture_output=True, text=True, timeout=120, cwd=Path(__file__).parents[2], check=True,
    )  # fmt: skip
    for (name, (_, change)), line in zip(wrong.items(), out.stdout.splitlines(), strict=True):
        message, memory, seconds = json.loads(line)
        assert memory < 64 and seconds < 5, (name, message, memory, seconds)
        assert name in message and (f"{change['count']:,} images" in message or "MiB" in message), message


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
