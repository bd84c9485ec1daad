"""Encoder-decoder attention: alignment scores of recurrent networks and multi-head attention."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

ScoreFunction = Literal["none", "dot", "bilinear", "mlp"]


class Alignment(nn.Module):
    """Single-head attention of queries to keys: a = softmax_s score(q_t, k_s), c_t = sum_s a_s k_s.

    dot: q k; bilinear: q W k (both arXiv:1508.04025); mlp: v tanh(W q + U k) (arXiv:1409.0473).
    """

    def __init__(self, dim: int, kind: ScoreFunction) -> None:
        super().__init__()
        self.kind = kind
        if kind == "bilinear":
            self.map = nn.Linear(dim, dim, bias=False)
        if kind == "mlp":
            self.query, self.key, self.sum = nn.Linear(dim, dim), nn.Linear(dim, dim, bias=False), nn.Linear(dim, 1, bias=False)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """Return the alignment scores: (B, T, S).  q: (B, T, dim); k: (B, S, dim)."""
        if self.kind == "mlp":
            summed: Tensor = self.sum((self.query(q)[:, :, None] + self.key(k)[:, None]).tanh())
            return summed[..., 0]
        return (self.map(q) if self.kind == "bilinear" else q) @ k.mT

    def forward(self, q: Tensor, k: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the context vectors, (B, T, dim), and the attention weights, (B, T, S).

        mask: (B, S) bool, false for padding, with at least one key per batch element.
        """
        weights = self.scores(q, k).masked_fill(~mask[:, None], -math.inf).softmax(-1)
        return weights @ k, weights


class MultiHeadAttention(nn.Module):
    """Multi-head attention with a key mask and without causality.  (B, T, dim) -> (B, T, dim)."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.pair, self.out = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values of a memory: (B, heads, S, dim / heads) each."""
        b, length, dim = memory.shape
        k, v = self.pair(memory).reshape(b, length, 2, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        return k, v

    def _queries(self, x: Tensor) -> Tensor:
        b, length, dim = x.shape
        q: Tensor = self.query(x).reshape(b, length, self.heads, dim // self.heads).transpose(1, 2)
        return q

    def forward(self, x: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """Return the attention output.  mask: (B, S) bool, false for padding, with at least one key per batch element."""
        b, length, dim = x.shape
        y = functional.scaled_dot_product_attention(self._queries(x), k, v, attn_mask=mask[:, None, None])
        out: Tensor = self.out(y.transpose(1, 2).reshape(b, length, dim))
        return out

    def weights(self, x: Tensor, k: Tensor, mask: Tensor) -> Tensor:
        """Return the attention weights softmax(q kᵀ / sqrt(d)): (B, heads, T, S)."""
        scores = self._queries(x) @ k.mT / math.sqrt(k.shape[-1])
        return scores.masked_fill(~mask[:, None, None], -math.inf).softmax(-1)


def reverse_sequences(x: Tensor, lengths: Tensor) -> Tensor:
    """Reverse the first `lengths` vectors of each sequence; the vectors after them are undefined.

    x: (B, S, dim); lengths: (B,).
    """
    index = (lengths[:, None] - 1 - torch.arange(x.shape[1], device=x.device)).clamp_min(0)
    return x.gather(1, index[..., None].expand_as(x))
