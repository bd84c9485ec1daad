"""Dependency rules of torch operations.  Every rule returns a superset of the true dependencies, for all values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from reverie.autodiff.sparse.indexing import INDEXING, dims_of, gathered
from reverie.autodiff.sparse.layers import LAYERS, broadcast_rows, group_indices, merge_groups
from reverie.autodiff.sparse.tracer import CONSTANT_RESULT_NAMES, Call, Pattern, Rule, dense_rows, union
from reverie.autodiff.sparse.windows import SPATIAL


def pointwise(call: Call) -> list[Pattern | None]:
    """Each output depends on the inputs at the same position."""
    return [union(*(broadcast_rows(call.tracer.rows(t), t.shape, out.shape) for t in call.given)) for out in call.outputs]


def copied(call: Call) -> list[Pattern | None]:
    """The source replaces the old values."""
    source: Tensor = call.args["src"]
    return [broadcast_rows(call.rows("src"), source.shape, out.shape) for out in call.outputs]


def created(call: Call) -> list[Pattern | None]:
    """A new tensor with the shape of another depends on nothing."""
    return [None] * len(call.outputs)


def filled(call: Call) -> list[Pattern | None]:
    """A scalar, which may be a tensor, replaces all old values."""
    return [dense_rows(call.rows("value"), out.numel()) for out in call.outputs]


def reduced(call: Call) -> list[Pattern | None]:
    """Each output depends on all inputs along the reduced dimensions."""
    x: Tensor = call.args["self"]
    rows = call.rows("self")
    dim = call.args.get("dim") if "dim" in call.args else None
    groups = group_indices(x.shape, dims_of(dim, x.ndim))
    return [merge_groups(rows, groups)] * len(call.outputs)


def mixed_along_dim(call: Call) -> list[Pattern | None]:
    """Each output depends on all inputs along one dimension, which is kept."""
    tensors = [t for t in call.given if call.tracer.rows(t) is not None]
    dims = dims_of(call.args["dim"], tensors[0].ndim)
    results: list[Pattern | None] = []
    for out in call.outputs:
        group_of = group_indices(out.shape, dims).reshape(-1).numpy()
        merged = union(*(merge_groups(call.tracer.rows(t), group_indices(t.shape, dims)) for t in tensors))
        results.append(merged[group_of] if merged is not None else None)
    return results


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
    **dict.fromkeys(_names("fill"), filled),
    **dict.fromkeys(_names(f"{CONSTANT_RESULT_NAMES} sign round floor ceil trunc bernoulli"), created),
    **dict.fromkeys(
        _names(
            "cat stack roll flip constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d"
            " replication_pad2d replication_pad3d repeat slice_backward select_backward slice_scatter select_scatter"
            " diagonal_scatter diagonal_backward tril triu upsample_nearest1d upsample_nearest2d upsample_nearest3d"
            " pixel_shuffle pixel_unshuffle channel_shuffle diag_embed im2col"
        ),
        gathered,
    ),
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
        mixed_along_dim,
    ),
    **INDEXING,
    **LAYERS,
    **SPATIAL,
}


def rule_of(func: Any) -> Rule | None:
    """Return the rule of an operation by name and overload, by name, or by torch's tag `pointwise`; else None."""
    name = func._schema.name
    bare = name.removesuffix("_")
    rule = RULES.get(f"{bare}.{func._schema.overload_name}") or RULES.get(name) or RULES.get(bare)
    return rule or (pointwise if torch.Tag.pointwise in func.tags else None)
