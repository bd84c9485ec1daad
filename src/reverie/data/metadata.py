"""Tables beside images, metadata.csv and metadata.jsonl, whose rows say something of a file each."""

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
LINE_LIMIT = 2**20  # letters
MAX_COLUMNS = 1000  # names of columns that are remembered
FILE, COLUMNS, CAPTIONS = "file_name", ("label", "class", "text", "caption"), ("text", "caption")


def read_metadata_column(names: Sequence[str], metadata: Mapping[str, FileEntry], column: str, where: str) -> list[str | None]:
    """Return what a column of metadata says of each file, None where it says nothing."""
    files = [name for name in metadata if name in METADATA]
    if not files:
        raise UserError(f"{where} has no metadata.csv or metadata.jsonl, so it has no column {column!r}")
    told = read_metadata(metadata[files[0]], files[0], frozenset(names), (column.lower(),))
    return [told.values.get(name) for name in names]


@dataclass
class UnmatchedRows:
    """Rows that name no image there is: how many, and the first."""

    count: int = 0
    first: str = ""


@dataclass(frozen=True)
class ColumnValues:
    """What a column says of each file, by its name with forward slashes; rows of other files; all columns there are."""

    values: Mapping[str, str]
    column: str
    absent: UnmatchedRows
    columns: frozenset[str]


def read_metadata(entry: FileEntry, file: str, known: frozenset[str], wanted: Sequence[str]) -> ColumnValues:
    """Return what the first of the wanted columns that is there says of known files.

    The file is read line by line, and of each line only what is said of a known name is kept.
    """
    if entry.size > METADATA_LIMIT:
        raise UserError(f"{file} is over {METADATA_LIMIT >> 20} MiB; make it smaller")
    columns: set[str] = set()
    found: dict[str, dict[str, str]] = {column: {} for column in wanted}
    absent = {column: UnmatchedRows() for column in wanted}
    try:
        with entry.open() as opened, io.TextIOWrapper(opened, "utf-8-sig", newline="") as text:
            lines = _lines(text, file)
            for row in _csv_rows(lines) if file.endswith(".csv") else _jsonl_rows(lines, file):
                if len(columns) < MAX_COLUMNS:
                    columns.update(row)
                for key in wanted:
                    if key in row:
                        _keep(row, key, known, found[key], absent[key])
    except UserError:
        raise
    except Exception as error:  # a damaged zip entry, wrong encoding, a field without end
        raise UserError(f"{file} cannot be read: {' '.join(str(error).split())[:100]}; save it as UTF-8 text") from None
    column = next((key for key in wanted if key in columns), None)
    if FILE not in columns or column is None:
        have = ", ".join(sorted(columns)[:8])[:200] or "nothing"
        needed = "label, class or text" if wanted is COLUMNS else " or ".join(wanted)
        other = "; --labels takes the name of another" if wanted is COLUMNS and FILE in columns else ""
        raise UserError(f"{file} needs a {FILE} column and a {needed} column; it has {have}{other}")
    return ColumnValues(found[column], column, absent[column], frozenset(columns))


def _keep(row: Mapping[str, Any], column: str, known: frozenset[str], found: dict[str, str], absent: UnmatchedRows) -> None:
    """Keep the label that a row gives a known name."""
    name, value = row.get(FILE), row.get(column)
    if not name or value is None or not str(value).strip():
        return
    path = str(name).replace("\\", "/").removeprefix("./")
    if path in known:
        found[path] = visible(" ".join(str(value).split())) if column in CAPTIONS else str(value).strip()
    else:
        absent.count, absent.first = absent.count + 1, absent.first or path


def _lines(text: io.TextIOWrapper, file: str) -> Iterator[str]:
    while line := text.readline(LINE_LIMIT):
        if len(line) == LINE_LIMIT:
            raise UserError(f"{file} has a line of more than {LINE_LIMIT >> 20} MiB; write one line for each image")
        yield line


def _csv_rows(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    rows = csv.reader(lines, skipinitialspace=True)
    columns = [name.strip().lower() for name in next(rows, [])]
    for row in rows:
        yield dict(zip(columns, row, strict=False))  # a short row lacks columns, and what is over has none


def _jsonl_rows(lines: Iterator[str], file: str) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = read_json(line)
        except ValueError:
            raise UserError(f"line {number} of {file} is not valid JSON; each line must be one object") from None
        if not isinstance(row, dict):
            raise UserError(f"line {number} of {file} is not a JSON object; each line must be one object")
        yield {str(k).lower(): v for k, v in row.items()}
