"""Tables as text, .csv and .tsv: how they are written is recognised, and rows that do not fit together are refused."""

from __future__ import annotations

import codecs
import csv
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

from reverie.base.errors import UserError
from reverie.base.files import reason
from reverie.base.visible import visible
from reverie.data.cells import IN_THOUSANDS, Cells, comma_number, distinct_names, plain_number, reader_of, thousands_number
from reverie.data.dataset import Dataset
from reverie.data.point_table import table_dataset
from reverie.data.reading import ReadingOptions
from reverie.data.text_files import CODINGS, LONGEST_FIELD

SAMPLE = 64 * 1024  # bytes looked at to learn how a file is written
ROWS = 100  # of them that are looked at
ROWS_AT_ONCE = 4096
MAX_COLUMNS = 16384
DELIMITERS = {"\t": "tabs", ";": "semicolons", "|": "bars", ",": "commas"}  # the first that suits equally well is taken


@dataclass(frozen=True)
class TableFormat:
    """How a table is written.

    names: of its columns; header: whether the file has them; head: rows before the first of numbers; comma: whether decimals
    have one; sample: the first cells of each row, as they are written.
    """

    encoding: str
    delimiter: str
    header: bool
    comma: bool
    head: int
    names: tuple[str, ...]
    sample: tuple[tuple[str, ...], ...]

    def describe(self, rows: int) -> str:
        """Say how the table is written."""
        coding = {"utf-8-sig": "", "cp1252": ", in Windows-1252"}.get(self.encoding, f", in {self.encoding.upper()}")
        commas, header = ", with decimal commas" if self.comma else "", "a header" if self.header else "no header"
        grouped = any(reader_of(cells, self.comma) is thousands_number for cells in zip(*self.sample, strict=True))
        commas += ", with commas between thousands" if grouped else ""
        between = f", separated by {DELIMITERS[self.delimiter]}" if len(self.names) > 1 else ""
        columns = f"{len(self.names):,} column{'s' * (len(self.names) != 1)}"
        return f"{rows:,} rows of {columns}{between}{commas}, with {header}{coding}"


def read_csv(path: Path, name: str, options: ReadingOptions) -> Dataset:
    """Return the numeric columns of a .csv file as points; a header is optional."""
    form = detect_format(path)
    found = [Cells(name, reader_of([row[k] for row in form.sample], form.comma)) for k, name in enumerate(form.names)]
    count, rows = 0, _rows(path, form)
    while block := list(islice(rows, ROWS_AT_ONCE)):
        count += len(block)
        places = [line for line, _ in block]
        for column, cells in zip(found, zip(*(row for _, row in block), strict=True), strict=True):
            column.add(cells, places)
    if not count:
        raise UserError(f"{path} has a header and no rows; expected rows of numbers")
    columns = [cells.column(partial(_column, path, form, k), "line") for k, cells in enumerate(found)]
    made = table_dataset(name, columns, options, path)
    return replace(made, report={**made.report, "table": form.describe(count)})


def detect_format(path: Path) -> TableFormat:
    """Tell by its first rows how a table is written."""
    try:
        with path.open("rb") as file:
            data = file.read(SAMPLE)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {reason(error)}") from None
    encoding = _encoding(data, path)
    text = codecs.getincrementaldecoder(encoding)("replace").decode(data)
    if len(data) == SAMPLE:
        text = text[: text.rfind("\n") + 1] or text
    suited = [(_suits(text, delimiter), delimiter) for delimiter in DELIMITERS]
    delimiter = max(suited, key=lambda pair: pair[0])[1] if any(score for score, _ in suited) else _first(text)
    with _readable(path):
        rows = list(islice(filter(_filled, csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)), ROWS))
    if not rows:
        raise UserError(f"{path} is empty; expected rows of numbers")
    marked = len(rows) > 1 and rows[0][0].startswith("sep=")  # as Excel tells itself the separator
    rows = rows[1:] if marked else rows
    comma = _commas(rows, delimiter)
    header, width = _is_header(rows, comma), len(rows[0])
    if width > MAX_COLUMNS:
        raise UserError(f"{path} has {width:,} columns; at most {MAX_COLUMNS:,} are read")
    body = rows[1:] if header else rows
    cells = tuple((*row, *[""] * (width - len(row)))[:width] for row in body)
    head = int(header) + int(marked)
    return TableFormat(encoding, delimiter, header, comma, head, distinct_names(rows[0] if header else [""] * width), cells)


def _encoding(data: bytes, path: Path) -> str:
    """Return the encoding that a mark at the beginning tells, else UTF-8, else that of Windows."""
    marked = next((name for mark, name in CODINGS.items() if data.startswith(mark)), None)
    for encoding in (marked,) if marked else ("utf-8-sig", "cp1252"):
        try:
            codecs.getincrementaldecoder(encoding)().decode(data)
        except UnicodeDecodeError as error:
            wrong = f"byte {error.start:,} is 0x{data[error.start]:02x}"
        else:
            if marked or b"\0" not in data:
                return encoding
            wrong = "it holds zero bytes"
    raise UserError(f"{path} cannot be read as a table: {wrong}; save it as UTF-8 text")


def _first(text: str) -> str:
    """Return the separator that the first line has most of."""
    line = next((line for line in text.splitlines() if line.strip()), "")
    return max(reversed(DELIMITERS), key=line.count)


def _suits(text: str, delimiter: str) -> float:
    """Return how well a separator cuts a table: rows are of one width, and cells are numbers, and hold no other separators."""
    try:
        rows = list(islice(filter(_filled, csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)), ROWS))
    except csv.Error:
        return 0.0
    width, like = Counter(map(len, rows)).most_common(1)[0] if rows else (0, 0)
    if width < 2:
        return 0.0
    cells = [cell for row in rows for cell in row]
    words = [cell for cell in cells if plain_number(cell) is None and comma_number(cell) is None]
    uncut = sum(any(other in cell for other in DELIMITERS) for cell in words)
    return like / len(rows) * (2 - (len(words) + uncut) / len(cells))


def _commas(rows: Sequence[Sequence[str]], delimiter: str) -> bool:
    """Tell whether numbers have decimal commas: some have one that is no mark of thousands, as after a semicolon none is."""
    cells = [cell.strip() for row in rows for cell in row if "," in cell]
    if delimiter == ";" and any(IN_THOUSANDS.fullmatch(cell) and "." in cell for cell in cells):
        return False
    return any(comma_number(cell) is not None and (delimiter == ";" or not IN_THOUSANDS.fullmatch(cell)) for cell in cells)


def _is_header(rows: Sequence[Sequence[str]], comma: bool) -> bool:
    """A first row of words is a header, also one with numbers where a word stands above numbers."""

    def number(cell: str) -> float | None:
        return comma_number(cell) if comma else plain_number(cell)

    first = rows[0]
    words = [number(cell) is None for cell in first]
    if any(words) and not any(cell.strip() for cell, word in zip(first, words, strict=True) if not word):
        return True
    below = rows[1] if len(rows) > 1 else []
    return any(word and k < len(below) and below[k].strip() and number(below[k]) is not None for k, word in enumerate(words))


def _filled(row: Sequence[str]) -> bool:
    """Tell a row from an empty line, or one of separators alone."""
    return any(cell.strip() for cell in row) or row == [""]


def _rows(path: Path, form: TableFormat) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows after the header, each with its line; refuse one of another width."""
    width, begin = len(form.names), 1
    with _readable(path), path.open(encoding=form.encoding, newline="") as file:
        csv.field_size_limit(LONGEST_FIELD)
        reader = csv.reader(file, delimiter=form.delimiter)
        before = form.head
        for row in reader:
            line, begin = begin, reader.line_num + 1
            if not _filled(row):
                continue
            if before:
                before -= 1
                continue
            if len(row) > width and not any(cell.strip() for cell in row[width:]):
                row = row[:width]
            if len(row) != width:
                shown = visible(form.delimiter.join(row))[:60]
                head = "the header" if form.header else "the first row"
                raise UserError(f"line {line:,} of {path} has {len(row)} cell{'s' * (len(row) != 1)} and {head} {width}:"
                                f" {shown}; mend or remove such rows")  # fmt: skip
            yield line, row


def _column(path: Path, form: TableFormat, k: int) -> list[str]:
    """Return the cells of a column; each that repeats is held once."""
    held: dict[str, str] = {}
    return [held.setdefault(row[k], row[k]) for _, row in _rows(path, form)]


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Say in one sentence why a file cannot be read as rows."""
    try:
        yield
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"{path} cannot be read: {reason(error)}") from None
    except (ValueError, csv.Error) as error:
        words = " ".join(str(error).split())[:140]
        raise UserError(f"{path} cannot be read as a table: {words}; save it as UTF-8 text") from None
