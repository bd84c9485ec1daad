"""The way a function goes at a point: its operations and what they act on, told in one line that can be compared.

A pattern holds wherever a function does the same operations on the same numbers.  Where values of x decide about that, by
an `if`, an index read as a number or a mask that selects more or fewer, only a look at the way tells whether it still holds.
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

SCALARS = ("number", "float")  # types of arguments that act on values and not on what goes where


@dataclass(frozen=True, eq=False)
class Way:
    """The point whose way is meant, and the operations by which values of x decided about it."""

    point: Tensor
    deciders: tuple[str, ...]


class Detected(sparse.csr_array):
    """A pattern that holds where f goes this way, or everywhere if that is None."""

    way: Way | None = None


class Reads(TorchFunctionMode):
    """Notes `tolist`, which reads the values of a tensor without any operation."""

    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.tolist:
            self.found.append("tolist")
        return func(*args, **(kwargs or {}))


class _Walk(TorchDispatchMode):
    """Adds to the hash each operation, the numbers of the tensors it acts on and how they are looked at.

    Storages are numbered as they appear.  Values are left out, but for whole numbers and conditions from outside: they may
    say where.
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

    def told(self, leaf: Any, made: bool) -> str:
        """Return what there is to tell about an argument or, if it was made here, a result."""
        if not isinstance(leaf, Tensor):
            return "" if isinstance(leaf, float | complex | torch.Generator) else repr(leaf)
        if leaf.layout != torch.strided:
            return f"{leaf.layout} {tuple(leaf.shape)} {leaf._nnz()}"
        fresh = leaf.untyped_storage()._cdata not in self._numbers and not made
        values = ""
        if fresh and not (leaf.is_floating_point() or leaf.is_complex()):
            values = blake2b(leaf.detach().cpu().contiguous().numpy().tobytes(), digest_size=16).hexdigest()
        return f"{self._number(leaf)} {tuple(leaf.shape)} {leaf.stride()} {leaf.storage_offset()} {leaf.dtype} {values}"

    def add(self, *leaves: Any, made: bool = False) -> None:
        """Add leaves to the hash."""
        self.hash.update("|".join(self.told(leaf, made) for leaf in leaves).encode())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | (kwargs or {})
        scalars = {a.name for a in func._schema.arguments if any(s in str(a.type) for s in SCALARS)}
        self.add(str(func), *tree_leaves({name: value for name, value in named.items() if name not in scalars}))
        result = func(*args, **(kwargs or {}))
        self.add(*(leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)), made=True)
        return result


def digest(f: Callable[[Tensor], Tensor], x: Tensor) -> str:
    """Return the hash of the way of f at x: equal where f does the same operations on the same numbers."""
    base = x.detach().clone(memory_format=torch.contiguous_format)
    with torch.no_grad(), _Walk() as walk:
        walk.add(base)
        walk.add(f(base))
    return str(walk.hash.hexdigest())


def same_way(pattern: sparse.csr_array, f: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Refuse a pattern if f goes another way at x than at the point where the pattern was found.

    x may be a batch of such points, and then none of them may go another way.
    """
    way = pattern.way if isinstance(pattern, Detected) else None
    if way is None:
        return
    made = way.point.to(x)
    if digest(f, x) != digest(f, made.reshape(x.shape) if made.numel() == x.numel() else made.expand(x.shape)):
        raise UserError(
            f"this plan was made where f goes another way than at this x: values of x decide ({', '.join(way.deciders)})"
            " which operations follow or how many numbers they act on, so entries could be missing; make a plan for this x"
            " with color(detect(f, x)), or write f with torch.where"
        )
