"""A function of x as a person types it, read without ever running what was typed."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from reverie.base.errors import UserError

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sin": torch.sin, "cos": torch.cos, "tan": torch.tan, "exp": torch.exp, "log": torch.log, "sqrt": torch.sqrt,
    "tanh": torch.tanh, "sigmoid": torch.sigmoid, "relu": torch.relu, "abs": torch.abs, "atan": torch.atan, "erf": torch.erf,
}  # fmt: skip
CONSTANTS = {"pi": math.pi, "e": math.e}
OPERATIONS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv, ast.Pow: operator.pow,
    ast.USub: operator.neg, ast.UAdd: operator.pos,
}  # fmt: skip
DEEPEST, LARGEST = 40, 1e6


def function(text: str) -> Callable[[Tensor], Tensor]:
    """Return the function that a text like `sin(x) * x^2` writes; refuse everything that is no such formula."""
    try:
        tree = ast.parse(text.replace("^", "**").strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UserError(f"cannot read {text!r}; write a function of x like sin(x) * x^2") from None
    _check(tree, 0)

    def f(x: Tensor) -> Tensor:
        try:
            found = _value(tree, x)
        except (OverflowError, ZeroDivisionError, ValueError):
            raise UserError(f"the numbers in {text!r} are too large, or it divides by 0") from None
        return found if isinstance(found, Tensor) else x * 0 + float(found)

    return f


def _check(node: ast.AST, depth: int) -> None:
    if depth > DEEPEST:
        raise UserError(f"this function is nested more than {DEEPEST} deep")
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool) and abs(number) <= LARGEST:
            inner: list[ast.AST] = []
        case ast.Name(id=name) if name == "x" or name in CONSTANTS:
            inner = []
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATIONS:
            inner = [left, right]
        case ast.UnaryOp(op=op, operand=operand) if type(op) in OPERATIONS:
            inner = [operand]
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in FUNCTIONS:
            inner = [argument]
        case _:
            said = ast.unparse(node)[:40]
            raise UserError(f"cannot read {said!r}; use x, numbers, + - * / ^, pi, e and {', '.join(FUNCTIONS)}")
    for part in inner:
        _check(part, depth + 1)


def _value(node: ast.AST, x: Tensor) -> Tensor | float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.Name(id=name):
            return x if name == "x" else CONSTANTS[name]
        case ast.BinOp(left=left, op=op, right=right):
            found = OPERATIONS[type(op)](_value(left, x), _value(right, x))
            if isinstance(found, complex):
                raise ValueError("a root of a negative number")
            return found  # type: ignore[no-any-return]  # of a Tensor or float
        case ast.UnaryOp(op=op, operand=operand):
            return OPERATIONS[type(op)](_value(operand, x))  # type: ignore[no-any-return]
        case ast.Call(func=ast.Name(id=name), args=[argument]):
            inner = _value(argument, x)
            return FUNCTIONS[name](inner if isinstance(inner, Tensor) else torch.as_tensor(inner, dtype=x.dtype))
    raise AssertionError("checked before")
