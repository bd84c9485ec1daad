"""Time series: windows of tables, arrays and sounds, and refused input."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import pytest
import torch

from reverie.base.errors import UserError
from reverie.data import load_data
from reverie.evaluation.inspection import inspect


def sound(path: Path, values: bytes, width: int, channels: int = 1) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(8000)
        file.writeframes(values)
    return path


def test_rows_of_a_table_and_of_an_array_are_cut_into_windows(tmp_path: Path) -> None:
    x = np.arange(26, dtype=np.float32).reshape(13, 2)
    np.save(tmp_path / "x.npy", x)
    (tmp_path / "x.csv").write_text("a,b\n" + "\n".join(f"{a},{b}" for a, b in x))
    for source in (tmp_path / "x.npy", tmp_path / "x.csv", x):
        data = load_data(source, window=4)
        assert data.kind == "series" and data.shape == (4, 2) and len(data) == 3
        assert np.array_equal(data.batch(torch.arange(3))[0].reshape(12, 2), x[1:])  # the oldest remainder is dropped
    assert load_data(tmp_path / "x.npy").kind == "points"


def test_the_last_in_time_are_held_out() -> None:
    data = load_data(np.arange(400.0)[:, None], window=4)
    train, held = data.split(0)
    assert len(held) == 5 and float(held.batch(torch.arange(5))[0].min()) > float(train.batch(torch.arange(95))[0].max())


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_sounds_are_numbers_between_minus_one_and_one(tmp_path: Path, width: int) -> None:
    half = 2 ** (8 * width - 1)
    wanted = np.array([0, half - 1, -half, half // 2] * 40)
    shifted = wanted + half if width == 1 else wanted
    values = b"".join(int(v).to_bytes(width, "little", signed=width > 1) for v in shifted)
    data = load_data(sound(tmp_path / "a.wav", values, width), window=8)
    x = data.batch(torch.arange(len(data)))[0]
    assert data.shape == (8, 1) and np.allclose(x.flatten(), wanted / half, atol=1e-6)
    assert load_data(sound(tmp_path / "b.wav", values, width, 2), window=8).shape == (8, 2)


def test_invalid_sounds_are_refused(tmp_path: Path) -> None:
    good = sound(tmp_path / "good.wav", bytes(4000), 2).read_bytes()
    damaged = {"cut": good[:30], "none": b"", "text": b"RIFF" + b"x" * 50, "size": good[:40] + b"\xff\xff\xff\x7f" + good[44:]}
    damaged["float"] = good[:20] + b"\x03\x00" + good[22:]
    for name, content in damaged.items():
        (tmp_path / f"{name}.wav").write_bytes(content)
        with pytest.raises(UserError, match=rf"{name}\.wav") as error:
            load_data(tmp_path / f"{name}.wav")
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("source", "window", "message"),
    [("digits8", 4, "needs rows of numbers"), ("oscillation", 1, "from 2 to"), ("spiral", 9000, "two windows of 9000")],
)
def test_invalid_options_are_refused(source: str, window: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_data(source, window=window)


def test_a_series_is_described_and_drawn(tmp_path: Path) -> None:
    found = inspect("oscillation", out=tmp_path / "s.png", reading={"window": 32, "points": 3200})
    assert found["kind"] == "series" and found["shape"] == [32, 1] and found["count"] == 100 and len(found["mean"]) == 1
    assert (tmp_path / "s.png").stat().st_size > 1000
