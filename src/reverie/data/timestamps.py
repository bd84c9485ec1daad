"""Timestamps: date formats, monotonic columns, and detection of tables that are time series."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial

import numpy as np

FORMATS = (
    "%d.%m.%Y", "%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M:%S", "%d.%m.%y", "%m/%d/%Y", "%d/%m/%Y", "%m/%d/%Y %H:%M", "%d/%m/%Y %H:%M",
    "%m/%d/%Y %H:%M:%S", "%d/%m/%Y %H:%M:%S", "%Y/%m/%d", "%Y/%m/%d %H:%M", "%Y/%m/%d %H:%M:%S", "%Y-%m", "%d-%m-%Y",
    "%b %Y", "%B %Y", "%d %b %Y", "%d %B %Y", "%H:%M", "%H:%M:%S",
)  # fmt: skip
MAX_LENGTH = 40  # maximum characters of a date
CORRELATED, CORRELATED_WITHOUT_TIME = 0.6, 0.95  # lag-1 autocorrelations that indicate a series, with and without timestamps
# Rows needed to detect a series; time steps of the suggested window, and minimum number of windows.
MIN_ROWS, WINDOW, MIN_WINDOWS = 40, 64, 20


def date_reader(cells: Sequence[str]) -> Callable[[str], float] | None:
    """Return a parser of dates in one common format, in seconds; None if the cells are not dates."""
    if not cells or any(len(cell) > MAX_LENGTH or not any(sign.isdecimal() for sign in cell) for cell in cells):
        return None
    for form in (None, *FORMATS):
        read = partial(_seconds, form)
        with suppress(ValueError, OverflowError):
            for cell in cells:
                read(cell)
            return read
    return None


def _seconds(form: str | None, cell: str) -> float:
    """Return a date in seconds.  form: a format of strptime; None: ISO 8601."""
    date = datetime.fromisoformat(cell) if form is None else datetime.strptime(cell, form)
    return (date if date.tzinfo is not None else date.replace(tzinfo=UTC)).timestamp()


def seconds_of(cells: Sequence[str], read: Callable[[str], float]) -> np.ndarray:
    """Return dates in seconds, NaN for cells without one: (N,)."""
    out = np.full(len(cells), np.nan)
    for k, cell in enumerate(cells):
        with suppress(ValueError, OverflowError):
            out[k] = read(cell)
    return out


def monotonicity(numbers: np.ndarray | None) -> int:
    """Return 1 for non-decreasing numbers, -1 for non-increasing ones, 0 for others and for a constant."""
    steps = np.diff(numbers[~np.isnan(numbers)]) if numbers is not None else np.zeros(0)
    rises, falls = bool((steps > 0).any()), bool((steps < 0).any())
    return int(rises) - int(falls)


def autocorrelation(numbers: np.ndarray) -> float:
    """Return the lag-1 autocorrelation; 0 for constant and monotonic numbers."""
    if monotonicity(numbers) or np.ptp(numbers) == 0:
        return 0.0
    centred = numbers - numbers.mean()
    return float((centred[1:] * centred[:-1]).sum() / np.square(centred).sum())


def series_hint(columns: Mapping[str, np.ndarray], time: tuple[str, np.ndarray] | None) -> list[str]:
    """Return a hint that the rows are time steps of a series, with the option that reads them as one, or nothing.

    columns: numbers by name, (N,) each, without gaps; time: the name and values of the timestamp column.
    """
    count = len(next(iter(columns.values())))
    in_time = time is not None and monotonicity(time[1]) != 0
    with np.errstate(all="ignore"):
        correlations = {name: autocorrelation(numbers) for name, numbers in columns.items()}
    strong = [
        name for name, correlation in correlations.items() if correlation > (CORRELATED if in_time else CORRELATED_WITHOUT_TIME)
    ]
    if count < MIN_ROWS or not strong or (not in_time and len(strong) < len(columns)):
        return []
    trend = f"{time[0]} only {'rises' if monotonicity(time[1]) > 0 else 'falls'}, and " if time is not None and in_time else ""
    window = min(WINDOW, count // MIN_WINDOWS)
    return [
        f"these rows look like a time series: {trend}{strong[0]} has the lag-1 autocorrelation {correlations[strong[0]]:.2f};"
        f" points have no order, --window {window} keeps it"
    ]
