"""Passages that texts share: the longest one, and how many of their n-grams are new."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

LONGEST = 1024  # characters of a passage that are told apart


class Passages:
    """Finds passages of some texts in a long one, exactly.

    Substrings of 2^k characters are numbered by prefix doubling (Karp, Miller and Rosenberg 1972); one of any other length is
    known by the numbers of its first and its last 2^k characters.  long: (C,) codes of characters.
    """

    def __init__(self, long: np.ndarray, texts: Sequence[np.ndarray]) -> None:
        self.count, gap = len(long), np.array([-1])
        parts, self.starts, at = [long.astype(np.int64)], list[int](), len(long)
        for k, text in enumerate(texts):
            parts += [gap - k, text.astype(np.int64)]  # what stands between texts occurs nowhere else
            self.starts.append(at + 1)
            at += 1 + len(text)
        self.lengths = [len(text) for text in texts]
        whole = np.concatenate([*parts, gap - len(texts)])
        self.numbers = [np.unique(whole, return_inverse=True)[1].astype(np.int64)]
        most = min(max(self.lengths, default=0), LONGEST)
        while 2 ** len(self.numbers) <= most:
            self.numbers.append(np.unique(self._keys(2 ** len(self.numbers)), return_inverse=True)[1].astype(np.int64))

    def _keys(self, length: int) -> np.ndarray:
        """Return a number for every substring of a length, the same for equal ones."""
        level = min(length.bit_length() - 1, len(self.numbers) - 1)
        size, known = 2**level, self.numbers[level]
        if length == size:
            return known
        far = min(length - size, len(known))
        return known[: len(known) - far] * (int(known.max()) + 1) + known[far:]

    def found(self, length: int) -> list[np.ndarray]:
        """Return of each text whether the substring of a length at each place is in the long text, bool each."""
        keys = self._keys(length)
        there = np.sort(keys[: max(0, self.count - length + 1)])
        return [self._in(keys[a : a + max(0, n - length + 1)], there) for a, n in zip(self.starts, self.lengths, strict=True)]

    @staticmethod
    def _in(keys: np.ndarray, there: np.ndarray) -> np.ndarray:
        if not len(there):
            return np.zeros(len(keys), bool)
        place = np.searchsorted(there, keys).clip(max=len(there) - 1)
        return np.asarray(there[place] == keys)

    def longest(self) -> np.ndarray:
        """Return how long the longest substring of each text is that the long one has: (n,) int64, at most LONGEST."""
        low = np.zeros(len(self.lengths), np.int64)
        high = np.minimum(self.lengths, LONGEST).astype(np.int64)
        while (low < high).any():
            middle = (low + high + 1) // 2
            for length in np.unique(middle[low < high]):
                hits = self.found(int(length))
                for k in np.flatnonzero((low < high) & (middle == length)):
                    if hits[k].any():
                        low[k] = length
                    else:
                        high[k] = length - 1
        return low

    def novel(self, length: int) -> np.ndarray:
        """Return the share of each text's substrings of a length that the long one has not: (n,); nan where it is shorter."""
        return np.array([1 - float(hit.mean()) if len(hit) else np.nan for hit in self.found(length)])
