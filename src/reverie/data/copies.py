"""Which members of a data set are exact copies of each other."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor

from reverie.base.noise import split_mix

PIECE = 2**20  # bytes that are looked at together


def content_hashes(x: np.ndarray) -> np.ndarray:
    """Return a number for each member that exact copies share.  x: (N, ...) of any type; returns (N,) uint64.

    Members of up to 8 bytes are told by these, longer ones by a hash of 64 bits: two of a million that differ are taken for
    copies with a chance of 3e-8.
    """
    size = x[0].nbytes
    seen = np.zeros(len(x), np.uint64)
    step = max(1, PIECE // max(1, size))
    for k in range(0, len(x), step):
        rows = np.ascontiguousarray(x[k : k + step]).reshape(-1).view(np.uint8).reshape(-1, size)
        if size <= 8:
            seen[k : k + step] = np.pad(rows, ((0, 0), (0, 8 - size))).view(np.uint64)[:, 0]
        elif size <= 64:
            words = np.pad(rows, ((0, 0), (0, -size % 8))).view(np.int64)
            mixed = torch.zeros(len(words), dtype=torch.int64)
            for column in torch.from_numpy(words).unbind(1):
                mixed = split_mix(mixed ^ column, torch.ones((), dtype=torch.int64))
            seen[k : k + step] = mixed.numpy().view(np.uint64)
        else:
            digests = b"".join(hashlib.blake2b(row.data, digest_size=8).digest() for row in rows)
            seen[k : k + step] = np.frombuffer(digests, np.uint64)
    return seen


def count_duplicates(x: np.ndarray) -> int:
    """Return how many members have been seen before, by their bytes.  x: (N, ...) of any type."""
    seen = np.sort(content_hashes(x))
    return len(x) - 1 - int(np.count_nonzero(seen[1:] != seen[:-1]))


def split_without_copies(order: Tensor, held: int, marks: np.ndarray) -> tuple[Tensor, Tensor]:
    """Return which members are trained on, and `held` others, of which no copy is trained on.

    Held out are the first in order that have no copy, so that nothing is lost; where these are too few, others, whose copies
    are then left out.  order: (N,) int64; marks: (N,), equal for copies.  If all are copies of those held out, it is as if
    none were.
    """
    _, places, counts = np.unique(marks, return_inverse=True, return_counts=True)
    group = torch.from_numpy(places.reshape(-1))
    copied = torch.from_numpy(counts > 1)[group]
    if not copied.any():
        return order[held:], order[:held]
    order = torch.cat([order[~copied[order]], order[copied[order]]])
    rest, out = order[held:], order[:held]
    other = rest[~torch.isin(group[rest], group[out])]
    return (other if len(other) else rest), out
