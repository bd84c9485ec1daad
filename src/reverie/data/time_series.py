"""Time series, cut into windows of one length.  Columns of a table or an array are the numbers of a time step."""

from __future__ import annotations

import wave
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from reverie.base.errors import UserError
from reverie.base.files import reason
from reverie.data.copies import count_duplicates
from reverie.data.dataset import Dataset
from reverie.data.reading import ReadingOptions, duplicate_note

WINDOW, MAX_WINDOW = 64, 16384  # default and maximum time steps of a datum
MAX_BYTES, MAX_CHANNELS = 2**31, 64  # of a .wav file
# x_t = 1.6 x_{t-1} - 0.8 x_{t-2} + eps: a damped wave with a period of about 13 time steps, driven by noise.
OSCILLATION = (1.6, -0.8)


def check_window(window: int | None) -> None:
    """Refuse an invalid window length."""
    if window is not None and not (isinstance(window, int) and 2 <= window <= MAX_WINDOW):
        raise UserError(f"--window must be from 2 to {MAX_WINDOW:,} time steps, got {window}")


def cut_windows(name: str, x: np.ndarray, window: int, notes: tuple[str, ...], source: str) -> Dataset:
    """Return a long series as consecutive windows; the remainder at its start is dropped.  x: (T, C) float32."""
    count = len(x) // window
    if count < 2:
        raise UserError(
            f"{source} has {len(x):,} time steps; at least two windows of {window} are needed; set a smaller --window"
        )
    cut = np.ascontiguousarray(x[len(x) - count * window :]).reshape(count, window, x.shape[1])
    copies = count_duplicates(cut)
    report = {
        "source": source, "kind": "series", "count": count, "shape": [window, x.shape[1]], "moments": len(x),
        "range": [float(cut.min()), float(cut.max())], "duplicates": copies, "broken": [],
    }  # fmt: skip
    note = f"{len(x):,} time steps of {x.shape[1]} numbers each, cut into {count:,} windows of {window}"
    return Dataset(name, torch.from_numpy(cut), None, (), (note, *notes, *duplicate_note(copies, "window")), report)


def as_series(points: Dataset, window: int, source: str) -> Dataset:
    """Return consecutive points as a series in windows; labels are dropped."""
    if points.kind != "points" or not isinstance(points.x, torch.Tensor):
        raise UserError(f"{source} contains {points.kind}, and --window needs rows of numbers; leave it out")
    notes = tuple(note for note in points.notes if "exact cop" not in note)
    label_note = ("series have no labels, so the labels are ignored",) if points.labels is not None else ()
    series = cut_windows(points.name, points.x.numpy(), window, (*notes, *label_note), source)
    about = {key: points.report[key] for key in ("table", "columns", "left_out", "filled") if key in points.report}
    return replace(series, columns=points.columns, report={**series.report, **about})


def read_wav(path: Path, name: str, options: ReadingOptions) -> Dataset:
    """Read a sound as a series in windows: a number in [-1, 1] for each channel at each time step."""
    try:
        with wave.open(str(path), "rb") as sound:
            width, channels, rate = sound.getsampwidth(), sound.getnchannels(), sound.getframerate()
            if width > 4 or channels > MAX_CHANNELS:
                raise UserError(
                    f"{path} has {8 * width} bits and {channels} channels; at most 32 bits and {MAX_CHANNELS} channels"
                    " are supported"
                )
            if sound.getnframes() * width * channels > min(MAX_BYTES, path.stat().st_size):
                raise UserError(f"the header of {path} states more samples than the file contains; save it again")
            data = sound.readframes(sound.getnframes())
    except OSError as error:
        raise UserError(f"{path} cannot be read: {reason(error)}") from None
    except (wave.Error, EOFError, ValueError, RuntimeError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path} cannot be read as sound: {error}; save it as plain .wav of integers") from None
    end = len(data) // (width * channels) * width * channels
    x = _samples(data[:end], width).reshape(-1, channels)
    note = (f"sound with {rate:,} samples per second, {width * 8} bits",)
    return cut_windows(name, x, options.window or WINDOW, note, str(path))


def _samples(data: bytes, width: int) -> np.ndarray:
    """Return integers of this many bytes, as stored in .wav, as numbers in [-1, 1): (n,) float32."""
    if width == 1:
        return (np.frombuffer(data, np.uint8).astype(np.float32) - 128) / 128
    if width == 3:
        padded = np.zeros((len(data) // 3, 4), np.uint8)
        padded[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
        return (padded.view("<i4")[:, 0].astype(np.float64) / 2**31).astype(np.float32)
    numbers: np.ndarray = np.frombuffer(data, np.dtype(f"<i{width}")) / 2.0 ** (8 * width - 1)
    return numbers.astype(np.float32)


def oscillation(points: int, seed: int, options: ReadingOptions) -> Dataset:
    """A noise-driven damped wave: an autoregressive series of order 2 in its stationary state."""
    random = np.random.default_rng(seed)
    x, before = np.empty(points + 200), (0.0, 0.0)
    for t, noise in enumerate(random.normal(0, 0.3, len(x))):
        x[t] = OSCILLATION[0] * before[0] + OSCILLATION[1] * before[1] + noise
        before = (x[t], before[0])
    return cut_windows("oscillation", x[200:, None].astype(np.float32), options.window or WINDOW, (), "oscillation")
