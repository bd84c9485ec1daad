"""Reading pairs of texts: two columns of a table, two fields of .jsonl, or two files line by line."""

from __future__ import annotations

import csv
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from reverie.base.errors import UserError
from reverie.base.files import expanded
from reverie.base.parse import read_json
from reverie.base.visible import visible
from reverie.data.dataset import Dataset
from reverie.data.reading import ReadingOptions
from reverie.data.text_files import LONGEST_FIELD, decode_text, read_bytes, text_report
from reverie.data.text_pairs import TextPair, make_pairs

NAMES = ("source", "target")  # of columns and fields, where nothing else is said
MAX_SIDE_LENGTH = 2048  # characters of a source or a target
MAX_PAIRS = 10**7
MIN_PAIRS = 10  # pairs that there must be
SUFFIXES = (".csv", ".tsv", ".jsonl")
PEEKED = 2**16  # characters of a line that are looked at to learn what a file holds
SHOWN = 12  # of what was left out, in a report


@dataclass(frozen=True)
class PairSource:
    """Pairs that a file holds, and what of it was left out, with why."""

    pairs: list[TextPair]
    broken: list[tuple[str, str]]
    sources: str  # what the two sides are called
    targets: str


def collect_pairs(rows: Iterator[tuple[str, object, object]], sources: str, targets: str) -> PairSource:
    """Return the rows that are pairs of texts.  rows: where each stands, and its two sides."""
    found, broken = list[TextPair](), list[tuple[str, str]]()
    for where, *sides in rows:
        wrong = ""
        for name, side in zip((sources, targets), sides, strict=True):
            if not isinstance(side, str):
                wrong = wrong or f"no text in {name!r}"
            elif not side.strip():
                wrong = wrong or f"its {name!r} is empty"
            elif len(side) > MAX_SIDE_LENGTH:
                wrong = wrong or f"its {name!r} has {len(side):,} characters, and at most {MAX_SIDE_LENGTH:,} are read"
        if wrong:
            broken.append((where, wrong))
        else:
            found.append((str(sides[0]).strip(), str(sides[1]).strip()))
        if len(found) > MAX_PAIRS:
            raise UserError(f"there are more than {MAX_PAIRS:,} pairs; give a part of them")
    return PairSource(found, broken, sources, targets)


def parse_pair_columns(wished: str | None, path: Path) -> tuple[str, str]:
    """Read the names of two columns with a comma between."""
    names = NAMES if wished is None else tuple(name.strip() for name in wished.split(","))
    if len(names) != 2 or not all(names) or names[0] == names[1]:
        raise UserError(f"cannot read the columns {wished!r} of {path}; write that of sources, a comma, and that of targets,"
                        " like --pairs english,persian")  # fmt: skip
    return names[0], names[1]


def guess_delimiter(path: Path, line: str) -> str:
    """Return what stands between the cells of a table: a tabulator in .tsv, else what the first line has most of."""
    return "\t" if path.suffix.lower() == ".tsv" else max(",;\t", key=line.count)


def holds_pairs(path: Path) -> bool:
    """Tell whether a file names its columns or fields source and target, and they are not both numbers."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        return False
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = [line for line in itertools.islice(iter(lambda: file.readline(PEEKED), ""), 8) if line.strip()]
        if not lines:
            return False
        if suffix == ".jsonl":
            value = read_json(lines[0])
            return isinstance(value, dict) and all(isinstance(value.get(key), str) for key in NAMES)
        first, *rows = csv.reader(lines, delimiter=guess_delimiter(path, lines[0]))
        places = [first.index(key) for key in NAMES]
        return not all(_is_number(row[k]) for row in rows for k in places if k < len(row)) or not rows
    except (OSError, ValueError, csv.Error):
        return False  # what is wrong is told by the reader that the file then has


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def table_pairs(path: Path, text: str, wished: str | None) -> PairSource:
    """Return two columns of a table, by their names, or by their numbers from 1 on where it has no header."""
    sources, targets = parse_pair_columns(wished, path)
    lines = text.splitlines(keepends=True)
    try:
        csv.field_size_limit(LONGEST_FIELD)
        rows = csv.reader(lines, delimiter=guess_delimiter(path, lines[0] if lines else ""), strict=True)
        header = [] if sources.isdecimal() and targets.isdecimal() else next(rows, [])
        if header and (missing := [name for name in (sources, targets) if name not in header]):
            there = ", ".join(visible(name) for name in header)
            raise UserError(f"{path} has no column {missing[0]!r}; it has: {there}")
        places = [header.index(name) if header else int(name) - 1 for name in (sources, targets)]
        if min(places) < 0:
            raise UserError(f"the columns of {path} are counted from 1, got {wished!r}")

        def cells() -> Iterator[tuple[str, object, object]]:
            for number, row in enumerate(rows, 1 + bool(header)):
                if any(cell.strip() for cell in row):
                    a, b = (row[k] if k < len(row) else None for k in places)
                    yield f"row {number:,}", a, b

        return collect_pairs(cells(), sources, targets)
    except csv.Error as error:
        raise UserError(f"{path} cannot be read as a table: {error}; save it as UTF-8 text") from None


def jsonl_pairs(path: Path, text: str, wished: str | None) -> PairSource:
    """Return two fields of each line of a .jsonl file."""
    sources, targets = parse_pair_columns(wished, path)

    def fields() -> Iterator[tuple[str, object, object]]:
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip():
                continue
            try:
                value = read_json(line)
            except ValueError:
                value = None
            told = value if isinstance(value, dict) else {}
            yield f"line {number:,}", told.get(sources), told.get(targets)

    return collect_pairs(fields(), sources, targets)


def parallel_pairs(path: Path, text: str, other: Path, answers: str) -> PairSource:
    """Return two files line by line."""
    lines, beside = (part.splitlines() for part in (text, answers))
    if len(lines) != len(beside):
        raise UserError(f"{path} has {len(lines):,} lines and {other} has {len(beside):,}; line by line they must belong"
                        " together")  # fmt: skip
    rows = ((f"line {k:,}", a, b) for k, (a, b) in enumerate(zip(lines, beside, strict=True), 1))
    return collect_pairs(rows, path.name, other.name)


def read_pairs(path: Path, name: str, options: ReadingOptions) -> Dataset | None:
    """Return the pairs of texts that a file holds, by the columns that are asked for or its own names; None without any."""
    wished, suffix = options.pairs, path.suffix.lower()
    if wished is None and (options.labels not in ("auto", "none") or options.text is not None or not holds_pairs(path)):
        return None
    text = decode_text(read_bytes(path), path)
    if suffix == ".jsonl":
        found = jsonl_pairs(path, text, wished)
    elif suffix in SUFFIXES:
        found = table_pairs(path, text, wished)
    else:
        other = _other_file(path, wished or "")
        found = parallel_pairs(path, text, other, decode_text(read_bytes(other), other))
    if found.broken and options.strict:
        raise UserError(f"{found.broken[0][0]} of {path}: {found.broken[0][1]}; mend it, or leave --strict out")
    return pairs_dataset(name, found.pairs, options, str(path), found.broken)


def _other_file(path: Path, wished: str) -> Path:
    """Return the file whose lines answer those of another: as it is named, or beside that one."""
    try:
        places = (expanded(wished), path.parent / Path(wished).name)
        found = next((place for place in places if place.is_file()), None)
    except (OSError, ValueError, RuntimeError):  # too long, a null byte, no such user
        found = None
    if found is None:
        raise UserError(f"there is no file {wished!r} whose lines would answer those of {path}; give --pairs FILE")
    return found


def pairs_dataset(
    name: str, pairs: Sequence[TextPair], options: ReadingOptions, source: str, broken: Sequence[tuple[str, str]] = ()
) -> Dataset:
    """Return pairs as a data set with its report."""
    if len(pairs) < MIN_PAIRS:
        why = f" ({len(broken):,} were left out, first {visible(broken[0][0])}: {visible(broken[0][1])})" if broken else ""
        raise UserError(f"{source} has {len(pairs):,} pairs of a source and a target{why}; at least {MIN_PAIRS} are needed")
    if options.window is not None:
        raise UserError(f"{source} holds pairs of texts, which are seen as a whole; leave --window out")
    if options.size is not None or options.channels is not None:
        raise UserError(f"{source} holds pairs of texts, which have no size and no channels; leave these out")
    x, copies = make_pairs(pairs), len(pairs) - len(set(pairs))
    longest, doubtful = x.lengths.max(0).tolist(), count_ambiguous_sources(pairs)
    about = text_report([text for pair in pairs for text in pair], source)
    report = {
        **{key: about[key] for key in ("source", "characters", "alphabet", "common_characters", "common_words")},
        "kind": "pairs", "count": len(pairs), "longest_source": longest[0], "longest_target": longest[1],
        "duplicates": copies, "several_targets": doubtful, "broken": [list(pair) for pair in broken[:SHOWN]],
        "examples": [[visible(text) for text in pair] for pair in pairs[:3]],
    }  # fmt: skip
    notes = [
        f"{len(pairs):,} pairs of texts, {about['alphabet']:,} kinds of characters; sources of up to {longest[0]} characters,"
        f" targets of up to {longest[1]}: {visible(pairs[0][0])[:60]} \u2192 {visible(pairs[0][1])[:60]}"
    ]
    if copies:
        notes.append(f"exact copies of other pairs: {copies:,}")
    if doubtful:
        notes.append(f"sources with more than one target, of which only one can be answered: {doubtful:,}")
    if broken:
        notes.append(f"{len(broken):,} left out, first {visible(broken[0][0])}: {visible(broken[0][1])}")
    return Dataset(name, x, notes=tuple(notes), report=report)


def count_ambiguous_sources(pairs: Sequence[TextPair]) -> int:
    """Return how many sources have more than one target."""
    return sum(count > 1 for count in Counter(source for source, _ in set(pairs)).values())
