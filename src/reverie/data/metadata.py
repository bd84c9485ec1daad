"""Metadata files of image folders: metadata.csv and metadata.jsonl, one row per file."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reverie.base.errors import UserError
from reverie.base.parse import read_json
from reverie.base.visible import visible
from reverie.data.sources import METADATA, FileEntry

METADATA_LIMIT = 256 * 2**20
LINE_LIMIT = 2**20  # characters
MAX_COLUMNS = 1000  # column names kept
FILE, COLUMNS, CAPTIONS = "file_name", ("label", "class", "text", "caption"), ("text", "caption")


def read_metadata_column(names: Sequence[str], metadata: Mapping[str, FileEntry], column: str, where: str) -> list[str | None]:
    """Return the values of a metadata column by file, None if missing."""
    files = [name for name in metadata if name in METADATA]
    if not files:
        raise UserError(f"{where} has no metadata.csv or metadata.jsonl, so there is no column {column!r}; add one of them")
    column_values = read_metadata(metadata[files[0]], files[0], frozenset(names), (column.lower(),))
    return [column_values.values.get(name) for name in names]


@dataclass
class UnmatchedRows:
    """The count of rows that match no image, and the first."""

    count: int = 0
    first: str = ""


@dataclass(frozen=True)
class ColumnValues:
    """The values of a column by file name (with forward slashes), unmatched rows, and all columns."""

    values: Mapping[str, str]
    column: str
    unmatched: UnmatchedRows
    columns: frozenset[str]


def read_metadata(entry: FileEntry, file: str, known: frozenset[str], wanted: Sequence[str]) -> ColumnValues:
    """Return the values of the first wanted column that exists.

    The file is read line by line, and only values of known names are kept.
    """
    if entry.size > METADATA_LIMIT:
        raise UserError(f"{file} is over {METADATA_LIMIT >> 20} MiB; reduce its size")
    columns: set[str] = set()
    values: dict[str, dict[str, str]] = {column: {} for column in wanted}
    unmatched = {column: UnmatchedRows() for column in wanted}
    try:
        with entry.open() as opened, io.TextIOWrapper(opened, "utf-8-sig", newline="") as text:
            lines = _lines(text, file)
            for row in _csv_rows(lines) if file.endswith(".csv") else _jsonl_rows(lines, file):
                if len(columns) < MAX_COLUMNS:
                    columns.update(row)
                for key in wanted:
                    if key in row:
                        _keep(row, key, known, values[key], unmatched[key])
    except UserError:
        raise
    except Exception as error:  # a damaged zip entry, wrong encoding, an unclosed field
        raise UserError(f"{file} cannot be read: {' '.join(str(error).split())[:100]}; save it as UTF-8 text") from None
    column = next((key for key in wanted if key in columns), None)
    if FILE not in columns or column is None:
        existing = ", ".join(sorted(columns)[:8])[:200] or "nothing"
        needed = "label, class or text" if wanted is COLUMNS else " or ".join(wanted)
        other = "; --labels selects another one" if wanted is COLUMNS and FILE in columns else ""
        raise UserError(f"{file} needs a {FILE} column and a {needed} column; it has {existing}{other}")
    return ColumnValues(values[column], column, unmatched[column], frozenset(columns))


def _keep(row: Mapping[str, Any], column: str, known: frozenset[str], found: dict[str, str], unmatched: UnmatchedRows) -> None:
    """Store the value of a row if it names a known file."""
    name, value = row.get(FILE), row.get(column)
    if not name or value is None or not str(value).strip():
        return
    path = str(name).replace("\\", "/").removeprefix("./")
    if path in known:
        found[path] = visible(" ".join(str(value).split())) if column in CAPTIONS else str(value).strip()
    else:
        unmatched.count, unmatched.first = unmatched.count + 1, unmatched.first or path


def _lines(text: io.TextIOWrapper, file: str) -> Iterator[str]:
    while line := text.readline(LINE_LIMIT):
        if len(line) == LINE_LIMIT:
            raise UserError(f"{file} has a line of more than {LINE_LIMIT >> 20} MiB; write one line per image")
        yield line


def _csv_rows(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    rows = csv.reader(lines, skipinitialspace=True)
    columns = [name.strip().lower() for name in next(rows, [])]
    for row in rows:
        yield dict(zip(columns, row, strict=False))  # short rows lack the last columns; extra cells are ignored


def _jsonl_rows(lines: Iterator[str], file: str) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = read_json(line)
        except ValueError:
            raise UserError(f"line {number} of {file} is not valid JSON; write one object per line") from None
        if not isinstance(row, dict):
            raise UserError(f"line {number} of {file} is not a JSON object; write one object per line")
        yield {str(k).lower(): v for k, v in row.items()}
