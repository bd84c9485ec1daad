"""Labels of image files: from metadata, folders, or file names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from reverie.base.errors import UserError, unknown
from reverie.base.visible import visible
from reverie.data.metadata import CAPTIONS, COLUMNS, FILE, read_metadata
from reverie.data.sources import METADATA, FileEntry

CAPTION_LIMIT = 2**16  # maximum bytes of a caption file
CAMERA = frozenset({"img", "image", "dsc", "dscn", "dscf", "pxl", "photo", "picture", "pic", "screenshot", "scan", "frame"})
SPLITS = frozenset({"train", "training", "test", "testing", "val", "valid", "validation", "dev", "eval"})
MAX_TINY = 2  # images up to which a class is too small to learn


@dataclass(frozen=True)
class LabelSource:
    """A label for each name, None if missing, notes, and why labels are missing.

    kind: the entry of LABELS or the column that the labels come from, "captions" for captions; unused: other columns
    of the metadata.
    """

    values: list[str | None] | None
    notes: list[str]
    missing: str = ""
    free_text: bool = False
    kind: str = "none"
    unused: frozenset[str] = frozenset()


def find_labels(names: Sequence[str], metadata: Mapping[str, FileEntry], how: str, where: str) -> LabelSource:
    """Return the labels of files.

    names: relative paths; metadata: metadata files and caption files; how: one of LABELS, or a metadata column.
    """
    if how in LABELS:
        return LABELS[how](names, metadata, where)
    files = [name for name in metadata if name in METADATA]
    if not files:
        raise unknown(how, LABELS, "kind of labels")
    return _metadata(names, metadata, where, files[0], (how.lower(),))


def _auto(names: Sequence[str], metadata: Mapping[str, FileEntry], where: str) -> LabelSource:
    """Use metadata, then folders, then file names, each only if it clearly defines classes."""
    notes: list[str] = []
    for file in [name for name in metadata if name in METADATA]:
        try:
            source = _metadata(names, metadata, where, file)
        except UserError as error:
            notes.append(f"{file} is not used: {error}")
            continue
        values = [v for v in source.values or () if v is not None]
        distinct = len(set(values))
        if distinct >= 2 and len(values) >= len(names) / 2 and not (source.free_text and distinct > len(values) / 2):
            return LabelSource(source.values, notes + source.notes, source.missing, kind=source.kind, unused=source.unused)
        if source.free_text and distinct >= 2 and len(values) >= len(names) / 2:
            present = _metadata(names, metadata, where, file, CAPTIONS)
            note = f"captions from {file}; --labels none ignores them"
            return LabelSource(
                present.values, [*notes, note, *present.notes], present.missing, kind="captions", unused=present.unused
            )
        note = f"it has {distinct} distinct values for {len(values)} of {len(names)} images"
        notes.append(f"{file} is not used for labels: {note}")
    if sum(_caption_file(name) in metadata for name in names) > len(names) / 2:
        return _read_captions(names, metadata, notes)
    folders = [_folder(name) for name in names]
    if len(set(folders)) >= 2:
        loose = folders.count(".")
        if loose:
            notes.append(f"{loose} images lie beside folders, so folders are not used as labels; --labels folder uses them")
            return LabelSource(None, notes)
        source = _auto_folders(names)
        return LabelSource(source.values, notes + source.notes, kind=source.kind)
    prefixes = [_prefix(name) for name in names]
    counts = Counter(prefixes)
    if None not in counts and len(counts) >= 2 and min(counts.values()) >= 2 and all(map(_is_class, counts)):
        return LabelSource(list(prefixes), notes + [_origin_note([p for p in prefixes if p], "the file names")], kind="name")
    return LabelSource(None, notes)


def _auto_folders(names: Sequence[str]) -> LabelSource:
    """Use the whole path, or its first or last folder if that gives larger classes; or nothing."""
    tops = sorted({_top(name) for name in names})
    split = len(tops) >= 2 and {top.lower() for top in tops} <= SPLITS
    notes = [f"{join_words(tops)} are read together; give one of these folders to read it alone"] if split else []
    deeper = any(_folder(name) != _top(name) for name in names)
    for kind in (("last-folder",) if deeper else ()) if split else FOLDERS:
        values = [FOLDERS[kind](name) for name in names]
        if len(set(values)) >= 2 and _in_tiny(values) <= len(values) / 2:
            return LabelSource(list(values), [*notes, *_folder_notes(values, kind)], kind=kind)
    if deeper or not split:
        count = len({_folder(name) for name in names})
        note = f"most images lie in folders of one or two, {count} folders in all, so folders are not used as labels"
        notes.append(f"{note}; --labels folder uses them")
    return LabelSource(None, notes)


def _by_folder(kind: str) -> Callable[[Sequence[str], Mapping[str, FileEntry], str], LabelSource]:
    """Return a label finder by the folder of each file: its whole path, its first or its last part."""

    def find(names: Sequence[str], metadata: Mapping[str, FileEntry], where: str) -> LabelSource:
        values = [FOLDERS[kind](name) for name in names]
        if len(set(values)) < 2:
            raise UserError(f"all {len(names)} images of {where} are in one {kind}, so there are no classes; use --labels none")
        return LabelSource(list(values), _folder_notes(values, kind), kind=kind)

    return find


def _by_name(names: Sequence[str], metadata: Mapping[str, FileEntry], where: str) -> LabelSource:
    """Use the prefix of each file name."""
    prefixes = [_prefix(name) for name in names]
    present = [p for p in prefixes if p is not None]
    if len(set(present)) < 2:
        raise UserError(f"the file names of {where} do not start with two or more labels, like cat_12.jpg; use --labels none")
    note = [_origin_note(present, "the file names"), *_tiny_note(present)]
    return LabelSource(list(prefixes), note, "its name does not start with a label", kind="name")


def _by_csv(names: Sequence[str], metadata: Mapping[str, FileEntry], where: str) -> LabelSource:
    return _metadata(names, metadata, where, "metadata.csv")


def _by_jsonl(names: Sequence[str], metadata: Mapping[str, FileEntry], where: str) -> LabelSource:
    return _metadata(names, metadata, where, "metadata.jsonl")


def _by_caption(names: Sequence[str], metadata: Mapping[str, FileEntry], where: str) -> LabelSource:
    """Use the text or caption column of metadata, or else the .txt file beside each image."""
    if any(_caption_file(name) in metadata for name in names):
        return _read_captions(names, metadata, [])
    files = [name for name in metadata if name in METADATA]
    if not files:
        raise UserError(
            f"{where} has no captions; add a metadata.jsonl with file_name and text, or a .txt file beside each image"
        )
    source = _metadata(names, metadata, where, files[0], CAPTIONS)
    return LabelSource(source.values, source.notes, source.missing, kind="captions", unused=source.unused)


def _caption_file(name: str) -> str:
    return str(PurePosixPath(name).with_suffix(".txt"))


def _read_captions(names: Sequence[str], metadata: Mapping[str, FileEntry], notes: list[str]) -> LabelSource:
    """Read the caption file beside each image, as one line."""
    values: list[str | None] = []
    for name in names:
        entry = metadata.get(_caption_file(name))
        if entry is None:
            values.append(None)
            continue
        if entry.size > CAPTION_LIMIT:
            size = f"over {CAPTION_LIMIT >> 10} KiB"
            raise UserError(f"{entry.name} is {size}, too long for a caption; shorten it, or use --labels none")
        try:
            text = entry.read().decode("utf-8-sig")
        except (UnicodeDecodeError, OSError) as error:
            raise UserError(f"{entry.name} is not UTF-8 text ({str(error)[:80]}); save it as UTF-8") from None
        values.append(visible(" ".join(text.split())) or None)
    note = f"captions from {sum(v is not None for v in values)} .txt files beside the images"
    return LabelSource(values, [*notes, note], "no .txt file beside it", kind="captions")


def _by_cls(names: Sequence[str], metadata: Mapping[str, FileEntry], where: str) -> LabelSource:
    """Use labels of shards, in .cls or .json files or a column."""
    raise UserError(f"labels by cls need shards, which {where} is not; use auto, folder or none")


def _none(names: Sequence[str], metadata: Mapping[str, FileEntry], where: str) -> LabelSource:
    return LabelSource(None, [])


LABELS: dict[str, Callable[[Sequence[str], Mapping[str, FileEntry], str], LabelSource]] = {
    "auto": _auto,
    "folder": _by_folder("folder"),
    "top-folder": _by_folder("top-folder"),
    "last-folder": _by_folder("last-folder"),
    "name": _by_name,
    "csv": _by_csv,
    "jsonl": _by_jsonl,
    "captions": _by_caption,
    "cls": _by_cls,
    "none": _none,
}


def _origin_note(values: Sequence[str], origin: str) -> str:
    return f"{len(set(values))} classes from {origin}"


def _folder(name: str) -> str:
    return str(PurePosixPath(name).parent)


def _top(name: str) -> str:
    parent = PurePosixPath(name).parent.parts
    return parent[0] if parent else "."


FOLDERS: dict[str, Callable[[str], str]] = {
    "folder": _folder,
    "top-folder": _top,
    "last-folder": lambda name: PurePosixPath(name).parent.name or ".",
}
ORIGINS = {"folder": "the folders", "top-folder": "the first level of folders", "last-folder": "the last level of folders"}


def _folder_notes(values: Sequence[str], kind: str) -> list[str]:
    return [_origin_note(values, ORIGINS[kind]), *_tiny_note(values)]


def _in_tiny(values: Sequence[str]) -> int:
    """Count the images in classes too small to learn."""
    return sum(n for n in Counter(values).values() if n <= MAX_TINY)


def _tiny_note(values: Sequence[str]) -> list[str]:
    counts = Counter(values)
    tiny = sum(n <= MAX_TINY for n in counts.values())
    if tiny <= len(counts) / 2:
        return []
    note = f"{tiny} of {len(counts)} classes have only one or two images, too few to learn"
    return [f"{note}; --labels none ignores all labels"]


def join_words(words: Sequence[str]) -> str:
    """Join words with commas and "and"."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _prefix(name: str) -> str | None:
    """Return the text before the number: 7.0123.png -> 7; cat_12.jpg, cat-12.jpg, cat (3).png -> cat."""
    match = re.fullmatch(r"(.*?[^\s._\-(])(?:[\s._\-]+\d+|\s*\(\d+\))", PurePosixPath(name).stem)
    return match[1] if match else None


def _is_class(prefix: str | None) -> bool:
    """Return whether a prefix is a class rather than a camera name or a date: words, or a short number."""
    if prefix is None or prefix.lower() in CAMERA:
        return False
    return not any(c.isdigit() for c in prefix) or (prefix.isdecimal() and len(prefix) <= 3)


def _metadata(
    names: Sequence[str], metadata: Mapping[str, FileEntry], where: str, file: str, wanted: Sequence[str] = COLUMNS
) -> LabelSource:
    if file not in metadata:
        raise UserError(f"there is no {file} in {where}; add it, with a file_name and a label column")
    column_values = read_metadata(metadata[file], file, frozenset(names), wanted)
    values, unmatched = [column_values.values.get(name) for name in names], column_values.unmatched
    if all(value is None for value in values):
        raise UserError(f"no row of {file} names an image of {where}; file_name must be a path relative to it")
    present = [v for v in values if v is not None]
    chosen = wanted not in (COLUMNS, CAPTIONS)
    origin = f"the column {column_values.column} of {file}" if chosen else file
    notes = [_origin_note(present, origin), *_tiny_note(present)] if wanted is not CAPTIONS else []
    if unmatched.count:
        notes.append(f"{unmatched.count} rows of {file} name images that are missing or unusable (first: {unmatched.first})")
    unused = frozenset() if chosen else column_values.columns - {FILE, column_values.column}
    kind = column_values.column if chosen else file.removeprefix("metadata.")
    return LabelSource(values, notes, f"no row in {file}", not chosen and column_values.column in CAPTIONS, kind, unused)
