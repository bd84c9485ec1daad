"""The recurrence of NADE over all numbers of data at once, in blocks.

    a_i = a_1 + sum_{j < i} x_j W_j,   y_i = b_i + relu(a_i) V_i

As it stands it is D steps of H numbers, each too small for a processor.  Here a block of numbers is one product of matrices:
what came before it is shared by all of its numbers, and within it each sees the earlier ones through a mask.  Nothing of the
hidden numbers, (B, D, H), is kept: the way back works them out again, block by block, while they are near the processor.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

BLOCK_NUMBERS = 2**19  # hidden numbers of a block that stay in the processor's cache; measured, and flat around it
MOST_IN_BLOCK = 16


def block_size(count: int, hidden: int, inputs: int) -> int:
    """Return how many numbers of data form a block."""
    return max(1, min(MOST_IN_BLOCK, BLOCK_NUMBERS // max(1, count * hidden), 1 + 64 // inputs))


class Recurrence(torch.autograd.Function):
    """y of all numbers, (B, D, P).  x: (B, D, Q), W: (D, Q, H), first: (B, H), V: (D, H, P), b: (D, P)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, into: Tensor, first: Tensor, out: Tensor, bias: Tensor) -> Tensor:
        """Return y, and keep what the hidden numbers can be worked out of again."""
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
        """Return the gradients of W, a_1, V and b, from the last block to the first; x are data and have none."""
        x, into, before, out = ctx.saved_tensors
        size, block = x.shape[1], ctx.block
        dy = grads[0].transpose(0, 1).contiguous()
        d_into, d_out, later = torch.empty_like(into), torch.empty_like(out), torch.zeros_like(before)
        for begin in reversed(range(0, size, block)):
            part = slice(begin, min(size, begin + block))
            flat = x[:, part].flatten(1)
            if part.stop < size:
                before = torch.addmm(before, flat, into[part].flatten(0, 1), alpha=-1)
            hidden, seen = _hidden(x, into, before, part)
            torch.bmm(hidden.mT, dy[part], out=d_out[part])
            d_hidden = dy[part] * out[part].mT if dy.shape[2] == 1 else dy[part] @ out[part].mT
            d_hidden = torch.ops.aten.threshold_backward(d_hidden, hidden, 0)  # where relu was 0
            d_block = seen.T @ d_hidden.flatten(0, 1)
            d_into[part] = torch.addmm(d_block, flat.T, later).view_as(d_into[part])
            later += d_hidden.sum(0)
        return None, d_into, later, d_out, dy.sum(1)


def recurrence(x: Tensor, into: Tensor, first: Tensor, out: Tensor, bias: Tensor) -> Tensor:
    """Return y of all numbers: (B, D, P).  See `Recurrence`."""
    y: Tensor = Recurrence.apply(x, into, first, out, bias)  # type: ignore[no-untyped-call]  # torch does not say its types
    return y


def _hidden(x: Tensor, into: Tensor, before: Tensor, part: slice) -> tuple[Tensor, Tensor]:
    """Return relu(a) of a block, (S, B, H), and the block's numbers as each of them sees them, (S B, S Q)."""
    x = x[:, part]
    count, block, _ = x.shape
    seen = (_earlier(block, x) * x).flatten(0, 1).flatten(1)
    return torch.addmm(before.repeat(block, 1), seen, into[part].flatten(0, 1)).relu_().unflatten(0, (block, count)), seen


def _earlier(block: int, like: Tensor) -> Tensor:
    """Return 1 where number j of a block comes before number i: (i, 1, j, 1)."""
    return torch.ones(block, block, dtype=like.dtype, device=like.device).tril(-1)[:, None, :, None]
