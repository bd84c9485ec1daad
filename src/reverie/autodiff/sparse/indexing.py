"""Operations that take numbers from places or put them there.

Where the places are made of x themselves, by sorting, a maximum, a comparison, every place that they could be is meant.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor
from torch.utils._pytree import tree_map

from reverie.autodiff.sparse.layers import fitted, grouped, merged
from reverie.autodiff.sparse.tracer import MASKS, Call, Pattern, Rule, empty, links, numbered, spread, tensors, union

INDEXES = {"index", "indices", "mask"}  # arguments that say where, and carry no numbers
CONSTANTS = {"value", "fill_value"}


def dims_of(value: Any, ndim: int) -> list[int]:
    """Return the dimensions an argument `dim` means; all if there is none."""
    if value is None or (isinstance(value, list | tuple) and not value):
        return list(range(ndim))
    return [d % max(ndim, 1) for d in (value if isinstance(value, list | tuple) else [value])]


def _open(call: Call, ndim: int) -> list[int]:
    """Return the dimensions along which places made of x may lie anywhere."""
    indices = call.args.get("indices")
    if isinstance(indices, list | tuple):
        dims, at = list[int](), 0
        for index in indices:
            width = index.ndim if index is not None and index.dtype in MASKS else 1
            if index is not None and call.varies(index):
                dims += range(at, at + width)
            at += width
        return dims
    if not any(call.varies(index) for index in tensors([call.args.get(name) for name in INDEXES])):
        return []
    return [0] if "weight" in call.args else dims_of(call.args.get("dim"), ndim)  # embeddings choose rows


def moved(call: Call) -> list[Pattern | None]:
    """Each output number is one of the input numbers: the operation itself is run on their places.

    Place 0 stands for a constant that is filled in.  A place that may lie anywhere along a dimension stands for all of it.
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
        if dims := _open(call, value.ndim):
            groups = grouped(value.shape, dims)
            whole = merged(rows, groups)
            assert whole is not None
            rows = whole[groups.reshape(-1).numpy()]
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
    masks = [t for t in tensors(call.args.get("indices")) if t.dtype in MASKS and call.varies(t)]
    if masks:  # how many numbers go where is open too
        return [union(call.rows("self"), spread(call.rows("values"), target.numel()))]
    to, name = _gather_of(call, target)
    if (rows := call.rows(name)) is None:
        return [call.rows("self")]
    source = call.args[name]
    if name == "src":  # only as much of the source as there are indices
        rows = rows[numbered(source.shape)[tuple(slice(side) for side in to.shape)].reshape(-1).numpy()]
    else:
        rows = fitted(rows, source.shape, to.shape)
    assert rows is not None
    groups = grouped(target.shape, _open(call, target.ndim)).reshape(-1).numpy()  # each place alone if none is open
    flat = groups[to.reshape(-1).numpy()]
    put = links(flat, np.arange(len(flat)), (int(groups.max(initial=-1)) + 1, len(flat))) @ rows
    return [union(call.rows("self"), put[groups])]


def scattered(call: Call) -> list[Pattern | None]:
    """Numbers replace what was there; where the places are open it may also stay."""
    if not call.varies(call.args["index"]):
        return moved(call)
    return added(call) if "src" in call.args else [call.rows("self")]


TAKE = "index _unsafe_index index_select gather take masked_select embedding"
PUT = "index_put _unsafe_index_put _index_put_impl index_add scatter_add scatter_reduce scatter.reduce scatter.value_reduce"
INDEXING: dict[str, Rule] = {
    **{f"aten::{name}": moved for name in TAKE.split()},
    **{f"aten::{name}": added for name in PUT.split()},
    "aten::scatter": scattered,
}
