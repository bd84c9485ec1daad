"""Rules of normalization layers, matrix products and attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from reverie.autodiff.sparse.tracer import Call, Pattern, Rule, dense_rows, flat_indices, from_edges, union


def broadcast_rows(rows: Pattern | None, shape: Sequence[int], target: Sequence[int]) -> Pattern | None:
    """Return the pattern of a tensor after broadcasting to another shape."""
    if rows is None or tuple(shape) == tuple(target):
        return rows
    return rows[flat_indices(shape).expand(tuple(target)).reshape(-1).numpy()]


def group_indices(shape: Sequence[int], dims: Sequence[int]) -> Tensor:
    """Return the group index of each position; positions that differ only along dims form a group."""
    reduced = [1 if d in dims else side for d, side in enumerate(shape)]
    return flat_indices(reduced).expand(tuple(shape))


def merge_groups(rows: Pattern | None, groups: Tensor) -> Pattern | None:
    """Return the union of the patterns of each group."""
    if rows is None:
        return None
    flat = groups.reshape(-1).numpy()
    merged: Pattern = from_edges(flat, np.arange(len(flat)), (int(flat.max()) + 1 if len(flat) else 0, len(flat))) @ rows
    return merged


def _in_blocks(names: Sequence[str], blocks: Callable[[Call, Tensor], Tensor]) -> Rule:
    """Return the rule of a normalization: each output depends on its whole block.

    Weights act pointwise, but the gradient of the input depends on all weights of its block.
    """

    def rule(call: Call) -> list[Pattern | None]:
        x: Tensor = call.args["input"]
        groups = blocks(call, x)
        last = call.args.get("normalized_shape")
        shape = [x.shape[1] if d == 1 else 1 for d in range(x.ndim)] if last is None else list(last)
        pointwise = union(*(broadcast_rows(call.rows(name), shape, x.shape) for name in ("weight", "bias")))
        parts = [call.rows(name) for name in names] + ([pointwise] if "grad_out" in names else [])
        merged = union(*(merge_groups(rows, groups) for rows in parts))
        results: list[Pattern | None] = []
        for out in call.outputs:
            if out.shape == x.shape:
                results.append(union(pointwise, None if merged is None else merged[groups.reshape(-1).numpy()]))
            elif merged is None or out.numel() == merged.shape[0]:  # statistics of the blocks
                results.append(merged)
            else:  # gradients of weights
                results.append(dense_rows(merged, out.numel()))
        return results

    return rule


def _layer(call: Call, x: Tensor) -> Tensor:
    return group_indices(x.shape, range(x.ndim - len(call.args["normalized_shape"]), x.ndim))


def _group(call: Call, x: Tensor) -> Tensor:
    parts = call.args["group"]
    return group_indices((len(x), parts, x.numel() // max(1, len(x) * parts)), [2]).reshape(x.shape)


def _channel(call: Call, x: Tensor) -> Tensor:
    training = call.args.get("training", call.args.get("train", True))
    return group_indices(x.shape, [d for d in range(x.ndim) if d != 1]) if training else flat_indices(x.shape)


def _product(first: str, second: str, added_to: str | None = None) -> Rule:
    """Return the rule of a matrix product: output (i, j) depends on row i of the first and column j of the second."""

    def rule(call: Call) -> list[Pattern | None]:
        a, b, out = call.args[first], call.args[second], call.outputs[0]
        batch = [a.shape[0]] if a.ndim == 3 else []
        rows, inner = (a.shape[-2], a.shape[-1]) if a.ndim > 1 else (1, len(a))
        columns = b.shape[-1] if b.ndim > 1 else 1
        shape = (*batch, rows, columns)
        merged_rows = merge_groups(call.rows(first), group_indices((*batch, rows, inner), [len(batch) + 1]))
        parts = [broadcast_rows(merged_rows, (*batch, rows, 1), shape)]
        if (second_rows := call.rows(second)) is not None:
            if a.layout == torch.strided or call.depends_on_x(a):
                merged_rows = merge_groups(second_rows, group_indices((*batch, inner, columns), [len(batch)]))
                parts.append(broadcast_rows(merged_rows, (*batch, 1, columns), shape))
            else:  # a sparse constant couples only its entries
                entries = a.to_sparse_coo().coalesce().indices().numpy()
                coupled = from_edges(entries[0], entries[1], (rows, inner))
                parts.append(sparse.csr_array(sparse.kron(coupled, sparse.eye_array(columns, dtype=bool), "csr")) @ second_rows)
        if added_to is not None:
            parts.append(broadcast_rows(call.rows(added_to), call.args[added_to].shape, out.shape))
        return [union(*parts)]

    return rule


def attention(call: Call) -> list[Pattern | None]:
    """Each query depends on all keys and values of its head (heads may share them) and on its row of the mask.

    In causal attention query i depends on keys up to i.
    """
    query, key, mask = (call.args[name] for name in ("query", "key", "attn_mask"))
    (batch, heads, length, _), key_heads = query.shape, key.shape[1]
    parts, score_rows = (
        [merge_groups(call.rows("query"), group_indices(query.shape, [3]))],
        (batch, key_heads, heads // key_heads, length),
    )
    for name in ("key", "value"):
        if (
            call.args.get("is_causal")
            and (merged_keys := merge_groups(call.rows(name), group_indices(call.args[name].shape, [3]))) is not None
        ):
            causal = sparse.csr_array(np.tril(np.ones((length, key.shape[2]), bool)))
            visible_keys = sparse.kron(sparse.eye_array(batch * key_heads, dtype=bool), causal, "csr")
            parts.append(
                broadcast_rows(sparse.csr_array(visible_keys @ merged_keys), (batch, key_heads, 1, length), score_rows)
            )
        else:
            merged_rows = merge_groups(call.rows(name), group_indices(call.args[name].shape, [2, 3]))
            parts.append(broadcast_rows(merged_rows, (batch, key_heads, 1, 1), score_rows))
    if mask is not None:
        scores = (batch, heads, length, key.shape[2])
        parts.append(merge_groups(broadcast_rows(call.rows("attn_mask"), mask.shape, scores), group_indices(scores, [3])))
    merged = union(*parts)
    return [broadcast_rows(merged, (batch, heads, length, 1), out.shape) if out.ndim == 4 else merged for out in call.outputs]


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
