"""Tables of points: which columns are coordinates, which is the label, and which are left out, with reasons.

Columns of numbers are coordinates; a few empty cells are filled.  The label is the column in --labels; by default one called
label, class or target, or else the only column of repeating words.
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
ROWS_PER_LABEL = 2  # minimum rows per distinct word of a label
LABEL_LENGTH = 64  # characters; longer cells are text
MISSING = "missing"  # the class of empty labels
MAX_EMPTY = 1 / 3  # maximum share of empty cells of a column
MIN_ROWS = 20  # minimum rows to detect row numbers by their values
IDS = frozenset({"id", "ids", "uid", "uuid", "guid"})  # words in the names of id columns
ROW_NUMBERS = frozenset({"", "index", "idx", "row", "row number", "no", "nr", "number", "unnamed 0"})  # whole column names
DATES = frozenset({"date", "datetime", "timestamp", "epoch", "unixtime"})
TIME_WORDS = DATES | {
    "time", "t", "ts", "year", "month", "week", "day", "hour", "minute", "second", "seconds", "step", "moment", "frame", "tick",
}  # fmt: skip
AXES = frozenset({"x", "y", "z"})  # names that are always coordinates
# Reasons for leaving columns out.
DATED, TIMED, NUMBERED, NAMED, EMPTY = "dates", "times", "row numbers", "ids", "wholly empty"
POSSIBLE_LABELS = "possible labels"
ALL = "all"  # all columns of numbers, including row numbers and times


@dataclass(frozen=True)
class Column:
    """A column of a table.

    numbers: (N,) float64, NaN for empty cells, or None for other content, which `holds` names; cells: returns the text, "" for
    empty cells; longest: maximum characters of a cell; timestamps: returns dates in seconds, (N,); problem: why a nearly
    numeric column is not numeric; repeats: whether its words repeat like labels, None if unknown.
    """

    name: str
    numbers: np.ndarray | None
    cells: Callable[[], list[str]]
    holds: str = "words"
    longest: int = 0
    timestamps: Callable[[], np.ndarray] | None = None
    problem: str = ""
    repeats: bool | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """The lower-case words of the name: customer and id for customerId and customer_id."""
        return tuple(word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+|\d+", self.name))


@dataclass
class ColumnChoice:
    """The chosen coordinates; reasons for the columns left out, by name.  time: a timestamp column."""

    kept: list[Column]
    left: dict[str, str] = field(default_factory=dict)
    time: Column | None = None


def table_columns(wanted: str | Sequence[str] | None) -> tuple[str, ...]:
    """Parse comma-separated column names, quoted as in .csv if they contain a comma."""
    names = next(csv.reader([wanted]), []) if isinstance(wanted, str) else list(wanted or ())
    found = tuple(name.strip() for name in names)
    if (wanted is not None and not found) or "" in found or len(set(found)) != len(found):
        raise UserError(f"cannot read the columns {wanted!r}; write different names, separated by commas, or {ALL}")
    return found


def joined_columns(names: Sequence[str]) -> str:
    """Format column names for `table_columns`."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(names)
    return line.getvalue()


def table_dataset(name: str, columns: Sequence[Column], options: ReadingOptions, source: object) -> Dataset:
    """Return the columns of numbers of a table as points, with labels."""
    label, values, notes, candidates = find_label(columns, options, source)
    chosen = choose_columns([c for k, c in enumerate(columns) if k != label], options, candidates, source)
    x = np.stack([column.numbers for column in chosen.kept if column.numbers is not None], 1)
    for column, numbers in zip(chosen.kept, x.T, strict=True):
        if len(infinite := np.flatnonzero(np.isinf(numbers))):
            raise UserError(
                f"row {infinite[0] + 1:,} of {source} has an infinite number in the column {column.name}; fix or remove such"
                " rows")  # fmt: skip
    rows = np.arange(len(x))
    timestamps = _timestamps(chosen.time)
    if options.window is not None and monotonicity(timestamps) < 0:
        rows = rows[::-1]
        notes.append(f"rows are read in reverse order, because {chosen.time.name if chosen.time else ''} decreases")
    elif options.window is None and not (non_empty := ~np.isnan(x).all(1)).all() and non_empty.any():
        rows = rows[non_empty]
        notes.append(f"{len(x) - len(rows):,} row{'s' * (len(x) - len(rows) != 1)} without any number left out")
    x, filled = fill_gaps(x[rows], options.window is not None)
    if filled.any():
        method = "by linear interpolation in time" if options.window is not None else "by the median of their column"
        counts = [f"{c.name} {n:,}" for c, n in zip(chosen.kept, filled, strict=True) if n]
        notes.append(f"empty cells filled {method}: {', '.join(counts)} of {len(x):,}")
    timestamp_column = None if chosen.time is None or timestamps is None else (chosen.time.name, timestamps[rows])
    if options.window is None and (values is None or timestamp_column is not None):
        notes += series_hint(dict(zip([c.name for c in chosen.kept], x.T, strict=True)), timestamp_column)
    labels, names = (None, ()) if values is None else encode_labels([values[k] for k in rows])
    dataset = points_dataset(name, x, labels, names, options, (*notes, *_left_out(chosen.left)), str(source))
    report = {
        **dataset.report, "columns": [c.name for c in chosen.kept], "left_out": chosen.left,
        "filled": {c.name: int(n) for c, n in zip(chosen.kept, filled, strict=True) if n},
    }  # fmt: skip
    return replace(dataset, columns=tuple(c.name for c in chosen.kept), report=report)


def _timestamps(time: Column | None) -> np.ndarray | None:
    if time is None:
        return None
    return time.numbers if time.timestamps is None else time.timestamps()


def choose_columns(
    columns: Sequence[Column], options: ReadingOptions, candidates: Sequence[str], source: object
) -> ColumnChoice:
    """Choose the coordinates among the columns other than the label.  candidates: columns that could each be the label."""
    chosen = ColumnChoice([])
    left_by_values: list[Column] = []  # left out because of their values only
    by_name = {column.name: column for column in columns}
    for position, column in enumerate(columns):
        why = _not_numbers(column, options.labels, candidates)
        if options.columns and options.columns != (ALL,):
            why = "not named by --columns" if column.name not in options.columns else why
        elif not why and options.columns != (ALL,):
            why = _no_coordinate(column, position)
        if chosen.time is None and column.name not in candidates and (column.timestamps or why == TIMED):
            chosen.time = column
        if why and column.problem and not (options.columns and column.name not in options.columns):
            raise UserError(
                f"{column.problem}, unlike the rest of the column {column.name} of {source}; fix such cells, leave them"
                " empty, or name the columns with --columns")  # fmt: skip
        if why:
            chosen.left[column.name] = why
            left_by_values += [column] if why == NUMBERED else []
        else:
            chosen.kept.append(column)
    if wanted := [name for name in options.columns if name != ALL or len(options.columns) > 1]:
        chosen.kept = [_requested_column(name, by_name, chosen.left, source) for name in wanted]
    if not chosen.kept and left_by_values:
        chosen.kept = left_by_values
        for column in left_by_values:
            del chosen.left[column.name]
    if not chosen.kept:
        reasons = f" to train on ({'; '.join(_left_out(chosen.left))})" if chosen.left else ""
        raise UserError(
            f"{source} has no column of numbers{reasons}; expected rows of numbers, or texts: name their columns with"
            " --pairs SOURCE,TARGET or --text COLUMN")  # fmt: skip
    return chosen


def _requested_column(name: str, columns: Mapping[str, Column], left: Mapping[str, str], source: object) -> Column:
    """Return a requested column; refuse one without numbers."""
    if name not in columns:
        raise unknown(name, tuple(columns), f"column of {source}:")
    if name in left:
        raise UserError(
            f"the column {name} of {source} contains no numbers to train on ({left[name]}); leave it out of --columns"
        )
    return columns[name]


def _not_numbers(column: Column, labels: str, candidates: Sequence[str]) -> str:
    """Return why a column cannot be a coordinate, or ""."""
    if column.numbers is not None:
        return EMPTY if np.isnan(column.numbers).all() else ""
    if column.timestamps is not None:
        return DATED
    if column.name in candidates:
        return POSSIBLE_LABELS
    if column.holds == "words":
        return "words that do not repeat as labels do" if labels == "auto" else "words"
    return column.holds


def _no_coordinate(column: Column, position: int) -> str:
    """Return why a column of numbers is not a coordinate: mostly empty, an id, a row number, or a time."""
    numbers = column.numbers
    assert numbers is not None
    present = numbers[~np.isnan(numbers)]
    if len(numbers) - len(present) > MAX_EMPTY * len(numbers):
        return f"{1 - len(present) / len(numbers):.0%} empty"
    words = set(column.words)
    steps, is_integer = np.diff(present), bool((present == np.round(present)).all())
    if (
        words & DATES
        or (words & TIME_WORDS and monotonicity(present) and bool(steps.all()))
        or ("time" in words and monotonicity(present))
    ):
        return TIMED
    if not is_integer:
        return ""
    if words & IDS:
        return NAMED
    unique = len(np.unique(present)) == len(present) > 1
    if unique and " ".join(column.words) in ROW_NUMBERS:
        return NUMBERED
    dense = len(present) >= MIN_ROWS and present.max() - present.min() + 1 == len(present)
    counts_up = len(present) >= MIN_ROWS and position == 0 and monotonicity(present) > 0
    return NUMBERED if unique and (dense or counts_up) and not words & AXES else ""


def fill_gaps(x: np.ndarray, in_time: bool) -> tuple[np.ndarray, np.ndarray]:
    """Fill empty cells with the median of their column, or by interpolation in time; return the numbers and counts (D,)."""
    gaps = np.isnan(x)
    if not gaps.any():
        return x, gaps.sum(0)
    x = x.copy()
    for k in np.flatnonzero(gaps.any(0)):
        present = ~gaps[:, k]
        rows = np.arange(len(x))
        x[~present, k] = np.interp(rows[~present], rows[present], x[present, k]) if in_time else np.median(x[present, k])
    return x, gaps.sum(0)


def find_label(
    columns: Sequence[Column], options: ReadingOptions, source: object
) -> tuple[int | None, list[str] | None, list[str], Sequence[str]]:
    """Return the index of the label column, its values, notes, and the columns that could each be the label."""
    requested, names = options.labels, [column.name for column in columns]
    free = [k for k, column in enumerate(columns) if column.name not in options.columns]
    chosen = next((k for k in free if names[k].lower() in LABEL_COLUMNS and not _is_fractional(columns[k])), None)
    if requested == "none":
        return None, None, [], ()
    if requested != "auto":
        if requested not in names:
            raise _no_column(requested, names, source)
        chosen = names.index(requested)
    if chosen is None:
        words = [
            k for k in free if columns[k].numbers is None and columns[k].timestamps is None and columns[k].holds == "words"
        ]
        label_like = [k for k in words if columns[k].longest <= LABEL_LENGTH and _may_be_label(columns[k])]
        if len(label_like) > 1:
            candidates = [names[k] for k in label_like]
            note = (
                f"columns {join_words(candidates)} could each be the label, so none is used; choose one with --labels"
                f" {candidates[0]}"
            )
            return None, None, [note], candidates
        if not label_like:
            return None, None, [], ()
        chosen, values = label_like[0], columns[label_like[0]].cells()
        notes = [f"{len(set(values) - {''})} classes from the column {names[chosen]}; --labels none ignores them"]
    else:
        values, notes = _class_values(columns[chosen]), []
    if empty := values.count(""):
        notes.append(f"{empty:,} empty cell{'s' * (empty != 1)} of the label {names[chosen]} get the class {MISSING}")
        values = [value or MISSING for value in values]
    return chosen, values, notes, ()


def _is_fractional(column: Column) -> bool:
    """Return whether a column has fractional numbers, which are measurements rather than classes."""
    if column.numbers is None:
        return False
    present = column.numbers[np.isfinite(column.numbers)]
    return bool((present != np.round(present)).any())


def _class_values(column: Column) -> list[str]:
    """Return the values of a label; integers without a fraction, so that 1.0 is the class 1."""
    values = column.cells()
    if column.numbers is None or _is_fractional(column):
        return values
    return [str(int(n)) if "." in v and np.isfinite(n) else v for v, n in zip(values, column.numbers, strict=True)]


def _may_be_label(column: Column) -> bool:
    return _repeats(column.cells()) if column.repeats is None else column.repeats


def _repeats(values: Sequence[str]) -> bool:
    """Return whether words are class names: short, at least two, each occurring more than once on average."""
    distinct = set(values) - {""}
    if not 2 <= len(distinct) <= len(values) / ROWS_PER_LABEL:
        return False
    return not any(len(word) > LABEL_LENGTH or _is_number(word) for word in distinct)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


def _no_column(requested: str, columns: Sequence[str], source: object) -> UserError:
    if requested in LABELS:
        present = ", ".join(columns[:8])
        return UserError(
            f"labels by {requested} need a folder or a .zip of images, which {source} is not; use auto, none, or a column:"
            f" {present}"
        )
    return unknown(requested, ("auto", "none", *columns), f"label column of {source}:")


def _left_out(left: Mapping[str, str]) -> list[str]:
    """Return a note per reason with the columns left out."""
    by_reason: dict[str, list[str]] = {}
    for name, why in left.items():
        if why != POSSIBLE_LABELS:  # reported where the label is chosen
            by_reason.setdefault(why, []).append(name)
    keep = {why: "; --columns all keeps them" if why in (TIMED, NUMBERED, NAMED) else "" for why in by_reason}
    return [f"left out as {why}: {', '.join(names)}{keep[why]}" for why, names in by_reason.items()]
