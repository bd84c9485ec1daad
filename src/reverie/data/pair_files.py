"""Pairs of texts from files: two columns of a table, two fields of .jsonl, or two files line by line."""

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
from reverie.data.text_files import MAX_FIELD_LENGTH, decode_text, read_bytes, text_report
from reverie.data.text_pairs import TextPair, make_pairs

DEFAULT_COLUMNS = ("source", "target")  # default columns and fields
MAX_SIDE_LENGTH = 2048  # maximum characters of a source or target
MAX_PAIRS = 10**7
MIN_PAIRS = 10  # minimum pairs of a dataset
SUFFIXES = (".csv", ".tsv", ".jsonl")
SAMPLE_LENGTH = 2**16  # characters of a line sampled to detect pairs
MAX_SHOWN = 12  # skipped rows listed in a report


@dataclass(frozen=True)
class PairSource:
    """Pairs of a file, and the skipped rows with reasons."""

    pairs: list[TextPair]
    broken: list[tuple[str, str]]
    sources: str  # names of the two sides
    targets: str


def collect_pairs(rows: Iterator[tuple[str, object, object]], sources: str, targets: str) -> PairSource:
    """Return the rows that are valid pairs of texts.  rows: location and the two sides."""
    pairs, broken = list[TextPair](), list[tuple[str, str]]()
    for where, *sides in rows:
        problem = ""
        for name, side in zip((sources, targets), sides, strict=True):
            if not isinstance(side, str):
                problem = problem or f"no text in {name!r}"
            elif not side.strip():
                problem = problem or f"its {name!r} is empty"
            elif len(side) > MAX_SIDE_LENGTH:
                problem = problem or f"its {name!r} has {len(side):,} characters, above the limit of {MAX_SIDE_LENGTH:,}"
        if problem:
            broken.append((where, problem))
        else:
            pairs.append((str(sides[0]).strip(), str(sides[1]).strip()))
        if len(pairs) > MAX_PAIRS:
            raise UserError(f"more than {MAX_PAIRS:,} pairs; use a part of them")
    return PairSource(pairs, broken, sources, targets)


def parse_pair_columns(requested: str | None, path: Path) -> tuple[str, str]:
    """Parse two comma-separated column names."""
    names = DEFAULT_COLUMNS if requested is None else tuple(name.strip() for name in requested.split(","))
    if len(names) != 2 or not all(names) or names[0] == names[1]:
        raise UserError(
            f"cannot read the columns {requested!r} of {path}; write source and target column, separated by a comma, like"
            " --pairs english,persian")  # fmt: skip
    return names[0], names[1]


def guess_delimiter(path: Path, line: str) -> str:
    """Return the delimiter of a table: a tab in .tsv, or else the most frequent one of the first line."""
    return "\t" if path.suffix.lower() == ".tsv" else max(",;\t", key=line.count)


def holds_pairs(path: Path) -> bool:
    """Return whether a file has columns or fields named source and target that are not both numbers."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        return False
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = [line for line in itertools.islice(iter(lambda: file.readline(SAMPLE_LENGTH), ""), 8) if line.strip()]
        if not lines:
            return False
        if suffix == ".jsonl":
            value = read_json(lines[0])
            return isinstance(value, dict) and all(isinstance(value.get(key), str) for key in DEFAULT_COLUMNS)
        first, *rows = csv.reader(lines, delimiter=guess_delimiter(path, lines[0]))
        indices = [first.index(key) for key in DEFAULT_COLUMNS]
        return not all(_is_number(row[k]) for row in rows for k in indices if k < len(row)) or not rows
    except (OSError, ValueError, csv.Error):
        return False  # the reader of the file reports the problem


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def table_pairs(path: Path, text: str, requested: str | None) -> PairSource:
    """Return two columns of a table, by name, or by number from 1 if it has no header."""
    sources, targets = parse_pair_columns(requested, path)
    lines = text.splitlines(keepends=True)
    try:
        csv.field_size_limit(MAX_FIELD_LENGTH)
        rows = csv.reader(lines, delimiter=guess_delimiter(path, lines[0] if lines else ""), strict=True)
        header = [] if sources.isdecimal() and targets.isdecimal() else next(rows, [])
        if header and (missing := [name for name in (sources, targets) if name not in header]):
            existing = ", ".join(visible(name) for name in header)
            raise UserError(f"{path} has no column {missing[0]!r}; it has: {existing}")
        indices = [header.index(name) if header else int(name) - 1 for name in (sources, targets)]
        if min(indices) < 0:
            raise UserError(f"columns of {path} are numbered from 1, got {requested!r}; fix --pairs")

        def cells() -> Iterator[tuple[str, object, object]]:
            for number, row in enumerate(rows, 1 + bool(header)):
                if any(cell.strip() for cell in row):
                    a, b = (row[k] if k < len(row) else None for k in indices)
                    yield f"row {number:,}", a, b

        return collect_pairs(cells(), sources, targets)
    except csv.Error as error:
        raise UserError(f"{path} cannot be read as a table: {error}; save it as UTF-8 text") from None


def jsonl_pairs(path: Path, text: str, requested: str | None) -> PairSource:
    """Return two fields of each line of a .jsonl file."""
    sources, targets = parse_pair_columns(requested, path)

    def fields() -> Iterator[tuple[str, object, object]]:
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip():
                continue
            try:
                value = read_json(line)
            except ValueError:
                value = None
            fields_of_line = value if isinstance(value, dict) else {}
            yield f"line {number:,}", fields_of_line.get(sources), fields_of_line.get(targets)

    return collect_pairs(fields(), sources, targets)


def parallel_pairs(path: Path, text: str, other: Path, targets_text: str) -> PairSource:
    """Return two files line by line."""
    lines, target_lines = (part.splitlines() for part in (text, targets_text))
    if len(lines) != len(target_lines):
        raise UserError(
            f"{path} has {len(lines):,} lines but {other} has {len(target_lines):,}; give files whose lines correspond"
        )
    rows = ((f"line {k:,}", a, b) for k, (a, b) in enumerate(zip(lines, target_lines, strict=True), 1))
    return collect_pairs(rows, path.name, other.name)


def read_pairs(path: Path, name: str, options: ReadingOptions) -> Dataset | None:
    """Return the pairs of a file, by the requested columns or the default ones; None if it has none."""
    requested, suffix = options.pairs, path.suffix.lower()
    if requested is None and (options.labels not in ("auto", "none") or options.text is not None or not holds_pairs(path)):
        return None
    text = decode_text(read_bytes(path), path)
    if suffix == ".jsonl":
        source = jsonl_pairs(path, text, requested)
    elif suffix in SUFFIXES:
        source = table_pairs(path, text, requested)
    else:
        other = _other_file(path, requested or "")
        source = parallel_pairs(path, text, other, decode_text(read_bytes(other), other))
    if source.broken and options.strict:
        raise UserError(f"{source.broken[0][0]} of {path}: {source.broken[0][1]}; fix it, or leave --strict out")
    return pairs_dataset(name, source.pairs, options, str(path), source.broken)


def _other_file(path: Path, requested: str) -> Path:
    """Return the file with the targets: as given, or beside the source file."""
    try:
        candidates = (expanded(requested), path.parent / Path(requested).name)
        existing = next((candidate for candidate in candidates if candidate.is_file()), None)
    except (OSError, ValueError, RuntimeError):  # too long, a null byte, no such user
        existing = None
    if existing is None:
        raise UserError(f"there is no file {requested!r} with the targets of {path}; give --pairs FILE")
    return existing


def pairs_dataset(
    name: str, pairs: Sequence[TextPair], options: ReadingOptions, source: str, broken: Sequence[tuple[str, str]] = ()
) -> Dataset:
    """Return pairs as a dataset with its report."""
    if len(pairs) < MIN_PAIRS:
        why = f" ({len(broken):,} skipped, first {visible(broken[0][0])}: {visible(broken[0][1])})" if broken else ""
        raise UserError(f"{source} has {len(pairs):,} pairs of a source and a target{why}; at least {MIN_PAIRS} are needed")
    if options.window is not None:
        raise UserError(f"{source} contains pairs of texts, which have no windows; leave --window out")
    if options.size is not None or options.channels is not None:
        raise UserError(f"{source} contains pairs of texts, which have no size or channels; leave --size and --channels out")
    x, copies = make_pairs(pairs), len(pairs) - len(set(pairs))
    longest, ambiguous = x.lengths.max(0).tolist(), count_ambiguous_sources(pairs)
    about = text_report([text for pair in pairs for text in pair], source)
    report = {
        **{key: about[key] for key in ("source", "characters", "alphabet", "common_characters", "common_words")},
        "kind": "pairs", "count": len(pairs), "longest_source": longest[0], "longest_target": longest[1],
        "duplicates": copies, "several_targets": ambiguous, "broken": [list(pair) for pair in broken[:MAX_SHOWN]],
        "examples": [[visible(text) for text in pair] for pair in pairs[:3]],
    }  # fmt: skip
    notes = [
        f"{len(pairs):,} pairs of texts, {about['alphabet']:,} distinct characters; sources of up to {longest[0]}"
        f" characters, targets of up to {longest[1]}: {visible(pairs[0][0])[:60]} \u2192 {visible(pairs[0][1])[:60]}"
    ]
    if copies:
        notes.append(f"exact copies of other pairs: {copies:,}")
    if ambiguous:
        notes.append(f"sources with several targets (a model answers with one of them): {ambiguous:,}")
    if broken:
        notes.append(f"{len(broken):,} skipped, first {visible(broken[0][0])}: {visible(broken[0][1])}")
    return Dataset(name, x, notes=tuple(notes), report=report)


def count_ambiguous_sources(pairs: Sequence[TextPair]) -> int:
    """Count the sources with more than one target."""
    return sum(count > 1 for count in Counter(source for source, _ in set(pairs)).values())
