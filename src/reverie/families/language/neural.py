"""Neural language models: an embedding, a sequence network, and a linear map to the logits of the next token."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from reverie.base.deadline import Deadline
from reverie.base.noise import mix_seed
from reverie.data import Dataset
from reverie.data.text_windows import TextWindows
from reverie.families.language.model import NONE, LanguageModel
from reverie.families.model import TrainedModel
from reverie.nets.dropout import seeded_dropout
from reverie.nets.embedding import random_vectors
from reverie.nets.sequence import SequenceNet, State
from reverie.text.tokenizer import Tokenizer

BEGIN_CHARACTERS = 2**18  # of the training text, at most, for the initial bias


class NeuralLanguageModel(LanguageModel, TrainedModel):
    """y_i = D net(start, C x_1, .., C x_{i-1}) + b, with an embedding C x of each token.

    tied: D = Cᵀ (arXiv:1608.05859), so that similar tokens have similar logits.
    """

    def __init__(
        self, net: SequenceNet, tied: bool, tokenizer: Tokenizer, shape: tuple[int, ...], limit: int | None, begins: bool
    ) -> None:
        super().__init__(tokenizer, shape, limit, begins)
        self.net = net
        self.start = random_vectors(1, net.dim)
        self.embed = nn.Embedding(tokenizer.size, net.dim)
        self.head = None if tied else nn.Linear(net.dim, tokenizer.size, bias=False)
        self.bias = nn.Parameter(torch.zeros(tokenizer.size))
        if not self.embed.weight.is_meta:
            nn.init.normal_(self.embed.weight, std=net.dim**-0.5)
        if self.head is not None:
            nn.init.zeros_(self.head.weight)

    @torch.no_grad()
    def initialize(self, data: Dataset, deadline: Deadline | None = None) -> None:
        """Initialize the bias with the frequency of tokens."""
        assert isinstance(data.x, TextWindows)
        ids = torch.from_numpy(self.tokens(data.x.codes[:BEGIN_CHARACTERS])).long()
        counts = torch.bincount(ids, minlength=self.tokenizer.size) + 1.0
        self.bias.copy_((counts / counts.sum()).log())

    def inputs(self, ids: Tensor) -> Tensor:
        """Return the start vector and the embeddings of tokens: (B, n + 1, dim).  ids: (B, n)."""
        return torch.cat([self.start.expand(len(ids), 1, -1), self.embed(ids)], 1)

    def logits(self, ids: Tensor, state: State | None) -> tuple[Tensor, State]:
        """See `LanguageModel.logits`."""
        h, new_state = self.net(self.embed(ids) if state is not None else self.inputs(ids), state)
        weight = self.embed.weight if self.head is None else self.head.weight
        return functional.linear(h, weight, self.bias), new_state

    def loss(self, x: Tensor, cond: Tensor | None, seed: int) -> Tensor:
        """Return the negative log-likelihood of each text in nats per token: (B,)."""
        ids = self.encode(x)
        with seeded_dropout(self.net, mix_seed(seed, 3)):
            return -self.log_tokens(ids).sum(1) / (ids != NONE).sum(1)
