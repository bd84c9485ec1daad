"""What the outputs of each torch operation depend on.  Every rule gives a superset of the truth for all values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor
from torch.utils._pytree import tree_map

from reverie.autodiff.sparse.tracer import Call, Pattern, Rule, empty, links, numbered, union
from reverie.autodiff.sparse.windows import SPATIAL


def _fitted(rows: Pattern | None, shape: Sequence[int], wanted: Sequence[int]) -> Pattern | None:
    """Return the pattern of a tensor broadcast to another shape."""
    if rows is None or tuple(shape) == tuple(wanted):
        return rows
    return rows[numbered(shape).expand(tuple(wanted)).reshape(-1).numpy()]


def pointwise(call: Call) -> list[Pattern | None]:
    """Each number depends on the numbers in the same place."""
    return [union(*(_fitted(call.tracer.rows(t), t.shape, out.shape) for t in call.tensors())) for out in call.outputs]


def copied(call: Call) -> list[Pattern | None]:
    """The source replaces what was there."""
    source: Tensor = call.args["src"]
    return [_fitted(call.rows("src"), source.shape, out.shape) for out in call.outputs]


def created(call: Call) -> list[Pattern | None]:
    """A new tensor in the form of another depends on nothing."""
    return [None] * len(call.outputs)


def moved(call: Call) -> list[Pattern | None]:
    """Each output number is one of the input numbers: the operation itself is run on their places.

    Place 0 stands for a constant that is filled in.
    """
    patterns: list[Pattern] = [empty(1, call.tracer.inputs)]
    count = 1

    def places(value: Any) -> Any:
        nonlocal count
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        rows = call.tracer.rows(value)
        if rows is None:
            return torch.zeros(value.shape, dtype=torch.float64)
        patterns.append(rows)
        count += value.numel()
        return (numbered(value.shape) + (count - value.numel())).double()

    args = {name: 0 if name in ("value", "fill_value") else tree_map(places, value) for name, value in call.args.items()}
    positional = [a.name for a in call.func._schema.arguments if not a.kwarg_only]
    index = call.func(*[args.pop(name) for name in positional], **args)
    stack = sparse.vstack(patterns, format="csr")
    return [stack[index.reshape(-1).long().numpy()]]


def _gather_of(call: Call, target: Tensor) -> tuple[Tensor, str]:
    """Return for each number that is added the place it is added to, and the name of the argument that holds it."""
    name, places = call.func._schema.name.removesuffix("_"), numbered(target.shape)
    if name.endswith("index_put"):
        indices = tuple(slice(None) if i is None else i for i in call.args["indices"])
        chosen = places[indices]
        return chosen, "values"
    if name.endswith("index_add"):
        return places.index_select(call.args["dim"], call.args["index"]), "source"
    return places.gather(call.args["dim"], call.args["index"]), "src"


def added(call: Call) -> list[Pattern | None]:
    """Numbers are put or added into places of a tensor."""
    target: Tensor = call.args["self"]
    to, name = _gather_of(call, target)
    source = call.args[name]
    if not isinstance(source, Tensor) or (rows := call.rows(name)) is None:
        return [call.rows("self")]
    if name == "src":  # only as much of the source as there are indices
        rows = rows[numbered(source.shape)[tuple(slice(side) for side in to.shape)].reshape(-1).numpy()]
    else:
        rows = _fitted(rows, source.shape, to.shape)
    assert rows is not None
    flat = to.reshape(-1).numpy()
    return [union(call.rows("self"), links(flat, np.arange(len(flat)), (target.numel(), len(flat))) @ rows)]


def _groups(shape: Sequence[int], dims: Sequence[int]) -> Tensor:
    """Return for each place the number of its group, places that differ only along dims being one group."""
    kept = [1 if d in dims else side for d, side in enumerate(shape)]
    return numbered(kept).expand(tuple(shape))


def _dims(value: Any, ndim: int) -> list[int]:
    if value is None or (isinstance(value, list | tuple) and not value):
        return list(range(ndim))
    return [d % max(ndim, 1) for d in (value if isinstance(value, list | tuple) else [value])]


def _merged(rows: Pattern, groups: Tensor) -> Pattern:
    flat = groups.reshape(-1).numpy()
    merged: Pattern = links(flat, np.arange(len(flat)), (int(flat.max()) + 1 if len(flat) else 0, len(flat))) @ rows
    return merged


def reduced(call: Call) -> list[Pattern | None]:
    """Each output depends on all numbers along the dimensions that vanish."""
    x: Tensor = call.args["self"]
    rows = call.rows("self")
    whole = call.args.get("dim") if "dim" in call.args else None
    groups = _groups(x.shape, _dims(whole, x.ndim))
    return [None if rows is None else _merged(rows, groups)] * len(call.outputs)


def mixed(call: Call) -> list[Pattern | None]:
    """Each output depends on all numbers along one dimension, which stays."""
    tensors = [t for t in call.tensors() if call.tracer.rows(t) is not None]
    dims = _dims(call.args["dim"], tensors[0].ndim)
    results: list[Pattern | None] = []
    for out in call.outputs:
        to = _groups(out.shape, dims).reshape(-1).numpy()
        parts = [_merged(rows, _groups(t.shape, dims)) for t in tensors if (rows := call.tracer.rows(t)) is not None]
        merged = union(*parts)
        results.append(merged[to] if merged is not None else None)
    return results


def _in_blocks(names: Sequence[str], blocks: Callable[[Call, Tensor], Tensor]) -> Rule:
    """Return the rule of normalisations: numbers of a block depend on all of it, weights are met in their own place."""

    def rule(call: Call) -> list[Pattern | None]:
        x: Tensor = call.args["input"]
        groups = blocks(call, x)
        merged = union(*(_merged(rows, groups) for name in names if (rows := call.rows(name)) is not None))
        results: list[Pattern | None] = []
        for out in call.outputs:
            if merged is None:
                results.append(None)
            elif out.shape == x.shape:
                results.append(merged[groups.reshape(-1).numpy()])
            else:  # statistics of the blocks, or gradients of weights
                same = out.numel() == merged.shape[0]
                results.append(
                    merged if same else _merged(merged, torch.zeros(merged.shape[0]).long())[np.zeros(out.numel(), int)]
                )
        shape = [x.shape[1] if d == 1 else 1 for d in range(x.ndim)]
        last = call.args.get("normalized_shape")
        shape = [1] * (x.ndim - len(last)) + list(last) if last is not None else shape
        extra = union(*(_fitted(call.rows(name), shape, x.shape) for name in ("weight", "bias")))
        return [
            union(found, extra) if out.shape == x.shape else found for found, out in zip(results, call.outputs, strict=True)
        ]

    return rule


def _layer(call: Call, x: Tensor) -> Tensor:
    return _groups(x.shape, range(x.ndim - len(call.args["normalized_shape"]), x.ndim))


def _group(call: Call, x: Tensor) -> Tensor:
    parts = call.args["group"]
    return _groups((len(x), parts, x.numel() // max(1, len(x) * parts)), [2]).reshape(x.shape)


def _channel(call: Call, x: Tensor) -> Tensor:
    training = call.args.get("training", call.args.get("train", True))
    return _groups(x.shape, [d for d in range(x.ndim) if d != 1]) if training else numbered(x.shape)


def _product(first: str, second: str, added_to: str | None = None) -> Rule:
    """Return the rule of matrix products: row i of the first and column j of the second meet in (i, j)."""

    def rule(call: Call) -> list[Pattern | None]:
        a, b, out = call.args[first], call.args[second], call.outputs[0]
        batch = [a.shape[0]] if a.ndim == 3 else []
        rows, inner = (a.shape[-2], a.shape[-1]) if a.ndim > 1 else (1, len(a))
        columns = b.shape[-1] if b.ndim > 1 else 1
        shape = (*batch, rows, columns)
        parts: list[Pattern | None] = []
        if (found := call.rows(first)) is not None:
            merged = _merged(found, _groups((*batch, rows, inner), [len(batch) + 1]))
            parts.append(_fitted(merged, (*batch, rows, 1), shape))
        if (found := call.rows(second)) is not None:
            if a.layout == torch.strided:
                merged = _merged(found, _groups((*batch, inner, columns), [len(batch)]))
                parts.append(_fitted(merged, (*batch, 1, columns), shape))
            else:  # a sparse constant couples only what it has entries for
                entries = a.to_sparse_coo().coalesce().indices().numpy()
                coupled = links(entries[0], entries[1], (rows, inner))
                parts.append(sparse.csr_array(sparse.kron(coupled, sparse.eye_array(columns, dtype=bool), "csr")) @ found)
        if added_to is not None:
            parts.append(_fitted(call.rows(added_to), call.args[added_to].shape, out.shape))
        return [union(*parts)]

    return rule


def attention(call: Call) -> list[Pattern | None]:
    """Each query meets all keys and values of its head."""
    query: Tensor = call.args["query"]
    parts = [_fitted(_merged(rows, _groups(query.shape, [3])), (*query.shape[:3], 1), query.shape)
             for rows in [call.rows("query")] if rows is not None]  # fmt: skip
    for name in ("key", "value"):
        if (rows := call.rows(name)) is not None:
            merged = _merged(rows, _groups(call.args[name].shape, [2, 3]))
            parts.append(_fitted(merged, (*query.shape[:2], 1, 1), query.shape))
    whole = union(*parts)
    assert whole is not None
    sums = _merged(whole, _groups(query.shape, [3]))
    return [whole if out.shape == query.shape else sums for out in call.outputs]


def _names(text: str) -> list[str]:
    return [f"aten::{name}" for name in text.split()]


RULES: dict[str, Rule] = {
    **dict.fromkeys(
        _names(
            "clone _to_copy detach masked_fill native_dropout _prelu_kernel _prelu_kernel_backward softplus_backward"
            " elu_backward hardtanh_backward leaky_relu_backward mish_backward hardswish_backward hardsigmoid_backward"
            " log_sigmoid_forward log_sigmoid_backward rsub complex polar lift_fresh _unsafe_view where pow"
        ),
        pointwise,
    ),
    **dict.fromkeys(_names("copy"), copied),
    **dict.fromkeys(
        _names(
            "empty_like zeros_like ones_like full_like rand_like randn_like new_empty new_empty_strided new_zeros new_ones"
            " new_full zero fill sign round floor ceil trunc bernoulli"
        ),
        created,
    ),
    **dict.fromkeys(
        _names(
            "cat stack index _unsafe_index index_select gather take roll flip constant_pad_nd reflection_pad1d"
            " reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d repeat slice_backward"
            " select_backward slice_scatter select_scatter diagonal_scatter diagonal_backward tril triu upsample_nearest1d"
            " upsample_nearest2d upsample_nearest3d pixel_shuffle pixel_unshuffle channel_shuffle masked_select"
            " diag_embed im2col embedding scatter"
        ),
        moved,
    ),
    **dict.fromkeys(_names("index_put _unsafe_index_put _index_put_impl scatter_add index_add"), added),
    **dict.fromkeys(
        _names(
            "sum mean amax amin prod logsumexp var std var_mean linalg_vector_norm norm max min median nansum aminmax trace"
        ),
        reduced,
    ),
    **dict.fromkeys(
        _names(
            "_softmax _log_softmax cumsum cumprod logcumsumexp sort topk cummax cummin _softmax_backward_data"
            " _log_softmax_backward_data _fft_r2c _fft_c2c _fft_c2r glu glu_backward"
        ),
        mixed,
    ),
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
    **SPATIAL,
}


def rule_of(func: Any) -> Rule | None:
    """Return the rule of an operation: by name, or because torch calls it pointwise, or None."""
    name = func._schema.name
    found = RULES.get(name) or RULES.get(name.removesuffix("_"))
    return found or (pointwise if torch.Tag.pointwise in func.tags else None)
