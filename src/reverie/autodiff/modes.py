"""Forward and reverse mode for functions of one tensor, of several, and of a module's parameters.

Everywhere x is a tensor, and f(x) is differentiated, or a tuple of tensors, and f(*x) is; results have the form of x.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils._pytree import tree_leaves, tree_map

from reverie.autodiff.profile import measure
from reverie.base.errors import UserError, pick

Tensors = Tensor | tuple[Tensor, ...]
MEMORY = 2**28  # bytes that the products of a Jacobian which run at once may take


def as_tuple(x: Tensors, what: str = "x") -> tuple[Tensor, ...]:
    """Return one or several tensors as a tuple; refuse anything that has no derivatives."""
    values = x if isinstance(x, tuple) else (x,)
    for value in values:
        if not isinstance(value, Tensor) or not (value.is_floating_point() or value.is_complex()):
            kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
            raise UserError(f"{what} must be a tensor of floating-point numbers or a tuple of them, got {kind}")
    return values


def _alike(x: Tensors, v: Tensors, what: str) -> tuple[Tensor, ...]:
    given, wanted = as_tuple(v, what), as_tuple(x)
    shapes = [tuple(t.shape) for t in given], [tuple(t.shape) for t in wanted]
    if shapes[0] != shapes[1]:
        raise UserError(f"{what} must have the shapes {shapes[1]}, got {shapes[0]}")
    return given


def jvp(f: Callable[..., Any], x: Tensors, v: Tensors) -> tuple[Any, Any]:
    """Return f(x) and J v, the derivative of f along v, by forward mode.  v: in the form of x."""
    found: Any = torch.func.jvp(f, as_tuple(x), _alike(x, v, "v"))
    return found[0], found[1]


def vjp(f: Callable[..., Any], x: Tensors, u: Any) -> tuple[Any, Any]:
    """Return f(x) and u^T J in the form of x, by reverse mode.  u: in the form of f(x)."""
    found: Any = torch.func.vjp(f, *as_tuple(x))
    value, pull = found[0], found[1]
    if isinstance(value, Tensor):
        _alike(value, u, "u")
    product = pull(u)
    return value, product if isinstance(x, tuple) else product[0]


def chunk_for(f: Callable[..., Any], x: Tensors, memory: int) -> int:
    """Return how many products fit in this many bytes, judged by all that one evaluation allocates, values and tangents."""
    allocated = measure(lambda: f(*as_tuple(x)), rounds=0).allocated_bytes
    return max(1, memory // max(1, 2 * allocated))


def _forward(f: Callable[..., Any], x: Tensors, chunk: int) -> Any:
    """Push unit vectors through, a chunk at a time, which torch.func.jacfwd cannot."""
    values = as_tuple(x)

    def columns(k: int) -> Any:
        def push(unit: Tensor) -> Any:
            along = tuple(unit if i == k else torch.zeros_like(v) for i, v in enumerate(values))
            return torch.func.jvp(f, values, along)[1]

        at = values[k]
        units = torch.eye(at.numel(), dtype=at.dtype, device=at.device).reshape(-1, *at.shape)
        pushed = vmap(push, out_dims=-1, chunk_size=chunk)(units)
        return tree_map(lambda y: y.reshape(*y.shape[:-1], *at.shape), pushed)

    parts = [columns(k) for k in range(len(values))]
    return tree_map(lambda *each: each, *parts) if isinstance(x, tuple) else parts[0]


def _reverse(f: Callable[..., Any], x: Tensors, chunk: int) -> Any:
    several = tuple(range(len(x))) if isinstance(x, tuple) else 0
    return torch.func.jacrev(f, argnums=several, chunk_size=chunk)(*as_tuple(x))


MODES: dict[str, Callable[[Callable[..., Any], Tensors, int], Any]] = {"forward": _forward, "reverse": _reverse}


def jacobian(f: Callable[..., Any], x: Tensors, mode: str = "auto", memory: int = MEMORY) -> Any:
    """Return the Jacobian, (*f(x).shape, *x.shape); for several x a tuple of them.

    Forward mode takes a product for each of the n inputs, reverse mode one for each of the m outputs: "auto" takes the
    fewer, forward if they are equal.  As many products run at once as fit in `memory` bytes.
    """
    values = as_tuple(x)
    if not all(value.numel() for value in values):
        raise UserError("there is no Jacobian in an x of no numbers")
    if mode == "auto":
        with torch.no_grad():
            outputs = sum(y.numel() for y in tree_leaves(f(*values)))
        mode = "forward" if sum(v.numel() for v in values) <= outputs else "reverse"
    return pick(MODES, mode, "mode")(f, x, chunk_for(f, x, memory))


def of_parameters(module: nn.Module, *inputs: Any) -> tuple[Callable[..., Any], tuple[Tensor, ...]]:
    """Return a module at fixed inputs as a function of its parameters, and these: `jacobian(*of_parameters(net, x))`."""
    parameters = {name: p.detach() for name, p in module.named_parameters()}
    if not parameters:
        raise UserError(f"a {type(module).__name__} has no parameters to differentiate in")
    names, values = tuple(parameters), tuple(parameters.values())
    return lambda *given: functional_call(module, dict(zip(names, given, strict=True)), inputs), values
