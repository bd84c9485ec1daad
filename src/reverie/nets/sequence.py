"""Sequence networks: vectors in time to vectors in time, each of which knows those up to its own alone.

`forward` takes a whole sequence, or goes on with one from the state that the part before it left; `step` goes on by one vector.
What the vectors are, embedded tokens or numbers, is the caller's.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from reverie.base.errors import UserError
from reverie.nets.embedding import SinusoidalEmbedding, vectors

Dim = Annotated[int, Field(ge=1, le=8192)]
Layers = Annotated[int, Field(ge=1, le=64)]
Dropout = Annotated[float, Field(ge=0, lt=1)]
Positions = Literal["learned", "rotary", "sinusoidal", "none"]
Turns = tuple[Tensor, Tensor]  # cosines and sines, (T, d / 2) each
MOST_LENGTH = 2**20
ROTARY_BASE = 10_000.0
FORGET = 1.0  # bias of an LSTM's forget gates at first, so that it remembers (Gers et al. 2000; Jozefowicz et al. 2015)


@dataclass(frozen=True)
class State:
    """What a sequence has left so far: tensors with the batch first, and how many vectors there were.

    Go on from a state once: what comes next is written into the room that it holds.
    """

    tensors: tuple[Tensor, ...]
    length: int

    def take(self, index: Tensor) -> State:
        """Return the state of the chosen members of the batch, each as often as it is named.  index: (B,) int64."""
        return State(tuple(t[index] for t in self.tensors), self.length)

    def detach(self) -> State:
        """Return the state as a constant, beyond which no gradient goes: truncated back-propagation."""
        return State(tuple(t.detach() for t in self.tensors), self.length)


class SequenceNet(nn.Module, ABC):
    """A causal network: (B, T, dim) -> (B, T, dim), output t a function of inputs 0..t.

    dropout: share of numbers that are hidden in training.
    """

    dim: int
    dropout: float

    @abstractmethod
    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Return the outputs of a sequence, or of one that goes on from a state, and the state after it."""

    def step(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Go on by one vector.  x: (B, dim) -> (B, dim)."""
        y, state = self(x[:, None], state)
        return y[:, 0], state

    def _hide(self, x: Tensor) -> Tensor:
        return functional.dropout(x, self.dropout, self.training) if self.dropout else x


class Recurrent(SequenceNet):
    """Layers of cells, each with a state of its own that every vector changes."""

    cells: nn.RNN | nn.LSTM

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__()
        self.dim, self.dropout = dim, dropout

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """See `SequenceNet.forward`."""
        parts = () if state is None else tuple(t.transpose(0, 1).contiguous() for t in state.tensors)
        before = None if state is None else parts if len(parts) > 1 else parts[0]
        y, after = self.cells(self._hide(x), before)
        kept = after if isinstance(after, tuple) else (after,)
        length = x.shape[1] + (0 if state is None else state.length)
        return self._hide(y), State(tuple(t.transpose(0, 1) for t in kept), length)


class RNN(Recurrent):
    """h_t = tanh(W x_t + U h_{t-1} + b), U orthogonal at first, in layers (Elman 1990)."""

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
                nn.init.constant_(p[dim : 2 * dim], FORGET)


class FixedContext(SequenceNet):
    """The last few vectors side by side, through a hidden layer: h_t = W2 tanh(W1 [x_{t-k+1}, .., x_t] + b1) + b2.

    (Bengio et al. 2003; of a language model whose context is fixed.)  Its state are the vectors that are still seen.
    """

    def __init__(
        self, dim: Dim = 64, context: Annotated[int, Field(ge=1, le=1024)] = 8, hidden: Dim = 512, dropout: Dropout = 0.0
    ) -> None:
        super().__init__()
        self.dim, self.context, self.dropout = dim, context, dropout
        self.first, self.second = nn.Linear(context * dim, hidden), nn.Linear(hidden, dim)

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """See `SequenceNet.forward`; before the first vector there are zeros."""
        past = x.new_zeros(len(x), self.context - 1, self.dim) if state is None else state.tensors[0]
        whole = torch.cat([past, x], 1)
        seen = whole.unfold(1, self.context, 1).transpose(2, 3).flatten(2)  # (B, T, context dim)
        y = self.second(self._hide(self.first(seen).tanh()))
        return y, State((whole[:, whole.shape[1] - self.context + 1 :],), x.shape[1] + (0 if state is None else state.length))


class Attention(nn.Module):
    """Masked multi-head attention: query t meets the keys up to t.  (B, T, dim) -> (B, T, dim)."""

    def __init__(self, dim: int, heads: int, rotary: bool) -> None:
        super().__init__()
        self.heads, self.rotary = heads, rotary
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(
        self, x: Tensor, kept: tuple[Tensor, Tensor] | None, before: int, most: int, turns: Turns | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return the output and the keys and values so far, with room for more: (B, heads, room, dim / heads) each.

        before: how many of those in `kept` there were; most: how many there will probably be; turns: see `rotations`, where
        they are known already.
        """
        b, length, dim = x.shape
        qkv = self.qkv(x).reshape(b, length, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv
        if self.rotary:
            q, k = rotated(qkv[:2], turns or rotations(before, length, dim // self.heads, x))
        if kept is None:
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=length > 1)
        else:
            k, v = (_extended(old, new, before, most) for old, new in zip(kept, (k, v), strict=True))
            there = before + length
            mask = None if length == 1 else x.new_ones(length, there, dtype=torch.bool).tril(before)
            y = functional.scaled_dot_product_attention(q, k[:, :, :there], v[:, :, :there], attn_mask=mask)
        return self.out(y.transpose(1, 2).reshape(b, length, dim)), (k, v)

    def weights(self, x: Tensor) -> Tensor:
        """Return how much each vector attends to those up to itself, softmax(q kᵀ / sqrt(d)): (B, heads, T, T)."""
        b, length, dim = x.shape
        q, k, _ = self.qkv(x).reshape(b, length, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        if self.rotary:
            turns = rotations(0, length, dim // self.heads, x)
            q, k = rotated(q, turns), rotated(k, turns)
        later = x.new_ones(length, length, dtype=torch.bool).triu(1)
        scores: Tensor = (q @ k.mT / math.sqrt(dim // self.heads)).masked_fill(later, -math.inf)
        return scores.softmax(-1)


def _extended(old: Tensor, new: Tensor, before: int, most: int) -> Tensor:
    """Return kept vectors with new ones after them, in the room that is there or in twice as much: (B, heads, room, d)."""
    after = before + new.shape[2]
    if torch.is_grad_enabled() and (old.requires_grad or new.requires_grad):
        return torch.cat([old[:, :, :before], new], 2)
    if after > old.shape[2]:
        room = new.new_empty(*new.shape[:2], max(after, min(2 * after, most)), new.shape[3])
        room[:, :, :before] = old[:, :, :before]
        old = room
    old[:, :, before:after] = new
    return old


def rotations(first: int, length: int, dim: int, like: Tensor) -> Turns:
    """Return cosines and sines of t w_i, w_i = base^(-2i/dim), for so many places t from the first on: (length, dim / 2)."""
    frequencies = SinusoidalEmbedding(dim, ROTARY_BASE).frequencies(like)
    angle = torch.arange(first, first + length, device=like.device, dtype=like.dtype)[:, None] * frequencies
    return angle.cos(), angle.sin()


def rotated(x: Tensor, turns: Turns) -> Tensor:
    """Turn pairs of numbers by an angle that grows with their place, so that q k depends on how far they are apart.

    (arXiv:2104.09864, eq. 34.)  x: (..., T, d); turns: (T, d / 2) each.
    """
    cos, sin = turns
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def dense_part(dim: int) -> nn.Sequential:
    """Return the dense part of a transformer's layer, of width 4 dim, which gives nothing at first."""
    last = nn.Linear(4 * dim, dim)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(approximate="tanh"), last)


class DecoderLayer(nn.Module):
    """Attention and a dense part of width 4 dim, each added to its input; normalised before that ("pre") or after ("post")."""

    def __init__(self, dim: int, heads: int, rotary: bool, norm: str, dropout: float) -> None:
        super().__init__()
        self.attention, self.before, self.dropout = Attention(dim, heads, rotary), norm == "pre", dropout
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2))
        self.dense = dense_part(dim)

    def forward(
        self, x: Tensor, kept: tuple[Tensor, Tensor] | None, before: int, most: int, turns: Turns | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return (B, T, dim), and the keys and values of `Attention`."""
        first, second = self.norms
        y, kept = self.attention(first(x) if self.before else x, kept, before, most, turns)
        x = x + functional.dropout(y, self.dropout, self.training)
        if not self.before:
            x = first(x)
        y = self.dense(second(x) if self.before else x)
        x = x + functional.dropout(y, self.dropout, self.training)
        return (x if self.before else second(x)), kept


class Decoder(SequenceNet):
    """A decoder-only transformer (arXiv:1706.03762, normalised as in arXiv:2002.04745); its state are keys and values.

    positions: learned, up to a length; sinusoidal, added at the bottom; rotary, in every layer; or none.  length: of the
    longest sequence, for which room is made; only learned positions end there.
    """

    def __init__(
        self,
        dim: Dim = 128,
        layers: Layers = 4,
        heads: Annotated[int, Field(ge=1, le=64)] = 4,
        positions: Positions = "learned",
        length: Annotated[int, Field(ge=1, le=MOST_LENGTH)] = 1024,
        norm: Literal["pre", "post"] = "pre",
        dropout: Dropout = 0.0,
    ) -> None:
        super().__init__()
        if dim % (2 * heads):
            raise UserError(f"the transformer's dim must be divisible by twice its heads, got {dim} and {heads} heads")
        self.dim, self.dropout, self.positions, self.length, self.heads = dim, dropout, positions, length, heads
        self.places = vectors(length, dim) if positions == "learned" else None
        self.layers = nn.ModuleList(DecoderLayer(dim, heads, positions == "rotary", norm, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(dim) if norm == "pre" else nn.Identity()
        self._turns: Turns | None = None  # of the places that were asked for so far, from the first on

    def attentions(self, x: Tensor) -> list[Tensor]:
        """Return how much each vector of a sequence attends to those up to itself, layer by layer: (B, heads, T, T) each."""
        x, found = self._placed(x, 0), list[Tensor]()
        for layer in self.layers:
            assert isinstance(layer, DecoderLayer)
            found.append(layer.attention.weights(layer.norms[0](x) if layer.before else x))
            x, _ = layer(x, None, 0, self.length)
        return found

    def _placed(self, x: Tensor, before: int) -> Tensor:
        """Return vectors that are told their places.  before: how many there were."""
        after = before + x.shape[1]
        if self.places is not None:
            if after > self.length:
                raise UserError(f"this transformer has learned {self.length:,} places, and a sequence has {after:,}; give a"
                                " larger length, or rotary positions")  # fmt: skip
            x = x + self.places[before:after]
        elif self.positions == "sinusoidal":
            embed = SinusoidalEmbedding(self.dim)
            x = x + embed(torch.arange(before, after, device=x.device, dtype=x.dtype)) / math.sqrt(self.dim / 2)
        return x

    def _turned(self, before: int, after: int, x: Tensor) -> Turns:
        """Return `rotations` of some places, which are worked out once."""
        known = self._turns
        if known is None or len(known[0]) < after or (known[0].device, known[0].dtype) != (x.device, x.dtype):
            self._turns = known = rotations(0, max(after, self.length), self.dim // self.heads, x)
        return known[0][before:after], known[1][before:after]

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """See `SequenceNet.forward`."""
        before = 0 if state is None else state.length
        after = before + x.shape[1]
        x, kept = self._hide(self._placed(x, before)), list[Tensor]()
        turns = self._turned(before, after, x) if self.positions == "rotary" else None
        for k, layer in enumerate(self.layers):
            x, pair = layer(x, None if state is None else state.tensors[2 * k : 2 * k + 2], before, self.length, turns)
            kept += pair
        return self.norm(x), State(tuple(kept), after)


SEQUENCES: dict[str, type[SequenceNet]] = {"rnn": RNN, "lstm": LSTM, "transformer": Decoder, "fixed": FixedContext}
