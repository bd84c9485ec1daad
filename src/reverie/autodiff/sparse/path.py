"""The execution path of a function at a point: a hash of its operations and of the tensors they act on.

A sparsity pattern holds wherever a function performs the same operations on the same tensors.  If values of x decide which
operations follow (an `if`, an index read as a number, a boolean mask), the hash shows whether the pattern still holds.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import torch
from scipy import sparse
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from reverie.base.errors import UserError

SCALARS = ("number", "float")  # types of arguments that affect only values


@dataclass(frozen=True, eq=False)
class ExecutionPath:
    """The point at which a path was recorded, and the operations that depended on values of x."""

    point: Tensor
    value_dependent_ops: tuple[str, ...]


class Detected(sparse.csr_array):
    """A pattern that holds on one execution path, or everywhere if the path is None."""

    path: ExecutionPath | None = None


class ValueReads(TorchFunctionMode):
    """Records `tolist`, which reads the values of a tensor without dispatching an operation."""

    def __init__(self, reads: list[str]) -> None:
        super().__init__()
        self.reads = reads

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.tolist:
            self.reads.append("tolist")
        return func(*args, **(kwargs or {}))


class _PathHasher(TorchDispatchMode):
    """Hashes each operation with the storages, shapes and strides of its tensors.

    Storages are numbered in order of appearance.  Values are not hashed, except for external integers and booleans, which may
    be indices.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.hash = blake2b(digest_size=16)
        self._numbers: dict[int, int] = {}
        self._count = 0

    def _number(self, tensor: Tensor) -> int:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._numbers:
            self._numbers[key] = self._count = self._count + 1
            weakref.finalize(storage, self._numbers.pop, key, None)
        return self._numbers[key]

    def _describe(self, leaf: Any, is_result: bool) -> str:
        """Return a description of an argument, or of a result of this computation, to hash."""
        if not isinstance(leaf, Tensor):
            return "" if isinstance(leaf, float | complex | torch.Generator) else repr(leaf)
        if leaf.layout != torch.strided:
            return f"{leaf.layout} {tuple(leaf.shape)} {leaf._nnz()}"
        external = leaf.untyped_storage()._cdata not in self._numbers and not is_result
        values = ""
        if external and not (leaf.is_floating_point() or leaf.is_complex()):
            values = blake2b(leaf.detach().cpu().contiguous().numpy().tobytes(), digest_size=16).hexdigest()
        return f"{self._number(leaf)} {tuple(leaf.shape)} {leaf.stride()} {leaf.storage_offset()} {leaf.dtype} {values}"

    def add(self, *leaves: Any, is_result: bool = False) -> None:
        """Add leaves to the hash."""
        self.hash.update("|".join(self._describe(leaf, is_result) for leaf in leaves).encode())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | (kwargs or {})
        scalars = {a.name for a in func._schema.arguments if any(s in str(a.type) for s in SCALARS)}
        self.add(str(func), *tree_leaves({name: value for name, value in named.items() if name not in scalars}))
        result = func(*args, **(kwargs or {}))
        self.add(*(leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)), is_result=True)
        return result


def digest(f: Callable[[Tensor], Tensor], x: Tensor) -> str:
    """Return the hash of the execution path of f at x."""
    base = x.detach().clone(memory_format=torch.contiguous_format)
    with torch.no_grad(), _PathHasher() as hasher:
        hasher.add(base)
        hasher.add(f(base))
    return str(hasher.hash.hexdigest())


def check_same_path(pattern: sparse.csr_array, f: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Raise an error if the execution path of f at x differs from that of the pattern.

    x may be a batch of points, all of which must take the same path.
    """
    path = pattern.path if isinstance(pattern, Detected) else None
    if path is None:
        return
    reference = path.point.to(x)
    if digest(f, x) != digest(f, reference.reshape(x.shape) if reference.numel() == x.numel() else reference.expand(x.shape)):
        raise UserError(
            f"this plan was made for another execution path of f: values of x decide ({', '.join(path.value_dependent_ops)})"
            " which operations follow or how many numbers they act on, so entries could be"
            " missing; make a plan for this x with color(detect(f, x)), or write f with torch.where"
        )
