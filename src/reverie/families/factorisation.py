r"""Factorisations as text: `p(x, z_{1:T}) = p(x | z_1) p(z_T) prod_{t=2}^T p(z_{t-1} | z_t)`, read factor by factor.

The left side may be left out; what is given there, as x of q(z | x) = ..., needs no factor.  A factor that stands alone is
its own left side.  `prod_{t=a}^b` goes with the factor after it.  Indices are whole numbers, letters, and either plus or
minus a whole number; i:j are the indices from i to j, none where j < i.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from reverie.base.errors import UserError

MOST = 1000  # that a letter may count up to
FACTOR = re.compile(r"\s*([^\W\d]\w*)\s*\(([^()=]*)\)\s*")
PRODUCT = re.compile(r"\s*prod_\{\s*(\w+)\s*=([^{}]*)\}\s*\^\s*(\{[^{}]*\}|\w+)")
VARIABLE = re.compile(r"([^\W\d]\w*?'*)(?:_(\{[^{}]*\}|[^\W_]+))?")
INDEX = re.compile(r"\s*(\w+)\s*(?:([+-])\s*(\d+)\s*)?")

Numbers = Mapping[str, int]  # what letters stand for


class Factor(NamedTuple):
    """p(variables | parents)."""

    variables: tuple[str, ...]
    parents: tuple[str, ...]


def read(text: str, numbers: Numbers) -> tuple[Factor | None, list[Factor]]:
    """Return the left side, where there is one, and the factors of the right, with letters replaced by their numbers."""
    if any(not 0 <= n <= MOST for n in numbers.values()):
        raise UserError(f"the letters of a factorisation count up to at most {MOST}, got {dict(numbers)}")
    first = FACTOR.match(text)
    if first and text[first.end() : first.end() + 1] == "=":
        return _factor(first[2], numbers), list(_product(text[first.end() + 1 :], numbers))
    factors = list(_product(text, numbers))
    return (factors[0] if len(factors) == 1 else None), factors


def _product(text: str, numbers: Numbers) -> Iterator[Factor]:
    at = 0
    while text[at:].strip():
        many = PRODUCT.match(text, at)
        factor = FACTOR.match(text, many.end() if many else at)
        if factor is None:
            raise UserError(f"cannot read {text[at:].strip()!r} as a factorisation; write factors such as p(z) p(x | z)")
        letter, span = (many[1], _span(many[2], many[3].strip("{}"), numbers)) if many else ("", range(1))
        yield from (_factor(factor[2], {**numbers, letter: k}) for k in span)
        at = factor.end()


def _factor(inside: str, numbers: Numbers) -> Factor:
    before, bar, after = inside.partition("|")
    if not before.strip() or "|" in after:
        raise UserError(f"cannot read the factor ({inside}); write it as p(x) or as p(x | y, z)")
    variables, parents = (tuple(_variables(part, numbers)) for part in (before, after if bar else ""))
    return Factor(variables, parents)


def _variables(part: str, numbers: Numbers) -> Iterator[str]:
    for word in filter(None, (word.strip() for word in part.split(","))):
        found = VARIABLE.fullmatch(word)
        if found is None:
            raise UserError(f"cannot read {word!r} as a variable; write a name, with an index as in x_1 or x_{{t-1}}")
        name, index = found[1], found[2]
        if index is None:
            yield name
        elif not index.startswith("{"):
            yield f"{name}_{numbers.get(index, index)}"
        else:
            first, several, last = index[1:-1].partition(":")
            for k in _span(first, last, numbers) if several else (_number(first, numbers),):
                yield f"{name}_{k}"


def _span(first: str, last: str, numbers: Numbers) -> range:
    start, end = _number(first, numbers), _number(last, numbers)
    if end - start > MOST:
        raise UserError(f"the indices from {start} to {end} are more than {MOST}; write fewer")
    return range(start, end + 1)


def _number(index: str, numbers: Numbers) -> int:
    found = INDEX.fullmatch(index)
    if found is None or not (found[1] in numbers or found[1].isdecimal()) or len(index) > 20:
        raise UserError(f"the index {index.strip()!r} has no number; say what its letters stand for, such as T=3")
    start = numbers[found[1]] if found[1] in numbers else int(found[1])
    return start + int(f"{found[2]}{found[3]}") if found[2] else start
