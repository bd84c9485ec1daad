r"""Parser of factorisations such as `p(x, z_{1:T}) = p(x | z_1) p(z_T) prod_{t=2}^T p(z_{t-1} | z_t)`.

The left side is optional; variables behind its bar, such as x in q(z | x) = ..., need no factor.  A single factor is its own
left side.  `prod_{t=a}^b` applies to the next factor.  Indices are integers, letters, or a letter plus or minus an integer; i:j
are the indices from i to j, none if j < i.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from reverie.base.errors import UserError

MAX_VALUE = 1000  # largest value of a letter
FACTOR = re.compile(r"\s*([^\W\d]\w*)\s*\(([^()=]*)\)\s*")
PRODUCT = re.compile(r"\s*prod_\{\s*(\w+)\s*=([^{}]*)\}\s*\^\s*(\{[^{}]*\}|\w+)")
VARIABLE = re.compile(r"([^\W\d]\w*?'*)(?:_(\{[^{}]*\}|[^\W_]+))?")
INDEX = re.compile(r"\s*(\w+)\s*(?:([+-])\s*(\d+)\s*)?")

Numbers = Mapping[str, int]  # values of letters


class Factor(NamedTuple):
    """p(variables | parents)."""

    variables: tuple[str, ...]
    parents: tuple[str, ...]


def read(text: str, numbers: Numbers) -> tuple[Factor | None, list[Factor]]:
    """Return the left side, if there is one, and the factors of the right, with letters replaced by values."""
    if any(not 0 <= n <= MAX_VALUE for n in numbers.values()):
        raise UserError(f"letters of a factorisation must be between 0 and {MAX_VALUE}, got {dict(numbers)}")
    first = FACTOR.match(text)
    if first and text[first.end() : first.end() + 1] == "=":
        return _factor(first[2], numbers), list(_product(text[first.end() + 1 :], numbers))
    factors = list(_product(text, numbers))
    return (factors[0] if len(factors) == 1 else None), factors


def _product(text: str, numbers: Numbers) -> Iterator[Factor]:
    position = 0
    while text[position:].strip():
        product = PRODUCT.match(text, position)
        factor = FACTOR.match(text, product.end() if product else position)
        if factor is None:
            raise UserError(f"invalid factorisation: {text[position:].strip()!r}; write factors such as p(z) p(x | z)")
        letter, indices = (product[1], _span(product[2], product[3].strip("{}"), numbers)) if product else ("", range(1))
        yield from (_factor(factor[2], {**numbers, letter: k}) for k in indices)
        position = factor.end()


def _factor(inside: str, numbers: Numbers) -> Factor:
    before, bar, after = inside.partition("|")
    if not before.strip() or "|" in after:
        raise UserError(f"invalid factor: ({inside}); write p(x) or p(x | y, z)")
    variables, parents = (tuple(_variables(part, numbers)) for part in (before, after if bar else ""))
    return Factor(variables, parents)


def _variables(part: str, numbers: Numbers) -> Iterator[str]:
    for word in filter(None, (word.strip() for word in part.split(","))):
        match = VARIABLE.fullmatch(word)
        if match is None:
            raise UserError(f"invalid variable: {word!r}; write a name, with an index as in x_1 or x_{{t-1}}")
        name, index = match[1], match[2]
        if index is None:
            yield name
        elif not index.startswith("{"):
            yield f"{name}_{numbers.get(index, index)}"
        else:
            first, colon, last = index[1:-1].partition(":")
            for k in _span(first, last, numbers) if colon else (_number(first, numbers),):
                yield f"{name}_{k}"


def _span(first: str, last: str, numbers: Numbers) -> range:
    start, end = _number(first, numbers), _number(last, numbers)
    if end - start > MAX_VALUE:
        raise UserError(f"more than {MAX_VALUE} indices: from {start} to {end}; write fewer")
    return range(start, end + 1)


def _number(index: str, numbers: Numbers) -> int:
    match = INDEX.fullmatch(index)
    if match is None or not (match[1] in numbers or match[1].isdecimal()) or len(index) > 20:
        raise UserError(f"the index {index.strip()!r} has no value; define its letters, such as T=3")
    start = numbers[match[1]] if match[1] in numbers else int(match[1])
    return start + int(f"{match[2]}{match[3]}") if match[2] else start
