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

from reverie.errors import ReverieWarning

Pattern = sparse.csr_array  # boolean: (numbers of a tensor, inputs)


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


def numbered(shape: Sequence[int]) -> Tensor:
    """Return the places 0, 1, 2, ... of a tensor of this shape."""
    return torch.arange(int(np.prod(shape))).reshape(tuple(shape))


@dataclass(frozen=True)
class Call:
    """One operation as it happened: its arguments by name, its outputs, and the patterns of its inputs."""

    func: Any
    args: dict[str, Any]
    outputs: list[Tensor]
    tracer: Tracer

    def rows(self, name: str) -> Pattern | None:
        """Return the pattern of a tensor argument, None where it is missing or depends on nothing."""
        value = self.args.get(name)
        return self.tracer.rows(value) if isinstance(value, Tensor) else None

    def tensors(self) -> list[Tensor]:
        """Return all tensors among the arguments."""
        return [leaf for leaf in tree_leaves(self.args) if isinstance(leaf, Tensor)]


Rule = Callable[[Call], list[Pattern | None]]


def as_dense(call: Call) -> list[Pattern | None]:
    """Let every output depend on everything that any input depends on."""
    found = [rows for t in call.tensors() if (rows := call.tracer.rows(t)) is not None]
    reached = np.flatnonzero(np.sum([np.diff(rows.tocsc().indptr) for rows in found], axis=0))
    patterns: list[Pattern | None] = []
    for out in call.outputs:
        pointers = np.arange(out.numel() + 1) * len(reached)
        data = np.ones(pointers[-1], bool)
        shape = (out.numel(), call.tracer.inputs)
        patterns.append(sparse.csr_array((data, np.tile(reached, out.numel()), pointers), shape=shape))
    return patterns


class Tracer(TorchDispatchMode):
    """Follows index sets through every operation while it is active.

    Patterns belong to storages, one row for each number stored, so that views, writes in place and the copies that
    reverse mode keeps for itself need no rules.  inputs: how many numbers can be depended on.
    """

    def __init__(self, inputs: int, rules: Callable[[Any], Rule | None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.inputs = inputs
        self.rules = rules
        self.unknown: list[str] = []
        self._stored: dict[int, tuple[int, Pattern]] = {}

    def _places(self, tensor: Tensor, stored: int) -> np.ndarray:
        every = torch.arange(stored)
        return every.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).reshape(-1).numpy()

    def rows(self, tensor: Tensor) -> Pattern | None:
        """Return the pattern of a tensor, (numel, inputs), or None if it depends on nothing."""
        if tensor.layout != torch.strided or not self._stored:
            return None
        size, pattern = self._stored.get(tensor.untyped_storage()._cdata, (0, None))
        if pattern is None:
            return None
        if size != tensor.element_size():  # seen through another dtype: what was stored where is lost
            reached = pattern.sum(axis=0).astype(bool)
            return sparse.csr_array(np.broadcast_to(reached, (tensor.numel(), self.inputs)))
        if tensor.numel() == pattern.shape[0] and tensor.is_contiguous() and tensor.storage_offset() == 0:
            return pattern
        return pattern[self._places(tensor, pattern.shape[0])]

    def write(self, tensor: Tensor, pattern: Pattern | None) -> None:
        """Set the pattern of a tensor; the rest of its storage keeps its own."""
        storage, size = tensor.untyped_storage(), tensor.element_size()
        key, stored = storage._cdata, storage.nbytes() // size
        known = key in self._stored
        if pattern is None and not known:
            return
        pattern = empty(tensor.numel(), self.inputs) if pattern is None else pattern
        if tensor.numel() != stored or not tensor.is_contiguous():
            places = self._places(tensor, stored)
            before = self._stored[key][1] if known and self._stored[key][0] == size else empty(stored, self.inputs)
            kept = np.ones(stored, bool)
            kept[places] = False
            others = np.flatnonzero(kept)
            pattern = links(places, np.arange(len(places)), (stored, len(places))) @ pattern
            pattern = pattern + links(others, others, (stored, stored)) @ before
        if not known:
            weakref.finalize(storage, self._stored.pop, key, None)
        self._stored[key] = (size, pattern)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation, then say what its outputs depend on."""
        result = func(*args, **(kwargs or {}))
        schema = func._schema
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and leaf.layout == torch.strided]
        before = {t.untyped_storage()._cdata for t in given}
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor) and leaf.layout == torch.strided]
        if not schema.is_mutable:  # views share the storage, and with it the pattern
            outputs = [out for out in outputs if out.untyped_storage()._cdata not in before]
        outputs = [out for out in outputs if out.is_floating_point() or out.is_complex()]
        if not outputs:
            return result
        if all(self.rows(t) is None for t in given):
            patterns: list[Pattern | None] = [None] * len(outputs)
        else:
            named = {a.name: a.default_value for a in schema.arguments}
            named |= dict(zip(named, args, strict=False)) | (kwargs or {})
            rule = self.rules(func)
            if rule is None:
                self.unknown.append(str(func))
            patterns = (rule or as_dense)(Call(func, named, outputs, self))
        for out, pattern in zip(outputs, patterns, strict=True):
            self.write(out, pattern)
        return result

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
