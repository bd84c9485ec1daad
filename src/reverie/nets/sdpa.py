"""Scaled dot-product attention, in the fastest precision of the device."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def scaled_dot_product_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return softmax(q k^T / sqrt(d)) v; never in bfloat16 on CPUs, where its backward pass takes seven times as long.

    q: (B, N, L, d); k, v: (B, N, M, d); mask: (B, 1, 1, M), true for keys to attend to.
    """
    if q.device.type != "cpu" or q.dtype != torch.bfloat16:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    with torch.autocast("cpu", enabled=False):
        return functional.scaled_dot_product_attention(q.float(), k.float(), v.float(), attn_mask=mask)
