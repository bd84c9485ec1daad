"""Dual numbers a + b e with e² = 0: forward mode with explicit tangents.

Functions of operators and torch's elementary functions accept dual numbers: `torch.sin(Dual(2.0, 1.0))` is sin 2 + cos 2 e.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from functools import partial
from typing import Any, Union

import torch
from torch import Tensor

from reverie.base.errors import UserError

Number = Union[Tensor, "Dual", float]
_levels = itertools.count(1000, 1000)  # levels of `derivative`, above those of manually nested numbers


def _as_number(a: Number) -> Tensor | Dual:
    return a if isinstance(a, Tensor | Dual) else torch.tensor(float(a), dtype=torch.float64)


class Dual:
    """value + tangent e.  Both are tensors, or dual numbers for higher derivatives.

    level distinguishes the e of nested derivatives: a number of a lower level is a constant at a higher level.  It defaults to
    one above the levels of the parts.
    """

    def __init__(self, value: Number, tangent: Number, level: int | None = None) -> None:
        self.value = _as_number(value)
        self.tangent = _expand_tangent(_as_number(tangent), _primal(self.value).shape)
        self.level = 1 + max(_level(self.value), _level(self.tangent)) if level is None else level

    def __repr__(self) -> str:
        return f"Dual({_format(self.value)}, {_format(self.tangent)})"

    def __add__(self, other: Number) -> Dual:
        return _binary(self, other, lambda a, b: a + b, lambda a, b: (1.0, 1.0))

    def __sub__(self, other: Number) -> Dual:
        return _binary(self, other, lambda a, b: a - b, lambda a, b: (1.0, -1.0))

    def __mul__(self, other: Number) -> Dual:
        return _product(self, other, lambda a, b: a * b)

    def __truediv__(self, other: Number) -> Dual:
        return _binary(self, other, lambda a, b: a / b, lambda a, b: (1 / b, -a / (b * b)))

    def __matmul__(self, other: Number) -> Dual:
        return _product(self, other, torch.matmul)

    def __rmatmul__(self, other: Number) -> Dual:
        return _product(other, self, torch.matmul)

    def __pow__(self, other: Number) -> Dual:
        return _power(self, other)

    def __rpow__(self, other: Number) -> Dual:
        return _power(other, self)

    def __lt__(self, other: Number) -> Any:
        return _primal(self) < _primal(other)

    def __le__(self, other: Number) -> Any:
        return _primal(self) <= _primal(other)

    def __gt__(self, other: Number) -> Any:
        return _primal(self) > _primal(other)

    def __ge__(self, other: Number) -> Any:
        return _primal(self) >= _primal(other)

    def __eq__(self, other: object) -> Any:
        return _primal(self) == _primal(other)

    def __ne__(self, other: object) -> Any:
        return _primal(self) != _primal(other)

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        return bool(_primal(self))

    def __len__(self) -> int:
        return len(_primal(self))

    def __getitem__(self, where: Any) -> Dual:
        if any(isinstance(w, Dual) for w in (where if isinstance(where, tuple) else (where,))):
            raise UserError("a dual number cannot be an index; use integers, slices or boolean masks")
        return Dual(self.value[where], self.tangent[where], self.level)

    @property
    def shape(self) -> torch.Size:
        """The shape of the value."""
        shape: torch.Size = _primal(self).shape
        return shape

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
            raise AttributeError(f"dual numbers have no {name!r}; they support {', '.join(sorted(METHODS))} and arithmetic")
        return lambda *args, **kwargs: _dispatch(name, (self, *args), kwargs)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Apply a torch function to dual numbers."""
        name = func.__name__
        if name in METHODS or name in _ARITHMETIC:
            return _dispatch(name, args, kwargs or {})
        raise UserError(f"dual numbers support {', '.join(sorted(METHODS))} and arithmetic, not torch's {name!r}")


def _dispatch(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if kwargs and name not in LINEAR:
        raise UserError(f"dual numbers support {name!r} without {', '.join(kwargs)}; write it with arithmetic")
    return (METHODS.get(name) or _ARITHMETIC[name])(*args, **kwargs)


def _expand_tangent(tangent: Tensor | Dual, shape: torch.Size) -> Tensor | Dual:
    """Return the tangent, expanded to the shape of a broadcast value."""
    if isinstance(tangent, Dual):
        return Dual(_expand_tangent(tangent.value, shape), _expand_tangent(tangent.tangent, shape), tangent.level)
    try:
        return tangent.expand(shape)
    except RuntimeError:
        actual = tuple(tangent.shape)
        raise UserError(f"a tangent of shape {actual} cannot be broadcast to a value of shape {tuple(shape)}") from None


def _decrement(power: Any) -> Any:
    """Return power - 1, but 0 for a constant power 0: the derivative of a^0 is 0 at a = 0 as well."""
    return torch.where(power == 0, power, power - 1) if isinstance(power, Tensor) else power - 1


def _level(a: Tensor | Dual) -> int:
    return a.level if isinstance(a, Dual) else 0


def _format(a: Tensor | Dual) -> str:
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


def _product(a: Number, b: Number, multiply: Callable[[Any, Any], Any]) -> Dual:
    """Return a bilinear product: multiply(a, b) + (multiply(da, b) + multiply(a, db)) e."""
    left, right = _as_number(a), _as_number(b)
    level = max(_level(left), _level(right))
    (a0, a1), (b0, b1) = _parts(left, level), _parts(right, level)
    tangents = [multiply(*pair) for pair in ((a1, b0), (a0, b1)) if pair[0] is not None and pair[1] is not None]
    return Dual(multiply(a0, b0), sum(tangents[1:], tangents[0]), level)


def _where(condition: Tensor, a: Number, b: Number) -> Any:
    """Return a where the condition holds, else b."""
    left, right = _as_number(a), _as_number(b)
    level = max(_level(left), _level(right))
    if not level:
        return torch.where(condition, left, right)  # type: ignore[arg-type]
    (a0, a1), (b0, b1) = _parts(left, level), _parts(right, level)
    zero = torch.zeros((), dtype=_primal(left).dtype, device=_primal(left).device)
    tangent = _where(condition, zero if a1 is None else a1, zero if b1 is None else b1)
    return Dual(_where(condition, a0, b0), tangent, level)


def _is_zero(a: Any) -> Tensor:
    """Return a mask of where a number and all its tangents are zero."""
    return _is_zero(a.value) & _is_zero(a.tangent) if isinstance(a, Dual) else a == 0


def _power(a: Number, b: Number) -> Dual:
    """Return a^b with the tangent b a^(b-1) da + a^b log(a) db.

    The second term is omitted where db is zero, so that a negative base may have an integer exponent, and at a = 0, where its
    limit is zero.  Elsewhere a negative base has no derivative in b, and the tangent is NaN.
    """
    left, right = _as_number(a), _as_number(b)
    level = max(_level(left), _level(right))
    (a0, a1), (b0, b1) = _parts(left, level), _parts(right, level)
    value, tangents = a0**b0, []
    if a1 is not None:
        tangents.append(b0 * a0 ** _decrement(b0) * a1)
    if b1 is not None:
        excluded = _is_zero(b1) | ((_primal(a0) == 0) & (_primal(b0) >= 0))
        tangents.append(value * torch.log(_where(excluded, 1.0, a0)) * b1)
    return Dual(value, sum(tangents[1:], tangents[0]), level)


def _compare(compare: Callable[[Any, Any], Any], a: Number, b: Number) -> Any:
    """Compare the values, without tangents."""
    return compare(_primal(a), _primal(b))


_COMPARISONS = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)

# torch's names for arithmetic with a tensor on the left
_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: b + a, "sub": lambda a, b: -b + a, "mul": lambda a, b: b * a, "div": lambda a, b: a * b**-1,
    "true_divide": lambda a, b: a * b**-1, "__radd__": lambda b, a: a + b, "__rmul__": lambda b, a: a * b,
    "rsub": lambda b, a: a + -b, "__rsub__": lambda b, a: a + -b, "__rdiv__": lambda b, a: a * b**-1,
    "__rpow__": lambda b, a: a**b, "pow": lambda a, b: _power(a, b), "where": lambda c, a, b: _where(c, a, b),
    **{name: lambda a, b: _product(a, b, torch.matmul) for name in ("matmul", "__matmul__", "mm", "mv", "dot", "bmm")},
    "__rmatmul__": lambda b, a: _product(a, b, torch.matmul),
    **{compare.__name__: partial(_compare, compare) for compare in _COMPARISONS},
}  # fmt: skip

# the derivative of each function, in terms of functions of this table, so that it holds for nested dual numbers
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
    "abs": lambda a: torch.sign(_primal(a)),
    "relu": lambda a: (_primal(a) > 0).to(_primal(a).dtype),
}


def _primal(a: Any) -> Any:
    while isinstance(a, Dual):
        a = a.value
    return a


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
    """Return the derivative of an elementwise f at x, of any order, by nested dual numbers."""
    if order == 0:
        return f(x)

    def slope(at: Number) -> Any:
        number, level = _as_number(at), next(_levels)  # above the levels of enclosing derivatives
        result = f(Dual(number, torch.ones_like(_primal(number)), level))
        depends_on_x = isinstance(result, Dual) and result.level == level
        return result.tangent if depends_on_x else torch.zeros_like(_primal(number))

    return derivative(slope, x, order - 1)


def second_derivative(f: Callable[[Any], Any], x: Tensor, v: Tensor, w: Tensor) -> Dual:
    """Return f at Dual(Dual(x | w) | Dual(v | 0)), for an f of several numbers: forward on forward with dual numbers.

    It is Dual(Dual(f | Df[w]) | Dual(Df[v] | w^T H v)), for unit vectors v = e_i and w = e_j an entry of the Hessian.
    x, v, w: (n,) or any one shape.
    """
    inner, outer = next(_levels), next(_levels)
    result = f(Dual(Dual(x, w, inner), Dual(v, torch.zeros_like(x), inner), outer))

    def as_dual(part: Any) -> Dual:  # restores the zero tangent of a constant
        return part if isinstance(part, Dual) else Dual(part, torch.zeros_like(part), inner)

    value, tangent = _parts(_as_number(result), outer)
    return Dual(as_dual(value), as_dual(torch.zeros_like(_primal(value)) if tangent is None else tangent), outer)
