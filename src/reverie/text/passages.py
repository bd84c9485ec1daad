"""Substrings shared by texts: the longest common substring, and the share of novel n-grams."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

MAX_PASSAGE = 1024  # maximum length of a reported common substring


class Passages:
    """Exact search for substrings of texts in a corpus.

    Prefix doubling (Karp, Miller and Rosenberg 1972) gives equal substrings of 2^k characters equal ranks; the ranks of its
    first and last 2^k characters identify a substring of any other length.  long: (C,) character codes of the corpus.
    """

    def __init__(self, long: np.ndarray, texts: Sequence[np.ndarray]) -> None:
        self.count, gap = len(long), np.array([-1])
        parts, self.starts, offset = [long.astype(np.int64)], list[int](), len(long)
        for k, text in enumerate(texts):
            parts += [gap - k, text.astype(np.int64)]  # separators, which occur nowhere else
            self.starts.append(offset + 1)
            offset += 1 + len(text)
        self.lengths = [len(text) for text in texts]
        joined = np.concatenate([*parts, gap - len(texts)])
        self.ranks = [np.unique(joined, return_inverse=True)[1].astype(np.int64)]
        max_length = min(max(self.lengths, default=0), MAX_PASSAGE)
        while 2 ** len(self.ranks) <= max_length:
            self.ranks.append(np.unique(self._keys(2 ** len(self.ranks)), return_inverse=True)[1].astype(np.int64))

    def _keys(self, length: int) -> np.ndarray:
        """Return a key for every substring of this length; equal substrings have equal keys."""
        level = min(length.bit_length() - 1, len(self.ranks) - 1)
        size, ranks_at_level = 2**level, self.ranks[level]
        if length == size:
            return ranks_at_level
        shift = min(length - size, len(ranks_at_level))
        return ranks_at_level[: len(ranks_at_level) - shift] * (int(ranks_at_level.max()) + 1) + ranks_at_level[shift:]

    def occurrences(self, length: int) -> list[np.ndarray]:
        """Return for each text whether its substring of this length at each position occurs in the corpus, as bool arrays."""
        keys = self._keys(length)
        present = np.sort(keys[: max(0, self.count - length + 1)])
        return [
            self._contains(keys[a : a + max(0, n - length + 1)], present)
            for a, n in zip(self.starts, self.lengths, strict=True)
        ]

    @staticmethod
    def _contains(keys: np.ndarray, present: np.ndarray) -> np.ndarray:
        if not len(present):
            return np.zeros(len(keys), bool)
        index = np.searchsorted(present, keys).clip(max=len(present) - 1)
        return np.asarray(present[index] == keys)

    def longest(self) -> np.ndarray:
        """Return the length of the longest substring of each text in the corpus, at most MAX_PASSAGE: (n,) int64."""
        low = np.zeros(len(self.lengths), np.int64)
        high = np.minimum(self.lengths, MAX_PASSAGE).astype(np.int64)
        while (low < high).any():
            middle = (low + high + 1) // 2
            for length in np.unique(middle[low < high]):
                hits = self.occurrences(int(length))
                for k in np.flatnonzero((low < high) & (middle == length)):
                    if hits[k].any():
                        low[k] = length
                    else:
                        high[k] = length - 1
        return low

    def novel(self, length: int) -> np.ndarray:
        """Return the share of each text's n-grams that the corpus lacks: (n,); NaN for shorter texts.  length: n."""
        return np.array([1 - float(hit.mean()) if len(hit) else np.nan for hit in self.occurrences(length)])
