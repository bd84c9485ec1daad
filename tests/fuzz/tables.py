"""Random tables: gaps, rows of other widths, separators, decimals, encodings; what is read is compared with the truth."""

from __future__ import annotations

import csv
import datetime
import io
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from reverie.data import load_data

GAPS = ("", "NA", "nan", " ", "-", "NULL")
WORDS = ("red", "green", "Größe", 'a "b"', "two words", "x,y", "1st")
NAMES = ("height", "weight (kg)", "Größe", "label", "x", "time", "a,b", "=1+1", "value;2", "id", "class")


@dataclass
class Table:
    """What a table holds.  columns: numbers with NaN for gaps, or words, by name; wrong: whether it must be refused."""

    columns: dict[str, np.ndarray | list[str]] = field(default_factory=dict)
    wrong: bool = False


def table(chance: random.Random) -> Table:
    """Return columns of numbers, ids, dates and words."""
    rows = chance.choice((2, 5, 30, 60, 150))
    made = Table()
    for name in chance.sample(NAMES, chance.randrange(2, 6)):
        made.columns[name] = _column(rows, chance, number=not made.columns)
    return made


def _column(rows: int, chance: random.Random, number: bool) -> np.ndarray | list[str]:
    match 9 if number else chance.randrange(10):
        case 0:
            return [f"{datetime.date(2020, 1, 1) + datetime.timedelta(days=k)}" for k in range(rows)]
        case 1:
            return [chance.choice(WORDS) for _ in range(rows)]
        case 2:
            return np.arange(rows) + float(chance.choice((0, 1, 5000)))
        case kind:
            digits, share = chance.choice((0, 1, 2)), chance.choice((0.0, 0.05, 0.3, 0.9)) if kind < 8 else 0.0
            scale = chance.choice((0.01, 1, 100, 1e5))
            numbers = [round(chance.gauss(0, 1) * scale, digits) for _ in range(rows)]
            return np.array([v if chance.random() >= share else np.nan for v in numbers])


def written(made: Table, chance: random.Random) -> tuple[str, bytes]:
    """Return the name and the bytes of a .csv or .tsv file that holds a table, perhaps with a row that does not fit."""
    comma = chance.random() < 0.4
    delimiter = chance.choice(";\t|" if comma else ",;\t|")
    header = chance.random() < 0.8 or any(isinstance(c, list) or np.isnan(c[0]) for c in made.columns.values())
    gap = chance.choice(GAPS)

    def cell(value: Any) -> str:
        if isinstance(value, str):
            return value
        return gap if np.isnan(value) else f"{value:.2f}".rstrip("0").rstrip(".").replace(".", "," if comma else ".")

    rows = [[cell(v) for v in row] for row in zip(*made.columns.values(), strict=True)]
    if chance.random() < 0.15:
        row = rows[chance.randrange(1, len(rows))]
        row.append("7") if chance.random() < 0.5 else row.pop()
        made.wrong = True
    if not header:
        made.columns = {f"column {k + 1}": column for k, column in enumerate(made.columns.values())}
    text = io.StringIO()
    end = chance.choice(("\n", "\r\n"))
    writer = csv.writer(
        text, delimiter=delimiter, lineterminator=end, quoting=chance.choice((csv.QUOTE_MINIMAL, csv.QUOTE_ALL))
    )
    writer.writerows([[*made.columns], *rows] if header else rows)
    content = text.getvalue() + chance.choice(("", end, f"{end}{delimiter * 3}{end}"))
    return chance.choice(("t.csv", "t.tsv")), content.encode(chance.choice(("utf-8", "utf-8-sig", "utf-16", "cp1252")))


def check(source: Any, made: Table) -> None:
    """Read a table and fail on any loss that is not reported; a `UserError` is for the worker."""
    columns, data = made.columns, load_data(source)
    assert not made.wrong, f"a row that does not fit was taken: {data.notes}"
    notes = " ".join(data.notes)
    label = f"the column {next((name for name in columns if f'from the column {name};' in notes), '')}"
    for name in columns:
        named = name in data.columns or name in data.report["left_out"]
        assert named or (data.label_names and (name in ("label", "class") or name in label)), f"{name} is not reported: {notes}"
    x = np.asarray(data.x)
    kept = np.stack([np.asarray(columns[name], np.float64) for name in data.columns], 1)
    some = ~np.isnan(kept).all(1)
    assert len(x) == len(kept) or (len(x) == some.sum() and "without any number" in notes), (
        f"{len(x)} of {len(kept)} rows: {notes}"
    )
    kept = kept if len(x) == len(kept) else kept[some]
    there = ~np.isnan(kept)
    assert np.allclose(x[there], kept[there].astype(np.float32), rtol=1e-6), "numbers were changed"
    for name, gaps in zip(data.columns, (~there).sum(0), strict=True):
        assert data.report["filled"].get(name, 0) == gaps and (not gaps or f"{name} {gaps:,}" in notes), (
            f"gaps of {name}: {notes}"
        )
    assert not data.label_names or sum(data.label_counts()) == len(x)


def read(root: Path, chance: random.Random) -> None:
    """Make a table as a file or a frame, read it, and compare."""
    made = table(chance)
    if chance.random() < 0.75:
        name, content = written(made, chance)
        (root / name).write_bytes(content)
        check(root / name, made)
        return
    import pandas

    frame = pandas.DataFrame(made.columns)
    if chance.random() < 0.5:
        frame.to_parquet(root / "t.parquet")
    check(root / "t.parquet" if (root / "t.parquet").exists() else frame, made)
