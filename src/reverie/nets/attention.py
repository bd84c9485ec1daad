"""Attention to a sequence of another length: how well a query and a key agree, and what is made of it."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

Agreement = Literal["none", "dot", "bilinear", "mlp"]


class Alignment(nn.Module):
    """One query at a time looks at all keys: a = softmax_s score(q_t, k_s), c_t = sum_s a_s k_s.

    dot: q k; bilinear: q W k (both arXiv:1508.04025); mlp: v tanh(W q + U k) (arXiv:1409.0473).
    """

    def __init__(self, dim: int, kind: Agreement) -> None:
        super().__init__()
        self.kind = kind
        if kind == "bilinear":
            self.map = nn.Linear(dim, dim, bias=False)
        if kind == "mlp":
            self.query, self.key, self.sum = nn.Linear(dim, dim), nn.Linear(dim, dim, bias=False), nn.Linear(dim, 1, bias=False)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """Return how well each query agrees with each key: (B, T, S).  q: (B, T, dim); k: (B, S, dim)."""
        if self.kind == "mlp":
            both: Tensor = self.sum((self.query(q)[:, :, None] + self.key(k)[:, None]).tanh())
            return both[..., 0]
        return (self.map(q) if self.kind == "bilinear" else q) @ k.mT

    def forward(self, q: Tensor, k: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
        """Return what each query sees, (B, T, dim), and how much it looks at each key, (B, T, S).

        there: which keys there are, (B, S) bool, at least one of each.
        """
        weights = self.scores(q, k).masked_fill(~there[:, None], -math.inf).softmax(-1)
        return weights @ k, weights


class CrossAttention(nn.Module):
    """Multi-head attention without order: every query meets every key that is there.  (B, T, dim) -> (B, T, dim)."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.pair, self.out = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def seen(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values of what is attended to: (B, heads, S, dim / heads) each."""
        b, length, dim = memory.shape
        k, v = self.pair(memory).reshape(b, length, 2, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        return k, v

    def _queries(self, x: Tensor) -> Tensor:
        b, length, dim = x.shape
        q: Tensor = self.query(x).reshape(b, length, self.heads, dim // self.heads).transpose(1, 2)
        return q

    def forward(self, x: Tensor, k: Tensor, v: Tensor, there: Tensor) -> Tensor:
        """Return what is seen.  there: (B, S) bool, at least one of each."""
        b, length, dim = x.shape
        y = functional.scaled_dot_product_attention(self._queries(x), k, v, attn_mask=there[:, None, None])
        found: Tensor = self.out(y.transpose(1, 2).reshape(b, length, dim))
        return found

    def weights(self, x: Tensor, k: Tensor, there: Tensor) -> Tensor:
        """Return how much each query looks at each key, softmax(q kᵀ / sqrt(d)): (B, heads, T, S)."""
        scores = self._queries(x) @ k.mT / math.sqrt(k.shape[-1])
        return scores.masked_fill(~there[:, None, None], -math.inf).softmax(-1)


def reversed_in_time(x: Tensor, lengths: Tensor) -> Tensor:
    """Return sequences with their first vectors in the opposite order; what comes after them is anything.

    x: (B, S, dim); lengths: (B,), of which the vectors are turned round.
    """
    place = (lengths[:, None] - 1 - torch.arange(x.shape[1], device=x.device)).clamp_min(0)
    return x.gather(1, place[..., None].expand_as(x))
