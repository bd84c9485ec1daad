"""Discovery of shards and their index: which files, whether an index exists and matches, and building one."""

from __future__ import annotations

import hashlib
import re
import tarfile
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from reverie.base.cache import cache_folder
from reverie.base.errors import UserError
from reverie.base.files import atomic
from reverie.base.parse import read_json
from reverie.base.visible import visible
from reverie.data.reading import ReadingOptions, natural_key
from reverie.data.shards.build import build_index, shard_kind
from reverie.data.shards.fetching import fetch_pool
from reverie.data.shards.index import INDEX, Index, check_fresh, read_index
from reverie.data.shards.store import MAX_FILES, LocalStore, Store, Stored, is_remote, open_store
from reverie.data.sources import has_images

INDEX_LIMIT = 2**33  # bytes
# Files of Hugging Face's `save_to_disk`.
STATE, SPLITS, INFO = "state.json", "dataset_dict.json", "dataset_info.json"
TEXT_LIMIT = 2**22
SAMPLE_MEMBERS = 16  # members of a tar file sampled


def is_shards(path: Path) -> bool:
    """Return whether a folder has shards: tar, parquet or arrow files of images, or a `save_to_disk` dataset, and no images."""
    if (path / STATE).is_file() or (path / SPLITS).is_file():
        return True
    try:
        has_shards = any(shard_kind(name.name) for name in path.iterdir() if name.is_file())
    except OSError:  # the reader of folders reports the problem
        return False
    return has_shards and not has_images(path)


def has_annotations(path: Path) -> bool:
    """Return whether a tar file has annotation files, by its first members."""
    try:
        with tarfile.open(path, "r:") as archive:
            return any(member.name.lower().endswith((".cls", ".json")) for member in islice(archive, SAMPLE_MEMBERS))
    except (tarfile.TarError, OSError, ValueError, OverflowError):
        return False


def find_shards(source: str) -> tuple[Store, list[Stored], Path | None, tuple[str, ...]]:
    """Return the store of a source, its sorted shards, the local path of its index, if any, and notes."""
    notes: tuple[str, ...] = ()
    if not is_remote(source) and (Path(source) / SPLITS).is_file():
        source, notes = _split(Path(source))
    store, names = open_store(source)
    if isinstance(store, LocalStore) and names is None and (store.root / STATE).is_file():
        names = _arrow_files(store.root)
    files = _stat_all(store, names) if names is not None else store.files()
    if files is None:
        files = _shards_of_index(store)
    shards = sorted((file for file in files if shard_kind(file.name)), key=lambda file: (natural_key(file.name), file.name))
    if not shards:
        raise UserError(f"0 shards found in {store.address}; looked for .tar, .parquet and .arrow files")
    if len({shard_kind(file.name) for file in shards}) > 1:
        raise UserError(
            f"{store.address} contains shards of several types ({shards[0].name}, {shards[-1].name}); put them into"
            " separate folders"
        )
    return store, shards, _index_path(store, names), notes


def _index_path(store: Store, names: Sequence[str] | None) -> Path | None:
    """Return the path of the index beside the shards of a folder."""
    if not isinstance(store, LocalStore):
        return None
    if names is None or (store.root / STATE).is_file():
        return store.root / INDEX
    return None


def _stat_all(store: Store, names: Sequence[str]) -> list[Stored]:
    """Return size and tag of files by name; all must exist."""
    files = [future.result() for future in [fetch_pool().submit(store.stat, name) for name in names]]
    if None in files:
        raise UserError(f"there is no {store.where(names[files.index(None)])}; check the name or the pattern")
    return [file for file in files if file is not None]


def _shards_of_index(store: Store) -> list[Stored]:
    """Return the shards of a server without listings, by the index beside them."""
    stored = store.stat(INDEX)
    if stored is None:
        raise UserError(
            f"{store.address} is on a server that does not list files; put {INDEX} there, which `reverie pack` writes, or"
            f" name the shards, as in https://host/shards/{{000000..000099}}.tar"
        )
    index = read_index(_download_index(store, stored), store.where(INDEX))
    return _stat_all(store, [shard.name for shard in index.facts.shards])


def _download_index(store: Store, stored: Stored) -> Path:
    """Download an index to the cache."""
    if stored.size > INDEX_LIMIT:
        raise UserError(f"{store.where(INDEX)} is larger than any index; put the right file there")
    path = _cache_path(store, [stored], "fetched")
    if not path.is_file():
        with atomic(path) as temporary, temporary.open("wb") as file, store.open(INDEX, stored.size) as opened:
            while piece := opened.read(2**20):
                file.write(piece)
    return path


def _cache_path(store: Store, files: Sequence[Stored], what: str) -> Path:
    """Return the cache path of an index: a hash of address, names, sizes, and tags or times of the shards."""
    times = [(store.root / file.name).stat().st_mtime_ns for file in files] if isinstance(store, LocalStore) else []
    key = repr((what, str(Path(store.address).resolve()) if times else store.address,
                 [(file.name, file.size, file.tag) for file in files], times))  # fmt: skip
    return cache_folder() / "indexes" / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.safetensors"


def index_of(store: Store, shards: Sequence[Stored], index_path: Path | None, options: ReadingOptions) -> tuple[Index, str]:
    """Return the index of shards, built if it does not exist, and its location."""
    if index_path is not None and index_path.exists():
        index = read_index(index_path, str(index_path))
        check_fresh(index, shards, str(index_path))
        return index, str(index_path)
    if store.remote and (stored := store.stat(INDEX)) is not None and index_path is None:
        index, where = read_index(_download_index(store, stored), store.where(INDEX)), store.where(INDEX)
        if {shard.name for shard in index.facts.shards} == {file.name for file in shards}:
            check_fresh(index, shards, where)
            return index, where
    cached = _cache_path(store, shards, "index")
    if cached.exists():
        return read_index(cached, str(cached)), str(cached)
    built = build_index(store, shards, options)
    for target in (index_path, cached):
        if target is not None:
            try:
                built.write(target)
                return built, str(target)
            except UserError:
                if target is cached:
                    raise
    raise AssertionError("the index is written to one of the paths, or an error is raised")


def _read_object(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            value = read_json(file.read(TEXT_LIMIT).decode("utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {str(error)[:100]}; save the dataset again") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} does not describe a dataset; save the dataset again")
    return value


def _split(path: Path) -> tuple[str, tuple[str, ...]]:
    """Return the folder of the training split of a saved dataset, and a note."""
    splits = [str(name) for name in _read_object(path / SPLITS).get("splits", ()) or () if re.fullmatch(r"[\w.\-]+", str(name))]
    existing = [name for name in splits if (path / name / STATE).is_file()]
    if not existing:
        raise UserError(f"{path / SPLITS} names no existing split; save the dataset again")
    chosen = "train" if "train" in existing else existing[0]
    others = ", ".join(visible(name) for name in existing if name != chosen)
    note = f"only the split {visible(chosen)} is read; for {others}, give {path}/NAME" if others else ""
    return str(path / chosen), (note,) if note else ()


def _arrow_files(root: Path) -> list[str]:
    """Return the arrow files of a `save_to_disk` dataset, in order."""
    state = _read_object(root / STATE)
    files = state.get("_data_files")
    names = [str(file.get("filename")) for file in files if isinstance(file, dict)] if isinstance(files, list) else []
    if not names or len(names) > MAX_FILES or any("/" in name or "\\" in name or shard_kind(name) != "arrow" for name in names):
        raise UserError(f"{root / STATE} names no arrow files of this folder; save the dataset again")
    if state.get("_indices_data_files"):
        raise UserError(f"{root} was saved with an index mapping; call flatten_indices() on it and save it again")
    return names


def saved_features(root: Path) -> dict[str, Any]:
    """Return the column features of a `save_to_disk` dataset; empty if missing."""
    features = _read_object(root / INFO).get("features") if (root / INFO).is_file() else None
    return features if isinstance(features, dict) else {}
