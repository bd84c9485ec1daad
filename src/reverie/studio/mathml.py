"""Formulas as MathML, which browsers draw without any help."""

from __future__ import annotations

from functools import cache


@cache
def mathml(formula: str) -> str:
    """Return a formula of LaTeX as MathML, to stand on a line of its own."""
    from latex2mathml.converter import convert

    return str(convert(formula, display="block"))
