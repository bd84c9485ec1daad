"""Forward and reverse mode for functions of one tensor, of several tensors, and of the parameters of a module.

x is a tensor, for f(x), or a tuple of tensors, for f(*x); results have the structure of x.
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
MAX_BYTES = 2**28  # memory for the products of a Jacobian that run at once


def as_tuple(x: Tensors, what: str = "x") -> tuple[Tensor, ...]:
    """Return one or several tensors as a tuple; raise an error for non-float inputs."""
    values = x if isinstance(x, tuple) else (x,)
    for value in values:
        if not isinstance(value, Tensor) or not (value.is_floating_point() or value.is_complex()):
            kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
            raise UserError(f"{what} must be a tensor of floating-point numbers or a tuple of them, got {kind}")
    return values


def _check_like(x: Tensors, v: Tensors, what: str) -> tuple[Tensor, ...]:
    tensors, expected = as_tuple(v, what), as_tuple(x)
    shapes = [tuple(t.shape) for t in tensors], [tuple(t.shape) for t in expected]
    if shapes[0] != shapes[1]:
        raise UserError(f"{what} must have the shapes {shapes[1]}, got {shapes[0]}")
    return tensors


def jvp(f: Callable[..., Any], x: Tensors, v: Tensors) -> tuple[Any, Any]:
    """Return f(x) and the product J v by forward mode.  v: same structure as x."""
    result: Any = torch.func.jvp(f, as_tuple(x), _check_like(x, v, "v"))
    return result[0], result[1]


def vjp(f: Callable[..., Any], x: Tensors, u: Any) -> tuple[Any, Any]:
    """Return f(x) and the product u^T J by reverse mode.  u: same structure as f(x)."""
    result: Any = torch.func.vjp(f, *as_tuple(x))
    value, pull = result[0], result[1]
    if isinstance(value, Tensor):
        _check_like(value, u, "u")
    product = pull(u)
    return value, product if isinstance(x, tuple) else product[0]


def chunk_size(f: Callable[..., Any], x: Tensors, memory: int) -> int:
    """Return the number of products that fit in `memory` bytes, from the allocations of one evaluation."""
    allocated = measure(lambda: f(*as_tuple(x)), rounds=0).allocated_bytes
    return max(1, memory // max(1, 2 * allocated))


def _forward(f: Callable[..., Any], x: Tensors, chunk: int) -> Any:
    """Push unit vectors forward in chunks, which torch.func.jacfwd does not support."""
    values = as_tuple(x)

    def columns(k: int) -> Any:
        def push(unit: Tensor) -> Any:
            along = tuple(unit if i == k else torch.zeros_like(v) for i, v in enumerate(values))
            return torch.func.jvp(f, values, along)[1]

        at = values[k]
        unit_vectors = torch.eye(at.numel(), dtype=at.dtype, device=at.device).reshape(-1, *at.shape)
        pushed = vmap(push, out_dims=-1, chunk_size=chunk)(unit_vectors)
        return tree_map(lambda y: y.reshape(*y.shape[:-1], *at.shape), pushed)

    parts = [columns(k) for k in range(len(values))]
    return tree_map(lambda *parts: parts, *parts) if isinstance(x, tuple) else parts[0]


def _reverse(f: Callable[..., Any], x: Tensors, chunk: int) -> Any:
    several = tuple(range(len(x))) if isinstance(x, tuple) else 0
    return torch.func.jacrev(f, argnums=several, chunk_size=chunk)(*as_tuple(x))


MODES: dict[str, Callable[[Callable[..., Any], Tensors, int], Any]] = {"forward": _forward, "reverse": _reverse}


def jacobian(f: Callable[..., Any], x: Tensors, mode: str = "auto", memory: int = MAX_BYTES) -> Any:
    """Return the Jacobian, (*f(x).shape, *x.shape); for a tuple x a tuple of Jacobians.

    Forward mode takes n products for n inputs, reverse mode m products for m outputs; "auto" chooses the smaller number.  As
    many products run at once as fit in `memory` bytes.
    """
    values = as_tuple(x)
    if not all(value.numel() for value in values):
        raise UserError("x must not be empty to have a Jacobian")
    if mode == "auto":
        with torch.no_grad():
            outputs = sum(y.numel() for y in tree_leaves(f(*values)))
        mode = "forward" if sum(v.numel() for v in values) <= outputs else "reverse"
    return pick(MODES, mode, "mode")(f, x, chunk_size(f, x, memory))


def functionalize(module: nn.Module, *inputs: Any) -> tuple[Callable[..., Any], tuple[Tensor, ...]]:
    """Return a module at fixed inputs as a function of its parameters, and these: `jacobian(*functionalize(net, x))`."""
    parameters = {name: p.detach() for name, p in module.named_parameters()}
    if not parameters:
        raise UserError(f"a {type(module).__name__} has no parameters to differentiate")
    names, values = tuple(parameters), tuple(parameters.values())
    return lambda *tensors: functional_call(module, dict(zip(names, tensors, strict=True)), inputs), values
