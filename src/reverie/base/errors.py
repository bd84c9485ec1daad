"""Mistakes a user can mend, said in one sentence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import TypeVar

T = TypeVar("T")


class UserError(ValueError):
    """What was wrong, where, and what to do, in one sentence."""


class ReverieWarning(UserWarning):
    """Something works but is probably not what was meant."""


def unknown(name: str, choices: Iterable[str], what: str) -> UserError:
    """Return the error for a name that is not among the choices, with the closest one if any is close."""
    choices = list(choices)
    close = get_close_matches(name.lower(), choices, n=1, cutoff=0.6)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return UserError(f"unknown {what} {name!r}; {hint}choose from: {', '.join(choices)}")


def pick(table: Mapping[str, T], name: str, what: str) -> T:
    """Look a name up in one of the closed tables."""
    if name not in table:
        raise unknown(name, table, what)
    return table[name]


def out_of_memory(error: BaseException) -> bool:
    """Tell whether an error is that there was not enough memory: torch's own, of any device, is a RuntimeError with words."""
    said = str(error).lower()
    words = ("can't allocate memory", "not enough memory", "out of memory")
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and any(word in said for word in words))
