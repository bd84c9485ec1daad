"""Normalisations, matrix products and attention: operations that mix the numbers of a block."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from reverie.autodiff.sparse.tracer import Call, Pattern, Rule, links, numbered, spread, union


def fitted(rows: Pattern | None, shape: Sequence[int], wanted: Sequence[int]) -> Pattern | None:
    """Return the pattern of a tensor broadcast to another shape."""
    if rows is None or tuple(shape) == tuple(wanted):
        return rows
    return rows[numbered(shape).expand(tuple(wanted)).reshape(-1).numpy()]


def grouped(shape: Sequence[int], dims: Sequence[int]) -> Tensor:
    """Return for each place the number of its group, places that differ only along dims being one group."""
    kept = [1 if d in dims else side for d, side in enumerate(shape)]
    return numbered(kept).expand(tuple(shape))


def merged(rows: Pattern | None, groups: Tensor) -> Pattern | None:
    """Return for each group what its members depend on together."""
    if rows is None:
        return None
    flat = groups.reshape(-1).numpy()
    found: Pattern = links(flat, np.arange(len(flat)), (int(flat.max()) + 1 if len(flat) else 0, len(flat))) @ rows
    return found


def _in_blocks(names: Sequence[str], blocks: Callable[[Call, Tensor], Tensor]) -> Rule:
    """Return the rule of normalisations: numbers of a block depend on all of it.

    Weights are met in their own place; but the gradient of the input mixes all weights of its block.
    """

    def rule(call: Call) -> list[Pattern | None]:
        x: Tensor = call.args["input"]
        groups = blocks(call, x)
        last = call.args.get("normalized_shape")
        shape = [x.shape[1] if d == 1 else 1 for d in range(x.ndim)] if last is None else list(last)
        own = union(*(fitted(call.rows(name), shape, x.shape) for name in ("weight", "bias")))
        parts = [call.rows(name) for name in names] + ([own] if "grad_out" in names else [])
        whole = union(*(merged(rows, groups) for rows in parts))
        results: list[Pattern | None] = []
        for out in call.outputs:
            if out.shape == x.shape:
                results.append(union(own, None if whole is None else whole[groups.reshape(-1).numpy()]))
            elif whole is None or out.numel() == whole.shape[0]:  # statistics of the blocks
                results.append(whole)
            else:  # gradients of weights
                results.append(spread(whole, out.numel()))
        return results

    return rule


def _layer(call: Call, x: Tensor) -> Tensor:
    return grouped(x.shape, range(x.ndim - len(call.args["normalized_shape"]), x.ndim))


def _group(call: Call, x: Tensor) -> Tensor:
    parts = call.args["group"]
    return grouped((len(x), parts, x.numel() // max(1, len(x) * parts)), [2]).reshape(x.shape)


def _channel(call: Call, x: Tensor) -> Tensor:
    training = call.args.get("training", call.args.get("train", True))
    return grouped(x.shape, [d for d in range(x.ndim) if d != 1]) if training else numbered(x.shape)


def _product(first: str, second: str, added_to: str | None = None) -> Rule:
    """Return the rule of matrix products: row i of the first and column j of the second meet in (i, j)."""

    def rule(call: Call) -> list[Pattern | None]:
        a, b, out = call.args[first], call.args[second], call.outputs[0]
        batch = [a.shape[0]] if a.ndim == 3 else []
        rows, inner = (a.shape[-2], a.shape[-1]) if a.ndim > 1 else (1, len(a))
        columns = b.shape[-1] if b.ndim > 1 else 1
        shape = (*batch, rows, columns)
        together = merged(call.rows(first), grouped((*batch, rows, inner), [len(batch) + 1]))
        parts = [fitted(together, (*batch, rows, 1), shape)]
        if (found := call.rows(second)) is not None:
            if a.layout == torch.strided or call.varies(a):
                together = merged(found, grouped((*batch, inner, columns), [len(batch)]))
                parts.append(fitted(together, (*batch, 1, columns), shape))
            else:  # a sparse constant couples only what it has entries for
                entries = a.to_sparse_coo().coalesce().indices().numpy()
                coupled = links(entries[0], entries[1], (rows, inner))
                parts.append(sparse.csr_array(sparse.kron(coupled, sparse.eye_array(columns, dtype=bool), "csr")) @ found)
        if added_to is not None:
            parts.append(fitted(call.rows(added_to), call.args[added_to].shape, out.shape))
        return [union(*parts)]

    return rule


def attention(call: Call) -> list[Pattern | None]:
    """Each query meets all keys and values of its head, which several heads may share, and its row of the mask.

    In causal attention query i meets the keys up to the i-th.
    """
    query, key, mask = (call.args[name] for name in ("query", "key", "attn_mask"))
    (batch, heads, length, _), kept = query.shape, key.shape[1]
    parts, meeting = [merged(call.rows("query"), grouped(query.shape, [3]))], (batch, kept, heads // kept, length)
    for name in ("key", "value"):
        if call.args.get("is_causal") and (each := merged(call.rows(name), grouped(call.args[name].shape, [3]))) is not None:
            earlier = sparse.csr_array(np.tril(np.ones((length, key.shape[2]), bool)))
            met_keys = sparse.kron(sparse.eye_array(batch * kept, dtype=bool), earlier, "csr")
            parts.append(fitted(sparse.csr_array(met_keys @ each), (batch, kept, 1, length), meeting))
        else:
            together = merged(call.rows(name), grouped(call.args[name].shape, [2, 3]))
            parts.append(fitted(together, (batch, kept, 1, 1), meeting))
    if mask is not None:
        met = (batch, heads, length, key.shape[2])
        parts.append(merged(fitted(call.rows("attn_mask"), mask.shape, met), grouped(met, [3])))
    whole = union(*parts)
    return [fitted(whole, (batch, heads, length, 1), out.shape) if out.ndim == 4 else whole for out in call.outputs]


LAYERS: dict[str, Rule] = {
    "aten::native_layer_norm": _in_blocks(["input"], _layer),
    "aten::native_layer_norm_backward": _in_blocks(["grad_out", "input"], _layer),
    "aten::native_group_norm": _in_blocks(["input"], _group),
    "aten::native_group_norm_backward": _in_blocks(["grad_out", "input"], _group),
    "aten::native_batch_norm": _in_blocks(["input"], _channel),
    "aten::native_batch_norm_backward": _in_blocks(["grad_out", "input"], _channel),
    "aten::mm": _product("self", "mat2"),
    "aten::bmm": _product("self", "mat2"),
    "aten::mv": _product("self", "vec"),
    "aten::dot": _product("self", "tensor"),
    "aten::addmm": _product("mat1", "mat2", "self"),
    "aten::baddbmm": _product("batch1", "batch2", "self"),
    "aten::addmv": _product("mat", "vec", "self"),
    "aten::_sparse_addmm": _product("mat1", "mat2", "self"),
    "aten::_scaled_dot_product_flash_attention_for_cpu": attention,
}
