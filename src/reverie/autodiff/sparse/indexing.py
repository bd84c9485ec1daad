"""Rules of operations that gather or scatter.

If the indices are computed from x (by sorting, a maximum, a comparison), they stand for all possible indices.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor
from torch.utils._pytree import tree_map

from reverie.autodiff.sparse.layers import broadcast_rows, group_indices, merge_groups
from reverie.autodiff.sparse.tracer import (
    MASKS,
    Call,
    Pattern,
    Rule,
    dense_rows,
    empty,
    flat_indices,
    from_edges,
    tensors,
    union,
)

INDEX_ARGUMENTS = {"index", "indices", "mask"}  # arguments without values to propagate
FILL_ARGUMENTS = {"value", "fill_value"}


def dims_of(value: Any, ndim: int) -> list[int]:
    """Return the dimensions that an argument `dim` names; None means all."""
    if value is None or (isinstance(value, list | tuple) and not value):
        return list(range(ndim))
    return [d % max(ndim, 1) for d in (value if isinstance(value, list | tuple) else [value])]


def _unknown_dims(call: Call, ndim: int) -> list[int]:
    """Return the dimensions along which the indices depend on x."""
    indices = call.args.get("indices")
    if isinstance(indices, list | tuple):
        dims, at = list[int](), 0
        for index in indices:
            width = index.ndim if index is not None and index.dtype in MASKS else 1
            if index is not None and call.depends_on_x(index):
                dims += range(at, at + width)
            at += width
        return dims
    if not any(call.depends_on_x(index) for index in tensors([call.args.get(name) for name in INDEX_ARGUMENTS])):
        return []
    return [0] if "weight" in call.args else dims_of(call.args.get("dim"), ndim)  # embeddings select rows


def gathered(call: Call) -> list[Pattern | None]:
    """Each output is a copy of one input: run the operation itself on flat indices.

    Index 0 stands for a constant.  An index that depends on x along a dimension stands for all positions along it.
    """
    patterns: list[Pattern] = [empty(1, call.tracer.inputs)]
    count = 1

    def to_indices(value: Any) -> Any:
        nonlocal count
        if not isinstance(value, Tensor):
            return value
        rows = call.tracer.rows(value) if value.is_floating_point() or value.is_complex() else None
        if rows is None:
            return torch.zeros(value.shape, dtype=torch.float64)
        if dims := _unknown_dims(call, value.ndim):
            groups = group_indices(value.shape, dims)
            merged = merge_groups(rows, groups)
            assert merged is not None
            rows = merged[groups.reshape(-1).numpy()]
        patterns.append(rows)
        count += value.numel()
        return (flat_indices(value.shape) + (count - value.numel())).double()

    args = {name: value if name in INDEX_ARGUMENTS else tree_map(to_indices, value) for name, value in call.args.items()}
    args |= dict.fromkeys(args.keys() & FILL_ARGUMENTS, 0)
    positional = [a.name for a in call.func._schema.arguments if not a.kwarg_only]
    index = call.func(*[args.pop(name) for name in positional], **args)
    stack = sparse.vstack(patterns, format="csr")
    return [stack[index.reshape(-1).long().numpy()]]


def _gather_of(call: Call, target: Tensor) -> tuple[Tensor, str]:
    """Return the target position of each added number, and the name of the argument with the numbers."""
    name, positions = call.func._schema.name.removesuffix("_"), flat_indices(target.shape)
    if name.endswith("index_put"):
        indices = tuple(slice(None) if i is None else i for i in call.args["indices"])
        targets = positions[indices]
        return targets, "values"
    if name.endswith("index_add"):
        return positions.index_select(call.args["dim"], call.args["index"]), "source"
    return positions.gather(call.args["dim"], call.args["index"]), "src"


def scatter_added(call: Call) -> list[Pattern | None]:
    """Numbers are written or added to positions of a tensor."""
    target: Tensor = call.args["self"]
    masks = [t for t in tensors(call.args.get("indices")) if t.dtype in MASKS and call.depends_on_x(t)]
    if masks:  # the number of positions depends on x as well
        return [union(call.rows("self"), dense_rows(call.rows("values"), target.numel()))]
    to, name = _gather_of(call, target)
    if (rows := call.rows(name)) is None:
        return [call.rows("self")]
    source = call.args[name]
    if name == "src":  # only the part of the source that has indices
        rows = rows[flat_indices(source.shape)[tuple(slice(side) for side in to.shape)].reshape(-1).numpy()]
    else:
        rows = broadcast_rows(rows, source.shape, to.shape)
    assert rows is not None
    # without unknown dimensions each position is a group of its own
    groups = group_indices(target.shape, _unknown_dims(call, target.ndim)).reshape(-1).numpy()
    flat = groups[to.reshape(-1).numpy()]
    put = from_edges(flat, np.arange(len(flat)), (int(groups.max(initial=-1)) + 1, len(flat))) @ rows
    return [union(call.rows("self"), put[groups])]


def scattered(call: Call) -> list[Pattern | None]:
    """Numbers replace old values; if the indices depend on x, the old values may also stay."""
    if not call.depends_on_x(call.args["index"]):
        return gathered(call)
    return scatter_added(call) if "src" in call.args else [call.rows("self")]


TAKE = "index _unsafe_index index_select gather take masked_select embedding"
PUT = "index_put _unsafe_index_put _index_put_impl index_add scatter_add scatter_reduce scatter.reduce scatter.value_reduce"
INDEXING: dict[str, Rule] = {
    **{f"aten::{name}": gathered for name in TAKE.split()},
    **{f"aten::{name}": scatter_added for name in PUT.split()},
    "aten::scatter": scattered,
}
