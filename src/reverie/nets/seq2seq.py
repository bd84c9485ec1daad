"""Encoder-decoder networks.

The decoder is causal: output t is a function of the whole source and of inputs 0..t.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from reverie.base.errors import UserError
from reverie.nets.attention import Alignment, MultiHeadAttention, ScoreFunction, reverse_sequences
from reverie.nets.embedding import SinusoidalEmbedding
from reverie.nets.sequence import LSTM, CausalSelfAttention, State, feed_forward


@dataclass(frozen=True)
class Memory:
    """Encoded sources: tensors, (B, ...), and the mask of source positions, (B, S)."""

    tensors: tuple[Tensor, ...]
    mask: Tensor

    def take(self, index: Tensor) -> Memory:
        """Return the selected batch elements, which may repeat.  index: (B,) int64."""
        return Memory(tuple(t[index] for t in self.tensors), self.mask[index])


class EncoderDecoder(nn.Module, ABC):
    """Encodes sources (B, S, dim) and decodes inputs (B, T, dim) to outputs (B, T, dim); masked positions have no effect."""

    dim: int
    dropout: float

    @abstractmethod
    def encode(self, x: Tensor, mask: Tensor) -> Memory:
        """Encode sources.  x: (B, S, dim); mask: (B, S) bool, true for the first vectors of each, at least one."""

    @abstractmethod
    def forward(self, memory: Memory, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Return the outputs of decoder inputs, or of their continuation from a state, and the new state."""

    @abstractmethod
    def attention_weights(self, memory: Memory, x: Tensor) -> list[Tensor]:
        """Return the attention weights of outputs to source positions for each layer: (B, heads, T, S) each."""

    def _dropout(self, x: Tensor) -> Tensor:
        return functional.dropout(x, self.dropout, self.training) if self.dropout else x


class RecurrentPair(EncoderDecoder):
    """A bidirectional LSTM encoder and an LSTM decoder that starts from its final states (arXiv:1409.3215).

    With attention, y_t = tanh(W [c_t, h_t]) with the context c_t of h_t (arXiv:1508.04025, eq. 5); without, y_t = h_t, and all
    information about the source passes through one vector.
    """

    def __init__(self, dim: int, layers: int, attention: ScoreFunction, dropout: float) -> None:
        super().__init__()
        if dim % 2:
            raise UserError(f"half of the encoder reads in each direction, so dim must be even, got {dim}")
        self.dim, self.layers, self.dropout = dim, layers, dropout
        self.onward, self.backward_ = (LSTM(dim // 2, layers, dropout, inputs=dim) for _ in range(2))
        self.begin = nn.Linear(dim, 2 * layers * dim)
        self.writer = LSTM(dim, layers, dropout)
        self.align = None if attention == "none" else Alignment(dim, attention)
        self.join = None if attention == "none" else nn.Linear(2 * dim, dim)

    def encode(self, x: Tensor, mask: Tensor) -> Memory:
        """See `EncoderDecoder.encode`: the vectors of both directions, and the decoder's initial state."""
        lengths = mask.sum(1)
        onward, _ = self.onward(x)
        back = reverse_sequences(self.backward_(reverse_sequences(x, lengths))[0], lengths)
        vectors = torch.cat([onward, back], -1)
        last = onward.gather(1, (lengths - 1)[:, None, None].expand(-1, 1, onward.shape[2]))[:, 0]
        first = self.begin(torch.cat([last, back[:, 0]], -1)).tanh().reshape(len(x), 2, self.layers, self.dim)
        return Memory((vectors, first[:, 0], first[:, 1]), mask)

    def forward(self, memory: Memory, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """See `EncoderDecoder.forward`."""
        h, after = self._decode(memory, x, state)
        if self.align is None or self.join is None:
            return h, after
        context, _ = self.align(h, memory.tensors[0], memory.mask)
        return self._dropout(self.join(torch.cat([context, h], -1)).tanh()), after

    def _decode(self, memory: Memory, x: Tensor, state: State | None) -> tuple[Tensor, State]:
        decoded: tuple[Tensor, State] = self.writer(x, State(memory.tensors[1:], 0) if state is None else state)
        return decoded

    def attention_weights(self, memory: Memory, x: Tensor) -> list[Tensor]:
        """See `EncoderDecoder.attention_weights`; empty without attention."""
        if self.align is None:
            return []
        h, _ = self._decode(memory, x, None)
        return [self.align(h, memory.tensors[0], memory.mask)[1][:, None]]


class EncoderLayer(nn.Module):
    """A pre-norm encoder layer: self-attention and an MLP with residual connections."""

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention, self.dropout = MultiHeadAttention(dim, heads), dropout
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2))
        self.dense = feed_forward(dim)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return (B, S, dim)."""
        first, second = self.norms
        h = first(x)
        x = x + functional.dropout(self.attention(h, *self.attention.keys_values(h), mask), self.dropout, self.training)
        return x + functional.dropout(self.dense(second(x)), self.dropout, self.training)


class CrossDecoderLayer(nn.Module):
    """A pre-norm decoder layer: causal self-attention, cross-attention and an MLP with residual connections."""

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention, self.cross, self.dropout = (
            CausalSelfAttention(dim, heads, rotary=False),
            MultiHeadAttention(dim, heads),
            dropout,
        )
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(3))
        self.dense = feed_forward(dim)

    def forward(
        self,
        x: Tensor,
        source: tuple[Tensor, Tensor],
        mask: Tensor,
        cache: tuple[Tensor, Tensor] | None,
        past: int,
        max_length: int,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return (B, T, dim), and the keys and values of the outputs.  source: keys and values of the source."""
        _, second, third = self.norms
        x, cache = self.self_attend(x, cache, past, max_length)
        x = x + functional.dropout(self.cross(second(x), *source, mask), self.dropout, self.training)
        return x + functional.dropout(self.dense(third(x)), self.dropout, self.training), cache

    def self_attend(
        self, x: Tensor, cache: tuple[Tensor, Tensor] | None, past: int, max_length: int
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return the vectors after causal self-attention, and its keys and values."""
        y, cache = self.attention(self.norms[0](x), cache, past, max_length)
        return x + functional.dropout(y, self.dropout, self.training), cache


class TransformerPair(EncoderDecoder):
    """The encoder-decoder transformer of arXiv:1706.03762, pre-norm as in arXiv:2002.04745.

    Positions are sinusoidal; half of each source embedding encodes the position from the beginning and half that from the
    end.  most: expected number of outputs, the capacity of buffers.
    """

    def __init__(self, dim: int, layers: int, heads: int, dropout: float, most: int) -> None:
        super().__init__()
        if dim % heads or dim % 4:
            raise UserError(f"the transformer's dim must be divisible by its heads and by 4, got {dim} and {heads} heads")
        self.dim, self.dropout, self.heads, self.most = dim, dropout, heads, most
        self.readers = nn.ModuleList(EncoderLayer(dim, heads, dropout) for _ in range(layers))
        self.writers = nn.ModuleList(CrossDecoderLayer(dim, heads, dropout) for _ in range(layers))
        self.read_norm, self.norm = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def _sinusoids(self, positions: Tensor, dim: int) -> Tensor:
        sinusoids: Tensor = SinusoidalEmbedding(dim)(positions) / math.sqrt(self.dim / 2)
        return sinusoids

    def encode(self, x: Tensor, mask: Tensor) -> Memory:
        """See `EncoderDecoder.encode`: keys and values for each layer of the decoder."""
        positions = torch.arange(x.shape[1], device=x.device, dtype=x.dtype).expand(len(x), -1)
        from_end = (mask.sum(1, keepdim=True) - 1 - positions).clamp_min(0)
        x = self._dropout(
            x + torch.cat([self._sinusoids(positions, self.dim // 2), self._sinusoids(from_end, self.dim // 2)], -1)
        )
        for layer in self.readers:
            x = layer(x, mask)
        x = self.read_norm(x)
        return Memory(tuple(t for layer in self._layers() for t in layer.cross.keys_values(x)), mask)

    def _layers(self) -> list[CrossDecoderLayer]:
        return [layer for layer in self.writers if isinstance(layer, CrossDecoderLayer)]

    def _add_positions(self, x: Tensor, past: int) -> Tensor:
        positions = torch.arange(past, past + x.shape[1], device=x.device, dtype=x.dtype)
        return self._dropout(x + self._sinusoids(positions, self.dim))

    def forward(self, memory: Memory, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """See `EncoderDecoder.forward`; the state holds keys and values of the outputs."""
        past = 0 if state is None else state.length
        length, cache = x.shape[1], list[Tensor]()
        x = self._add_positions(x, past)
        for k, layer in enumerate(self.writers):
            layer_slice = slice(2 * k, 2 * k + 2)
            x, pair = layer(
                x,
                memory.tensors[layer_slice],
                memory.mask,
                None if state is None else state.tensors[layer_slice],
                past,
                self.most,
            )
            cache += pair
        return self.norm(x), State(tuple(cache), past + length)

    def attention_weights(self, memory: Memory, x: Tensor) -> list[Tensor]:
        """See `EncoderDecoder.attention_weights`."""
        x, weights = self._add_positions(x, 0), list[Tensor]()
        for k, layer in enumerate(self._layers()):
            source = (memory.tensors[2 * k], memory.tensors[2 * k + 1])
            h, _ = layer.self_attend(x, None, 0, self.most)
            weights.append(layer.cross.weights(layer.norms[1](h), source[0], memory.mask))
            x, _ = layer(x, source, memory.mask, None, 0, self.most)
        return weights
