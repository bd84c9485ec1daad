"""Tables in .parquet files."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from reverie.base.errors import UserError
from reverie.data.cells import Cells, distinct_names, plain_number
from reverie.data.columnar import ParquetTable, arrow_module, readable_errors
from reverie.data.dataset import Dataset
from reverie.data.memory_limits import BYTES_PER_LABEL, array_memory, check_expansion
from reverie.data.point_table import Column, table_dataset
from reverie.data.reading import ReadingOptions

CHUNK_ROWS = 2**16
MAX_WORD_BYTES = 2**26  # maximum bytes of the distinct strings of a column
ADVICE = "if you trust the file, save its numbers with numpy.save"


def read_parquet(path: Path, name: str, options: ReadingOptions) -> Dataset:
    """Read the numeric columns of a .parquet file as points."""
    kinds = arrow_module("pyarrow", path).types
    with readable_errors(path, "parquet"), ParquetTable(path.open("rb"), path.stat().st_size, path) as file:
        fields = list(file.schema)
        numbers = [k for k, f in enumerate(fields) if _is_numeric(kinds, f.type)]
        check_expansion(
            array_memory((file.rows, len(numbers)), 8) + file.rows * (8 * (len(fields) - len(numbers)) + BYTES_PER_LABEL),
            path.stat().st_size, str(path), ADVICE,
        )  # fmt: skip
        x = _numbers(file, [fields[k].name for k in numbers])
        columns = []
        for k, (field, title) in enumerate(zip(fields, distinct_names([f.name for f in fields]), strict=True)):
            read = partial(_parquet_words, file, field.name)
            if k in numbers:
                columns.append(Column(title, x[:, numbers.index(k)], read, "numbers"))
            elif kinds.is_date(field.type) or kinds.is_timestamp(field.type):
                columns.append(Column(title, None, read, "dates", timestamps=partial(_timestamps, file, field.name)))
            elif kinds.is_string(field.type) or kinds.is_large_string(field.type) or kinds.is_dictionary(field.type):
                columns.append(_text_column(title, read, options))
            elif kinds.is_boolean(field.type):
                columns.append(Column(title, None, read, "words", 5))
            else:
                columns.append(Column(title, None, partial(_no_label, field, path), f"values of type {field.type}", 2**31))
        return table_dataset(name, columns, options, path)


def _is_numeric(kinds: Any, kind: Any) -> bool:
    return bool(kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_decimal(kind))


def _numbers(file: ParquetTable, names: list[str]) -> np.ndarray:
    """Return the numeric columns, NaN for empty cells: (N, D) float64."""
    float64 = arrow_module("pyarrow", file.where).float64()
    x, done = np.empty((file.rows, len(names))), 0
    if not names:
        return x
    file.check(names, ADVICE, each=0)
    for batch in file.batches(CHUNK_ROWS, names):
        for j, values in enumerate(batch.columns):
            x[done : done + len(batch), j] = values.cast(float64, safe=False).to_numpy(zero_copy_only=False)
        done += len(batch)
    if done != file.rows:
        raise UserError(f"{file.where} states {file.rows} rows and has {done}; save it again")
    return x


def _text_column(name: str, read: Callable[[], list[str]], options: ReadingOptions) -> Column:
    """Return a column of text as words, dates or numbers; a column too large for labels is reported only if requested."""
    if options.labels == name:
        return Column(name, None, read)
    try:
        words = read()
    except UserError:
        return Column(name, None, read, "texts", 2**31)
    cells = Cells(name, plain_number)
    cells.add(words, range(1, len(words) + 1))
    return cells.column(read)


def _no_label(field: Any, path: Path) -> list[str]:
    raise UserError(
        f"the column {field.name} of {path} has the type {field.type}, which cannot be a label; choose another column"
    )


def _timestamps(file: ParquetTable, column: str) -> np.ndarray:
    """Return timestamps in seconds, NaN for empty cells: (N,)."""
    arrow = arrow_module("pyarrow", file.where)
    file.check([column], ADVICE, each=16)
    parts = [batch.column(0).cast(arrow.timestamp("us"), safe=False) for batch in file.batches(CHUNK_ROWS, [column])]
    micro = np.concatenate([part.to_numpy(zero_copy_only=False) for part in parts] or [np.empty(0, "datetime64[us]")])
    seconds: np.ndarray = np.where(np.isnat(micro), np.nan, micro.astype("datetime64[us]").astype(np.int64) / 1e6)
    return seconds


def _parquet_words(file: ParquetTable, column: str) -> list[str]:
    """Return a column as strings, with repeated values stored once."""
    file.check([column], "choose another column for labels", each=16, copies=3)
    out: list[str] = []
    interned: dict[str, str] = {}
    for batch in file.batches(CHUNK_ROWS, [column]):
        values = batch.column(0)
        if not hasattr(values, "dictionary"):
            words = ["" if value is None else str(value) for value in values.to_pylist()]
            out.extend(interned.setdefault(word, word) for word in words)
            continue
        if values.dictionary.nbytes > MAX_WORD_BYTES:
            raise UserError(f"the column {column} of {file.where} contains long texts, not labels; choose another column")
        words = [interned.setdefault(str(word), str(word)) for word in values.dictionary.to_pylist()]
        out.extend("" if k is None else words[k] for k in values.indices.to_pylist())
    return out
