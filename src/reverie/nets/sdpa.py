"""Attention by torch's own function, wherever it is quick."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def attended(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return softmax(q k^T / sqrt(d)) v, on processors never in bfloat16, whose gradient takes torch seven times as long there.

    q: (B, N, L, d); k, v: (B, N, M, d); mask: (B, 1, 1, M), true where there is something to attend to.
    """
    if q.device.type != "cpu" or q.dtype != torch.bfloat16:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    with torch.autocast("cpu", enabled=False):
        return functional.scaled_dot_product_attention(q.float(), k.float(), v.float(), attn_mask=mask)
