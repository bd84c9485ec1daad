"""A long text as data: windows of characters, overlapping, of which a model sees one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from reverie.base.errors import UserError

END_OF_TEXT = 0x110000  # stands before every text, where no character can be: Unicode ends below it
WINDOW, LEAST_WINDOW = 128, 8  # characters of a datum when nothing is said and the text is long, and at least
OVERLAP = 8  # windows that show each character
HELD_OUT = 0.1  # of the characters
MANY = 20  # texts, from which whole ones are held out; of fewer the end of the last ones
LEAST = 200  # characters that there must be


def join_texts(texts: Sequence[str]) -> np.ndarray:
    """Return texts as the codes of their characters one after another, each after END_OF_TEXT: (C,) int32."""
    end = np.array([END_OF_TEXT], np.int32)
    return np.concatenate([part for text in texts for part in (end, codes_of(text))])


def codes_of(text: str) -> np.ndarray:
    """Return the codes of the characters of a text: (C,) int32."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.int32)


def text_of(codes: np.ndarray) -> str:
    """Return the text of codes; ends of texts are nothing.  codes: (C,) of any kind of number."""
    kept = np.asarray(codes).astype(np.int32)
    return kept[kept < END_OF_TEXT].tobytes().decode("utf-32-le", "surrogatepass")


def texts_of(codes: np.ndarray) -> list[str]:
    """Return the texts between their ends; those without a character are left out."""
    ends = np.flatnonzero(codes == END_OF_TEXT)
    return [text_of(part) for part in np.split(codes, ends) if len(part) > (part[:1] == END_OF_TEXT).sum()]


@dataclass(frozen=True)
class TextWindows:
    """Windows of one length of a long text.  Like an int64 tensor (N, W) of the codes of characters.

    codes: (C,) int32, see `join_texts`; starts: where each window begins, (N,) int64.
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
        places = self.starts[index.numpy()][:, None] + np.arange(self.window)
        return torch.from_numpy(self.codes[places].astype(np.int64))

    def subset(self, index: Tensor) -> TextWindows:
        """Return the chosen windows of the same text.  index: (B,) int64 or (N,) bool."""
        return replace(self, starts=self.starts[index.numpy()])

    def texts(self) -> list[str]:
        """Return the texts that the windows are of."""
        return texts_of(self.codes)

    def split(self, seed: int) -> tuple[TextWindows, TextWindows]:
        """Return the windows of what is trained on and of what is held out, a tenth: whole texts, or the end of few."""
        ends = np.flatnonzero(self.codes == END_OF_TEXT)
        if len(ends) < MANY:
            cut = int((1 - HELD_OUT) * len(self.codes))
            parts = [self.codes[:cut]], [self.codes[cut:]]
        else:
            texts = np.split(self.codes, ends)[1:]
            order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(seed)).tolist()
            lengths = np.cumsum([len(texts[k]) for k in order])
            held = int(np.searchsorted(lengths, HELD_OUT * len(self.codes), side="right"))
            chosen = set(order[: max(1, held)])
            parts = ([t for k, t in enumerate(texts) if k not in chosen], [t for k, t in enumerate(texts) if k in chosen])
        train, out = (np.concatenate(part) for part in parts)
        return windows_of(train, self.window), windows_of(out, min(self.window, len(out)))


def windows_of(codes: np.ndarray, window: int) -> TextWindows:
    """Return the windows of a text, the last one at its end."""
    stride = max(1, window // OVERLAP)
    last = len(codes) - window
    return TextWindows(codes, window, np.append(np.arange(0, last, stride, dtype=np.int64), last))


def choose_window(count: int, wished: int | None, source: str) -> int:
    """Return how many characters a window of a text has; refuse a text that is too short for any."""
    if count < LEAST:
        raise UserError(f"{source} has {count:,} characters of text; at least {LEAST} are needed to learn from")
    largest = count // 20  # so that what is held out has two of them
    if wished is None:
        return max(LEAST_WINDOW, min(WINDOW, largest))
    if not LEAST_WINDOW <= wished <= largest:
        raise UserError(f"a window of {source} has from {LEAST_WINDOW} up to {largest:,} characters, got {wished:,}; give"
                        " another --window")  # fmt: skip
    return wished
