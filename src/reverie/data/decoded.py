"""Cache of decoded images, so that unchanged files are decoded once."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import PIL
import torch
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from reverie.base.cache import Cache
from reverie.base.tensors import TensorSpec
from reverie.data.pixels import Header, Recipe
from reverie.data.sources import FileEntry, FileOffset

CACHE = Cache("decoded", 2**31)
DIGEST = 16  # bytes of a file hash
# Total pixels from which decoded images are cached, and pixels added per file for its overhead.
MIN_PIXELS, PIXELS_PER_FILE = 10**7, 10**4


class DecodedImages(NamedTuple):
    """The result of decoding: indices of valid files, their hashes, minimum and maximum value, and whether all are grey."""

    good: list[int]
    digests: tuple[bytes, ...]
    low: int
    high: int
    grey: bool


class DecodedFacts(BaseModel):
    """The record stored with the pixels.  broken, reasons: indices of files that cannot be used, and why."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    format: Literal[1] = 1
    good: list[int] = Field(min_length=1)
    broken: list[int]
    reasons: list[str]
    low: int = Field(ge=0, le=255)
    high: int = Field(ge=0, le=255)
    grey: bool


def cache_key(entries: Sequence[FileEntry], headers: Sequence[Header], recipe: Recipe) -> str | None:
    """Return a hash of file paths, sizes and times and of the recipe; None if decoding is fast enough without the cache."""
    work = sum(header.height * header.width for header in headers) + PIXELS_PER_FILE * len(headers)
    if work < MIN_PIXELS:
        return None
    stamps: dict[Path, tuple[int, ...]] = {}
    digest = hashlib.sha256(repr((DecodedFacts.model_fields["format"].default, PIL.__version__, astuple(recipe))).encode())
    for entry in entries:
        path, offset = _location(entry)
        try:
            if path not in stamps:
                state = path.stat()
                stamps[path] = (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
        except OSError:
            return None
        digest.update(repr((entry.name, entry.size, str(path), offset, stamps[path])).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:32]


def _location(entry: FileEntry) -> tuple[Path, int]:
    """Return the file that contains an entry, and its offset."""
    if isinstance(entry.place, zipfile.ZipInfo):
        assert entry.archive is not None
        return Path(str(entry.archive.filename)).absolute(), entry.place.header_offset
    path, offset = (entry.place.path, entry.place.offset) if isinstance(entry.place, FileOffset) else (entry.place, 0)
    return path.absolute(), offset


def load_decoded(key: str, count: int, recipe: Recipe, out: np.ndarray) -> tuple[DecodedImages, list[tuple[int, str]]] | None:
    """Fill out with the cached pixels of `count` files; return the result and the broken files, or None.

    out: (N, C, H, W) uint8.
    """

    def wanted(facts: DecodedFacts) -> dict[str, TensorSpec]:
        n = len(facts.good)
        shape = (n, recipe.channels, recipe.height, recipe.width)
        return {"pixels": TensorSpec(torch.uint8, shape), "digests": TensorSpec(torch.uint8, (n, DIGEST))}

    entry = CACHE.read(key, wanted, TypeAdapter(DecodedFacts))
    if entry is None or sorted([*entry[1].good, *entry[1].broken]) != list(range(count)):
        return None
    tensors, facts = entry
    if len(facts.reasons) != len(facts.broken):
        return None
    out[: len(facts.good)] = tensors["pixels"].numpy()
    digests = tuple(row.tobytes() for row in tensors["digests"].numpy())
    return DecodedImages(facts.good, digests, facts.low, facts.high, facts.grey), list(
        zip(facts.broken, facts.reasons, strict=True)
    )


def save_decoded(key: str, result: DecodedImages, broken: list[tuple[int, str]], out: np.ndarray) -> None:
    """Store decoded pixels."""
    files, reasons = [k for k, _ in broken], [why for _, why in broken]
    facts = DecodedFacts(
        good=result.good, broken=files, reasons=reasons, low=result.low, high=result.high, grey=result.grey
    )  # fmt: skip
    digests = np.frombuffer(b"".join(result.digests), np.uint8).reshape(-1, DIGEST).copy()
    tensors = {"pixels": torch.from_numpy(out[: len(result.good)]), "digests": torch.from_numpy(digests)}
    CACHE.write(key, tensors, facts.model_dump_json())
