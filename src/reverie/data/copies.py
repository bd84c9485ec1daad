"""Exact copies among the data."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor

from reverie.base.noise import split_mix

CHUNK_BYTES = 2**20  # bytes hashed at a time


def content_hashes(x: np.ndarray) -> np.ndarray:
    """Return a hash of each datum, equal for exact copies.  x: (N, ...) of any type; returns (N,) uint64.

    Data of up to 8 bytes are their own hash, others get 64 bits: two of a million different data collide with probability 3e-8.
    """
    size = x[0].nbytes
    hashes = np.zeros(len(x), np.uint64)
    step = max(1, CHUNK_BYTES // max(1, size))
    for k in range(0, len(x), step):
        rows = np.ascontiguousarray(x[k : k + step]).reshape(-1).view(np.uint8).reshape(-1, size)
        if size <= 8:
            hashes[k : k + step] = np.pad(rows, ((0, 0), (0, 8 - size))).view(np.uint64)[:, 0]
        elif size <= 64:
            words = np.pad(rows, ((0, 0), (0, -size % 8))).view(np.int64)
            mixed = torch.zeros(len(words), dtype=torch.int64)
            for column in torch.from_numpy(words).unbind(1):
                mixed = split_mix(mixed ^ column, torch.ones((), dtype=torch.int64))
            hashes[k : k + step] = mixed.numpy().view(np.uint64)
        else:
            digests = b"".join(hashlib.blake2b(row.data, digest_size=8).digest() for row in rows)
            hashes[k : k + step] = np.frombuffer(digests, np.uint64)
    return hashes


def count_duplicates(x: np.ndarray) -> int:
    """Count the data that are byte-for-byte copies of earlier ones.  x: (N, ...) of any type."""
    hashes = np.sort(content_hashes(x))
    return len(x) - 1 - int(np.count_nonzero(hashes[1:] != hashes[:-1]))


def split_without_copies(order: Tensor, held: int, hashes: np.ndarray) -> tuple[Tensor, Tensor]:
    """Return the training indices, and `held` held-out ones without copies in the training set.

    Data without copies are held out first, in the order given; if these are too few, others are held out and their copies
    removed from the training set.  order: (N,) int64; hashes: (N,), equal for copies.  Copies stay if all training
    data would be removed.
    """
    _, inverse, counts = np.unique(hashes, return_inverse=True, return_counts=True)
    group = torch.from_numpy(inverse.reshape(-1))
    copied = torch.from_numpy(counts > 1)[group]
    if not copied.any():
        return order[held:], order[:held]
    order = torch.cat([order[~copied[order]], order[copied[order]]])
    rest, held_out = order[held:], order[:held]
    without_copies = rest[~torch.isin(group[rest], group[held_out])]
    return (without_copies if len(without_copies) else rest), held_out
