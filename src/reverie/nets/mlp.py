"""The small network for points."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from reverie.nets.embedding import LEVEL_SCALE, LabelEmbedding, LearnedEmbedding, SinusoidalEmbedding

Size = Annotated[int, Field(ge=1, le=8192)]

LEVEL_LIMIT = 14.0  # noise levels lie within +-this


class ConditionalMLP(nn.Module):
    """Dense layers, to each of which a projection of the noise-level embedding is added, with SiLU between.

    h <- SiLU(W h + U e),  e = embedding(level) (+ embedding(label)).  x: (B, channels); level: (B,); cond: (B,) or None.
    """

    def __init__(
        self,
        channels: Size = 2,
        hidden: Size = 42,
        layers: Annotated[int, Field(ge=1, le=64)] = 3,
        embedding: Literal["sinusoidal", "learned"] = "sinusoidal",
        embedding_dim: Size = 16,
        labels: Annotated[int, Field(ge=0, le=100_000)] = 0,
    ) -> None:
        super().__init__()
        self.embedding = (
            SinusoidalEmbedding(embedding_dim)
            if embedding == "sinusoidal"
            else LearnedEmbedding(embedding_dim, -LEVEL_LIMIT * LEVEL_SCALE, LEVEL_LIMIT * LEVEL_SCALE)
        )
        self.label = LabelEmbedding(labels, embedding_dim) if labels else None
        widths = [channels] + [hidden] * layers
        self.layers = nn.ModuleList(nn.Linear(i, o) for i, o in pairwise(widths))
        self.projections = nn.ModuleList(nn.Linear(embedding_dim, hidden) for _ in range(layers))
        self.out = nn.Linear(hidden, channels)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x: Tensor, level: Tensor, cond: Tensor | None = None) -> Tensor:
        """Return the output, (B, channels)."""
        e = self.embedding(level * LEVEL_SCALE)
        if self.label is not None:
            e = e + self.label(cond)
        for layer, projection in zip(self.layers, self.projections, strict=True):
            x = functional.silu(layer(x) + projection(e))
        out: Tensor = self.out(x)
        return out
