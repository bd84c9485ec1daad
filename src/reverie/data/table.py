"""Tables of points: .csv and .parquet.

Columns of numbers are the coordinates.  The label is the column that --labels names; by default one called label, class or
target, or else the only column of words that repeat.
"""

from __future__ import annotations

import csv
import importlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reverie.base.errors import UserError, unknown
from reverie.base.files import reason
from reverie.data.dataset import Dataset
from reverie.data.form import Options, encode_labels, points_dataset
from reverie.data.labels import LABELS, listed

LABEL_COLUMNS = ("label", "class", "target")
ROWS_PER_LABEL = 2  # at least, on average, for words to be taken as labels
LABEL_LENGTH = 64  # characters; what is longer is text
VALUES_MOST = 500_000_000
SAMPLE = 64 * 1024  # characters looked at to learn how a file is written


def read_csv(path: Path, name: str, options: Options) -> Dataset:
    """Return the numeric columns of a .csv file as points; a header is optional."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            sample = file.read(SAMPLE)
        delimiter = _delimiter(sample)
        complete = sample if len(sample) < SAMPLE else sample[: sample.rfind("\n") + 1]
        rows = [row for row in csv.reader(complete.splitlines(), delimiter=delimiter) if any(cell.strip() for cell in row)][
            :100
        ]
    except OSError as error:
        raise UserError(f"{path} cannot be read: {reason(error)}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(
            f"{path} cannot be read as a table: {' '.join(str(error).split())[:100]}; save it as UTF-8 text"
        ) from None
    if not rows:
        raise UserError(f"{path} is empty; expected rows of numbers")
    header, body = ([cell.strip() for cell in rows[0]], rows[1:]) if _is_header(rows) else ([], rows)
    if not body:
        raise UserError(f"{path} has a header and no rows; expected rows of numbers")
    width = len(body[0])
    columns = [header[k] if k < len(header) and header[k] else f"column {k + 1}" for k in range(width)]
    words = [k for k in range(width) if not all(k >= len(row) or _is_number(row[k]) for row in body)]
    longest = {k: max(len(row[k]) for row in body if k < len(row)) for k in words}

    def read(k: int) -> list[str]:
        return [str(v).strip() for v in _columns(path, delimiter, bool(header), [k], np.str_)[:, 0]]

    label, values, notes = find_label(columns, longest, read, options.labels, path)
    numeric = [k for k in range(width) if k != label and k not in words]
    if not numeric:
        raise UserError(f"{path} has no column of numbers; expected rows of numbers")
    x = _columns(path, delimiter, bool(header), numeric, np.float64)
    return table_dataset(name, x, values, options, notes, path)


def table_dataset(
    name: str, x: np.ndarray, values: Sequence[str] | None, options: Options, notes: Sequence[str], source: object
) -> Dataset:
    """Return rows of numbers as points.  x: (N, D); values: a label each."""
    labels, names = encode_labels(values) if values is not None else (None, ())
    return points_dataset(name, x, labels, names, options, notes, str(source))


def find_label(
    columns: Sequence[str], words: Mapping[int, int], read: Callable[[int], list[str]], wished: str, source: object
) -> tuple[int | None, list[str] | None, list[str]]:
    """Return which column is the label, its values, and a line each about the columns that are left out.

    words: the columns that are not numbers, and the longest cell seen in each; read: gives the values of one; wished: auto,
    none, or the name of a column.
    """
    named = next((k for k, column in enumerate(columns) if column.lower() in LABEL_COLUMNS), None)
    others = [k for k in words if k != named]
    if wished == "none":
        named = None
    elif wished != "auto":
        if wished not in columns:
            raise _no_column(wished, columns, source)
        named = columns.index(wished)
        others = [k for k in words if k != named]
    elif named is None and words:
        found = {k: values for k, longest in words.items() if longest <= LABEL_LENGTH and _repeats(values := read(k))}
        if len(found) == 1:
            k, values = found.popitem()
            note = f"{len(set(values))} classes told by the column {columns[k]}; --labels none leaves them out"
            return k, values, [note, *_left_out([columns[j] for j in words if j != k], judged=True)]
        if found:
            could = listed([columns[k] for k in found])
            note = f"columns {could} could each be the label, so none is; choose one with --labels {columns[next(iter(found))]}"
            return None, None, [note, *_left_out([columns[j] for j in words if j not in found], judged=True)]
    notes = _left_out([columns[k] for k in others], judged=wished == "auto" and named is None)
    return named, read(named) if named is not None else None, notes


def _repeats(values: Sequence[str]) -> bool:
    """Tell words that name classes: short, at least two, each met more than once on average."""
    different = set(values)
    if not 2 <= len(different) <= len(values) / ROWS_PER_LABEL:
        return False
    return not any(len(word) > LABEL_LENGTH or _is_number(word) for word in different)


def _no_column(wished: str, columns: Sequence[str], source: object) -> UserError:
    if wished in LABELS:
        there = ", ".join(columns[:8])
        return UserError(
            f"labels by {wished} need a folder or a .zip of images, which {source} is not; use auto, none, or a column: {there}"
        )
    return unknown(wished, ("auto", "none", *columns), f"label column of {source}:")


def _columns(path: Path, delimiter: str, header: bool, columns: Sequence[int], kind: type) -> np.ndarray:
    """Return some columns of a table.  Returns (N, len(columns))."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an empty table is told of by our own words
            if header:
                while not any(cell.strip() for cell in file.readline().split(delimiter)):
                    pass
            return np.loadtxt(
                file, dtype=kind, delimiter=delimiter, comments=None, usecols=list(columns), quotechar='"', ndmin=2
            )  # fmt: skip
    except (ValueError, OverflowError, IndexError, MemoryError) as error:
        words = " ".join(str(error).split())[:140]
        raise UserError(f"{path} is not a whole table of numbers: {words}; mend or remove such rows") from None


def _delimiter(sample: str) -> str:
    """Return the separator of the first line: comma, semicolon or tab, whichever it has most of."""
    first = next((line for line in sample.splitlines() if line.strip()), "")
    return max(",;\t", key=first.count)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


def _is_header(rows: list[list[str]]) -> bool:
    """A first row of words is a header, also if the second has words in the same places and a label among its names."""
    first = rows[0]
    words = [not _is_number(cell) for cell in first]
    if all(words):
        return True
    below = rows[1] if len(rows) > 1 else []
    return any(word and k < len(below) and _is_number(below[k]) for k, word in enumerate(words))


def _left_out(columns: Sequence[str], judged: bool) -> list[str]:
    why = "columns that are neither numbers nor words that repeat, as labels do," if judged else "columns that are not numbers"
    return [f"{why} were left out: {', '.join(columns[:8])}"] if columns else []


def read_parquet(path: Path, name: str, options: Options) -> Dataset:
    """Return the numeric columns of a .parquet file as points."""
    try:
        arrow: Any = importlib.import_module("pyarrow")
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise UserError(f"{path} needs pyarrow to be read; install it with: pip install 'reverie[parquet]'") from None
    try:
        with parquet.ParquetFile(path) as file:
            schema = file.schema_arrow
            kinds = arrow.types
            fields = list(schema)
            if file.metadata.num_rows * len(fields) > VALUES_MOST:
                raise UserError(f"{path} states {file.metadata.num_rows} rows, too many to be held in memory; make it smaller")
            columns = [f.name for f in fields]
            words = {  # what is neither a number nor text, such as a list, is too long to be a label
                k: 0 if kinds.is_string(f.type) or kinds.is_large_string(f.type) or kinds.is_dictionary(f.type) else 2**31
                for k, f in enumerate(fields)
                if not (kinds.is_integer(f.type) or kinds.is_floating(f.type) or kinds.is_boolean(f.type))
            }

            def read(k: int) -> list[str]:
                return ["" if v is None else str(v) for v in file.read(columns=[columns[k]]).column(0).to_pylist()]

            label, values, notes = find_label(columns, words, read, options.labels, path)
            numeric = [columns[k] for k in range(len(fields)) if k != label and k not in words]
            if not numeric:
                raise UserError(f"{path} has no column of numbers; expected rows of numbers")
            table = file.read(columns=numeric)
            x = np.stack([table.column(c).to_numpy(zero_copy_only=False).astype(np.float64) for c in numeric], 1)
    except UserError:
        raise
    except Exception as error:  # pyarrow answers a hostile file with nearly any exception
        said = " ".join(str(error).split())[:100]
        raise UserError(f"{path} cannot be read as parquet: {said}; save it again") from None
    return table_dataset(name, x, values, options, notes, path)
