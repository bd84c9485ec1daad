"""Tables of points: which columns are coordinates, which one is the label, and which are left out, each with its reason.

Columns of numbers are the coordinates; few empty cells are filled.  The label is the column that --labels names; by default one
called label, class or target, or else the only column of words that repeat.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from reverie.base.errors import UserError, unknown
from reverie.data.dataset import Dataset
from reverie.data.image_labels import LABELS, join_words
from reverie.data.reading import ReadingOptions, encode_labels, points_dataset
from reverie.data.timestamps import monotonicity, series_hint

LABEL_COLUMNS = ("label", "class", "target")
ROWS_PER_LABEL = 2  # at least, on average, for words to be taken as labels
LABEL_LENGTH = 64  # characters; what is longer is text
MISSING = "missing"  # the class of rows whose label is empty
MAX_EMPTY = 1 / 3  # of the cells of a column, up to which they are filled
MANY = 20  # rows from which values alone tell a number of the row
IDS = frozenset({"id", "ids", "uid", "uuid", "guid"})  # words in the names of columns
ROW_NUMBERS = frozenset({"", "index", "idx", "row", "row number", "no", "nr", "number", "unnamed 0"})  # whole names
DATES = frozenset({"date", "datetime", "timestamp", "epoch", "unixtime"})
TIMES = DATES | {
    "time", "t", "ts", "year", "month", "week", "day", "hour", "minute", "second", "seconds", "step", "moment", "frame", "tick",
}  # fmt: skip
AXES = frozenset({"x", "y", "z"})  # names of coordinates, whatever their values are
DATED, TIMED, NUMBERED, NAMED, EMPTY, COULD = "dates", "times", "row numbers", "ids", "wholly empty", "possible labels"
ALL = "all"  # columns of numbers, those that number the rows and times among them


@dataclass(frozen=True)
class Column:
    """A column of a table.

    numbers: (N,) float64, NaN where a cell is empty, or None where it holds something else, which `holds` says; cells: gives
    what is written, "" where a cell is empty; longest: characters of a cell; moments: gives dates in seconds, (N,); problem:
    why it is none of numbers although nearly all of it is; repeats: whether its words repeat as labels do, None if not known.
    """

    name: str
    numbers: np.ndarray | None
    cells: Callable[[], list[str]]
    holds: str = "words"
    longest: int = 0
    moments: Callable[[], np.ndarray] | None = None
    problem: str = ""
    repeats: bool | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """The words that its name is made of, in small letters: those of customerId and customer_id are customer and id."""
        return tuple(word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+|\d+", self.name))


@dataclass
class ColumnChoice:
    """Which columns are coordinates; why others are left out, by their names; the lines about it.  time: a column of it."""

    kept: list[Column]
    left: dict[str, str] = field(default_factory=dict)
    time: Column | None = None


def table_columns(wanted: str | Sequence[str] | None) -> tuple[str, ...]:
    """Read the names of columns with commas between, quoted as in a .csv file where they hold one."""
    names = next(csv.reader([wanted]), []) if isinstance(wanted, str) else list(wanted or ())
    found = tuple(name.strip() for name in names)
    if (wanted is not None and not found) or "" in found or len(set(found)) != len(found):
        raise UserError(f"cannot read the columns {wanted!r}; write different names with commas between, or {ALL}")
    return found


def joined_columns(names: Sequence[str]) -> str:
    """Return names of columns as `table_columns` reads them."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(names)
    return line.getvalue()


def table_dataset(name: str, columns: Sequence[Column], options: ReadingOptions, source: object) -> Dataset:
    """Return the columns of numbers of a table as points, with the label of each."""
    label, values, notes, could = find_label(columns, options, source)
    chosen = choose_columns([c for k, c in enumerate(columns) if k != label], options, could, source)
    x = np.stack([column.numbers for column in chosen.kept if column.numbers is not None], 1)
    for column, numbers in zip(chosen.kept, x.T, strict=True):
        if len(wrong := np.flatnonzero(np.isinf(numbers))):
            raise UserError(f"row {wrong[0] + 1:,} of {source} has an infinite number in the column {column.name};"
                            " mend or remove such rows")  # fmt: skip
    rows = np.arange(len(x))
    moments = _moments(chosen.time)
    if options.window is not None and monotonicity(moments) < 0:
        rows = rows[::-1]
        notes.append(f"rows are read from the last to the first, as {chosen.time.name if chosen.time else ''} decreases")
    elif options.window is None and not (some := ~np.isnan(x).all(1)).all() and some.any():
        rows = rows[some]
        notes.append(f"{len(x) - len(rows):,} row{'s' * (len(x) - len(rows) != 1)} without any number left out")
    x, filled = fill_gaps(x[rows], options.window is not None)
    if filled.any():
        how = "by a straight line in time" if options.window is not None else "by the median of their column"
        each = [f"{c.name} {n:,}" for c, n in zip(chosen.kept, filled, strict=True) if n]
        notes.append(f"empty cells filled {how}: {', '.join(each)} of {len(x):,}")
    told = None if chosen.time is None or moments is None else (chosen.time.name, moments[rows])
    if options.window is None and (values is None or told is not None):
        notes += series_hint(dict(zip([c.name for c in chosen.kept], x.T, strict=True)), told)
    labels, names = (None, ()) if values is None else encode_labels([values[k] for k in rows])
    made = points_dataset(name, x, labels, names, options, (*notes, *_left_out(chosen.left)), str(source))
    report = {
        **made.report, "columns": [c.name for c in chosen.kept], "left_out": chosen.left,
        "filled": {c.name: int(n) for c, n in zip(chosen.kept, filled, strict=True) if n},
    }  # fmt: skip
    return replace(made, columns=tuple(c.name for c in chosen.kept), report=report)


def _moments(time: Column | None) -> np.ndarray | None:
    if time is None:
        return None
    return time.numbers if time.moments is None else time.moments()


def choose_columns(columns: Sequence[Column], options: ReadingOptions, could: Sequence[str], source: object) -> ColumnChoice:
    """Choose the coordinates among columns that are not the label.  could: columns of words that could each be it."""
    chosen = ColumnChoice([])
    guessed: list[Column] = []  # left out by their values alone
    by_name = {column.name: column for column in columns}
    for place, column in enumerate(columns):
        why = _not_numbers(column, options.labels, could)
        if options.columns and options.columns != (ALL,):
            why = "not named by --columns" if column.name not in options.columns else why
        elif not why and options.columns != (ALL,):
            why = _no_coordinate(column, place)
        if chosen.time is None and column.name not in could and (column.moments or why == TIMED):
            chosen.time = column
        if why and column.problem and not (options.columns and column.name not in options.columns):
            raise UserError(f"{column.problem} as the rest of the column {column.name} of {source}; mend such cells, leave them"
                            " empty, or name the columns to take with --columns")  # fmt: skip
        if why:
            chosen.left[column.name] = why
            guessed += [column] if why == NUMBERED else []
        else:
            chosen.kept.append(column)
    if wanted := [name for name in options.columns if name != ALL or len(options.columns) > 1]:
        chosen.kept = [_wanted(name, by_name, chosen.left, source) for name in wanted]
    if not chosen.kept and guessed:
        chosen.kept = guessed
        for column in guessed:
            del chosen.left[column.name]
    if not chosen.kept:
        told = f" to learn ({'; '.join(_left_out(chosen.left))})" if chosen.left else ""
        raise UserError(f"{source} has no column of numbers{told}; expected rows of numbers, or texts: --pairs"
                        " SOURCE,TARGET or --text COLUMN name their columns")  # fmt: skip
    return chosen


def _wanted(name: str, columns: Mapping[str, Column], left: Mapping[str, str], source: object) -> Column:
    """Return a column that was asked for; refuse one that holds no numbers."""
    if name not in columns:
        raise unknown(name, tuple(columns), f"column of {source}:")
    if name in left:
        raise UserError(f"the column {name} of {source} holds no numbers to learn ({left[name]}); leave it"
                        " out of --columns")  # fmt: skip
    return columns[name]


def _not_numbers(column: Column, labels: str, could: Sequence[str]) -> str:
    """Return why a column cannot be a coordinate; nothing where it can."""
    if column.numbers is not None:
        return EMPTY if np.isnan(column.numbers).all() else ""
    if column.moments is not None:
        return DATED
    if column.name in could:
        return COULD
    if column.holds == "words":
        return "words that do not repeat as labels do" if labels == "auto" else "words"
    return column.holds


def _no_coordinate(column: Column, place: int) -> str:
    """Return why a column of numbers is none to be learned: mostly empty, an id, a number of the row, or a time."""
    numbers = column.numbers
    assert numbers is not None
    there = numbers[~np.isnan(numbers)]
    if len(numbers) - len(there) > MAX_EMPTY * len(numbers):
        return f"{1 - len(there) / len(numbers):.0%} empty"
    words = set(column.words)
    steps, whole = np.diff(there), bool((there == np.round(there)).all())
    if (
        words & DATES
        or (words & TIMES and monotonicity(there) and bool(steps.all()))
        or ("time" in words and monotonicity(there))
    ):
        return TIMED
    if not whole:
        return ""
    if words & IDS:
        return NAMED
    unique = len(np.unique(there)) == len(there) > 1
    if unique and " ".join(column.words) in ROW_NUMBERS:
        return NUMBERED
    dense = len(there) >= MANY and there.max() - there.min() + 1 == len(there)
    counts_up = len(there) >= MANY and place == 0 and monotonicity(there) > 0
    return NUMBERED if unique and (dense or counts_up) and not words & AXES else ""


def fill_gaps(x: np.ndarray, in_time: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers with the median of each column in empty places, or a line through time; and how many there were, (D,)."""
    gaps = np.isnan(x)
    if not gaps.any():
        return x, gaps.sum(0)
    x = x.copy()
    for k in np.flatnonzero(gaps.any(0)):
        there = ~gaps[:, k]
        at = np.arange(len(x))
        x[~there, k] = np.interp(at[~there], at[there], x[there, k]) if in_time else np.median(x[there, k])
    return x, gaps.sum(0)


def find_label(
    columns: Sequence[Column], options: ReadingOptions, source: object
) -> tuple[int | None, list[str] | None, list[str], Sequence[str]]:
    """Return which column is the label, its values, lines about it, and the columns that could each be it."""
    wished, names = options.labels, [column.name for column in columns]
    free = [k for k, column in enumerate(columns) if column.name not in options.columns]
    named = next((k for k in free if names[k].lower() in LABEL_COLUMNS and not _measured(columns[k])), None)
    if wished == "none":
        return None, None, [], ()
    if wished != "auto":
        if wished not in names:
            raise _no_column(wished, names, source)
        named = names.index(wished)
    if named is None:
        words = [k for k in free if columns[k].numbers is None and columns[k].moments is None and columns[k].holds == "words"]
        found = [k for k in words if columns[k].longest <= LABEL_LENGTH and _may_be_label(columns[k])]
        if len(found) > 1:
            could = [names[k] for k in found]
            note = f"columns {join_words(could)} could each be the label, so none is; choose one with --labels {could[0]}"
            return None, None, [note], could
        if not found:
            return None, None, [], ()
        named, values = found[0], columns[found[0]].cells()
        told = [f"{len(set(values) - {''})} classes told by the column {names[named]}; --labels none leaves them out"]
    else:
        values, told = _plain(columns[named]), []
    if empty := values.count(""):
        told.append(f"{empty:,} empty cell{'s' * (empty != 1)} of the label {names[named]} are a class of their own, {MISSING}")
        values = [value or MISSING for value in values]
    return named, values, told, ()


def _measured(column: Column) -> bool:
    """Tell numbers that are not whole, which measure something and name no class."""
    if column.numbers is None:
        return False
    there = column.numbers[np.isfinite(column.numbers)]
    return bool((there != np.round(there)).any())


def _plain(column: Column) -> list[str]:
    """Return the values of a label; whole numbers without a fraction, as 1.0 is the class 1."""
    values = column.cells()
    if column.numbers is None or _measured(column):
        return values
    return [str(int(n)) if "." in v and np.isfinite(n) else v for v, n in zip(values, column.numbers, strict=True)]


def _may_be_label(column: Column) -> bool:
    return _repeats(column.cells()) if column.repeats is None else column.repeats


def _repeats(values: Sequence[str]) -> bool:
    """Tell words that name classes: short, at least two, each met more than once on average."""
    different = set(values) - {""}
    if not 2 <= len(different) <= len(values) / ROWS_PER_LABEL:
        return False
    return not any(len(word) > LABEL_LENGTH or _is_number(word) for word in different)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


def _no_column(wished: str, columns: Sequence[str], source: object) -> UserError:
    if wished in LABELS:
        there = ", ".join(columns[:8])
        return UserError(
            f"labels by {wished} need a folder or a .zip of images, which {source} is not; use auto, none, or a column: {there}"
        )
    return unknown(wished, ("auto", "none", *columns), f"label column of {source}:")


def _left_out(left: Mapping[str, str]) -> list[str]:
    """Return a line for each reason, with the columns that were left out for it."""
    by_reason: dict[str, list[str]] = {}
    for name, why in left.items():
        if why != COULD:  # which is told where the label is chosen
            by_reason.setdefault(why, []).append(name)
    keep = {why: "; --columns all keeps them" if why in (TIMED, NUMBERED, NAMED) else "" for why in by_reason}
    return [f"left out as {why}: {', '.join(names)}{keep[why]}" for why, names in by_reason.items()]
