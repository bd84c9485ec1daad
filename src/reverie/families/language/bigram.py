"""The bigram language model: the frequency of each token after each other token."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from reverie.data import Dataset
from reverie.data.text_windows import TextWindows
from reverie.families.language.model import LanguageModel
from reverie.families.model import FittedModel
from reverie.nets.sequence import State
from reverie.text.tokenizer import Tokenizer

SMOOTHING = 0.1  # pseudo-count of every pair


class Bigram(LanguageModel, FittedModel):
    """p(x_i = b | x_{i-1} = a) = (count(a, b) + s p(b) V) / (count(a) + s V), with the unigram frequency p(b).

    The last row of the table is the distribution of the first token.
    """

    def __init__(self, tokenizer: Tokenizer, shape: tuple[int, ...], begins: bool) -> None:
        super().__init__(tokenizer, shape, None, begins)
        self.table = nn.Buffer(torch.zeros(tokenizer.size + 1, tokenizer.size))

    def fit(self, data: Dataset, seed: int) -> Iterator[float]:
        """Count the pairs of the training text, and yield the mean negative log-likelihood per token in nats."""
        assert isinstance(data.x, TextWindows)
        size = self.tokenizer.size
        ids = torch.from_numpy(self.tokens(data.x.codes)).long()
        unigram = torch.bincount(ids, minlength=size).double() + SMOOTHING
        unigram /= unigram.sum()
        pairs = torch.bincount(ids[:-1] * size + ids[1:], minlength=size * size).reshape(size, size).double()
        conditional = (pairs + SMOOTHING * size * unigram) / (pairs.sum(1, keepdim=True) + SMOOTHING * size)
        table = torch.cat([conditional, unigram[None]]).log()
        self.table.copy_(table)
        yield float(-table[ids[:-1], ids[1:]].mean()) if len(ids) > 1 else math.log(size)

    def logits(self, ids: Tensor, state: State | None) -> tuple[Tensor, State]:
        """See `LanguageModel.logits`."""
        before = 0 if state is None else state.length
        if state is None:
            ids = torch.cat([ids.new_full((len(ids), 1), self.tokenizer.size), ids], 1)
        return self.table[ids], State((), before + ids.shape[1])
