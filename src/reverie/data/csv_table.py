"""Text tables, .csv and .tsv: the format is detected, and inconsistent rows are refused."""

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
from reverie.data.text_files import CODINGS, MAX_FIELD_LENGTH

SAMPLE_BYTES = 64 * 1024  # bytes sampled to detect the format
SAMPLE_ROWS = 100  # rows of the sample
CHUNK_ROWS = 4096
MAX_COLUMNS = 16384
DELIMITERS = {"\t": "tabs", ";": "semicolons", "|": "bars", ",": "commas"}  # the first of equally good ones is used


@dataclass(frozen=True)
class TableFormat:
    """The format of a text table.

    names: of the columns; header: whether the file has them; head: rows before the first data row; comma: decimal commas;
    sample: cells of the first rows.
    """

    encoding: str
    delimiter: str
    header: bool
    comma: bool
    head: int
    names: tuple[str, ...]
    sample: tuple[tuple[str, ...], ...]

    def describe(self, rows: int) -> str:
        """Describe the format of the table."""
        coding = {"utf-8-sig": "", "cp1252": ", in Windows-1252"}.get(self.encoding, f", in {self.encoding.upper()}")
        commas, header = ", with decimal commas" if self.comma else "", "a header" if self.header else "no header"
        grouped = any(reader_of(cells, self.comma) is thousands_number for cells in zip(*self.sample, strict=True))
        commas += ", with commas between thousands" if grouped else ""
        between = f", separated by {DELIMITERS[self.delimiter]}" if len(self.names) > 1 else ""
        columns = f"{len(self.names):,} column{'s' * (len(self.names) != 1)}"
        return f"{rows:,} rows of {columns}{between}{commas}, with {header}{coding}"


def read_csv(path: Path, name: str, options: ReadingOptions) -> Dataset:
    """Read the numeric columns of a .csv file as points; a header is optional."""
    table_format = detect_format(path)
    cells_by_column = [
        Cells(name, reader_of([row[k] for row in table_format.sample], table_format.comma))
        for k, name in enumerate(table_format.names)
    ]
    count, rows = 0, _rows(path, table_format)
    while block := list(islice(rows, CHUNK_ROWS)):
        count += len(block)
        line_numbers = [line for line, _ in block]
        for column, cells in zip(cells_by_column, zip(*(row for _, row in block), strict=True), strict=True):
            column.add(cells, line_numbers)
    if not count:
        raise UserError(f"{path} has a header and no rows; expected rows of numbers")
    columns = [cells.column(partial(_column, path, table_format, k), "line") for k, cells in enumerate(cells_by_column)]
    dataset = table_dataset(name, columns, options, path)
    return replace(dataset, report={**dataset.report, "table": table_format.describe(count)})


def detect_format(path: Path) -> TableFormat:
    """Detect the format of a table from its first rows."""
    try:
        with path.open("rb") as file:
            data = file.read(SAMPLE_BYTES)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {reason(error)}") from None
    encoding = _encoding(data, path)
    text = codecs.getincrementaldecoder(encoding)("replace").decode(data)
    if len(data) == SAMPLE_BYTES:
        text = text[: text.rfind("\n") + 1] or text
    scored = [(_delimiter_score(text, delimiter), delimiter) for delimiter in DELIMITERS]
    delimiter = (
        max(scored, key=lambda pair: pair[0])[1] if any(score for score, _ in scored) else _most_frequent_delimiter(text)
    )
    with _readable(path):
        rows = list(islice(filter(_is_filled, csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)), SAMPLE_ROWS))
    if not rows:
        raise UserError(f"{path} is empty; expected rows of numbers")
    has_mark = len(rows) > 1 and rows[0][0].startswith("sep=")  # Excel's own mark of the delimiter
    rows = rows[1:] if has_mark else rows
    comma = _has_decimal_commas(rows, delimiter)
    header, width = _is_header(rows, comma), len(rows[0])
    if width > MAX_COLUMNS:
        raise UserError(f"{path} has {width:,} columns, more than the limit of {MAX_COLUMNS:,}; remove some")
    data_rows = rows[1:] if header else rows
    cells = tuple((*row, *[""] * (width - len(row)))[:width] for row in data_rows)
    head = int(header) + int(has_mark)
    return TableFormat(encoding, delimiter, header, comma, head, distinct_names(rows[0] if header else [""] * width), cells)


def _encoding(data: bytes, path: Path) -> str:
    """Return the encoding by the byte order mark, or UTF-8 if valid, or Windows-1252."""
    by_mark = next((name for mark, name in CODINGS.items() if data.startswith(mark)), None)
    for encoding in (by_mark,) if by_mark else ("utf-8-sig", "cp1252"):
        try:
            codecs.getincrementaldecoder(encoding)().decode(data)
        except UnicodeDecodeError as error:
            problem = f"byte {error.start:,} is 0x{data[error.start]:02x}"
        else:
            if by_mark or b"\0" not in data:
                return encoding
            problem = "it contains zero bytes"
    raise UserError(f"{path} cannot be read as a table: {problem}; save it as UTF-8 text")


def _most_frequent_delimiter(text: str) -> str:
    """Return the most frequent delimiter of the first line."""
    line = next((line for line in text.splitlines() if line.strip()), "")
    return max(reversed(DELIMITERS), key=line.count)


def _delimiter_score(text: str, delimiter: str) -> float:
    """Return how well a delimiter fits: rows have equal widths, cells are numbers, and cells contain no other delimiters."""
    try:
        rows = list(islice(filter(_is_filled, csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)), SAMPLE_ROWS))
    except csv.Error:
        return 0.0
    width, count = Counter(map(len, rows)).most_common(1)[0] if rows else (0, 0)
    if width < 2:
        return 0.0
    cells = [cell for row in rows for cell in row]
    non_numbers = [cell for cell in cells if plain_number(cell) is None and comma_number(cell) is None]
    unsplit = sum(any(other in cell for other in DELIMITERS) for cell in non_numbers)
    return count / len(rows) * (2 - (len(non_numbers) + unsplit) / len(cells))


def _has_decimal_commas(rows: Sequence[Sequence[str]], delimiter: str) -> bool:
    """Return whether numbers have decimal commas: some cell has a comma that does not separate thousands."""
    cells = [cell.strip() for row in rows for cell in row if "," in cell]
    if delimiter == ";" and any(IN_THOUSANDS.fullmatch(cell) and "." in cell for cell in cells):
        return False
    return any(comma_number(cell) is not None and (delimiter == ";" or not IN_THOUSANDS.fullmatch(cell)) for cell in cells)


def _is_header(rows: Sequence[Sequence[str]], comma: bool) -> bool:
    """Return whether the first row is a header: only words, or a word above a number."""

    def number(cell: str) -> float | None:
        return comma_number(cell) if comma else plain_number(cell)

    first = rows[0]
    is_word = [number(cell) is None for cell in first]
    if any(is_word) and not any(cell.strip() for cell, is_text in zip(first, is_word, strict=True) if not is_text):
        return True
    below = rows[1] if len(rows) > 1 else []
    return any(
        is_text and k < len(below) and below[k].strip() and number(below[k]) is not None for k, is_text in enumerate(is_word)
    )


def _is_filled(row: Sequence[str]) -> bool:
    """Return whether a row is neither empty nor only delimiters."""
    return any(cell.strip() for cell in row) or row == [""]


def _rows(path: Path, table_format: TableFormat) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows after the header, each with its line number; refuse rows of another width."""
    width, next_line = len(table_format.names), 1
    with _readable(path), path.open(encoding=table_format.encoding, newline="") as file:
        csv.field_size_limit(MAX_FIELD_LENGTH)
        reader = csv.reader(file, delimiter=table_format.delimiter)
        rows_to_skip = table_format.head
        for row in reader:
            line, next_line = next_line, reader.line_num + 1
            if not _is_filled(row):
                continue
            if rows_to_skip:
                rows_to_skip -= 1
                continue
            if len(row) > width and not any(cell.strip() for cell in row[width:]):
                row = row[:width]
            if len(row) != width:
                shown = visible(table_format.delimiter.join(row))[:60]
                head = "the header" if table_format.header else "the first row"
                raise UserError(
                    f"line {line:,} of {path} has {len(row)} cell{'s' * (len(row) != 1)}, but {head} has {width}:"
                    f" {shown}; fix or remove such rows")  # fmt: skip
            yield line, row


def _column(path: Path, table_format: TableFormat, k: int) -> list[str]:
    """Return the cells of a column, with repeated values stored once."""
    interned: dict[str, str] = {}
    return [interned.setdefault(row[k], row[k]) for _, row in _rows(path, table_format)]


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Raise errors of reading as UserErrors."""
    try:
        yield
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"{path} cannot be read: {reason(error)}") from None
    except (ValueError, csv.Error) as error:
        message = " ".join(str(error).split())[:140]
        raise UserError(f"{path} cannot be read as a table: {message}; save it as UTF-8 text") from None
