"""The cost of derivatives: floating-point operations, time, and memory over the course of a computation."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry


@dataclass(frozen=True)
class Cost:
    """The cost of a computation.

    flops: floating-point operations, counted by formula for matrix products and convolutions, and as one per output element
    otherwise; seconds: the fastest round; memory: bytes alive after each operation, relative to the start; allocated_bytes: the
    sum of all allocations.
    """

    flops: int
    seconds: float
    memory: tuple[int, ...]
    allocated_bytes: int

    @property
    def peak_bytes(self) -> int:
        """The maximum of the bytes alive at once."""
        return max(self.memory, default=0)


# matrix-vector products, which torch's flop counter omits
_VECTORS: dict[Any, Callable[..., int]] = {
    torch.ops.aten.mv: lambda a, b: 2 * a.numel(),
    torch.ops.aten.addmv: lambda c, a, b: 2 * a.numel() + c.numel(),
    torch.ops.aten.dot: lambda a, b: 2 * a.numel(),
    torch.ops.aten.vdot: lambda a, b: 2 * a.numel(),
}


def _strided_tensors(tree: Any) -> list[Tensor]:
    """Return the strided tensors, which own a storage."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor) and leaf.layout == torch.strided]


class _Meter(TorchDispatchMode):
    """Counts operations and tracks the storages they allocate until they are freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops, self.live, self.allocated = 0, 0, 0
        self.memory: list[int] = []
        self._tracked: set[int] = set()

    def _free(self, key: int, size: int) -> None:
        self._tracked.discard(key)
        self.live -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        input_storages = {t.untyped_storage()._cdata for t in _strided_tensors((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        new = [t for t in _strided_tensors(result) if t.untyped_storage()._cdata not in input_storages]
        count = flop_registry.get(func.overloadpacket)
        if count is not None:
            self.flops += count(*args, **(kwargs or {}), out_val=result)
        elif func.overloadpacket in _VECTORS:
            self.flops += _VECTORS[func.overloadpacket](*args)
        elif new or func._schema.is_mutable:
            self.flops += sum(t.numel() for t in _strided_tensors(result) if t.is_floating_point())
        for t in new:
            storage = t.untyped_storage()
            key, size = storage._cdata, storage.nbytes()
            if key not in self._tracked:
                self._tracked.add(key)
                self.live += size
                self.allocated += size
                weakref.finalize(storage, self._free, key, size)
        if new:
            self.memory.append(self.live)
        return result


def measure(call: Callable[[], Any], rounds: int = 1) -> Cost:
    """Run a computation and return its cost; time is measured in separate rounds, without the bookkeeping.

    With no rounds the computation runs once and has no time (infinity).
    """
    with _Meter() as meter:
        result = call()
        del result
    fastest = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        fastest = min(fastest, time.perf_counter() - start)
    return Cost(meter.flops, fastest, tuple(meter.memory), meter.allocated)


@dataclass(frozen=True)
class Profile:
    """The cost of f and of one product in each mode, with the time of a whole Jacobian."""

    inputs: int
    outputs: int
    value: Cost
    forward: Cost
    reverse: Cost

    @property
    def forward_seconds(self) -> float:
        """Time of a whole Jacobian by forward mode, with one product after the other."""
        return self.inputs * self.forward.seconds

    @property
    def reverse_seconds(self) -> float:
        """Time of a whole Jacobian by reverse mode, with one product after the other."""
        return self.outputs * self.reverse.seconds


def profile(f: Callable[[Tensor], Tensor], x: Tensor, rounds: int = 3) -> Profile:
    """Measure f at x, one J v and one u^T J.  A Jacobian takes n of the former or m of the latter."""
    with torch.no_grad():
        y = f(x)
    v, u = torch.ones_like(x), torch.ones_like(y)

    def backward() -> Any:  # torch.func.vjp keeps saved tensors for another call; this frees them
        start = x.detach().requires_grad_()
        return torch.autograd.grad(f(start), start, u)

    return Profile(
        x.numel(),
        y.numel(),
        measure(lambda: f(x), rounds),
        measure(lambda: torch.func.jvp(f, (x,), (v,)), rounds),
        measure(backward, rounds),
    )
