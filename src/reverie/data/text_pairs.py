"""Pairs of texts as data: a source and its target."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from reverie.base.errors import UserError
from reverie.data.text_windows import END_OF_TEXT, codes_of, text_of

TextPair = tuple[str, str]
HELD_OUT = 0.05  # share of the distinct sources


@dataclass(frozen=True)
class TextPairs:
    """Pairs of texts.  Like an int64 tensor (N, 2, W) of character codes, with END_OF_TEXT after the end of each text.

    codes: all texts concatenated, (C,) int32; starts, lengths: offset and length in characters of source and target of each
    pair, (N, 2) int64; width: W.
    """

    codes: np.ndarray = field(compare=False, repr=False)
    starts: np.ndarray = field(compare=False, repr=False)
    lengths: np.ndarray = field(compare=False, repr=False)
    width: int

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(N, 2, W)."""
        return len(self.starts), 2, self.width

    def take(self, index: Tensor) -> Tensor:
        """Return the chosen pairs.  index: (B,) int64 or (N,) bool; returns (B, 2, W) int64."""
        chosen = index.numpy()
        position = np.arange(self.width)
        inside = position < self.lengths[chosen][..., None]
        codes = self.codes[np.where(inside, self.starts[chosen][..., None] + position, 0)]
        return torch.from_numpy(np.where(inside, codes, END_OF_TEXT).astype(np.int64))

    def subset(self, index: Tensor) -> TextPairs:
        """Return the chosen pairs, sharing the texts.  index: (B,) int64 or (N,) bool."""
        chosen = index.numpy()
        return TextPairs(self.codes, self.starts[chosen], self.lengths[chosen], self.width)

    def text(self, k: int, side: int) -> str:
        """Return the source (side 0) or target (side 1) of pair k."""
        start = int(self.starts[k, side])
        return text_of(self.codes[start : start + int(self.lengths[k, side])])

    def pairs(self) -> Iterator[TextPair]:
        """Yield every pair."""
        for k in range(len(self)):
            yield self.text(k, 0), self.text(k, 1)

    def content(self) -> bytes:
        """Return bytes that identify these pairs, for a fingerprint."""
        lengths, starts = self.lengths.reshape(-1), self.starts.reshape(-1)
        ends = lengths.cumsum()
        position = np.repeat(starts - ends + lengths, lengths) + np.arange(int(ends[-1]) if len(ends) else 0)
        return hashlib.sha256(lengths.tobytes() + self.codes[position].tobytes()).digest()

    def split(self, seed: int) -> tuple[TextPairs, TextPairs]:
        """Split into training and held-out pairs with 5 % of the distinct sources held out; no source is in both parts."""
        index_of: dict[str, int] = {}
        source_index = np.array([index_of.setdefault(self.text(k, 0), len(index_of)) for k in range(len(self))])
        if len(index_of) < 2:
            raise UserError("all sources are equal; at least 2 distinct ones are needed, one of them for the held-out set")
        order = torch.randperm(len(index_of), generator=torch.Generator().manual_seed(seed)).numpy()
        held_out = np.isin(source_index, order[: max(1, round(HELD_OUT * len(index_of)))])
        return self.subset(torch.from_numpy(~held_out)), self.subset(torch.from_numpy(held_out))


def make_pairs(pairs: Sequence[TextPair]) -> TextPairs:
    """Encode pairs of strings."""
    sides = [codes_of(text) for pair in pairs for text in pair]
    lengths = np.array([len(side) for side in sides], np.int64)
    starts = np.concatenate([[0], lengths.cumsum()[:-1]])
    return TextPairs(np.concatenate(sides), starts.reshape(-1, 2), lengths.reshape(-1, 2), int(lengths.max()))
