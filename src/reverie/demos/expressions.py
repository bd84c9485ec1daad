"""Functions of x that users type: parsed and evaluated node by node, never executed as Python."""

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
MAX_DEPTH, MAX_CONSTANT = 40, 1e6


def parse_function(text: str) -> Callable[[Tensor], Tensor]:
    """Return the function that an expression like `sin(x) * x^2` defines; raise UserError for anything else."""
    try:
        tree = ast.parse(text.replace("^", "**").strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UserError(f"cannot parse {text!r}; write a function of x like sin(x) * x^2") from None
    _check(tree, 0)

    def f(x: Tensor) -> Tensor:
        try:
            value = _evaluate(tree, x)
        except (OverflowError, ZeroDivisionError, ValueError):
            raise UserError(f"cannot evaluate {text!r}: overflow, division by 0 or a root of a negative constant") from None
        return value if isinstance(value, Tensor) else x * 0 + float(value)

    return f


def _check(node: ast.AST, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise UserError(f"the function is nested more than {MAX_DEPTH} levels deep; simplify it")
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool) and abs(number) <= MAX_CONSTANT:
            children: list[ast.AST] = []
        case ast.Name(id=name) if name == "x" or name in CONSTANTS:
            children = []
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATIONS:
            children = [left, right]
        case ast.UnaryOp(op=op, operand=operand) if type(op) in OPERATIONS:
            children = [operand]
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in FUNCTIONS:
            children = [argument]
        case _:
            part = ast.unparse(node)[:40]
            raise UserError(f"cannot parse {part!r}; use x, numbers, + - * / ^, pi, e and {', '.join(FUNCTIONS)}")
    for child in children:
        _check(child, depth + 1)


def _evaluate(node: ast.AST, x: Tensor) -> Tensor | float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.Name(id=name):
            return x if name == "x" else CONSTANTS[name]
        case ast.BinOp(left=left, op=op, right=right):
            value = OPERATIONS[type(op)](_evaluate(left, x), _evaluate(right, x))
            if isinstance(value, complex):
                raise ValueError("a root of a negative number")
            return value  # type: ignore[no-any-return]  # of a Tensor or float
        case ast.UnaryOp(op=op, operand=operand):
            return OPERATIONS[type(op)](_evaluate(operand, x))  # type: ignore[no-any-return]
        case ast.Call(func=ast.Name(id=name), args=[argument]):
            value = _evaluate(argument, x)
            return FUNCTIONS[name](value if isinstance(value, Tensor) else torch.as_tensor(value, dtype=x.dtype))
    raise AssertionError("checked by _check")
