"""Reading what people have: data sets by name, by path or from memory, of images, tables or arrays; codecs and augmentation."""

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
    """Return a .csv file: a column of text, or its numbers."""
    column = text_column(path, options.text)
    return read_csv(path, name, options) if column is None else read_text_column(path, name, options, column)


def _read_tar(path: Path, name: str, options: ReadingOptions) -> Dataset:
    """Return a .tar file: a shard with labels in files of their own, or a folder that was packed."""
    return read_shards(str(path), name, options) if has_annotations(path) else read_images(path, name, options)


def _read_parquet(path: Path, name: str, options: ReadingOptions) -> Dataset:
    """Return a .parquet file: a shard of images, or a table of numbers."""
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
WHOLE = ("series", "text", "pairs")  # kinds of data whose windows, if any, are their own


@renamed_options
def load_data(
    source: DataSource, points: int | None = None, seed: int = 0, *, size: str | None = None, fit: str = "auto",
    channels: int | None = None, labels: str = "auto", data_dir: str | Path | None = None, strict: bool = False,
    on_progress: Callable[[str, int, int], None] | None = None, on_shape: Callable[[Dataset], None] | None = None,
    largest_colour: int = DEFAULT_SIDE, window: int | None = None, text: str | None = None,
    condition_columns: str | None = None, condition_image: str | None = None, pairs: str | None = None,
    columns: str | Sequence[str] | None = None,
) -> Dataset:  # fmt: skip
    """Return a data set by name (names win), by path, or of data in memory as `reverie.data.in_memory` takes them.

    points and seed: the number, if not given what is usual, and the seed of generated data; size: "32" or "64x48" (height x
    width); fit: crop, pad, stretch, or auto, which pads where cropping would cut too much; channels: 1, 3 or 4, by default told
    by the images; labels: one of LABELS, or the name of a column; data_dir: where files of named sets are looked for
    first; strict: refuse where a broken file would be skipped; on_progress: called with what is done, how much, of how much;
    on_shape: called with the set without its pixels when their form is known, and before they are read, so that it can refuse;
    largest_colour: the longest side that is chosen for colour images; window: take rows of numbers as a series, in windows of
    so many, or so many characters of text at a time; text: the column of a table, or field, that holds text; condition_columns,
    condition_image: columns of a folder's metadata, numbers with commas between and the name of another image, that a model is
    told of each image; pairs: the columns or fields that hold sources and targets, with a comma between, or the file whose
    lines are the targets of those of the source; columns: of a table that are coordinates, with commas between, or all of
    numbers; if not given, all but ids, times and those that are mostly empty.
    """
    check_fit(fit)
    check_channels(channels)
    if points is not None:
        check_count(points)
    check_window(window)
    numbers, wanted = parse_column_names(condition_columns), table_columns(columns)
    pixels = parse_size(size) if size is not None else None
    if is_in_memory(source):
        if data_dir is not None:
            raise UserError(f"--data-dir says where the files of {', '.join(FROM_FILES)} are; leave it out for data in memory")
        chosen = ReadingOptions(
            pixels, fit, channels, labels, strict, None, on_progress, on_shape, largest_colour, window, columns=wanted
        )  # fmt: skip
        given = _of_columns(from_memory(source, chosen), wanted, "the data")
        return given if window is None else as_series(given, window, "the data")
    source = str(source)
    if source in DATASETS or not _has_columns(source):
        pick(LABELS, labels, "kind of labels")
    if data_dir is not None and source not in FROM_FILES:
        raise UserError(f"--data-dir says where the files of {', '.join(FROM_FILES)} are; leave it out for {source}")
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
        numbers,
        condition_image,
        pairs,
        wanted,
    )
    remote = is_remote(source)
    packed = remote or Path(source).suffix.lower() in (*ARCHIVES, ".parquet")
    if (numbers or condition_image) and (source in DATASETS or not (packed or Path(source).is_dir())):
        raise UserError(f"columns of metadata are those of a folder, a .zip or shards of images, which {source} is not")
    if source in DATASETS:
        if pairs is not None:
            raise UserError(f"--pairs names columns of a table or a second file; {source} is a set by name, so leave it out")
        named = DATASETS[source](default_count(source) if points is None else points, seed, options)
        _of_columns(named, wanted, source)
        return named if window is None or named.kind in WHOLE else as_series(named, window, source)
    if remote or is_pattern(source):
        return read_shards(source, _name_of(source), options)
    try:
        path = Path(source).expanduser()
        there = source != "" and path.exists()
    except (OSError, ValueError, RuntimeError):  # too long, a null byte, no such user
        there = False
    if not there:
        raise _not_there(source)
    found = _of_columns(_read_path(path, options), wanted, str(path))
    return found if window is None or found.kind in WHOLE else as_series(found, window, str(path))


def _of_columns(data: Dataset, wanted: tuple[str, ...], source: str) -> Dataset:
    """Return data, and refuse columns that are asked of what is no table."""
    if wanted and not data.columns:
        raise UserError(f"--columns chooses columns of numbers of a table, and {source} holds {data.kind}; leave it out")
    return data


def _has_columns(source: str) -> bool:
    """Tell whether data may have columns, whose names are kinds of labels as well: a table, or metadata beside images."""
    with suppress(OSError, ValueError, RuntimeError):  # what can be no path is told of later
        folder = Path(source).expanduser()
        return folder.suffix.lower() in (*TABLES, ".zip") or any((folder / name).exists() for name in METADATA)
    return False


def _name_of(source: str) -> str:
    """Return what data elsewhere are called: the last part of their address that is no pattern."""
    parts = [part for part in source.split("://")[-1].split("/") if part and "{" not in part]
    last = parts[-1] if parts else "data"
    return visible(last.removesuffix(".tar").removesuffix(".parquet")) or "data"


def _read_path(path: Path, options: ReadingOptions) -> Dataset:
    name = visible(path.resolve().name) or "data"
    if path.is_dir():
        if options.pairs is not None:
            raise UserError(f"--pairs names columns of a table or a second file, and {path} is a folder; give a file in it")
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
        raise UserError(f"{path} is a single image; give the folder it lies in")
    kinds = " ".join(READERS)
    raise UserError(f"{path} is of no kind that is read; give a folder of images or texts, an idx file, or one of {kinds}")


def _idx_dataset(images: Path, labels: Path | None, name: str, options: ReadingOptions, notes: tuple[str, ...] = ()) -> Dataset:
    x, y = read_pair(images, labels)
    made = from_array(x, y, name, str(images), options)
    return Dataset(name, made.x, made.labels, made.label_names, (*notes, *made.notes), made.report)


def _hint(path: Path) -> str:
    """Return a guess at the folder that was meant: one with a like name beside it."""
    try:
        beside = [p.name for p in path.resolve().parent.iterdir() if p.is_dir() and p.name != path.resolve().name]
    except OSError:
        return ""
    close = get_close_matches(path.resolve().name, beside, n=1, cutoff=0.6)
    return f"; did you mean {path.parent / close[0]}?" if close else ""


def _not_there(source: str) -> UserError:
    """Return the error for what is neither a name nor a path, with close names and close paths."""
    path = Path(source)
    beside: dict[str, str] = {}
    with suppress(OSError, ValueError):
        beside = {p.name: str(path.parent / p.name) for p in path.parent.iterdir() if path.name and p.name[0] != "."}
    meant = {**beside, **({} if len(path.parts) > 1 else {name: name for name in DATASETS})}
    close = [repr(meant[guess]) for guess in get_close_matches(path.name, meant, n=2, cutoff=0.7)]
    advice = f"give a path, or one of: {', '.join(DATASETS)}"
    if close:
        advice = f"did you mean {' or '.join(close)}? else give a path; the names are shown by: reverie list data"
    return UserError(f"unknown data {source!r}: no such file or folder; {advice}")
