"""Causal sequence networks: output t depends on inputs 0..t only.

`forward` processes a whole sequence, or continues one from a state; `step` continues by one vector.  The vectors are embedded
tokens or numbers.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from reverie.base.deprecations import deprecated_names
from reverie.base.errors import UserError
from reverie.nets.embedding import SinusoidalEmbedding, random_vectors

Dim = Annotated[int, Field(ge=1, le=8192)]
Layers = Annotated[int, Field(ge=1, le=64)]
Dropout = Annotated[float, Field(ge=0, lt=1)]
Positions = Literal["learned", "rotary", "sinusoidal", "none"]
RotaryAngles = tuple[Tensor, Tensor]  # cosines and sines, (T, d / 2) each
MAX_LENGTH = 2**20
ROTARY_BASE = 10_000.0
FORGET_BIAS = 1.0  # initial bias of an LSTM's forget gates, against forgetting (Gers et al. 2000; Jozefowicz et al. 2015)


@dataclass(frozen=True)
class State:
    """The recurrent state after a sequence: tensors with the batch first, and the number of vectors so far.

    Continue from a state only once, because its buffers are reused.
    """

    tensors: tuple[Tensor, ...]
    length: int

    def take(self, index: Tensor) -> State:
        """Return the state of the selected batch elements, which may repeat.  index: (B,) int64."""
        return State(tuple(t[index] for t in self.tensors), self.length)

    def detach(self) -> State:
        """Return the state without gradient history, for truncated back-propagation."""
        return State(tuple(t.detach() for t in self.tensors), self.length)


class SequenceNet(nn.Module, ABC):
    """A causal network: (B, T, dim) -> (B, T, dim), output t a function of inputs 0..t.  dropout: rate in training."""

    dim: int
    dropout: float

    @abstractmethod
    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Return the outputs of a sequence, or of its continuation from a state, and the new state."""

    def step(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Continue by one vector.  x: (B, dim) -> (B, dim)."""
        y, state = self(x[:, None], state)
        return y[:, 0], state

    def _dropout(self, x: Tensor) -> Tensor:
        return functional.dropout(x, self.dropout, self.training) if self.dropout else x


class Recurrent(SequenceNet):
    """Stacked recurrent cells."""

    cells: nn.RNN | nn.LSTM

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__()
        self.dim, self.dropout = dim, dropout

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """See `SequenceNet.forward`."""
        parts = () if state is None else tuple(t.transpose(0, 1).contiguous() for t in state.tensors)
        past = None if state is None else parts if len(parts) > 1 else parts[0]
        y, final = self.cells(self._dropout(x), past)
        tensors = final if isinstance(final, tuple) else (final,)
        length = x.shape[1] + (0 if state is None else state.length)
        return self._dropout(y), State(tuple(t.transpose(0, 1) for t in tensors), length)


class RNN(Recurrent):
    """h_t = tanh(W x_t + U h_{t-1} + b), with an orthogonal initialization of U (Elman 1990)."""

    def __init__(self, dim: Dim = 128, layers: Layers = 1, dropout: Dropout = 0.0) -> None:
        super().__init__(dim, dropout)
        self.cells = nn.RNN(dim, dim, layers, batch_first=True)
        for name, p in self.cells.named_parameters():
            if name.startswith("weight_hh") and not p.is_meta:
                nn.init.orthogonal_(p)


class LSTM(Recurrent):
    """c_t = f c_{t-1} + i tanh(g), h_t = o tanh(c_t), with gates f, i, o of x_t and h_{t-1} (Hochreiter, Schmidhuber 1997)."""

    def __init__(self, dim: Dim = 128, layers: Layers = 1, dropout: Dropout = 0.0, inputs: Dim | None = None) -> None:
        super().__init__(dim, dropout)
        self.cells = nn.LSTM(inputs or dim, dim, layers, batch_first=True)
        for name, p in self.cells.named_parameters():
            if name.startswith("bias_ih"):
                nn.init.constant_(p[dim : 2 * dim], FORGET_BIAS)


class FixedContext(SequenceNet):
    """An MLP of the last k vectors: h_t = W2 tanh(W1 [x_{t-k+1}, .., x_t] + b1) + b2 (Bengio et al. 2003).

    The state holds the vectors in the context.
    """

    def __init__(
        self, dim: Dim = 64, context: Annotated[int, Field(ge=1, le=1024)] = 8, hidden: Dim = 512, dropout: Dropout = 0.0
    ) -> None:
        super().__init__()
        self.dim, self.context, self.dropout = dim, context, dropout
        self.first, self.second = nn.Linear(context * dim, hidden), nn.Linear(hidden, dim)

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """See `SequenceNet.forward`; the sequence is preceded by zeros."""
        past = x.new_zeros(len(x), self.context - 1, self.dim) if state is None else state.tensors[0]
        padded = torch.cat([past, x], 1)
        window = padded.unfold(1, self.context, 1).transpose(2, 3).flatten(2)  # (B, T, context dim)
        y = self.second(self._dropout(self.first(window).tanh()))
        return y, State((padded[:, padded.shape[1] - self.context + 1 :],), x.shape[1] + (0 if state is None else state.length))


class CausalSelfAttention(nn.Module):
    """Causal multi-head self-attention.  (B, T, dim) -> (B, T, dim)."""

    def __init__(self, dim: int, heads: int, rotary: bool) -> None:
        super().__init__()
        self.heads, self.rotary = heads, rotary
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(
        self, x: Tensor, cache: tuple[Tensor, Tensor] | None, past: int, max_length: int, angles: RotaryAngles | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return the output, and the keys and values so far with spare capacity: (B, heads, capacity, dim / heads) each.

        past: number of valid vectors in `cache`; max_length: expected total; angles: from `rotary_angles`, if already computed.
        """
        b, length, dim = x.shape
        qkv = self.qkv(x).reshape(b, length, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv
        if self.rotary:
            q, k = apply_rotary(qkv[:2], angles or rotary_angles(past, length, dim // self.heads, x))
        if cache is None:
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=length > 1)
        else:
            k, v = (_append(old, new, past, max_length) for old, new in zip(cache, (k, v), strict=True))
            total = past + length
            mask = None if length == 1 else x.new_ones(length, total, dtype=torch.bool).tril(past)
            y = functional.scaled_dot_product_attention(q, k[:, :, :total], v[:, :, :total], attn_mask=mask)
        return self.out(y.transpose(1, 2).reshape(b, length, dim)), (k, v)

    def weights(self, x: Tensor) -> Tensor:
        """Return the attention weights softmax(q kᵀ / sqrt(d)): (B, heads, T, T)."""
        b, length, dim = x.shape
        q, k, _ = self.qkv(x).reshape(b, length, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        if self.rotary:
            angles = rotary_angles(0, length, dim // self.heads, x)
            q, k = apply_rotary(q, angles), apply_rotary(k, angles)
        future = x.new_ones(length, length, dtype=torch.bool).triu(1)
        scores: Tensor = (q @ k.mT / math.sqrt(dim // self.heads)).masked_fill(future, -math.inf)
        return scores.softmax(-1)


def _append(old: Tensor, new: Tensor, past: int, max_length: int) -> Tensor:
    """Append vectors to a buffer, whose capacity is doubled if necessary: (B, heads, capacity, d)."""
    total = past + new.shape[2]
    if torch.is_grad_enabled() and (old.requires_grad or new.requires_grad):
        return torch.cat([old[:, :, :past], new], 2)
    if total > old.shape[2]:
        buffer = new.new_empty(*new.shape[:2], max(total, min(2 * total, max_length)), new.shape[3])
        buffer[:, :, :past] = old[:, :, :past]
        old = buffer
    old[:, :, past:total] = new
    return old


def rotary_angles(first: int, length: int, dim: int, like: Tensor) -> RotaryAngles:
    """Return cosines and sines of t w_i, w_i = base^(-2i/dim), for `length` positions t from `first`: (length, dim / 2)."""
    frequencies = SinusoidalEmbedding(dim, ROTARY_BASE).frequencies(like)
    angle = torch.arange(first, first + length, device=like.device, dtype=like.dtype)[:, None] * frequencies
    return angle.cos(), angle.sin()


def apply_rotary(x: Tensor, angles: RotaryAngles) -> Tensor:
    """Apply rotary position embeddings, so that q k depends on relative positions (arXiv:2104.09864, eq. 34).

    x: (..., T, d); angles: (T, d / 2) each.
    """
    cos, sin = angles
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def feed_forward(dim: int) -> nn.Sequential:
    """Return the MLP of a transformer layer with hidden width 4 dim; its last layer is initialized to zero."""
    last = nn.Linear(4 * dim, dim)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(approximate="tanh"), last)


class DecoderLayer(nn.Module):
    """A decoder layer: causal attention and an MLP with residual connections, with pre- or post-normalization."""

    def __init__(self, dim: int, heads: int, rotary: bool, norm: str, dropout: float) -> None:
        super().__init__()
        self.attention, self.pre_norm, self.dropout = CausalSelfAttention(dim, heads, rotary), norm == "pre", dropout
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2))
        self.dense = feed_forward(dim)

    def forward(
        self, x: Tensor, cache: tuple[Tensor, Tensor] | None, past: int, max_length: int, angles: RotaryAngles | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return (B, T, dim), and the keys and values of `CausalSelfAttention`."""
        first, second = self.norms
        y, cache = self.attention(first(x) if self.pre_norm else x, cache, past, max_length, angles)
        x = x + functional.dropout(y, self.dropout, self.training)
        if not self.pre_norm:
            x = first(x)
        y = self.dense(second(x) if self.pre_norm else x)
        x = x + functional.dropout(y, self.dropout, self.training)
        return (x if self.pre_norm else second(x)), cache


class Decoder(SequenceNet):
    """A decoder-only transformer (arXiv:1706.03762, pre-norm as in arXiv:2002.04745); its state holds keys and values.

    positions: learned, up to `length`; sinusoidal, added to the input; rotary, in every layer; or none.  length: of the longest
    expected sequence, the initial size of buffers; a limit for learned positions only.
    """

    def __init__(
        self,
        dim: Dim = 128,
        layers: Layers = 4,
        heads: Annotated[int, Field(ge=1, le=64)] = 4,
        positions: Positions = "learned",
        length: Annotated[int, Field(ge=1, le=MAX_LENGTH)] = 1024,
        norm: Literal["pre", "post"] = "pre",
        dropout: Dropout = 0.0,
    ) -> None:
        super().__init__()
        if dim % (2 * heads):
            raise UserError(f"the transformer's dim must be divisible by twice its heads, got {dim} and {heads} heads")
        self.dim, self.dropout, self.positions, self.length, self.heads = dim, dropout, positions, length, heads
        self.places = random_vectors(length, dim) if positions == "learned" else None
        self.layers = nn.ModuleList(DecoderLayer(dim, heads, positions == "rotary", norm, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(dim) if norm == "pre" else nn.Identity()
        self._angle_cache: RotaryAngles | None = None  # of all positions so far

    def attention_weights(self, x: Tensor) -> list[Tensor]:
        """Return the attention weights of each layer: (B, heads, T, T) each."""
        x, weights = self._add_positions(x, 0), list[Tensor]()
        for layer in self.layers:
            assert isinstance(layer, DecoderLayer)
            weights.append(layer.attention.weights(layer.norms[0](x) if layer.pre_norm else x))
            x, _ = layer(x, None, 0, self.length)
        return weights

    def _add_positions(self, x: Tensor, past: int) -> Tensor:
        """Return vectors with position embeddings.  past: number of vectors before them."""
        total = past + x.shape[1]
        if self.places is not None:
            if total > self.length:
                raise UserError(f"this transformer has {self.length:,} learned positions, and a sequence has {total:,}; give a"
                                " larger length, or rotary positions")  # fmt: skip
            x = x + self.places[past:total]
        elif self.positions == "sinusoidal":
            embed = SinusoidalEmbedding(self.dim)
            x = x + embed(torch.arange(past, total, device=x.device, dtype=x.dtype)) / math.sqrt(self.dim / 2)
        return x

    def _angles(self, past: int, total: int, x: Tensor) -> RotaryAngles:
        """Return cached `rotary_angles` of positions."""
        cached = self._angle_cache
        if cached is None or len(cached[0]) < total or (cached[0].device, cached[0].dtype) != (x.device, x.dtype):
            self._angle_cache = cached = rotary_angles(0, max(total, self.length), self.dim // self.heads, x)
        return cached[0][past:total], cached[1][past:total]

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """See `SequenceNet.forward`."""
        past = 0 if state is None else state.length
        total = past + x.shape[1]
        x, cache = self._dropout(self._add_positions(x, past)), list[Tensor]()
        angles = self._angles(past, total, x) if self.positions == "rotary" else None
        for k, layer in enumerate(self.layers):
            x, pair = layer(x, None if state is None else state.tensors[2 * k : 2 * k + 2], past, self.length, angles)
            cache += pair
        return self.norm(x), State(tuple(cache), total)


SEQUENCES: dict[str, type[SequenceNet]] = {"rnn": RNN, "lstm": LSTM, "transformer": Decoder, "fixed": FixedContext}

if not TYPE_CHECKING:
    __getattr__ = deprecated_names(__name__)
