"""Image folders, .zip and .tar files: headers are scanned first, then images are decoded, fitted and hashed by threads."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from reverie.base.cache import SWITCH
from reverie.base.errors import UserError
from reverie.base.files import reason
from reverie.data import decoded
from reverie.data.conditions import make_conditions
from reverie.data.dataset import Dataset
from reverie.data.decoded import DIGEST, DecodedImages
from reverie.data.fitting import choose_size_and_fit
from reverie.data.image_labels import find_labels, join_words
from reverie.data.lazy import FileImages
from reverie.data.memory_limits import allocate_pixels
from reverie.data.metadata_columns import read_columns
from reverie.data.pixels import DEEP, GREY, BrokenImage, Header, Recipe, decode, decoding_pool, quiet_pillow, read_header
from reverie.data.reading import ReadingOptions, class_counts, duplicate_note, encode_labels, shown_sizes
from reverie.data.sources import (
    BYTES,
    IMAGE_SUFFIXES,
    METADATA,
    TEXT,
    UNSUPPORTED,
    FileEntry,
    Listing,
    list_folder,
    list_tar,
    list_zip,
)

CACHED = f"decoded pixels come from the cache because no file has changed; {SWITCH}=off decodes them again"
CHUNK = 512  # files submitted to the threads at a time
REASONS_SHOWN = 3
ARCHIVES = {".zip": list_zip, ".tar": list_tar}


def read_images(path: Path, name: str, options: ReadingOptions, hint: str = "") -> Dataset:
    """Scan a folder, a .zip or a .tar and return its images.  hint: appended to the error if nothing is usable."""
    with quiet_pillow():
        return _scan(path, name, options, hint)


def _scan(path: Path, name: str, options: ReadingOptions, hint: str) -> Dataset:
    listing = list_images(path)
    broken = listing.broken
    if options.strict and broken:
        _refuse(*broken[0])
    entries, headers = read_headers(listing, options)
    if not entries:
        raise nothing_found(path, broken, hint, listing.others)
    columns = read_columns(entries, listing.metadata, options.condition_numbers, options.condition_image, str(path))
    if columns.column is not None:
        used = [k for k, entry in enumerate(entries) if entry.name not in columns.paired and entry.name in columns.images]
        entries, headers = [entries[k] for k in used], [headers[k] for k in used]
        if not entries:
            raise UserError(f"the column {columns.column!r} pairs no two images of {path}; choose another column")
    label_source = find_labels([entry.name for entry in entries], listing.metadata, options.labels, str(path))
    values = label_source.values
    captioned = label_source.kind == "captions"
    if values is not None and captioned:
        values = [value or "" for value in values]
        if not any(values):
            raise UserError(f"every caption of {path} is empty; use --labels none")
        if uncaptioned := values.count(""):
            label_source.notes.append(
                f"{_plural(uncaptioned, 'image has', 'images have')} no caption and will be trained on with the null condition"
            )
        if not listing.metadata.keys() & set(METADATA):
            listing.others.pop(TEXT, None)
    if values is not None and None in values:
        without = [entry.name for entry, value in zip(entries, values, strict=True) if value is None]
        if options.strict:
            _refuse(without[0], label_source.missing)
        broken.extend((file, label_source.missing) for file in without)
        used = [k for k, value in enumerate(values) if value is not None]
        entries, headers, values = [entries[k] for k in used], [headers[k] for k in used], [values[k] for k in used]
    recipe, recipe_notes = choose_recipe(Counter(headers), options)
    while True:
        labels, label_names = _encode(None if captioned else values)
        options.report_shape(name, (len(entries), recipe.channels, recipe.height, recipe.width), labels, label_names)
        pixels = allocate_pixels((len(entries), recipe.channels, recipe.height, recipe.width))
        (good, digests, low, high, grey), cached = _decoded(entries, headers, recipe, pixels, broken, options)
        if not good:
            raise nothing_found(path, broken, hint)
        entries, headers = [entries[k] for k in good], [headers[k] for k in good]
        values = [values[k] for k in good] if values is not None else None
        previous = recipe
        recipe, recipe_notes = choose_recipe(Counter(headers), options)
        if recipe == previous:
            break  # otherwise broken files affected the choice: repeat with the valid files
    stored_in_colour = recipe.channels == 3 and grey and options.channels is None
    if stored_in_colour:
        recipe = replace(recipe, channels=1)
        pixels = pixels[:, :1] if pixels is not None else None
    labels, label_names = _encode(None if captioned else values)
    captions = [str(value) for value in values] if captioned and values is not None else []
    has_conditions = captions or columns.numbers or columns.column
    conditions = None
    if has_conditions:
        if label_names:
            label_source.notes.append("labels are ignored because captions, numbers or images are the condition")
            labels, label_names = None, ()
        conditions = make_conditions(captions, columns.numbers_of(entries), columns.images_of(entries, recipe))
    lazy = not isinstance(pixels, np.ndarray) or isinstance(pixels, np.memmap)
    stored = None if pixels is None else np.arange(len(good))
    images = FileImages(tuple(entries), digests, recipe, pixels, stored)
    x = images if lazy or pixels is None else torch.from_numpy(np.ascontiguousarray(pixels[: len(good)]))
    copies, header_counts = len(digests) - len(set(digests)), Counter(headers)
    source = "decoded" if stored is None else "read from a temporary file"
    notes = [
        *label_source.notes,
        *_unused(label_source.unused - {*options.condition_numbers, (options.condition_image or "").lower()}),
        *recipe_notes,
        *conversions(header_counts, recipe.channels, options.channels),
        *(["every image is grey although stored in colour: 1 channel is used"] if stored_in_colour else []),
        *(
            [f"pixel values range only from {low} to {high} of 255; check whether the images are meant to be this dark"]
            if high < 32
            else []
        ),
        *duplicate_note(copies, "image"),
        *([f"{len(good)} images do not fit into memory and are {source} on demand"] if lazy else []),
        *_others(listing),
        *skipped_note(broken),
        *([CACHED] if cached else []),
    ]
    report = {
        "source": str(path), "kind": "images", "count": len(good), "shape": list(x.shape[1:]), "fit": recipe.fit,
        "lazy": lazy, "labels_by": label_source.kind,
        "sizes": shown_sizes(sizes_of(header_counts)), "modes": modes_of(header_counts),
        "classes": class_counts(labels, label_names), "range": [low, high], "duplicates": copies,
        "broken": [{"file": file, "reason": why} for file, why in broken],
    }  # fmt: skip
    return Dataset(name, x, labels, label_names, tuple(notes), report, conditions)


def list_images(path: Path) -> Listing:
    """List a folder or an archive."""
    return list_folder(path) if path.is_dir() else ARCHIVES[path.suffix.lower()](path)


def _encode(values: Sequence[str | None] | None) -> tuple[torch.Tensor | None, tuple[str, ...]]:
    return encode_labels([str(value) for value in values]) if values is not None else (None, ())


def choose_recipe(headers: Counter[Header], options: ReadingOptions) -> tuple[Recipe, list[str]]:
    """Return the recipe for images with these headers, by count, and notes about size and fit."""
    sizes = sizes_of(headers)
    channels = options.channels or (1 if all(header.kind in GREY for header in headers) else 3)
    size, fit, notes = choose_size_and_fit(sizes, options.size, options.fit, options.largest(channels))
    return Recipe(*size, channels, fit), notes


def read_headers(listing: Listing, options: ReadingOptions) -> tuple[list[FileEntry], list[Header]]:
    """Read the header of every file; files that are not images become broken ones."""
    entries: list[FileEntry] = []
    headers: list[Header] = []
    for k, entry in enumerate(listing.images):
        try:
            headers.append(_header(entry))
            entries.append(entry)
        except BrokenImage as error:
            if options.strict:
                _refuse(entry.name, str(error))
            listing.broken.append((entry.name, str(error)))
        if (k + 1) % CHUNK == 0 or k + 1 == len(listing.images):
            options.report_progress("reading headers", k + 1, len(listing.images))
    return entries, headers


def _header(entry: FileEntry) -> Header:
    if not isinstance(entry.place, Path):
        return read_header(read_entry(entry))
    try:
        with entry.place.open("rb") as file:
            return read_header(file)
    except OSError as error:
        raise BrokenImage(f"cannot be read: {reason(error)}") from None


def read_entry(entry: FileEntry) -> bytes:
    """Return the bytes of a file, or raise BrokenImage."""
    try:
        return entry.read()
    except OSError as error:
        raise BrokenImage(f"cannot be read: {reason(error)}") from None
    except Exception as error:  # zip entries fail in many ways: checksum, lengths, methods
        raise BrokenImage(f"cannot be decompressed ({' '.join(str(error).split())[:100]})") from None


def _decoded(
    entries: Sequence[FileEntry], headers: Sequence[Header], recipe: Recipe, out: np.ndarray | None,
    broken: list[tuple[str, str]], options: ReadingOptions,
) -> tuple[DecodedImages, bool]:  # fmt: skip
    """Decode every file, or load the result from the cache; return it and whether it came from the cache."""
    used = out is not None and not isinstance(out, np.memmap)
    key = decoded.cache_key(entries, headers, recipe) if used else None
    if out is None or key is None:
        return _decode_all(entries, recipe, out, broken, options), False
    if (cached_result := decoded.load_decoded(key, len(entries), recipe, out)) is not None:
        result, unusable = cached_result
        if options.strict and unusable:
            _refuse(entries[unusable[0][0]].name, unusable[0][1])
        broken.extend((entries[k].name, why) for k, why in unusable)
        return result, True
    before = len(broken)
    result = _decode_all(entries, recipe, out, broken, options)
    if result.good and decoded.cache_key(entries, headers, recipe) == key:  # no file has changed meanwhile
        unused = sorted(set(range(len(entries))) - set(result.good))
        decoded.save_decoded(key, result, [(k, why) for k, (_, why) in zip(unused, broken[before:], strict=True)], out)
    return result, False


def _decode_all(
    entries: Sequence[FileEntry], recipe: Recipe, out: np.ndarray | None, broken: list[tuple[str, str]], options: ReadingOptions
) -> DecodedImages:
    """Decode and hash every file; store pixels in out, (N, C, H, W), if it is given."""

    def read_one(entry: FileEntry) -> tuple[bytes, np.ndarray] | str:
        try:
            with BYTES.of(entry.size):
                data = read_entry(entry)
                return hashlib.blake2b(data, digest_size=DIGEST).digest(), decode(data, recipe)
        except BrokenImage as error:
            return str(error)

    good: list[int] = []
    digests: list[bytes] = []
    low, high, grey = 255, 0, True
    for begin in range(0, len(entries), CHUNK):
        for k, result in enumerate(decoding_pool().map(read_one, entries[begin : begin + CHUNK]), begin):
            if isinstance(result, str):
                if options.strict:
                    _refuse(entries[k].name, result)
                broken.append((entries[k].name, result))
                continue
            digest, image = result
            if out is not None:
                out[len(good)] = image
            good.append(k)
            digests.append(digest)
            low, high = min(low, int(image.min())), max(high, int(image.max()))
            grey = grey and len(image) == 3 and bool((image[0] == image[1]).all() and (image[1] == image[2]).all())
        options.report_progress("reading images", min(begin + CHUNK, len(entries)), len(entries))
    return DecodedImages(good, tuple(digests), low, high, grey)


def _refuse(file: str, why: str) -> None:
    raise UserError(f"{file}: {why}; fix or remove it, or leave out --strict to skip such files")


def nothing_found(
    path: Path, broken: Sequence[tuple[str, str]], hint: str = "", others: Mapping[str, int] | None = None
) -> UserError:
    """Return the error for a source without a usable image.  others: suffixes of other files there, with counts."""
    message = f"0 images found in {path}; looked for {' '.join(IMAGE_SUFFIXES)}"
    if others:
        suffix, count = max(others.items(), key=lambda pair: (pair[0] in UNSUPPORTED, pair[1]))
        cannot = ", which cannot be read: convert them to .jpg or .png first" if suffix in UNSUPPORTED else ""
        message += f"; it has {count:,} {suffix}{cannot}"
    if broken:
        message = (
            f"0 usable images found in {path}: {len(broken)} cannot be used, the first ({broken[0][0]}) because: {broken[0][1]}"
        )
    return UserError(message + hint)


def _plural(count: int, singular: str, plural: str) -> str:
    return f"{count:,} {singular if count == 1 else plural}"


def sizes_of(headers: Counter[Header]) -> Counter[tuple[int, int]]:
    """Return the count of each (height, width)."""
    sizes: Counter[tuple[int, int]] = Counter()
    for header, count in headers.items():
        sizes[header.height, header.width] += count
    return sizes


def modes_of(headers: Counter[Header]) -> dict[str, int]:
    """Return the count of each mode, the most common first."""
    modes: Counter[str] = Counter()
    for header, count in headers.items():
        modes[header.mode] += count
    return dict(modes.most_common())


def conversions(headers: Counter[Header], channels: int, wanted: int | None) -> list[str]:
    """Return one line for each conversion of the images."""
    target = {1: "grey", 3: "RGB", 4: "RGBA"}[channels]
    kinds: Counter[str] = Counter()
    for header, count in headers.items():
        if header.kind != ("grey" if channels == 1 else "RGB"):
            kinds[header.kind] += count
    lines = []
    if kinds:
        parts = [f"{n} {kind}" for kind, n in kinds.most_common()]
        depth = " of 8 bits" if kinds.keys() & set(DEEP) else ""
        lines.append(f"{join_words(parts)} {'image' if sum(kinds.values()) == 1 else 'images'} converted to {target}{depth}")
    transparent = sum(n for h, n in headers.items() if h.transparent)
    if transparent and channels != 4:
        lines.append(f"{_plural(transparent, 'image', 'images')} with transparency composited over white")
    rotated = sum(n for h, n in headers.items() if h.rotated)
    if rotated:
        lines.append(f"{_plural(rotated, 'image', 'images')} rotated upright by the EXIF orientation")
    animated = sum(n for h, n in headers.items() if h.animated)
    if animated:
        lines.append(f"{_plural(animated, 'animated image', 'animated images')}: only the first frame is used")
    return lines


def _unused(columns: frozenset[str]) -> list[str]:
    """Return a note about unused metadata columns and the options that use them."""
    if not columns:
        return []
    listed = sorted(columns)[:REASONS_SHOWN]
    names = (
        join_words(listed) if len(columns) <= REASONS_SHOWN else f"{', '.join(listed)} and {len(columns) - REASONS_SHOWN} more"
    )
    subject = f"{'columns' if len(columns) > 1 else 'the column'} {names} of the metadata {'are' if len(columns) > 1 else 'is'}"
    return [f"{subject} not used; --labels {listed[-1]} takes that one as classes, --condition-columns as numbers"]


def _others(listing: Listing) -> list[str]:
    total = sum(listing.others.values())
    common = ", ".join(suffix for suffix, _ in listing.others.most_common(4))
    return [f"{_plural(total, 'file is', 'files are')} not an image and skipped ({common})"] if total else []


def skipped_note(broken: Sequence[tuple[str, str]], count: int | None = None) -> list[str]:
    """Return the note about skipped files, if any.  count: total number, of which `broken` may be a part."""
    count = len(broken) if count is None else count
    if not broken:
        return []
    shown = "; ".join(f"{file}: {why}" for file, why in broken[:REASONS_SHOWN])
    more = f"; and {count - REASONS_SHOWN} more" if count > REASONS_SHOWN else ""
    return [f"{_plural(count, 'file', 'files')} skipped ({shown}{more})"]
