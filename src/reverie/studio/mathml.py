"""LaTeX formulas as MathML, which browsers render natively."""

from __future__ import annotations

from functools import cache


@cache
def mathml(formula: str) -> str:
    """Return a LaTeX formula as display MathML."""
    from latex2mathml.converter import convert

    return str(convert(formula, display="block"))
