"""Text cells of tables: empty cells, number formats, and columns parsed from cells."""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from reverie.base.visible import visible
from reverie.data.point_table import LABEL_LENGTH, ROWS_PER_LABEL, Column
from reverie.data.timestamps import date_reader, seconds_of

EMPTY_CELLS = frozenset({
    "", "na", "n/a", "#n/a", "#na", "<na>", "nan", "-nan", "nat", "null", "none", "-", "--", "?", ".", "1.#ind", "1.#qnan",
    "-1.#ind", "-1.#qnan",
})  # fmt: skip  # cells that hold no value, in small letters
WITH_COMMA = re.compile(r"[+-]?(\d{1,3}(\.\d{3})+|\d+)?(,\d*)?([eE][+-]?\d+)?")  # 1.234,5
IN_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?")  # 1,234.5
MAX_WORD_SHARE = 0.1  # maximum share of words in a column of numbers
MAX_CLASSES = 100_000
SAMPLE_SIZE = 100  # cells that determine the date format
MAX_SHOWN, MAX_NAME = 40, 200  # characters of a cell in a message, and of a column name
Reader = Callable[[str], float | None]


def plain_number(cell: str) -> float | None:
    """Return a number with a decimal point or a percentage, NaN for an empty cell, None for anything else."""
    cell = cell.strip().removesuffix("%").rstrip()
    if cell.lower() in EMPTY_CELLS:
        return math.nan
    try:
        return float(cell) if "_" not in cell else None
    except ValueError:
        return None


def comma_number(cell: str) -> float | None:
    """Return a number with a decimal comma and optional points between thousands."""
    cell = cell.strip().removesuffix("%").rstrip()
    if not WITH_COMMA.fullmatch(cell) or not any(map(str.isdecimal, cell)):
        return math.nan if cell.lower() in EMPTY_CELLS else None
    return plain_number(cell.replace(".", "").replace(",", "."))


def thousands_number(cell: str) -> float | None:
    """Return a number with commas between thousands."""
    return plain_number(cell.replace(",", "") if IN_THOUSANDS.fullmatch(cell.strip()) else cell)


def reader_of(cells: Sequence[str], comma: bool) -> Reader:
    """Return the parser of a column's number format, detected from some cells.  comma: the table has decimal commas."""
    if comma:
        dotted = [cell for cell in cells if plain_number(cell) is not None and "." in cell]
        return comma_number if all(comma_number(cell) is not None for cell in dotted) else plain_number
    inside = [cell for cell in cells if "," in cell]
    return thousands_number if inside and all(IN_THOUSANDS.fullmatch(cell.strip()) for cell in inside) else plain_number


class Cells:
    """A column that is parsed cell by cell, keeping only numbers."""

    def __init__(self, name: str, read: Reader) -> None:
        self.name, self._read = name, read
        self._numbers = array("d")
        self._words, self._longest, self._samples = 0, 0, list[str]()
        self._first_word = (0, "")
        self._distinct: set[str] | None = set()  # distinct words, as long as they could be labels

    def add(self, cells: Iterable[str], rows: Sequence[int]) -> None:
        """Add cells; rows: the line or row number of each, for messages."""
        cells = list(cells)
        if self._read is plain_number:
            try:
                numbers = array("d", map(float, cells))
            except ValueError:
                pass
            else:
                if not any("_" in cell for cell in cells):
                    self._numbers += numbers
                    return
        for cell, row in zip(cells, rows, strict=True):
            number = self._read(cell)
            self._numbers.append(math.nan if number is None else number)
            if number is None:
                self._first_word = (row, cell) if not self._words else self._first_word
                self._words += 1
                self._longest = max(self._longest, len(cell))
                if len(self._samples) < SAMPLE_SIZE:
                    self._samples.append(cell.strip())
                if self._distinct is not None:
                    self._distinct.add(cell.strip())
                    if len(cell) > LABEL_LENGTH or len(self._distinct) > MAX_CLASSES:
                        self._distinct = None

    def column(self, read: Callable[[], list[str]], unit: str = "row") -> Column:
        """Return the column: numbers, dates or words, or numbers with a few words.  read: returns all cells again."""
        numbers = np.frombuffer(self._numbers, np.float64) if self._numbers else np.empty(0)

        def cells() -> list[str]:
            return ["" if cell.strip().lower() in EMPTY_CELLS else cell.strip() for cell in read()]

        if not self._words:
            return Column(self.name, numbers, cells, "numbers")
        dates = date_reader(self._samples)
        timestamps = (lambda: seconds_of(cells(), dates)) if dates is not None else None
        number_count = int(np.count_nonzero(~np.isnan(numbers)))
        distinct = len(self._distinct) if self._distinct is not None and not number_count else 0
        repeats = 2 <= distinct <= len(numbers) / ROWS_PER_LABEL
        problem = ""
        if self._words <= MAX_WORD_SHARE * (self._words + number_count):
            row, cell = self._first_word
            also = f", and {self._words - 1:,} more" if self._words > 1 else ""
            problem = f"{visible(cell.strip()[:MAX_SHOWN])!r} in {unit} {row:,} is not a number{also}"
        return Column(self.name, None, cells, "words", self._longest, timestamps, problem, repeats)


def distinct_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return distinct printable column names; an unnamed first column is the index, as pandas writes it."""
    distinct: dict[str, None] = {}
    repeats: Counter[str] = Counter()
    for k, raw in enumerate(names):
        name = first = visible(raw.strip())[:MAX_NAME].strip() or (f"column {k + 1}" if k or not any(names) else "index")
        while name in distinct:
            repeats[first] += 1
            name = f"{first}.{repeats[first]}"
        distinct[name] = None
    return tuple(distinct)
