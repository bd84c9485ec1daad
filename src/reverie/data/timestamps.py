"""Moments in time: dates as they are written, columns that only rise or fall, and tables that look like series."""

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
LONGEST = 40  # characters of a date
ALIKE, ALIKE_ALONE = 0.6, 0.95  # correlations of a row with the one before it that tell a series, beside times and without
LEAST, WINDOW, WINDOWS = 40, 64, 20  # rows that tell a series; rows of the window that is advised, so that there are so many


def date_reader(cells: Sequence[str]) -> Callable[[str], float] | None:
    """Return what reads dates that are all written in one way, in seconds; None where these cells are no dates."""
    if not cells or any(len(cell) > LONGEST or not any(sign.isdecimal() for sign in cell) for cell in cells):
        return None
    for form in (None, *FORMATS):
        read = partial(_seconds, form)
        with suppress(ValueError, OverflowError):
            for cell in cells:
                read(cell)
            return read
    return None


def _seconds(form: str | None, cell: str) -> float:
    """Return a date in seconds.  form: as of strptime; None: as ISO 8601 has it."""
    moment = datetime.fromisoformat(cell) if form is None else datetime.strptime(cell, form)
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


def seconds_of(cells: Sequence[str], read: Callable[[str], float]) -> np.ndarray:
    """Return dates in seconds, NaN where a cell holds none: (N,)."""
    out = np.full(len(cells), np.nan)
    for k, cell in enumerate(cells):
        with suppress(ValueError, OverflowError):
            out[k] = read(cell)
    return out


def monotonicity(numbers: np.ndarray | None) -> int:
    """Return 1 for numbers that never fall, -1 for those that never rise, 0 for others and for a constant."""
    steps = np.diff(numbers[~np.isnan(numbers)]) if numbers is not None else np.zeros(0)
    rises, falls = bool((steps > 0).any()), bool((steps < 0).any())
    return int(rises) - int(falls)


def autocorrelation(numbers: np.ndarray) -> float:
    """Return the correlation of each number with the one before it; 0 for a constant and for what only rises or falls."""
    if monotonicity(numbers) or np.ptp(numbers) == 0:
        return 0.0
    off = numbers - numbers.mean()
    return float((off[1:] * off[:-1]).sum() / np.square(off).sum())


def series_hint(columns: Mapping[str, np.ndarray], time: tuple[str, np.ndarray] | None) -> list[str]:
    """Return the line that says that rows look like moments of a series, with the option that reads them as one, if they do.

    columns: of numbers by name, (N,) each, without gaps; time: the column that tells when each row was.
    """
    count = len(next(iter(columns.values())))
    in_time = time is not None and monotonicity(time[1]) != 0
    with np.errstate(all="ignore"):
        alike = {name: autocorrelation(numbers) for name, numbers in columns.items()}
    strong = [name for name, much in alike.items() if much > (ALIKE if in_time else ALIKE_ALONE)]
    if count < LEAST or not strong or (not in_time and len(strong) < len(columns)):
        return []
    when = f"{time[0]} only {'rises' if monotonicity(time[1]) > 0 else 'falls'}, and " if time is not None and in_time else ""
    window = min(WINDOW, count // WINDOWS)
    return [
        f"these rows look like a series in time: {when}{strong[0]} is correlated with itself a row earlier"
        f" ({alike[strong[0]]:.2f}); read as points they lose their order, --window {window} keeps it"
    ]
