"""Datasets by name, by path or from memory: images, tables, arrays, series, text and pairs; codecs and augmentation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path

from reverie.base.deprecations import renamed_options
from reverie.base.errors import UserError, pick
from reverie.base.files import expanded
from reverie.base.visible import visible
from reverie.data.arrays import from_array, read_array_file
from reverie.data.csv_table import read_csv
from reverie.data.dataset import Dataset, chunk_size, evaluation_batch_size
from reverie.data.idx import find_pair, labels_beside, looks_like_idx, read_pair
from reverie.data.image_folder import ARCHIVES, read_images
from reverie.data.image_labels import LABELS
from reverie.data.in_memory import DataSource, from_memory, is_in_memory
from reverie.data.lazy import LazyImages
from reverie.data.metadata_columns import parse_column_names
from reverie.data.named_datasets import DATASETS, FROM_FILES, cdb_dataset, cdb_files, check_count, default_count
from reverie.data.pair_files import read_pairs
from reverie.data.parquet_table import read_parquet
from reverie.data.pixels import DEFAULT_SIDE, FITS, check_channels, check_fit, parse_size
from reverie.data.point_table import table_columns
from reverie.data.reading import ReadingOptions
from reverie.data.shards.find import has_annotations, is_shards
from reverie.data.shards.image_tables import has_image_column
from reverie.data.shards.read import read_shards
from reverie.data.shards.store import is_pattern, is_remote
from reverie.data.sources import METADATA, count_unsupported, has_images, is_image
from reverie.data.text_files import (
    looks_like_text,
    read_jsonl,
    read_text,
    read_text_column,
    read_text_folder,
    text_column,
    text_entries,
)
from reverie.data.time_series import as_series, check_window, read_wav

__all__ = [
    "DATASETS", "FITS", "FROM_FILES", "LABELS", "Dataset", "LazyImages", "chunk_size", "evaluation_batch_size", "load_data",
]  # fmt: skip


def _read_table(path: Path, name: str, options: ReadingOptions) -> Dataset:
    """Read a .csv file: a column of text, or columns of numbers."""
    column = text_column(path, options.text)
    return read_csv(path, name, options) if column is None else read_text_column(path, name, options, column)


def _read_tar(path: Path, name: str, options: ReadingOptions) -> Dataset:
    """Read a .tar file: a shard with annotation files, or a packed folder."""
    return read_shards(str(path), name, options) if has_annotations(path) else read_images(path, name, options)


def _read_parquet(path: Path, name: str, options: ReadingOptions) -> Dataset:
    """Read a .parquet file: a shard of images, or a table of numbers."""
    return read_shards(str(path), name, options) if has_image_column(path) else read_parquet(path, name, options)


READERS: dict[str, Callable[[Path, str, ReadingOptions], Dataset]] = {
    ".npy": read_array_file,
    ".npz": read_array_file,
    ".csv": _read_table,
    ".tsv": _read_table,
    ".parquet": _read_parquet,
    ".zip": read_images,
    ".tar": _read_tar,
    ".wav": read_wav,
    ".txt": read_text,
    ".jsonl": read_jsonl,
    ".cdb": lambda path, name, options: cdb_dataset([path], name, str(path), options),
}
TABLES = (".csv", ".tsv", ".parquet")
NO_SERIES = ("series", "text", "pairs")  # kinds that --window does not read as a series


@renamed_options
def load_data(
    source: DataSource, points: int | None = None, seed: int = 0, *, size: str | None = None, fit: str = "auto",
    channels: int | None = None, labels: str = "auto", data_dir: str | Path | None = None, strict: bool = False,
    on_progress: Callable[[str, int, int], None] | None = None, on_shape: Callable[[Dataset], None] | None = None,
    largest_colour: int = DEFAULT_SIDE, window: int | None = None, text: str | None = None,
    condition_columns: str | None = None, condition_image: str | None = None, pairs: str | None = None,
    columns: str | Sequence[str] | None = None,
) -> Dataset:  # fmt: skip
    """Return a dataset by name (names take precedence), by path, or from data in memory, see `reverie.data.in_memory`.

    points, seed: count and seed of generated data; size: "32" or "64x48" (height x width); fit: crop, pad, stretch, or auto,
    which pads if cropping would remove too much; channels: 1, 3 or 4, by default those of the images; labels: one of LABELS, or
    the name of a column; data_dir: folder searched first for the files of named datasets; strict: refuse broken files instead
    of skipping them; on_progress: called with (stage, number done, total); on_shape: called with the dataset without pixels as
    soon as the shape is known, before pixels are read, and may raise; largest_colour: maximum side chosen for colour images;
    window: read rows of numbers as a series in windows of this length, or text in windows of this many characters; text: the
    column or field that holds text; condition_columns, condition_image: metadata columns to condition on, numbers
    (comma-separated) and the name of another image; pairs: the two columns or fields of sources and targets (comma-separated),
    or the file with the target lines; columns: the coordinates of a table (comma-separated), or all for every column of
    numbers; by default all but ids, times and mostly empty columns.
    """
    check_fit(fit)
    check_channels(channels)
    if points is not None:
        check_count(points)
    check_window(window)
    condition_names, column_names = parse_column_names(condition_columns), table_columns(columns)
    pixels = parse_size(size) if size is not None else None
    if is_in_memory(source):
        if data_dir is not None:
            raise UserError(f"--data-dir sets the folder of {', '.join(FROM_FILES)}; leave it out for data in memory")
        memory_options = ReadingOptions(
            pixels, fit, channels, labels, strict, None, on_progress, on_shape, largest_colour, window, columns=column_names
        )  # fmt: skip
        dataset = _check_columns(from_memory(source, memory_options), column_names, "the data")
        return dataset if window is None else as_series(dataset, window, "the data")
    source = str(source)
    if source in DATASETS or not _has_columns(source):
        pick(LABELS, labels, "kind of labels")
    if data_dir is not None and source not in FROM_FILES:
        raise UserError(f"--data-dir sets the folder of {', '.join(FROM_FILES)}; leave it out for {source}")
    folder = expanded(data_dir) if data_dir is not None else None
    options = ReadingOptions(
        pixels,
        fit,
        channels,
        labels,
        strict,
        folder,
        on_progress,
        on_shape,
        largest_colour,
        window,
        text,
        condition_names,
        condition_image,
        pairs,
        column_names,
    )
    remote = is_remote(source)
    is_archive = remote or Path(source).suffix.lower() in (*ARCHIVES, ".parquet")
    if (condition_names or condition_image) and (source in DATASETS or not (is_archive or Path(source).is_dir())):
        raise UserError(
            f"metadata columns need a folder, a .zip or shards of images, which {source} is not; leave the condition"
            " options out"
        )
    if source in DATASETS:
        if pairs is not None:
            raise UserError(f"--pairs needs a table or a second file, and {source} is a dataset by name; leave --pairs out")
        named = DATASETS[source](default_count(source) if points is None else points, seed, options)
        _check_columns(named, column_names, source)
        return named if window is None or named.kind in NO_SERIES else as_series(named, window, source)
    if remote or is_pattern(source):
        return read_shards(source, _name_of(source), options)
    try:
        path = Path(source).expanduser()
        exists = source != "" and path.exists()
    except (OSError, ValueError, RuntimeError):  # too long, a null byte, no such user
        exists = False
    if not exists:
        raise _unknown_source(source)
    loaded = _check_columns(_read_path(path, options), column_names, str(path))
    return loaded if window is None or loaded.kind in NO_SERIES else as_series(loaded, window, str(path))


def _check_columns(data: Dataset, wanted: tuple[str, ...], source: str) -> Dataset:
    """Return the data; refuse --columns for data that are not a table."""
    if wanted and not data.columns:
        raise UserError(f"--columns needs a table, and {source} contains {data.kind}; leave --columns out")
    return data


def _has_columns(source: str) -> bool:
    """Return whether data may have columns, which are valid values of `labels`: a table, or images with metadata."""
    with suppress(OSError, ValueError, RuntimeError):  # invalid paths are reported later
        folder = Path(source).expanduser()
        return folder.suffix.lower() in (*TABLES, ".zip") or any((folder / name).exists() for name in METADATA)
    return False


def _name_of(source: str) -> str:
    """Return the name of remote data: the last part of the address that is not a pattern."""
    parts = [part for part in source.split("://")[-1].split("/") if part and "{" not in part]
    last = parts[-1] if parts else "data"
    return visible(last.removesuffix(".tar").removesuffix(".parquet")) or "data"


def _read_path(path: Path, options: ReadingOptions) -> Dataset:
    name = visible(path.resolve().name) or "data"
    if path.is_dir():
        if options.pairs is not None:
            raise UserError(f"--pairs needs a table or a second file, and {path} is a folder; give a file in it")
        digits, pair = cdb_files(path), find_pair(path)
        if digits:
            return cdb_dataset(digits, name, str(path), options)
        if pair is not None:
            return _idx_dataset(*pair, name, options, ("only the training files are read",))
        if is_shards(path):
            return read_shards(str(path), name, options)
        if not has_images(path) and len(texts := text_entries(path)) > count_unsupported(path):
            return read_text_folder(texts, path, name, options)
        return read_images(path, name, options, _hint(path))
    if not path.is_file():
        raise UserError(f"{path} is neither a file nor a folder; give a folder of images or a data file")
    stem = visible(path.name.removesuffix(path.suffix)) or name
    if (pairs := read_pairs(path, stem, options)) is not None:
        return pairs
    if path.suffix.lower() in READERS:
        return READERS[path.suffix.lower()](path, stem, options)
    if looks_like_idx(path):
        return _idx_dataset(path, labels_beside(path), stem, options)
    if looks_like_text(path):
        return read_text(path, stem, options)
    if is_image(path.name):
        raise UserError(f"{path} is a single image; give its folder")
    kinds = " ".join(READERS)
    raise UserError(f"{path} has an unsupported format; give a folder of images or texts, an idx file, or one of {kinds}")


def _idx_dataset(images: Path, labels: Path | None, name: str, options: ReadingOptions, notes: tuple[str, ...] = ()) -> Dataset:
    x, y = read_pair(images, labels)
    dataset = from_array(x, y, name, str(images), options)
    return Dataset(name, dataset.x, dataset.labels, dataset.label_names, (*notes, *dataset.notes), dataset.report)


def _hint(path: Path) -> str:
    """Suggest a sibling folder with a similar name."""
    try:
        siblings = [p.name for p in path.resolve().parent.iterdir() if p.is_dir() and p.name != path.resolve().name]
    except OSError:
        return ""
    close = get_close_matches(path.resolve().name, siblings, n=1, cutoff=0.6)
    return f"; did you mean {path.parent / close[0]}?" if close else ""


def _unknown_source(source: str) -> UserError:
    """Return the error for an unknown name or path, with similar names and paths."""
    path = Path(source)
    siblings: dict[str, str] = {}
    with suppress(OSError, ValueError):
        siblings = {p.name: str(path.parent / p.name) for p in path.parent.iterdir() if path.name and p.name[0] != "."}
    candidates = {**siblings, **({} if len(path.parts) > 1 else {name: name for name in DATASETS})}
    close = [repr(candidates[guess]) for guess in get_close_matches(path.name, candidates, n=2, cutoff=0.7)]
    advice = f"give a path, or one of: {', '.join(DATASETS)}"
    if close:
        advice = f"did you mean {' or '.join(close)}? Give a path, or a name from: reverie list data"
    return UserError(f"unknown data {source!r}: no such file or folder; {advice}")
