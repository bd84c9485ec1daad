"""Dual numbers a + b e with e² = 0: forward mode that one can look at.

Functions written with operators and torch's elementary functions take dual numbers as they are:
`torch.sin(Dual(2.0, 1.0))` is sin 2 + cos 2 e.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Union

import torch
from torch import Tensor

from reverie.base.errors import UserError

Number = Union[Tensor, "Dual", float]
_levels = itertools.count(1000, 1000)  # of derivatives, far from those of numbers nested by hand


def _as_number(a: Number) -> Tensor | Dual:
    return a if isinstance(a, Tensor | Dual) else torch.tensor(float(a), dtype=torch.float64)


class Dual:
    """value + tangent e.  Both are tensors, or dual numbers again for higher derivatives.

    level tells the e of one derivative from that of another taken inside it: a number of a lower level is a constant to one
    of a higher.  It is by default one above the parts'.
    """

    def __init__(self, value: Number, tangent: Number, level: int | None = None) -> None:
        self.value = _as_number(value)
        self.tangent = _in_shape(_as_number(tangent), _plain(self.value).shape)
        self.level = 1 + max(_level(self.value), _level(self.tangent)) if level is None else level

    def __repr__(self) -> str:
        return f"Dual({_shown(self.value)}, {_shown(self.tangent)})"

    def __add__(self, other: Number) -> Dual:
        return _binary(self, other, lambda a, b: a + b, lambda a, b: (1.0, 1.0))

    def __sub__(self, other: Number) -> Dual:
        return _binary(self, other, lambda a, b: a - b, lambda a, b: (1.0, -1.0))

    def __mul__(self, other: Number) -> Dual:
        return _binary(self, other, lambda a, b: a * b, lambda a, b: (b, a))

    def __truediv__(self, other: Number) -> Dual:
        return _binary(self, other, lambda a, b: a / b, lambda a, b: (1 / b, -a / (b * b)))

    def __pow__(self, other: Number) -> Dual:
        if isinstance(other, Dual):
            return METHODS["exp"](METHODS["log"](self) * other)
        slope = other * self.value ** _one_less(other)  # also where the base is not positive
        return Dual(self.value**other, self.tangent * slope, self.level)

    def __rpow__(self, other: Number) -> Dual:
        return METHODS["exp"](self * _plain(_as_number(other)).log())

    def __radd__(self, other: Number) -> Dual:
        return self + other

    def __rmul__(self, other: Number) -> Dual:
        return self * other

    def __rsub__(self, other: Number) -> Dual:
        return -self + other

    def __rtruediv__(self, other: Number) -> Dual:
        return other * self**-1

    def __neg__(self) -> Dual:
        return Dual(-self.value, -self.tangent, self.level)

    def __getattr__(self, name: str) -> Any:
        if name not in METHODS:
            raise AttributeError(f"dual numbers have no {name!r}; they have {', '.join(sorted(METHODS))} and arithmetic")
        return lambda *args, **kwargs: _called(name, (self, *args), kwargs)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Let torch's functions act on dual numbers."""
        name = func.__name__
        if name in METHODS or name in _ARITHMETIC:
            return _called(name, args, kwargs or {})
        raise UserError(f"dual numbers know {', '.join(sorted(METHODS))} and arithmetic, not torch's {name!r}")


def _called(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if kwargs and name not in LINEAR:
        raise UserError(f"dual numbers know {name!r} without {', '.join(kwargs)}; write it with arithmetic")
    return (METHODS.get(name) or _ARITHMETIC[name])(*args, **kwargs)


def _in_shape(tangent: Tensor | Dual, shape: torch.Size) -> Tensor | Dual:
    """Return the tangent of each number of a value that was broadcast to this shape."""
    if isinstance(tangent, Dual):
        return Dual(_in_shape(tangent.value, shape), _in_shape(tangent.tangent, shape), tangent.level)
    try:
        return tangent.expand(shape)
    except RuntimeError:
        found = tuple(tangent.shape)
        raise UserError(f"a tangent of shape {found} does not fit a value of shape {tuple(shape)}") from None


def _one_less(power: Any) -> Any:
    """Return power - 1, but 0 for 0: the slope of a^0 is 0 at a = 0 too."""
    if isinstance(power, Tensor):
        return torch.where(power == 0, power, power - 1)
    return power - 1 if power else power


def _level(a: Tensor | Dual) -> int:
    return a.level if isinstance(a, Dual) else 0


def _shown(a: Tensor | Dual) -> str:
    return repr(a) if isinstance(a, Dual) or a.numel() > 1 else f"{a.item():.6g}"


def _parts(a: Tensor | Dual, level: int) -> tuple[Any, Any]:
    return (a.value, a.tangent) if isinstance(a, Dual) and a.level == level else (a, None)


def _binary(a: Number, b: Number, value: Callable[..., Any], slopes: Callable[..., Any]) -> Dual:
    left, right = _as_number(a), _as_number(b)
    level = max(_level(left), _level(right))
    (a0, a1), (b0, b1) = _parts(left, level), _parts(right, level)
    da, db = slopes(a0, b0)
    tangents = [slope * t for slope, t in ((da, a1), (db, b1)) if t is not None]
    return Dual(value(a0, b0), sum(tangents[1:], tangents[0]), level)


# Torch's names of arithmetic with a tensor on the left.
_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: b + a, "sub": lambda a, b: -b + a, "mul": lambda a, b: b * a, "div": lambda a, b: a * b**-1,
    "true_divide": lambda a, b: a * b**-1, "__radd__": lambda b, a: a + b, "__rmul__": lambda b, a: a * b,
    "rsub": lambda b, a: a + -b, "__rsub__": lambda b, a: a + -b, "__rdiv__": lambda b, a: a * b**-1,
    "__rpow__": lambda b, a: a**b, "pow": lambda a, b: a**b if isinstance(a, Dual) else b.__rpow__(a),
}  # fmt: skip

# The derivative of each function, written with functions of this table so that it holds for nested dual numbers.
SLOPES: dict[str, Callable[[Any], Any]] = {
    "exp": torch.exp,
    "expm1": torch.exp,
    "log": lambda a: a**-1,
    "log1p": lambda a: (a + 1) ** -1,
    "sqrt": lambda a: 0.5 * torch.sqrt(a) ** -1,
    "sin": torch.cos,
    "cos": lambda a: -torch.sin(a),
    "tan": lambda a: torch.cos(a) ** -2,
    "asin": lambda a: torch.sqrt(1 - a * a) ** -1,
    "acos": lambda a: -(torch.sqrt(1 - a * a) ** -1),
    "atan": lambda a: (1 + a * a) ** -1,
    "sinh": torch.cosh,
    "cosh": torch.sinh,
    "tanh": lambda a: 1 - torch.tanh(a) ** 2,
    "sigmoid": lambda a: torch.sigmoid(a) * (1 - torch.sigmoid(a)),
    "erf": lambda a: 1.1283791670955126 * torch.exp(-a * a),
    "square": lambda a: 2 * a,
    "reciprocal": lambda a: -(a**-2),
    "abs": lambda a: torch.sign(_plain(a)),
    "relu": lambda a: (_plain(a) > 0).to(_plain(a).dtype),
}


def _plain(a: Any) -> Tensor:
    while isinstance(a, Dual):
        a = a.value
    return a  # type: ignore[no-any-return]


def _elementary(name: str) -> Callable[..., Dual]:
    function = getattr(torch, name)
    return lambda a: Dual(function(a.value), SLOPES[name](a.value) * a.tangent, a.level)


def _linear(name: str) -> Callable[..., Dual]:
    function = getattr(torch, name)
    return lambda a, *args, **kwargs: Dual(function(a.value, *args, **kwargs), function(a.tangent, *args, **kwargs), a.level)


LINEAR = ("sum", "mean", "reshape", "flip", "roll")
METHODS: dict[str, Callable[..., Dual]] = {name: _elementary(name) for name in SLOPES}
METHODS |= {name: _linear(name) for name in LINEAR}


def derivative(f: Callable[[Any], Any], x: Number, order: int = 1) -> Any:
    """Return the derivative of f at x, of any order, by nesting dual numbers; f acts on each number of x by itself."""
    if order == 0:
        return f(x)

    def slope(at: Number) -> Any:
        number, level = _as_number(at), next(_levels)  # above the derivatives that are under way
        result = f(Dual(number, torch.ones_like(_plain(number)), level))
        carries = isinstance(result, Dual) and result.level == level
        return result.tangent if carries else torch.zeros_like(_plain(number))

    return derivative(slope, x, order - 1)
