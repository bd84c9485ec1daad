"""Shards as a dataset: labels, captions and numbers from the index; images lazy, or in memory if they are few."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from reverie.base.errors import UserError
from reverie.data.arrays import from_array
from reverie.data.columnar import readable_errors
from reverie.data.conditions import make_conditions
from reverie.data.dataset import Dataset
from reverie.data.image_folder import choose_recipe, conversions, modes_of, sizes_of, skipped_note
from reverie.data.image_labels import FOLDERS, find_labels
from reverie.data.lazy import LazyImages
from reverie.data.reading import ReadingOptions, class_counts, duplicate_note, encode_labels, shown_sizes
from reverie.data.shards.build import shard_kind
from reverie.data.shards.find import find_shards, index_of, saved_features
from reverie.data.shards.image_tables import arrow_schema, columns_of, read_lists
from reverie.data.shards.index import FLAGS, Index
from reverie.data.shards.shard_images import Blocks, ShardImages
from reverie.data.shards.store import LocalStore

MEMORY_LIMIT = 2**28  # bytes of fitted pixels up to which images are kept in memory
MIN_ANNOTATED = 0.5  # share of images that must have a caption or label for these to be the default
CHUNK_IMAGES = 4096
BY_NAME = (*FOLDERS, "name")


def read_shards(source: str, name: str, options: ReadingOptions) -> Dataset:
    """Read the images of shards, in the order of the index."""
    if options.condition_image is not None:
        raise UserError("condition images need a folder, not shards; leave --condition-image out")
    store, shards, index_path, notes = find_shards(source)
    if isinstance(store, LocalStore) and shard_kind(shards[0].name) == "arrow":
        paths = [str(store.root / shard.name) for shard in shards]
        with readable_errors(paths[0], "arrow"):
            as_bytes = columns_of(arrow_schema(paths[0], paths[0]), paths[0]) is not None
        if not as_bytes:
            return _of_lists(paths, name, store, options)
    index, where = index_of(store, shards, index_path, options)
    kept, values, kind, label_notes = _labels(index, options, store.address)
    headers = index.headers()
    recipe, recipe_notes = choose_recipe(headers, options)
    looks_grey = bool((index.arrays["flags"] & FLAGS["looks_grey"]).all())
    stored_in_colour = recipe.channels == 3 and looks_grey and options.channels is None
    if stored_in_colour:
        recipe = replace(recipe, channels=1)
    labels, label_names = _encoded(index, values, kind, kept)
    conditions = None
    captions = [index.caption(int(k)) for k in kept] if kind == "captions" else []
    if captions or options.condition_numbers:
        if label_names:
            label_notes.append("labels are ignored because captions or numbers are the condition")
            labels, label_names = None, ()
        conditions = make_conditions(captions, _numbers(index, options.condition_numbers, kept, store.address))
    images = ShardImages(Blocks(store, index), recipe, kept)
    options.report_shape(name, (len(kept), recipe.channels, recipe.height, recipe.width), labels, label_names)
    lazy = math.prod(images.shape) > MEMORY_LIMIT
    x = images if lazy else _in_memory(images, options)
    checks = index.arrays["check"][kept]
    copies = len(checks) - len(np.unique(checks))
    low, high = int(index.arrays["low"].min()), int(index.arrays["high"].max())
    facts = index.facts
    many = _plural(len(shards), "shard")
    all_notes = [
        *notes, *label_notes, *recipe_notes, *conversions(headers, recipe.channels, options.channels),
        *(["every image is grey though stored in colour: 1 channel is used"] if stored_in_colour else []),
        *duplicate_note(copies, "image"),
        *([f"images are read from {many} on demand, and only their index is in memory"] if lazy else []),
        f"index of {len(index):,} images in {many}: {where}",
        *skipped_note(facts.broken, facts.broken_count),
    ]  # fmt: skip
    report = {
        "source": store.address, "kind": "images", "count": len(images), "shape": list(images.shape[1:]), "fit": recipe.fit,
        "lazy": lazy, "labels_by": kind, "sizes": shown_sizes(sizes_of(headers)), "modes": modes_of(headers),
        "classes": class_counts(labels, label_names), "range": [low, high], "duplicates": copies,
        "broken": [{"file": file, "reason": why} for file, why in facts.broken],
        "shards": len(shards), "bytes": sum(file.size for file in shards), "index": where,
    }  # fmt: skip
    return Dataset(name, x, labels, label_names, tuple(all_notes), report, conditions)


def _of_lists(paths: list[str], name: str, store: LocalStore, options: ReadingOptions) -> Dataset:
    """Read images stored as nested lists in arrow files."""
    with readable_errors(store.address, "arrow"):
        x, labels = read_lists(paths, store.address, saved_features(store.root))
    dataset = from_array(x, None, name, store.address, replace(options, labels="auto"))
    if labels is None or options.labels == "none":
        return dataset
    numbers, names = encode_labels(labels)
    return replace(
        dataset, labels=numbers, label_names=names, report={**dataset.report, "classes": class_counts(numbers, names)}
    )


def _plural(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def _in_memory(images: LazyImages, options: ReadingOptions) -> Tensor:
    """Read all images, block by block."""
    out = torch.empty(images.shape, dtype=torch.uint8)
    order = torch.arange(len(images))
    for begin in range(0, len(images), CHUNK_IMAGES):
        images.prefetch(order, begin)
        part = order[begin : begin + CHUNK_IMAGES]
        out[part] = images.take(part)
        options.report_progress("reading images", begin + len(part), len(images))
    return out


def _labels(index: Index, options: ReadingOptions, where: str) -> tuple[np.ndarray, list[str] | None, str, list[str]]:
    """Return the indices of the used images, their labels if derived from names, the kind of labels, and notes."""
    indices, label, how = np.arange(len(index)), index.arrays["label"], options.labels
    has_label = label >= 0
    has_caption = np.diff(index.arrays["caption_end"], prepend=0) > 0
    if how == "none":
        return indices, None, "none", []
    if how in ("csv", "jsonl"):
        raise UserError(f"labels by {how} need a folder with metadata, and {where} has shards; use --labels auto, cls or none")
    if how == "captions" and not has_caption.any():
        raise UserError(f"no image of {where} has a caption, in a .txt or .json file or a column text; use --labels none")
    if how == "cls" and len(index.facts.labels) < 2:
        raise UserError(f"the images of {where} have no labels, in .cls or .json files or a column label; use --labels none")
    if how == "cls" or (how == "auto" and len(index.facts.labels) >= 2 and has_label.mean() >= MIN_ANNOTATED):
        notes = [f"{len(index.facts.labels)} classes from the shards"]
        if without := int((~has_label).sum()):
            if options.strict:
                raise UserError(f"{_plural(without, 'image')} of {where} have no label; leave out --strict to skip them")
            notes.append(f"{_plural(without, 'image')} without a label skipped")
        return np.flatnonzero(has_label), None, "cls", notes
    if how == "captions" or (how == "auto" and has_caption.mean() >= MIN_ANNOTATED):
        uncaptioned = int((~has_caption).sum())
        without_note = (
            [f"{_plural(uncaptioned, 'image')} without a caption will be trained on with the null condition"]
            if uncaptioned
            else []
        )
        return indices, None, "captions", ["captions from the shards; --labels none ignores them", *without_note]
    if how == "auto" and index.facts.shards[0].kind != "tar":
        return indices, None, "none", []
    source = find_labels([index.name(k) for k in range(len(index))], {}, how, where)
    if source.values is None:
        return indices, None, "none", source.notes
    labelled = np.array([k for k, value in enumerate(source.values) if value is not None])
    return labelled, [value for value in source.values if value is not None], source.kind, source.notes


def _encoded(index: Index, values: list[str] | None, kind: str, kept: np.ndarray) -> tuple[Tensor | None, tuple[str, ...]]:
    """Return labels as indices, and their names."""
    if kind in BY_NAME and values is not None:
        return encode_labels(values)
    if kind == "cls":
        return torch.from_numpy(index.arrays["label"][kept].astype(np.int64)), index.facts.labels
    return None, ()


def _numbers(index: Index, wanted: tuple[str, ...], kept: np.ndarray, where: str) -> dict[str, list[float]]:
    """Return the requested numbers of each image, by column."""
    columns = {name.lower(): k for k, name in enumerate(index.facts.numbers)}
    if missing := [name for name in wanted if name not in columns]:
        existing = ", ".join(columns) or "none"
        raise UserError(
            f"the shards of {where} have no number {missing[0]!r}, in .json files or columns; they have: {existing}"
        )
    values = index.arrays["numbers"].view(np.float32)[kept]
    return {name: values[:, columns[name]].tolist() for name in wanted}
