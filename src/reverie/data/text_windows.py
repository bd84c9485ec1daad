"""A long text as overlapping windows of characters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from reverie.base.errors import UserError

END_OF_TEXT = 0x110000  # precedes every text; Unicode ends below it
WINDOW, MIN_WINDOW = 128, 8  # default for long texts, and minimum, in characters
OVERLAP = 8  # windows that contain each character
HELD_OUT = 0.1  # share of the characters
MIN_TEXTS = 20  # texts from which whole texts are held out; with fewer, the end of the text
MIN_CHARACTERS = 200  # minimum characters


def join_texts(texts: Sequence[str]) -> np.ndarray:
    """Return the character codes of texts, concatenated, each after END_OF_TEXT: (C,) int32."""
    end = np.array([END_OF_TEXT], np.int32)
    return np.concatenate([part for text in texts for part in (end, codes_of(text))])


def codes_of(text: str) -> np.ndarray:
    """Return the character codes of a text: (C,) int32."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.int32)


def text_of(codes: np.ndarray) -> str:
    """Return the text of codes without END_OF_TEXT.  codes: (C,) of any numeric type."""
    integers = np.asarray(codes).astype(np.int32)
    return integers[integers < END_OF_TEXT].tobytes().decode("utf-32-le", "surrogatepass")


def texts_of(codes: np.ndarray) -> list[str]:
    """Split codes at END_OF_TEXT into non-empty texts."""
    ends = np.flatnonzero(codes == END_OF_TEXT)
    return [text_of(part) for part in np.split(codes, ends) if len(part) > (part[:1] == END_OF_TEXT).sum()]


@dataclass(frozen=True)
class TextWindows:
    """Windows of one length of a long text.  Like an int64 tensor (N, W) of character codes.

    codes: (C,) int32, see `join_texts`; starts: offset of each window, (N,) int64.
    """

    codes: np.ndarray = field(compare=False, repr=False)
    window: int
    starts: np.ndarray = field(compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def shape(self) -> tuple[int, int]:
        """(N, W)."""
        return len(self.starts), self.window

    def take(self, index: Tensor) -> Tensor:
        """Return the chosen windows.  index: (B,) int64 or (N,) bool; returns (B, W) int64."""
        positions = self.starts[index.numpy()][:, None] + np.arange(self.window)
        return torch.from_numpy(self.codes[positions].astype(np.int64))

    def subset(self, index: Tensor) -> TextWindows:
        """Return the chosen windows of the same text.  index: (B,) int64 or (N,) bool."""
        return replace(self, starts=self.starts[index.numpy()])

    def texts(self) -> list[str]:
        """Return the texts behind the windows."""
        return texts_of(self.codes)

    def split(self, seed: int) -> tuple[TextWindows, TextWindows]:
        """Split into training and held-out windows, 10 % of the characters: whole texts, or the end if there are few."""
        ends = np.flatnonzero(self.codes == END_OF_TEXT)
        if len(ends) < MIN_TEXTS:
            cut = int((1 - HELD_OUT) * len(self.codes))
            parts = [self.codes[:cut]], [self.codes[cut:]]
        else:
            texts = np.split(self.codes, ends)[1:]
            order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(seed)).tolist()
            lengths = np.cumsum([len(texts[k]) for k in order])
            count = int(np.searchsorted(lengths, HELD_OUT * len(self.codes), side="right"))
            chosen = set(order[: max(1, count)])
            parts = ([t for k, t in enumerate(texts) if k not in chosen], [t for k, t in enumerate(texts) if k in chosen])
        train, held_out = (np.concatenate(part) for part in parts)
        return windows_of(train, self.window), windows_of(held_out, min(self.window, len(held_out)))


def windows_of(codes: np.ndarray, window: int) -> TextWindows:
    """Return overlapping windows of a text, the last one at its end."""
    stride = max(1, window // OVERLAP)
    last = len(codes) - window
    return TextWindows(codes, window, np.append(np.arange(0, last, stride, dtype=np.int64), last))


def choose_window(count: int, requested: int | None, source: str) -> int:
    """Return the window length of a text; refuse a text that is too short."""
    if count < MIN_CHARACTERS:
        raise UserError(f"{source} has {count:,} characters of text; at least {MIN_CHARACTERS} are needed for training")
    largest = count // 20  # so that the held-out part has two windows
    if requested is None:
        return max(MIN_WINDOW, min(WINDOW, largest))
    if not MIN_WINDOW <= requested <= largest:
        raise UserError(
            f"--window of {source} must be from {MIN_WINDOW} to {largest:,} characters, got {requested:,}")  # fmt: skip
    return requested
