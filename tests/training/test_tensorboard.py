from __future__ import annotations

import struct
import sys
from pathlib import Path

import pytest

import reverie
from reverie.base.errors import UserError


def events(path: Path) -> dict[str, list[tuple[int, float]]]:
    """Read a file of TensorBoard events: records of length, checksum, protobuf, checksum."""
    from tensorboardX.proto.event_pb2 import Event

    content, found, at = path.read_bytes(), {}, 0
    while at < len(content):
        (length,) = struct.unpack("<Q", content[at : at + 8])
        event = Event.FromString(content[at + 12 : at + 12 + length])
        for value in event.summary.value:
            found.setdefault(value.tag, []).append((event.step, value.simple_value))
        at += 16 + length
    return found


def test_the_events_are_the_reports(tmp_path: Path) -> None:
    run = reverie.train("moons", tmp_path / "run", steps=20, points=200, tensorboard=True)
    (file,) = (run.path / "tensorboard").iterdir()
    curves = events(file)
    rows = run.metrics()
    assert curves["loss/training"] == [(row["i"], pytest.approx(row["loss"])) for row in rows]
    held = [row for row in rows if "held_out" in row]
    assert curves["loss/held_out"] == [(row["i"], pytest.approx(row["held_out"])) for row in held]
    assert len([name for name in curves if name.startswith("held_out_by_noise/")]) == 4


def test_without_the_package_it_is_refused_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(UserError, match=r"pip install 'reverie\[tensorboard\]'"):
        reverie.train("moons", tmp_path / "run", steps=20, points=200, tensorboard=True)
    assert not (tmp_path / "run").exists()
