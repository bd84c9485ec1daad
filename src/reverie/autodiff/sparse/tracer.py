"""Dependency tracing: the inputs on which each number of a computation depends, from the operations that torch dispatches."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from reverie.base.errors import ReverieWarning, UserError

Pattern = sparse.csr_array  # boolean: (numbers of a tensor, inputs)

CONSTANT_RESULT_NAMES = (  # operations that use the shape or storage of a tensor, but not its values
    "empty_like zeros_like ones_like full_like rand_like randn_like new_empty new_empty_strided new_zeros new_ones new_full"
    " zero"
)
CONSTANT_RESULT = {f"aten::{name}" for name in [*CONSTANT_RESULT_NAMES.split(), "zero_"]}
VALUE_DEPENDENT = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
TO_SPARSE = {"aten::to_sparse", "aten::_to_sparse", "aten::_coalesce"}  # the number of entries depends on values
MASKS = (torch.bool, torch.uint8)
METADATA_ONLY = {  # in-place operations that change only the view of a storage
    f"aten::{name}_" for name in ("unsqueeze", "squeeze", "t", "transpose", "as_strided", "detach")
}


def empty(rows: int, columns: int) -> Pattern:
    """Return the pattern of numbers without dependencies."""
    return sparse.csr_array((rows, columns), dtype=bool)


def from_edges(to: np.ndarray, start: np.ndarray, shape: tuple[int, int]) -> Pattern:
    """Return the boolean matrix with entries (row, column) = (to, start)."""
    return sparse.csr_array((np.ones(len(to), bool), (to, start)), shape=shape)


def union(*patterns: Pattern | None) -> Pattern | None:
    """Return the union of patterns; None has no entries."""
    total: Pattern | None = None
    for pattern in patterns:
        if pattern is not None:
            total = pattern if total is None else total + pattern
    return total


def dense_rows(rows: Pattern | None, count: int) -> Pattern | None:
    """Return the pattern of `count` numbers that each depend on everything in the rows."""
    if rows is None:
        return None
    columns = np.flatnonzero(np.bincount(rows.indices, minlength=rows.shape[1]))
    pointers = np.arange(count + 1) * len(columns)
    return sparse.csr_array((np.ones(pointers[-1], bool), np.tile(columns, count), pointers), shape=(count, rows.shape[1]))


def flat_indices(shape: Sequence[int]) -> Tensor:
    """Return the flat indices 0, 1, 2, ... of a tensor with this shape."""
    return torch.arange(int(np.prod(shape))).reshape(tuple(shape))


def tensors(tree: Any) -> list[Tensor]:
    """Return all tensors in a tree of arguments or results."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def stored(tensor: Tensor) -> Tensor:
    """Return the tensor itself, or the values of a sparse tensor."""
    if tensor.layout == torch.strided:
        return tensor
    if tensor.layout == torch._mkldnn:  # type: ignore[attr-defined]  # missing in torch's types
        raise UserError("detect cannot trace mkldnn tensors; use method='local'")
    return tensor._values() if tensor.layout == torch.sparse_coo else tensor.values()


@dataclass(frozen=True)
class Call:
    """One dispatched operation: its arguments by name, its input tensors, its outputs, and the tracer."""

    func: Any
    args: dict[str, Any]
    given: list[Tensor]
    outputs: list[Tensor]
    tracer: Tracer

    def rows(self, name: str) -> Pattern | None:
        """Return the pattern of a tensor argument, or None if it is missing or has no dependencies."""
        value = self.args.get(name)
        return self.tracer.rows(value) if isinstance(value, Tensor) else None

    def depends_on_x(self, tensor: Tensor) -> bool:
        """Whether a tensor was computed from x, including as an index or a condition."""
        return self.tracer.depends_on_x(tensor)


Rule = Callable[[Call], list[Pattern | None]]


def as_dense(call: Call) -> list[Pattern | None]:
    """Let every output depend on all dependencies of all inputs."""
    merged = union(*(dense_rows(call.tracer.rows(t), 1) for t in call.given))
    return [dense_rows(merged, out.numel()) for out in call.outputs]


class Tracer(TorchDispatchMode):
    """Traces dependencies through every operation while it is active.

    Patterns belong to storages, one row per stored number, so that views, in-place operations and tensors saved for the
    backward pass need no rules.  Values computed from x without a derivative, such as indices and conditions, are tracked with
    no pattern.  inputs: number of inputs.
    """

    def __init__(self, inputs: int, rules: Callable[[Any], Rule | None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.inputs = inputs
        self.rules = rules
        self.unknown: list[str] = []
        self.value_dependent_ops: list[str] = []  # operations whose shapes or results depend on values of x
        self._stored: dict[int, tuple[int, Pattern | None]] = {}

    def _storage_indices(self, tensor: Tensor, stored: int) -> np.ndarray:
        indices = torch.arange(stored)
        return indices.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).reshape(-1).numpy()

    def depends_on_x(self, tensor: Tensor) -> bool:
        """Whether a tensor was computed from x."""
        return stored(tensor).untyped_storage()._cdata in self._stored

    def rows(self, tensor: Tensor) -> Pattern | None:
        """Return the pattern of a tensor, (numel, inputs), or None without dependencies."""
        if not self._stored:
            return None
        tensor = stored(tensor)
        size, pattern = self._stored.get(tensor.untyped_storage()._cdata, (0, None))
        if pattern is None:
            return None
        if size != tensor.element_size():  # viewed as another dtype, so positions are lost
            return dense_rows(pattern, tensor.numel())
        if tensor.numel() == pattern.shape[0] and tensor.is_contiguous() and tensor.storage_offset() == 0:
            return pattern
        return pattern[self._storage_indices(tensor, pattern.shape[0])]

    def set_rows(self, tensor: Tensor, pattern: Pattern | None) -> None:
        """Set the pattern of a tensor computed from x; the rest of its storage keeps its pattern."""
        storage, size = tensor.untyped_storage(), tensor.element_size()
        key, count = storage._cdata, storage.nbytes() // size
        size_before, before = self._stored.get(key, (size, None))
        if key not in self._stored:
            weakref.finalize(storage, self._stored.pop, key, None)
        if pattern is None and before is None:
            self._stored[key] = (size, None)
            return
        pattern = empty(tensor.numel(), self.inputs) if pattern is None else pattern
        if tensor.numel() != count or not tensor.is_contiguous():
            positions = self._storage_indices(tensor, count)
            pattern = from_edges(positions, np.arange(len(positions)), (count, len(positions))) @ pattern
            if before is not None and size_before != size:  # written as another dtype, so positions are lost
                dense: Any = dense_rows(before, count)
                pattern = pattern + dense
            elif before is not None:
                untouched = np.setdiff1d(np.arange(count), positions)
                pattern = pattern + from_edges(untouched, untouched, (count, count)) @ before
        self._stored[key] = (size, pattern)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and set the patterns of its outputs."""
        schema, leaves = func._schema, tensors((args, kwargs))
        given = [stored(t) for t in leaves]  # before an in-place operation replaces the values of a sparse tensor
        result = func(*args, **(kwargs or {}))
        if schema.name in METADATA_ONLY:
            return result
        named = {a.name: a.default_value for a in schema.arguments}
        named |= dict(zip(named, args, strict=False)) | (kwargs or {})
        if not any(self.depends_on_x(t) for t in given):
            return result
        if self._is_value_dependent(func, named):
            self.value_dependent_ops.append(str(func))
        returned = tensors(result)
        written = [t for a in schema.arguments if a.is_write for t in tensors(named[a.name])]
        hidden = [t for t in written if not any(t is other for other in returned)]
        outputs = [stored(t) for t in returned + hidden]
        for t in returned:
            if t.layout != torch.strided and not self.depends_on_x(t):  # its indices may depend on x
                self.set_rows(stored(t), None)
        if not schema.is_mutable:  # views share the storage and its pattern
            before = {t.untyped_storage()._cdata for t in given}
            outputs = [out for out in outputs if out.untyped_storage()._cdata not in before]
        if schema.name in CONSTANT_RESULT and not any(self.depends_on_x(out) for out in outputs):
            return result
        real_outputs = [out for out in outputs if out.is_floating_point() or out.is_complex()]
        for out in outputs:
            if not any(out is real_output for real_output in real_outputs):
                self.set_rows(out, None)
        if not (outputs := real_outputs):
            return result
        if all(self.rows(t) is None for t in given):
            patterns: list[Pattern | None] = [None] * len(outputs)
        else:
            sparse_ones = [t for t in leaves if t.layout != torch.strided and self.rows(t) is not None]
            sparse_ones += [t for t in returned if t.layout != torch.strided]
            rule = None if hidden or sparse_ones else self.rules(func)
            if rule is None:
                self.unknown.append(str(func))
            patterns = (rule or as_dense)(Call(func, named, given, outputs, self))
        for out, pattern in zip(outputs, patterns, strict=True):
            self.set_rows(out, pattern)
        return result

    def _is_value_dependent(self, func: Any, args: dict[str, Any]) -> bool:
        """Whether an operation returns a value of x to Python, or has an output shape that depends on values of x."""
        if func._schema.name in TO_SPARSE:
            return True
        if not any(tag in VALUE_DEPENDENT for tag in func.tags):
            return False
        if "indices" in args or "mask" in args:
            masks = [t for t in tensors([args.get("indices"), args.get("mask")]) if t.dtype in MASKS]
            return any(self.depends_on_x(mask) for mask in masks)
        return True

    def warn_of_untraced(self) -> None:
        """Warn of the operations without a rule."""
        if self.unknown:
            names = ", ".join(sorted(set(self.unknown)))
            warnings.warn(
                f"no sparsity rule for {names}: every output was assumed to depend on every input, so the pattern may"
                " have far more entries than the matrix; detect(..., method='local') finds the entries at one point",
                ReverieWarning,
                stacklevel=3,
            )
