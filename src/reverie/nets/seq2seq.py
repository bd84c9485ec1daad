"""Networks that read one sequence and write another: an encoder of sources, and a decoder that looks at what it left.

What the vectors are is the caller's.  A decoder is causal: output t is a function of the whole source and of inputs 0..t.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from reverie.base.errors import UserError
from reverie.nets.attention import Agreement, Alignment, CrossAttention, reversed_in_time
from reverie.nets.embedding import SinusoidalEmbedding
from reverie.nets.sequence import LSTM, Attention, State, dense_part


@dataclass(frozen=True)
class Memory:
    """What is left of sources that were read: tensors with the batch first, and which of their vectors there are, (B, S)."""

    tensors: tuple[Tensor, ...]
    there: Tensor

    def take(self, index: Tensor) -> Memory:
        """Return what is left of the chosen sources, each as often as it is named.  index: (B,) int64."""
        return Memory(tuple(t[index] for t in self.tensors), self.there[index])


class EncoderDecoder(nn.Module, ABC):
    """Reads (B, S, dim), and writes (B, T, dim) from (B, T, dim); what is not there of a source changes nothing."""

    dim: int
    dropout: float

    @abstractmethod
    def read(self, x: Tensor, there: Tensor) -> Memory:
        """Read sources.  x: (B, S, dim); there: (B, S) bool, true for the first vectors of each, at least one."""

    @abstractmethod
    def forward(self, memory: Memory, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Return the outputs for inputs, or for those that go on from a state, and the state after them."""

    @abstractmethod
    def alignments(self, memory: Memory, x: Tensor) -> list[Tensor]:
        """Return how much each output looks at each vector of the source, layer by layer: (B, heads, T, S) each."""

    def _hide(self, x: Tensor) -> Tensor:
        return functional.dropout(x, self.dropout, self.training) if self.dropout else x


class RecurrentPair(EncoderDecoder):
    """An LSTM over the source in both directions, and one that writes, begun with what they end with (arXiv:1409.3215).

    With attention, y_t = tanh(W [c_t, h_t]) of what h_t sees of the source (arXiv:1508.04025, eq. 5); without, y_t = h_t, and
    all that is known of the source went through one vector.
    """

    def __init__(self, dim: int, layers: int, attention: Agreement, dropout: float) -> None:
        super().__init__()
        if dim % 2:
            raise UserError(f"half of the encoder reads in each direction, so dim must be even, got {dim}")
        self.dim, self.layers, self.dropout = dim, layers, dropout
        self.onward, self.backward_ = (LSTM(dim // 2, layers, dropout, inputs=dim) for _ in range(2))
        self.begin = nn.Linear(dim, 2 * layers * dim)
        self.writer = LSTM(dim, layers, dropout)
        self.align = None if attention == "none" else Alignment(dim, attention)
        self.join = None if attention == "none" else nn.Linear(2 * dim, dim)

    def read(self, x: Tensor, there: Tensor) -> Memory:
        """See `EncoderDecoder.read`: the vectors of both directions, and the decoder's first state."""
        lengths = there.sum(1)
        onward, _ = self.onward(x)
        back = reversed_in_time(self.backward_(reversed_in_time(x, lengths))[0], lengths)
        vectors = torch.cat([onward, back], -1)
        last = onward.gather(1, (lengths - 1)[:, None, None].expand(-1, 1, onward.shape[2]))[:, 0]
        first = self.begin(torch.cat([last, back[:, 0]], -1)).tanh().reshape(len(x), 2, self.layers, self.dim)
        return Memory((vectors, first[:, 0], first[:, 1]), there)

    def forward(self, memory: Memory, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """See `EncoderDecoder.forward`."""
        h, after = self._written(memory, x, state)
        if self.align is None or self.join is None:
            return h, after
        seen, _ = self.align(h, memory.tensors[0], memory.there)
        return self._hide(self.join(torch.cat([seen, h], -1)).tanh()), after

    def _written(self, memory: Memory, x: Tensor, state: State | None) -> tuple[Tensor, State]:
        found: tuple[Tensor, State] = self.writer(x, State(memory.tensors[1:], 0) if state is None else state)
        return found

    def alignments(self, memory: Memory, x: Tensor) -> list[Tensor]:
        """See `EncoderDecoder.alignments`; none without attention."""
        if self.align is None:
            return []
        h, _ = self._written(memory, x, None)
        return [self.align(h, memory.tensors[0], memory.there)[1][:, None]]


class EncoderLayer(nn.Module):
    """Attention of each vector to all that are there and a dense part of width 4 dim, each normalised, added to its input."""

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention, self.dropout = CrossAttention(dim, heads), dropout
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2))
        self.dense = dense_part(dim)

    def forward(self, x: Tensor, there: Tensor) -> Tensor:
        """Return (B, S, dim)."""
        first, second = self.norms
        h = first(x)
        x = x + functional.dropout(self.attention(h, *self.attention.seen(h), there), self.dropout, self.training)
        return x + functional.dropout(self.dense(second(x)), self.dropout, self.training)


class WriterLayer(nn.Module):
    """Masked attention to what is written, attention to the source, and a dense part, each normalised, added to its input."""

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention, self.cross, self.dropout = Attention(dim, heads, rotary=False), CrossAttention(dim, heads), dropout
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(3))
        self.dense = dense_part(dim)

    def forward(
        self,
        x: Tensor,
        source: tuple[Tensor, Tensor],
        there: Tensor,
        kept: tuple[Tensor, Tensor] | None,
        before: int,
        most: int,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return (B, T, dim), and the keys and values of what is written.  source: those of the source."""
        _, second, third = self.norms
        x, kept = self.to_written(x, kept, before, most)
        x = x + functional.dropout(self.cross(second(x), *source, there), self.dropout, self.training)
        return x + functional.dropout(self.dense(third(x)), self.dropout, self.training), kept

    def to_written(
        self, x: Tensor, kept: tuple[Tensor, Tensor] | None, before: int, most: int
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return the vectors after the first part of the layer, and the keys and values."""
        y, kept = self.attention(self.norms[0](x), kept, before, most)
        return x + functional.dropout(y, self.dropout, self.training), kept


class TransformerPair(EncoderDecoder):
    """The transformer of arXiv:1706.03762, encoder and decoder, normalised as in arXiv:2002.04745.

    Places are sinusoidal.  Half of the numbers of a source's places count from its beginning and half from its end, so that the
    last vector of a source of any length is known as the last.  most: of outputs, for which room is made when they are written.
    """

    def __init__(self, dim: int, layers: int, heads: int, dropout: float, most: int) -> None:
        super().__init__()
        if dim % heads or dim % 4:
            raise UserError(f"the transformer's dim must be divisible by its heads and by 4, got {dim} and {heads} heads")
        self.dim, self.dropout, self.heads, self.most = dim, dropout, heads, most
        self.readers = nn.ModuleList(EncoderLayer(dim, heads, dropout) for _ in range(layers))
        self.writers = nn.ModuleList(WriterLayer(dim, heads, dropout) for _ in range(layers))
        self.read_norm, self.norm = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def _places(self, place: Tensor, dim: int) -> Tensor:
        found: Tensor = SinusoidalEmbedding(dim)(place) / math.sqrt(self.dim / 2)
        return found

    def read(self, x: Tensor, there: Tensor) -> Memory:
        """See `EncoderDecoder.read`: keys and values for each layer of the decoder."""
        place = torch.arange(x.shape[1], device=x.device, dtype=x.dtype).expand(len(x), -1)
        left = (there.sum(1, keepdim=True) - 1 - place).clamp_min(0)
        x = self._hide(x + torch.cat([self._places(place, self.dim // 2), self._places(left, self.dim // 2)], -1))
        for layer in self.readers:
            x = layer(x, there)
        x = self.read_norm(x)
        return Memory(tuple(t for layer in self._layers() for t in layer.cross.seen(x)), there)

    def _layers(self) -> list[WriterLayer]:
        return [layer for layer in self.writers if isinstance(layer, WriterLayer)]

    def _placed(self, x: Tensor, before: int) -> Tensor:
        place = torch.arange(before, before + x.shape[1], device=x.device, dtype=x.dtype)
        return self._hide(x + self._places(place, self.dim))

    def forward(self, memory: Memory, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """See `EncoderDecoder.forward`; the state are keys and values of what is written."""
        before = 0 if state is None else state.length
        length, kept = x.shape[1], list[Tensor]()
        x = self._placed(x, before)
        for k, layer in enumerate(self.writers):
            both = slice(2 * k, 2 * k + 2)
            x, pair = layer(
                x, memory.tensors[both], memory.there, None if state is None else state.tensors[both], before, self.most
            )
            kept += pair
        return self.norm(x), State(tuple(kept), before + length)

    def alignments(self, memory: Memory, x: Tensor) -> list[Tensor]:
        """See `EncoderDecoder.alignments`."""
        x, found = self._placed(x, 0), list[Tensor]()
        for k, layer in enumerate(self._layers()):
            source = (memory.tensors[2 * k], memory.tensors[2 * k + 1])
            h, _ = layer.to_written(x, None, 0, self.most)
            found.append(layer.cross.weights(layer.norms[1](h), source[0], memory.there))
            x, _ = layer(x, source, memory.there, None, 0, self.most)
        return found
