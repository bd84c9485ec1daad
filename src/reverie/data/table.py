"""Tables of points: .csv and .parquet, with an optional column of labels."""

from __future__ import annotations

import csv
import importlib
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reverie.data.dataset import Dataset
from reverie.data.form import Options, encode_labels, points_dataset
from reverie.errors import UserError
from reverie.files import reason

LABEL_COLUMNS = ("label", "class", "target")
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
    label = next((k for k, cell in enumerate(header) if cell.lower() in LABEL_COLUMNS), None)
    width = len(body[0])
    numeric = [k for k in range(width) if k != label and all(k >= len(row) or _is_number(row[k]) for row in body)]
    if not numeric:
        raise UserError(f"{path} has no column of numbers; expected rows of numbers")
    x = _columns(path, delimiter, bool(header), numeric, np.float64)
    labels, names = (None, ()) if label is None else encode_labels(
        [str(v).strip() for v in _columns(path, delimiter, True, [label], np.str_)[:, 0]]
    )  # fmt: skip
    left = [header[k] if k < len(header) else f"column {k + 1}" for k in range(width) if k not in (*numeric, label)]
    return points_dataset(name, x, labels, names, _plain_labels(options, path), _left_out(left), str(path))


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


def _left_out(columns: Sequence[str]) -> list[str]:
    return [f"columns that are not numbers were left out: {', '.join(columns[:8])}"] if columns else []


def _plain_labels(options: Options, path: Path) -> Options:
    if options.labels not in ("auto", "none"):
        raise UserError(f"labels by {options.labels} need a folder or a .zip of images, which {path} is not; use auto or none")
    return options


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
            label = next((f.name for f in fields if f.name.lower() in LABEL_COLUMNS), None)
            numeric = [
                f.name for f in fields
                if f.name != label and (kinds.is_integer(f.type) or kinds.is_floating(f.type) or kinds.is_boolean(f.type))
            ]  # fmt: skip
            if not numeric:
                raise UserError(f"{path} has no column of numbers; expected rows of numbers")
            if file.metadata.num_rows * (len(numeric) + 1) > VALUES_MOST:
                raise UserError(f"{path} states {file.metadata.num_rows} rows, too many to be held in memory; make it smaller")
            table = file.read(columns=[*numeric, *([label] if label is not None else [])])
            x = np.stack([table.column(c).to_numpy(zero_copy_only=False).astype(np.float64) for c in numeric], 1)
            values = [str(v) for v in table.column(label).to_pylist()] if label is not None else None
    except UserError:
        raise
    except Exception as error:  # pyarrow answers a hostile file with nearly any exception
        words = " ".join(str(error).split())[:100]
        raise UserError(f"{path} cannot be read as parquet: {words}; save it again") from None
    labels, names = encode_labels(values) if values is not None else (None, ())
    left = [f.name for f in fields if f.name not in (*numeric, label)]
    return points_dataset(name, x, labels, names, _plain_labels(options, path), _left_out(left), str(path))
