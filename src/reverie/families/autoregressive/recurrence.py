"""The recurrence of NADE over all values of data at once, in blocks.

    a_i = a_1 + sum_{j < i} x_j W_j,   y_i = b_i + relu(a_i) V_i

Directly evaluated it has D steps of H values, too small to be efficient.  Here a block of values takes one matrix product:
its values share the sum over earlier blocks, and a mask selects the earlier values of the block.  Hidden activations,
(B, D, H), are not stored; the backward pass recomputes them block by block.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

BLOCK_NUMBERS = 2**19  # hidden activations of a block that fit into the CPU cache; measured
MAX_IN_BLOCK = 16


def block_size(count: int, hidden: int, inputs: int) -> int:
    """Return the number of values in a block."""
    return max(1, min(MAX_IN_BLOCK, BLOCK_NUMBERS // max(1, count * hidden), 1 + 64 // inputs))


class Recurrence(torch.autograd.Function):
    """y of all values, (B, D, P).  x: (B, D, Q), W: (D, Q, H), first: (B, H), V: (D, H, P), b: (D, P)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, into: Tensor, first: Tensor, out: Tensor, bias: Tensor) -> Tensor:
        """Return y, and save what the backward pass needs to recompute hidden activations."""
        count, size, _ = x.shape
        block = block_size(count, into.shape[2], x.shape[2])
        y, before = x.new_empty(size, count, out.shape[2]), first
        for begin in range(0, size, block):
            part = slice(begin, min(size, begin + block))
            torch.baddbmm(bias[part, None], _hidden(x, into, before, part)[0], out[part], out=y[part])
            if part.stop < size:
                before = torch.addmm(before, x[:, part].flatten(1), into[part].flatten(0, 1))
        ctx.save_for_backward(x, into, before, out)
        ctx.block = block
        return y.transpose(0, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of W, a_1, V and b, from the last block to the first; x has none."""
        x, into, before, out = ctx.saved_tensors
        size, block = x.shape[1], ctx.block
        dy = grads[0].transpose(0, 1).contiguous()
        d_into, d_out, d_later = torch.empty_like(into), torch.empty_like(out), torch.zeros_like(before)
        for begin in reversed(range(0, size, block)):
            part = slice(begin, min(size, begin + block))
            flat = x[:, part].flatten(1)
            if part.stop < size:
                before = torch.addmm(before, flat, into[part].flatten(0, 1), alpha=-1)
            hidden, masked = _hidden(x, into, before, part)
            torch.bmm(hidden.mT, dy[part], out=d_out[part])
            d_hidden = dy[part] * out[part].mT if dy.shape[2] == 1 else dy[part] @ out[part].mT
            d_hidden = torch.ops.aten.threshold_backward(d_hidden, hidden, 0)  # the derivative of the ReLU
            d_block = masked.T @ d_hidden.flatten(0, 1)
            d_into[part] = torch.addmm(d_block, flat.T, d_later).view_as(d_into[part])
            d_later += d_hidden.sum(0)
        return None, d_into, d_later, d_out, dy.sum(1)


def recurrence(x: Tensor, into: Tensor, first: Tensor, out: Tensor, bias: Tensor) -> Tensor:
    """Return y of all values: (B, D, P).  See `Recurrence`."""
    y: Tensor = Recurrence.apply(x, into, first, out, bias)  # type: ignore[no-untyped-call]  # torch has no types for it
    return y


def _hidden(x: Tensor, into: Tensor, before: Tensor, part: slice) -> tuple[Tensor, Tensor]:
    """Return relu(a) of a block, (S, B, H), and the masked inputs of each of its values, (S B, S Q)."""
    x = x[:, part]
    count, block, _ = x.shape
    masked = (_earlier(block, x) * x).flatten(0, 1).flatten(1)
    return torch.addmm(before.repeat(block, 1), masked, into[part].flatten(0, 1)).relu_().unflatten(0, (block, count)), masked


def _earlier(block: int, like: Tensor) -> Tensor:
    """Return 1 where value j of a block precedes value i: (i, 1, j, 1)."""
    return torch.ones(block, block, dtype=like.dtype, device=like.device).tril(-1)[:, None, :, None]
