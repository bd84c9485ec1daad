"""What the outputs of each torch operation depend on.  Every rule gives a superset of the truth for all values."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor
from torch.utils._pytree import tree_map

from reverie.autodiff.sparse.layers import LAYERS, fitted, grouped, merged
from reverie.autodiff.sparse.tracer import Call, Pattern, Rule, empty, links, numbered, spread, union
from reverie.autodiff.sparse.windows import SPATIAL

INDEXES = {"index", "indices", "mask"}  # arguments that say where, and carry no numbers
CONSTANTS = {"value", "fill_value"}


def pointwise(call: Call) -> list[Pattern | None]:
    """Each number depends on the numbers in the same place."""
    return [union(*(fitted(call.tracer.rows(t), t.shape, out.shape) for t in call.given)) for out in call.outputs]


def copied(call: Call) -> list[Pattern | None]:
    """The source replaces what was there."""
    source: Tensor = call.args["src"]
    return [fitted(call.rows("src"), source.shape, out.shape) for out in call.outputs]


def created(call: Call) -> list[Pattern | None]:
    """A new tensor in the form of another depends on nothing."""
    return [None] * len(call.outputs)


def filled(call: Call) -> list[Pattern | None]:
    """One number, which may be a tensor, replaces all that was there."""
    return [spread(call.rows("value"), out.numel()) for out in call.outputs]


def moved(call: Call) -> list[Pattern | None]:
    """Each output number is one of the input numbers: the operation itself is run on their places.

    Place 0 stands for a constant that is filled in.
    """
    patterns: list[Pattern] = [empty(1, call.tracer.inputs)]
    count = 1

    def places(value: Any) -> Any:
        nonlocal count
        if not isinstance(value, Tensor):
            return value
        rows = call.tracer.rows(value) if value.is_floating_point() or value.is_complex() else None
        if rows is None:
            return torch.zeros(value.shape, dtype=torch.float64)
        patterns.append(rows)
        count += value.numel()
        return (numbered(value.shape) + (count - value.numel())).double()

    args = {name: value if name in INDEXES else tree_map(places, value) for name, value in call.args.items()}
    args |= dict.fromkeys(args.keys() & CONSTANTS, 0)
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
    if (rows := call.rows(name)) is None:
        return [call.rows("self")]
    source = call.args[name]
    if name == "src":  # only as much of the source as there are indices
        rows = rows[numbered(source.shape)[tuple(slice(side) for side in to.shape)].reshape(-1).numpy()]
    else:
        rows = fitted(rows, source.shape, to.shape)
    assert rows is not None
    flat = to.reshape(-1).numpy()
    return [union(call.rows("self"), links(flat, np.arange(len(flat)), (target.numel(), len(flat))) @ rows)]


def _dims(value: Any, ndim: int) -> list[int]:
    if value is None or (isinstance(value, list | tuple) and not value):
        return list(range(ndim))
    return [d % max(ndim, 1) for d in (value if isinstance(value, list | tuple) else [value])]


def reduced(call: Call) -> list[Pattern | None]:
    """Each output depends on all numbers along the dimensions that vanish."""
    x: Tensor = call.args["self"]
    rows = call.rows("self")
    whole = call.args.get("dim") if "dim" in call.args else None
    groups = grouped(x.shape, _dims(whole, x.ndim))
    return [merged(rows, groups)] * len(call.outputs)


def mixed(call: Call) -> list[Pattern | None]:
    """Each output depends on all numbers along one dimension, which stays."""
    tensors = [t for t in call.given if call.tracer.rows(t) is not None]
    dims = _dims(call.args["dim"], tensors[0].ndim)
    results: list[Pattern | None] = []
    for out in call.outputs:
        to = grouped(out.shape, dims).reshape(-1).numpy()
        whole = union(*(merged(call.tracer.rows(t), grouped(t.shape, dims)) for t in tensors))
        results.append(whole[to] if whole is not None else None)
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
    **dict.fromkeys(
        _names(
            "empty_like zeros_like ones_like full_like rand_like randn_like new_empty new_empty_strided new_zeros new_ones"
            " new_full zero sign round floor ceil trunc bernoulli"
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
    **dict.fromkeys(
        _names(
            "index_put _unsafe_index_put _index_put_impl index_add scatter_add scatter_reduce scatter.reduce"
            " scatter.value_reduce"
        ),
        added,
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
        mixed,
    ),
    **LAYERS,
    **SPATIAL,
}


def rule_of(func: Any) -> Rule | None:
    """Return the rule of an operation: by name and overload, by name, or because torch calls it pointwise; or None."""
    name = func._schema.name
    bare = name.removesuffix("_")
    found = RULES.get(f"{bare}.{func._schema.overload_name}") or RULES.get(name) or RULES.get(bare)
    return found or (pointwise if torch.Tag.pointwise in func.tags else None)
