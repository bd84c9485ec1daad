"""Second derivatives of scalar functions in the four combinations of modes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap

from reverie.autodiff.modes import MAX_BYTES, MODES, Tensors, as_tuple, chunk_size, jvp, vjp
from reverie.base.errors import UserError, pick

Scalar = Callable[..., Tensor]


def check_scalar(f: Scalar, x: Tensors) -> tuple[Tensor, ...]:
    """Return x as a tuple; raise an error if f(x) is not a scalar."""
    values = as_tuple(x)
    with torch.no_grad():
        shape = tuple(f(*values).shape)
    if shape != ():
        raise UserError(f"a Hessian needs a scalar function, and this one returns the shape {shape}; sum its outputs")
    return values


def _gradient(f: Scalar, x: Tensors) -> Callable[..., Any]:
    return grad(f, argnums=tuple(range(len(x))) if isinstance(x, tuple) else 0)


def bilinear(f: Scalar, x: Tensors, v: Tensors, w: Tensors) -> Tensor:
    """Return w^T H v by forward on forward: the derivative along w of the derivative along v, without a backward pass."""
    check_scalar(f, x)
    value: Tensor = jvp(lambda *at: jvp(f, at, as_tuple(v))[1], x, w)[1]
    return value


def _forward_on_forward(f: Scalar, x: Tensors, v: Tensors) -> Any:
    """Return H v, one entry for each unit vector w: n passes."""
    values = as_tuple(x)

    def along(k: int) -> Tensor:
        zeros = tuple(torch.zeros_like(t) for t in values)
        unit_vectors = torch.eye(values[k].numel(), dtype=values[k].dtype, device=values[k].device)

        def entry(unit: Tensor) -> Tensor:
            w = (*zeros[:k], unit.reshape(values[k].shape), *zeros[k + 1 :])
            curvature: Tensor = jvp(lambda *at: jvp(f, at, as_tuple(v))[1], values, w)[1]
            return curvature

        return vmap(entry)(unit_vectors).reshape(values[k].shape)

    parts = tuple(along(k) for k in range(len(values)))
    return parts if isinstance(x, tuple) else parts[0]


def _forward_on_reverse(f: Scalar, x: Tensors, v: Tensors) -> Any:
    return jvp(_gradient(f, x), x, v)[1]


def _reverse_on_forward(f: Scalar, x: Tensors, v: Tensors) -> Any:
    slope = _gradient(lambda *at: jvp(f, at, as_tuple(v))[1], x)
    return slope(*as_tuple(x))


def _reverse_on_reverse(f: Scalar, x: Tensors, v: Tensors) -> Any:
    return vjp(_gradient(f, x), x, v)[1]


PRODUCTS: dict[str, Callable[[Scalar, Tensors, Tensors], Any]] = {
    "forward-on-reverse": _forward_on_reverse,
    "reverse-on-forward": _reverse_on_forward,
    "reverse-on-reverse": _reverse_on_reverse,
    "forward-on-forward": _forward_on_forward,
}

PASSES = {  # of a product with n entries: forward and backward sweeps
    "forward-on-reverse": "1 forward, 1 backward",
    "reverse-on-forward": "1 forward, 1 backward",
    "reverse-on-reverse": "1 forward, 2 backward",
    "forward-on-forward": "n forward",
}


def hvp(f: Scalar, x: Tensors, v: Tensors, mode: str = "forward-on-reverse") -> Any:
    """Return the Hessian-vector product H v at x, with the structure of x.

    Forward on reverse is the derivative of the gradient along v; reverse on forward the gradient of the derivative along v;
    reverse on reverse the gradient of v . gradient; forward on forward computes one number w^T H v at a time.
    """
    check_scalar(f, x)
    return pick(PRODUCTS, mode, "combination of modes")(f, x, v)


def hessian(f: Scalar, x: Tensors, mode: str = "forward-on-reverse", memory: int = MAX_BYTES) -> Any:
    """Return the Hessian, (*x.shape, *x.shape); for a tuple x a tuple of tuples of blocks.  mode: as for hvp."""
    check_scalar(f, x)
    pick(PRODUCTS, mode, "combination of modes")
    outer, inner = mode.split("-on-")
    chunk = max(1, chunk_size(f, x, memory) // 4)
    slopes = _gradient(f, x)
    if inner == "forward":

        def slopes(*at: Tensor) -> Any:
            return MODES["forward"](f, at if isinstance(x, tuple) else at[0], chunk)

    return MODES[outer](slopes, x, chunk)
