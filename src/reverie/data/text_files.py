"""Text files: .txt, folders of them, .jsonl and .csv with a text field, and fortune files."""

from __future__ import annotations

import codecs
import csv
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from reverie.base.errors import UserError
from reverie.base.files import reason
from reverie.base.parse import read_json
from reverie.base.visible import visible
from reverie.data.dataset import Dataset
from reverie.data.reading import ReadingOptions
from reverie.data.sources import Listing, walk
from reverie.data.text_windows import choose_window, join_texts, windows_of

MAX_BYTES = 2**28  # total bytes of all text files
MAX_TEXTS = 10**7
TEXT_FIELDS = ("text", "caption", "sentence", "content")  # names of text fields and columns, in order of preference
FORTUNE = re.compile(r"^%\r?\n", re.MULTILINE)  # separator of the texts of a fortune file
MAX_SHOWN, MAX_WORDS_SHOWN = 12, 24  # characters and words listed in a report
SAMPLE_LENGTH = 2**20  # characters in which words are counted
MAX_FIELD_LENGTH = 2**24  # maximum characters of a table cell
CODINGS = {
    codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16",
}  # fmt: skip


def decode_text(data: bytes, source: object) -> str:
    """Decode bytes as UTF-8, or by their byte order mark; refuse anything else."""
    coding = next((name for mark, name in CODINGS.items() if data.startswith(mark)), "utf-8")
    try:
        text = data.decode(coding)
    except UnicodeDecodeError as error:
        raise UserError(
            f"{source} is not {coding.upper().removesuffix('-SIG')} text (byte {error.start:,} is"
            f" 0x{data[error.start]:02x}); save it as UTF-8, for example with: iconv -f latin1") from None  # fmt: skip
    if (position := text.find("\0")) >= 0:
        raise UserError(f"{source} is not text: character {position:,} is a zero byte, as in binary files; give a text file")
    return text


def read_bytes(path: Path, left: int = MAX_BYTES) -> bytes:
    """Return the bytes of a file, at most `left`."""
    try:
        with path.open("rb") as file:
            data = file.read(left + 1)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {reason(error)}") from None
    if len(data) > left:
        raise UserError(f"{path} exceeds the limit of {MAX_BYTES >> 20} MiB of text; use a part of it")
    return data


def read_text(path: Path, name: str, options: ReadingOptions) -> Dataset:
    """Read a text file; the texts of a fortune file are separated by lines with a single percent sign."""
    text = decode_text(read_bytes(path), path)
    fortunes = FORTUNE.split(text) if not path.suffix else [text]
    return text_dataset(name, fortunes, options, str(path))


def looks_like_text(path: Path) -> bool:
    """Return whether a file without a suffix starts like text."""
    try:
        with path.open("rb") as file:
            start = file.read(4096)
        start.decode("utf-8") if len(start) < 4096 else start[:-4].decode("utf-8", "strict")
    except (OSError, UnicodeDecodeError):
        return False
    return bool(start) and b"\0" not in start and not path.suffix


def text_entries(folder: Path) -> list[Path]:
    """Return the .txt files of a folder, recursively, by name."""
    entries = (entry for entry in walk(folder, Listing()) if entry.name.lower().endswith(".txt"))
    return [entry.place for entry in sorted(entries, key=lambda entry: entry.name) if isinstance(entry.place, Path)]


def read_text_folder(paths: Sequence[Path], folder: Path, name: str, options: ReadingOptions) -> Dataset:
    """Read the .txt files of a folder, each a text; invalid ones are skipped and reported."""
    texts, broken, left = list[str](), list[tuple[str, str]](), MAX_BYTES
    for done, path in enumerate(paths):
        try:
            data = read_bytes(path, left)
            texts.append(decode_text(data, path.name))
        except UserError as error:
            if options.strict or left < MAX_BYTES // 2:
                raise
            broken.append((path.name, str(error)))
            continue
        left -= len(data)
        options.report_progress("reading", done + 1, len(paths))
    return text_dataset(name, texts, options, str(folder), broken)


def read_jsonl(path: Path, name: str, options: ReadingOptions) -> Dataset:
    """Read the texts of a .jsonl file: each line is a string or an object with a text field."""
    texts, broken = list[str](), list[tuple[str, str]]()
    for number, line in enumerate(decode_text(read_bytes(path), path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            value = read_json(line)
            texts.append(_text_in(value, options.text))
        except ValueError as error:
            if options.strict:
                raise UserError(f"line {number:,} of {path}: {error}") from None
            broken.append((f"line {number:,}", str(error)))
    if not texts:
        why = f"first {broken[0][0]}: {broken[0][1]}" if broken else "it is empty"
        raise UserError(f'{path} has no line with a text: {why}; each line should be like {{"text": "..."}}')
    return text_dataset(name, texts, options, str(path), broken)


def _text_in(value: Any, requested: str | None) -> str:
    fields = (requested,) if requested is not None else TEXT_FIELDS
    text = value if isinstance(value, str) and requested is None else None
    if isinstance(value, dict):
        text = next((value[key] for key in fields if isinstance(value.get(key), str)), None)
    if text is None:
        raise ValueError(f"no text in a field {' or '.join(repr(key) for key in fields)}")
    return str(text)


def text_column(path: Path, requested: str | None) -> str | None:
    """Return the text column of a .csv file: the requested one, or one with a common name; None without any."""
    if requested is not None:
        return requested
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header = next(csv.reader([file.readline(2**16)]), [])
    except (OSError, UnicodeDecodeError, csv.Error):
        return None  # the reader of tables reports the problem
    return next((key for key in TEXT_FIELDS[:2] if key in header), None)


def read_text_column(path: Path, name: str, options: ReadingOptions, column: str) -> Dataset:
    """Read a column of a .csv file, each cell a text."""
    lines = decode_text(read_bytes(path), path).splitlines(keepends=True)
    try:
        csv.field_size_limit(MAX_FIELD_LENGTH)
        rows = csv.DictReader(lines, strict=True)
        if column not in (rows.fieldnames or ()):
            raise UserError(
                f"{path} has no column {column!r}; it has: {', '.join(map(visible, rows.fieldnames or ())) or 'none'}"
            )
        texts = [row[column] for row in rows if row[column]]
    except csv.Error as error:
        raise UserError(f"{path} cannot be read as a table: {error}; save it as UTF-8 text") from None
    return text_dataset(name, texts, options, str(path))


def text_dataset(
    name: str, texts: Sequence[str], options: ReadingOptions, source: str, broken: Sequence[tuple[str, str]] = ()
) -> Dataset:
    """Return texts as windows of characters."""
    texts = [text for text in texts if text]
    if len(texts) > MAX_TEXTS:
        raise UserError(f"{source} has {len(texts):,} texts, above the limit of {MAX_TEXTS:,}; use a part of them")
    window = choose_window(sum(map(len, texts)), options.window, source)
    codes = join_texts(texts)
    report = text_report(texts, source)
    notes = [
        f"{report['characters']:,} characters, {report['alphabet']:,} distinct, in {len(texts):,}"
        f" text{'s' * (len(texts) != 1)}, in windows of {window}"
    ]
    if report["duplicates"]:
        unit = "texts" if len(texts) > 1 else "paragraphs"
        notes.append(f"exact copies of other {unit}, which a model may memorize: {report['duplicates']:,}")
    if broken:
        notes.append(f"{len(broken):,} skipped, first {visible(broken[0][0])}: {visible(broken[0][1])}")
    report |= {"window": window, "broken": [list(pair) for pair in broken[:MAX_SHOWN]]}
    return Dataset(name, windows_of(codes, window), notes=tuple(notes), report=report)


def text_report(texts: Sequence[str], source: str) -> dict[str, Any]:
    """Return the statistics of texts: size, alphabet, most common characters and words, and copies."""
    characters: Counter[str] = Counter()
    for text in texts:
        characters.update(text)
    words = Counter(_words(texts))
    units = texts if len(texts) > 1 else [part for part in re.split(r"\n\s*\n", texts[0] if texts else "") if len(part) > 40]
    return {
        "source": source, "kind": "text", "texts": len(texts), "characters": characters.total(),
        "bytes": sum(count * len(sign.encode("utf-8", "surrogatepass")) for sign, count in characters.items()),
        "alphabet": len(characters), "common_characters": {visible(c): n for c, n in characters.most_common(MAX_SHOWN)},
        "common_words": {visible(w): n for w, n in words.most_common(MAX_WORDS_SHOWN)},
        "duplicates": len(units) - len(set(units)),
    }  # fmt: skip


def _words(texts: Iterable[str]) -> Iterable[str]:
    left = SAMPLE_LENGTH
    for text in texts:
        yield from re.findall(r"\w+", text[:left])
        left -= len(text)
        if left <= 0:
            return


def prose(points: int, seed: int, options: ReadingOptions) -> Dataset:
    """The documentation of the Python language, about 700 kB of English, which is part of every Python installation."""
    from pydoc_data.topics import topics

    return text_dataset("prose", [topics[key] for key in sorted(topics)], options, "prose")
