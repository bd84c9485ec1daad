"""Sequence networks over the values of a datum: each predicted from the values before it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from reverie.base.noise import mix_seed
from reverie.diffusion.lattice import level_of
from reverie.families.autoregressive.model import Autoregressive, IncrementalDecoder
from reverie.families.model import check_labelled
from reverie.nets.dropout import seeded_dropout
from reverie.nets.embedding import LabelEmbedding, random_vectors
from reverie.nets.sequence import SequenceNet, State


class SequenceModel(Autoregressive):
    """y_i = b_i + head(net(start, e(x_1), .., e(x_{i-1}))); e embeds levels, or maps continuous values linearly.

    A label's embedding is added to every input.  truncate: values after which backpropagation is cut, 0 for none.
    """

    def __init__(self, net: SequenceNet, truncate: int = 0, **options: Any) -> None:
        super().__init__(**options)
        self.net, self.truncate, levels = net, truncate, self.codec.levels
        self.start = random_vectors(1, net.dim)
        self.embed: nn.Module = nn.Embedding(levels, net.dim) if levels is not None else nn.Linear(1, net.dim)
        if isinstance(self.embed, nn.Embedding) and not self.embed.weight.is_meta:
            nn.init.normal_(self.embed.weight, std=net.dim**-0.5)
        self.label = LabelEmbedding(self.label_count, net.dim) if self.label_count else None
        self.head = nn.Linear(net.dim, self.observation.parameters)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.bias = nn.Parameter(torch.zeros(self.size, self.observation.parameters))

    @torch.no_grad()
    def initialize_with(self, z: Tensor) -> None:
        """Set the bias to the parameters that fit each position alone; for series, all time steps together."""
        if len(self.shape) == 2:
            initial = self.observation.initial_parameters(z.flatten(0, 1)).to(self.bias)  # (C, P)
            self.bias.copy_(initial.repeat(self.shape[0], 1))
            return
        self.bias.copy_(self.observation.initial_parameters(z).flatten(0, -2).to(self.bias)[self.order])

    def embedded(self, z: Tensor, cond: Tensor | None) -> Tensor:
        """Return the embeddings of values: (B, n, dim).  z: (B, n) in model units."""
        levels = self.codec.levels
        x: Tensor = self.embed(level_of(z, levels) if levels is not None else z[..., None])
        return self.labelled(x, cond)

    def labelled(self, x: Tensor, cond: Tensor | None) -> Tensor:
        """Return inputs plus the label's embedding.  x: (B, n, dim)."""
        check_labelled(self.label_count, cond, len(x))
        return x if self.label is None else x + self.label(cond)[:, None]

    def start_input(self, count: int, cond: Tensor | None) -> Tensor:
        """Return the input before the first value: (B, 1, dim)."""
        return self.labelled(self.start.expand(count, 1, -1), cond)

    def output_parameters(self, z: Tensor, cond: Tensor | None) -> Tensor:
        """See `Autoregressive.output_parameters`."""
        x = torch.cat([self.start_input(len(z), cond), self.embedded(z[:, :-1], cond)], 1)
        if not (self.truncate and self.training):
            return self.output_layer(self.net(x)[0])
        state: State | None = None
        parts = []
        for part in x.split(self.truncate, 1):
            y, state = self.net(part, state.detach() if state is not None else None)
            parts.append(y)
        return self.output_layer(torch.cat(parts, 1))

    def output_layer(self, h: Tensor) -> Tensor:
        """Return the distribution parameters of all values: (B, D, P).  h: (B, D, dim)."""
        y: Tensor = self.head(h) + self.bias
        return y

    def loss(self, x: Tensor, cond: Tensor | None, seed: int) -> Tensor:
        """Return the negative log-likelihood in nats per dimension: (B,)."""
        with seeded_dropout(self.net, mix_seed(seed, 3)):
            return super().loss(x, cond, seed)

    def incremental_decoder(self, count: int, cond: Tensor | None, order: Tensor) -> IncrementalDecoder:
        """See `Autoregressive.incremental_decoder`."""
        return _RecurrentDecoder(self, count, cond)


class _RecurrentDecoder(IncrementalDecoder):
    """Continues from the network's state, one step per value."""

    def __init__(self, model: SequenceModel, count: int, cond: Tensor | None) -> None:
        self.model, self.cond, self.i = model, cond, 0
        self.h, self.state = model.net.step(model.start_input(count, cond)[:, 0])

    def next_parameters(self) -> Tensor:
        y: Tensor = self.model.head(self.h) + self.model.bias[self.i]
        return y

    def append(self, z: Tensor) -> None:
        self.h, self.state = self.model.net.step(self.model.embedded(z[:, None], self.cond)[:, 0], self.state)
        self.i += 1

    def select(self, index: Tensor) -> None:
        self.h, self.state = self.h[index], self.state.take(index)
        self.cond = self.cond[index] if self.cond is not None else None
