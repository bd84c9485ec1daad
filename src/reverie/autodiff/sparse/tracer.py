"""Which inputs each number of a computation depends on, followed through the operations that torch dispatches."""

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

LIKE = (  # operations that take the form of a tensor, or its place, and none of its values
    "empty_like zeros_like ones_like full_like rand_like randn_like new_empty new_empty_strided new_zeros new_ones new_full"
    " zero"
)
NEW = {f"aten::{name}" for name in [*LIKE.split(), "zero_"]}
DECIDES = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
TO_SPARSE = {"aten::to_sparse", "aten::_to_sparse", "aten::_coalesce"}  # of so many entries as are not zero or not alike
MASKS = (torch.bool, torch.uint8)
STAYS = {  # writes in place that change only how a tensor looks at its storage
    f"aten::{name}_" for name in ("unsqueeze", "squeeze", "t", "transpose", "as_strided", "detach")
}


def empty(rows: int, columns: int) -> Pattern:
    """Return the pattern of numbers that depend on nothing."""
    return sparse.csr_array((rows, columns), dtype=bool)


def links(to: np.ndarray, start: np.ndarray, shape: tuple[int, int]) -> Pattern:
    """Return the boolean matrix with entries (to, start)."""
    return sparse.csr_array((np.ones(len(to), bool), (to, start)), shape=shape)


def union(*patterns: Pattern | None) -> Pattern | None:
    """Return the entries of all of them; None depends on nothing."""
    total: Pattern | None = None
    for pattern in patterns:
        if pattern is not None:
            total = pattern if total is None else total + pattern
    return total


def spread(rows: Pattern | None, count: int) -> Pattern | None:
    """Return the pattern of so many numbers that each depend on everything the rows hold."""
    if rows is None:
        return None
    reached = np.flatnonzero(np.bincount(rows.indices, minlength=rows.shape[1]))
    pointers = np.arange(count + 1) * len(reached)
    return sparse.csr_array((np.ones(pointers[-1], bool), np.tile(reached, count), pointers), shape=(count, rows.shape[1]))


def numbered(shape: Sequence[int]) -> Tensor:
    """Return the places 0, 1, 2, ... of a tensor of this shape."""
    return torch.arange(int(np.prod(shape))).reshape(tuple(shape))


def tensors(tree: Any) -> list[Tensor]:
    """Return all tensors among arguments or results."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def stored(tensor: Tensor) -> Tensor:
    """Return the tensor itself or, of a sparse one, the tensor of its values."""
    if tensor.layout == torch.strided:
        return tensor
    if tensor.layout == torch._mkldnn:  # type: ignore[attr-defined]  # torch's types leave it out
        raise UserError("detect cannot look into mkldnn tensors; use method='local'")
    return tensor._values() if tensor.layout == torch.sparse_coo else tensor.values()


@dataclass(frozen=True)
class Call:
    """One operation as it happened: its arguments by name, all tensors among them, its outputs, and who knows the patterns."""

    func: Any
    args: dict[str, Any]
    given: list[Tensor]
    outputs: list[Tensor]
    tracer: Tracer

    def rows(self, name: str) -> Pattern | None:
        """Return the pattern of a tensor argument, None where it is missing or depends on nothing."""
        value = self.args.get(name)
        return self.tracer.rows(value) if isinstance(value, Tensor) else None

    def varies(self, tensor: Tensor) -> bool:
        """Whether the values of a tensor are made of x, if only as an index or a condition."""
        return self.tracer.knows(tensor)


Rule = Callable[[Call], list[Pattern | None]]


def as_dense(call: Call) -> list[Pattern | None]:
    """Let every output depend on everything that any input depends on."""
    whole = union(*(spread(call.tracer.rows(t), 1) for t in call.given))
    return [spread(whole, out.numel()) for out in call.outputs]


class Tracer(TorchDispatchMode):
    """Follows index sets through every operation while it is active.

    Patterns belong to storages, one row for each number stored, so that views, writes in place and the copies that
    reverse mode keeps for itself need no rules.  Values made of x without a derivative, indices and conditions among them,
    are known too and have no pattern.  inputs: how many numbers can be depended on.
    """

    def __init__(self, inputs: int, rules: Callable[[Any], Rule | None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.inputs = inputs
        self.rules = rules
        self.unknown: list[str] = []
        self.deciders: list[str] = []  # operations by which values of x decide what follows
        self._stored: dict[int, tuple[int, Pattern | None]] = {}

    def _places(self, tensor: Tensor, stored: int) -> np.ndarray:
        every = torch.arange(stored)
        return every.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).reshape(-1).numpy()

    def knows(self, tensor: Tensor) -> bool:
        """Whether the values of a tensor are made of x."""
        return stored(tensor).untyped_storage()._cdata in self._stored

    def rows(self, tensor: Tensor) -> Pattern | None:
        """Return the pattern of a tensor, (numel, inputs), or None if it depends on nothing."""
        if not self._stored:
            return None
        tensor = stored(tensor)
        size, pattern = self._stored.get(tensor.untyped_storage()._cdata, (0, None))
        if pattern is None:
            return None
        if size != tensor.element_size():  # seen through another dtype: what was stored where is lost
            return spread(pattern, tensor.numel())
        if tensor.numel() == pattern.shape[0] and tensor.is_contiguous() and tensor.storage_offset() == 0:
            return pattern
        return pattern[self._places(tensor, pattern.shape[0])]

    def write(self, tensor: Tensor, pattern: Pattern | None) -> None:
        """Set the pattern of a tensor whose values are made of x; the rest of its storage keeps its own."""
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
            places = self._places(tensor, count)
            pattern = links(places, np.arange(len(places)), (count, len(places))) @ pattern
            if before is not None and size_before != size:  # written through another dtype: what was stored where is lost
                everywhere: Any = spread(before, count)
                pattern = pattern + everywhere
            elif before is not None:
                others = np.setdiff1d(np.arange(count), places)
                pattern = pattern + links(others, others, (count, count)) @ before
        self._stored[key] = (size, pattern)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation, then say what its outputs depend on."""
        schema, leaves = func._schema, tensors((args, kwargs))
        given = [stored(t) for t in leaves]  # before a sparse one is written to, which gives it new values
        result = func(*args, **(kwargs or {}))
        if schema.name in STAYS:
            return result
        named = {a.name: a.default_value for a in schema.arguments}
        named |= dict(zip(named, args, strict=False)) | (kwargs or {})
        if not any(self.knows(t) for t in given):
            return result
        if self._decides(func, named):
            self.deciders.append(str(func))
        returned = tensors(result)
        written = [t for a in schema.arguments if a.is_write for t in tensors(named[a.name])]
        hidden = [t for t in written if not any(t is other for other in returned)]
        outputs = [stored(t) for t in returned + hidden]
        for t in returned:
            if t.layout != torch.strided and not self.knows(t):  # its places may be made of x where its values are not
                self.write(stored(t), None)
        if not schema.is_mutable:  # views share the storage, and with it the pattern
            before = {t.untyped_storage()._cdata for t in given}
            outputs = [out for out in outputs if out.untyped_storage()._cdata not in before]
        if schema.name in NEW and not any(self.knows(out) for out in outputs):
            return result
        numbers = [out for out in outputs if out.is_floating_point() or out.is_complex()]
        for out in outputs:
            if not any(out is number for number in numbers):
                self.write(out, None)
        if not (outputs := numbers):
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
            self.write(out, pattern)
        return result

    def _decides(self, func: Any, args: dict[str, Any]) -> bool:
        """Whether an operation with known arguments tells Python a value, or gives a number of results that depends on one."""
        if func._schema.name in TO_SPARSE:
            return True
        if not any(tag in DECIDES for tag in func.tags):
            return False
        if "indices" in args or "mask" in args:
            masks = [t for t in tensors([args.get("indices"), args.get("mask")]) if t.dtype in MASKS]
            return any(self.knows(mask) for mask in masks)
        return True

    def warn_of_unknown(self) -> None:
        """Name the operations that no rule covers."""
        if self.unknown:
            names = ", ".join(sorted(set(self.unknown)))
            warnings.warn(
                f"no sparsity rule for {names}: every output was taken to depend on every input, so the pattern may"
                " have far more entries than the matrix; detect(..., method='local') finds the entries at one point",
                ReverieWarning,
                stacklevel=3,
            )
