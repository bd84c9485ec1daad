"""Networks for points: a conditional MLP, and radial basis functions."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from reverie.nets.embedding import LEVEL_SCALE, LabelEmbedding, Level, level_embedding

Size = Annotated[int, Field(ge=1, le=8192)]
Labels = Annotated[int, Field(ge=0, le=100_000)]
Outputs = Annotated[int, Field(ge=1, le=256)]  # outputs per number of the data


class ConditionalMLP(nn.Module):
    """An MLP that adds a projection of the noise-level embedding to every layer.

    h <- SiLU(W h + U e),  e = embedding(level) (+ embedding(label)).  x: (B, channels); level: (B,); cond: (B,) or None.
    connector="multiply": SiLU(W h * U e) instead, with U e around 1 initially.
    """

    def __init__(
        self,
        channels: Size = 2,
        hidden: Size = 42,
        layers: Annotated[int, Field(ge=1, le=64)] = 3,
        embedding: Level = "sinusoidal",
        embedding_dim: Size = 16,
        labels: Labels = 0,
        connector: Literal["add", "multiply"] = "add",
        outputs: Outputs = 1,
    ) -> None:
        super().__init__()
        self.multiplies = connector == "multiply"
        self.embedding = level_embedding(embedding, embedding_dim)
        self.label = LabelEmbedding(labels, embedding_dim) if labels else None
        widths = [channels] + [hidden] * layers
        self.layers = nn.ModuleList(nn.Linear(i, o) for i, o in pairwise(widths))
        self.projections = nn.ModuleList(nn.Linear(embedding_dim, hidden) for _ in range(layers))
        self.out = nn.Linear(hidden, channels * outputs)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)
        if self.multiplies:
            for projection in self.projections:
                assert isinstance(projection, nn.Linear)
                nn.init.ones_(projection.bias)

    def forward(self, x: Tensor, level: Tensor, cond: Tensor | None = None) -> Tensor:
        """Return the output, (B, channels outputs)."""
        e = self.embedding(level * LEVEL_SCALE)
        if self.label is not None:
            e = e + self.label(cond)
        for layer, projection in zip(self.layers, self.projections, strict=True):
            x = functional.silu(layer(x) * projection(e) if self.multiplies else layer(x) + projection(e))
        out: Tensor = self.out(x)
        return out


class RBF(nn.Module):
    """Gaussian radial basis functions whose readout depends on the noise level (arXiv:1503.03585, appendix D.1.1).

    y = b(e) + sum_k A_k(e) exp(-|x - c_k|² / (2 s_k²)),  A and b linear in e = embedding(level) (+ embedding(label)).
    x: (B, channels); level: (B,); cond: (B,) or None.
    """

    def __init__(
        self,
        channels: Size = 2,
        hidden: Size = 128,
        embedding: Level = "sinusoidal",
        embedding_dim: Size = 16,
        labels: Labels = 0,
        outputs: Outputs = 1,
    ) -> None:
        super().__init__()
        self.embedding = level_embedding(embedding, embedding_dim)
        self.label = LabelEmbedding(labels, embedding_dim) if labels else None
        centres = torch.empty(hidden, channels)
        width = math.sqrt(channels) * hidden ** (-1 / (channels + 1))  # a basis function overlaps a few neighbours
        self.centres = nn.Parameter(centres if centres.is_meta else centres.normal_())  # data have unit variance
        self.log_widths = nn.Parameter(torch.full((hidden,), math.log(width)))
        self.readout = nn.Linear(embedding_dim, (hidden + 1) * channels * outputs)
        nn.init.zeros_(self.readout.weight)
        nn.init.zeros_(self.readout.bias)

    def forward(self, x: Tensor, level: Tensor, cond: Tensor | None = None) -> Tensor:
        """Return the output, (B, channels outputs)."""
        e = self.embedding(level * LEVEL_SCALE)
        if self.label is not None:
            e = e + self.label(cond)
        squared = x.square().sum(1, keepdim=True) - 2 * x @ self.centres.T + self.centres.square().sum(1)
        bumps = torch.exp(-squared / 2 * torch.exp(-2 * self.log_widths))
        weights: Tensor = self.readout(e).unflatten(1, (len(self.centres) + 1, -1))  # the last row is b
        return (bumps[:, None] @ weights[:, :-1]).squeeze(1) + weights[:, -1]
