"""Second derivatives in the four combinations of modes.  f gives one number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap

from reverie.autodiff.modes import MEMORY, MODES, Tensors, as_tuple, chunk_for, jvp, vjp
from reverie.base.errors import UserError, pick

Scalar = Callable[..., Tensor]


def of_one_number(f: Scalar, x: Tensors) -> tuple[Tensor, ...]:
    """Return x as a tuple; refuse a function that gives more than one number."""
    values = as_tuple(x)
    with torch.no_grad():
        shape = tuple(f(*values).shape)
    if shape != ():
        raise UserError(f"a Hessian is of a function that gives one number, and this one gives shape {shape}; sum it up")
    return values


def _gradient(f: Scalar, x: Tensors) -> Callable[..., Any]:
    return grad(f, argnums=tuple(range(len(x))) if isinstance(x, tuple) else 0)


def bilinear(f: Scalar, x: Tensors, v: Tensors, w: Tensors) -> Tensor:
    """Return w^T H v by forward on forward: the derivative along w of the derivative along v.  No pass backward."""
    of_one_number(f, x)
    value: Tensor = jvp(lambda *at: jvp(f, at, as_tuple(v))[1], x, w)[1]
    return value


def _forward_on_forward(f: Scalar, x: Tensors, v: Tensors) -> Any:
    """One number for each unit vector w: n passes."""
    values = as_tuple(x)

    def along(k: int) -> Tensor:
        zeros = tuple(torch.zeros_like(t) for t in values)
        units = torch.eye(values[k].numel(), dtype=values[k].dtype, device=values[k].device)

        def entry(unit: Tensor) -> Tensor:
            w = (*zeros[:k], unit.reshape(values[k].shape), *zeros[k + 1 :])
            found: Tensor = jvp(lambda *at: jvp(f, at, as_tuple(v))[1], values, w)[1]
            return found

        return vmap(entry)(units).reshape(values[k].shape)

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

PASSES = {  # of one product of n numbers: forward and backward sweeps over the computation
    "forward-on-reverse": "1 forward, 1 backward",
    "reverse-on-forward": "1 forward, 1 backward",
    "reverse-on-reverse": "1 forward, 2 backward",
    "forward-on-forward": "n forward",
}


def hvp(f: Scalar, x: Tensors, v: Tensors, mode: str = "forward-on-reverse") -> Any:
    """Return the product H v of the Hessian at x, in the form of x.

    Forward on reverse is the derivative of the gradient along v; reverse on forward the gradient of the derivative along v;
    reverse on reverse the gradient of v . gradient; forward on forward gives one number w^T H v at a time.
    """
    of_one_number(f, x)
    return pick(PRODUCTS, mode, "combination of modes")(f, x, v)


def hessian(f: Scalar, x: Tensors, mode: str = "forward-on-reverse", memory: int = MEMORY) -> Any:
    """Return the Hessian, (*x.shape, *x.shape); for several x a tuple of tuples of blocks.  mode: as for hvp."""
    of_one_number(f, x)
    pick(PRODUCTS, mode, "combination of modes")
    outer, inner = mode.split("-on-")
    chunk = max(1, chunk_for(f, x, memory) // 4)
    slopes = _gradient(f, x)
    if inner == "forward":

        def slopes(*at: Tensor) -> Any:
            return MODES["forward"](f, at if isinstance(x, tuple) else at[0], chunk)

    return MODES[outer](slopes, x, chunk)
