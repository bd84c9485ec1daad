"""Tables of points: .csv and .parquet.

Columns of numbers are the coordinates.  The label is the column that --labels names; by default one called label, class or
target, or else the only column of words that repeat.
"""

from __future__ import annotations

import csv
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from reverie.base.errors import UserError, unknown
from reverie.base.files import reason
from reverie.data.columnar import ParquetTable, arrow_module, plain
from reverie.data.dataset import Dataset
from reverie.data.form import Options, encode_labels, points_dataset
from reverie.data.labels import LABELS, listed
from reverie.data.room import LABEL_ROOM, array_cost, check_size

LABEL_COLUMNS = ("label", "class", "target")
ROWS_PER_LABEL = 2  # at least, on average, for words to be taken as labels
LABEL_LENGTH = 64  # characters; what is longer is text
ROWS_AT_ONCE = 2**16  # of a .parquet file
WORDS_MOST = 2**26  # bytes of all words that a column of a .parquet file chooses from
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
        return _words(path, delimiter, bool(header), k)

    label, values, notes = find_label(columns, longest, read, options.labels, path)
    numeric = [k for k in range(width) if k != label and k not in words]
    if not numeric:
        raise UserError(
            f"{path} has no column of numbers; expected rows of numbers, or texts: --pairs SOURCE,TARGET or --text COLUMN name"
            " their columns"
        )
    x = _columns(path, delimiter, bool(header), numeric)
    return table_dataset(name, x, values, options, notes, path)


def table_dataset(
    name: str, x: np.ndarray, values: Sequence[str] | None, options: Options, notes: Sequence[str], source: object
) -> Dataset:
    """Return rows of numbers as points.  x: (N, D); values: a label each."""
    if values is not None and len(values) != len(x):
        raise UserError(f"{source} has {len(values):,} labels in {len(x):,} rows; mend or remove rows that are not whole")
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


@contextmanager
def _body(path: Path, delimiter: str, header: bool) -> Iterator[IO[str]]:
    """Yield a table's text after its header; what cannot be read as rows is told."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            if header:
                while not any(cell.strip() for cell in file.readline().split(delimiter)):
                    pass
            yield file
    except (ValueError, OverflowError, IndexError, MemoryError, csv.Error) as error:
        if isinstance(error, UserError):
            raise
        words = " ".join(str(error).split())[:140]
        raise UserError(f"{path} is not a whole table of numbers: {words}; mend or remove such rows") from None


def _columns(path: Path, delimiter: str, header: bool, columns: Sequence[int]) -> np.ndarray:
    """Return some columns of numbers of a table.  Returns (N, len(columns))."""
    with _body(path, delimiter, header) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an empty table is told of by our own words
        return np.loadtxt(
            file, dtype=np.float64, delimiter=delimiter, comments=None, usecols=list(columns), quotechar='"', ndmin=2
        )  # fmt: skip


def _words(path: Path, delimiter: str, header: bool, k: int) -> list[str]:
    """Return a column of words; each that repeats is held once."""
    held: dict[str, str] = {}
    with _body(path, delimiter, header) as file:
        words = (row[k].strip() for row in csv.reader(file, delimiter=delimiter) if any(row))
        return [held.setdefault(word, word) for word in words]


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
    kinds = arrow_module("pyarrow", path).types
    with plain(path, "parquet"), ParquetTable(path.open("rb"), path.stat().st_size, path) as file:
        fields = list(file.schema)
        columns = [f.name for f in fields]
        words = {  # what is neither a number nor text, such as a list, is too long to be a label
            k: 0 if kinds.is_string(f.type) or kinds.is_large_string(f.type) or kinds.is_dictionary(f.type) else 2**31
            for k, f in enumerate(fields)
            if not (kinds.is_integer(f.type) or kinds.is_floating(f.type) or kinds.is_boolean(f.type))
        }
        count = file.rows
        numbers = len(fields) - len(words)
        check_size(
            array_cost((count, numbers), 8) + count * (8 * len(words) + LABEL_ROOM), path.stat().st_size, str(path),
            "if you trust it, save its numbers with numpy.save",
        )  # fmt: skip

        def read(k: int) -> list[str]:
            if words.get(k):
                raise UserError(f"the column {columns[k]} of {path} is of type {fields[k].type}, which is no label")
            return _parquet_words(file, columns[k])

        label, values, notes = find_label(columns, words, read, options.labels, path)
        numeric = [columns[k] for k in range(len(fields)) if k != label and k not in words]
        if not numeric:
            raise UserError(f"{path} has no column of numbers; expected rows of numbers")
        file.check(numeric, "if you trust it, save its numbers with numpy.save", each=0)
        x = np.empty((count, len(numeric)))
        done = 0
        for batch in file.batches(ROWS_AT_ONCE, numeric):
            for j in range(len(numeric)):
                x[done : done + len(batch), j] = batch.column(j).to_numpy(zero_copy_only=False)
            done += len(batch)
        if done != count:
            raise UserError(f"{path} states {count} rows and has {done}; save it again")
    return table_dataset(name, x, values, options, notes, path)


def _parquet_words(file: ParquetTable, column: str) -> list[str]:
    """Return a column as words; each that repeats is held once, as it is in the file."""
    file.check([column], "choose another one for labels", each=16, copies=3)
    out: list[str] = []
    held: dict[str, str] = {}
    for batch in file.batches(ROWS_AT_ONCE, [column]):
        values = batch.column(0)
        if not hasattr(values, "dictionary"):
            words = ["" if value is None else str(value) for value in values.to_pylist()]
            out.extend(held.setdefault(word, word) for word in words)
            continue
        if values.dictionary.nbytes > WORDS_MOST:
            raise UserError(f"the column {column} of {file.where} holds whole texts, which are no labels; choose another one")
        words = [held.setdefault(str(word), str(word)) for word in values.dictionary.to_pylist()]
        out.extend("" if k is None else words[k] for k in values.indices.to_pylist())
    return out
