"""Errors and warnings that users see."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import TypeVar

T = TypeVar("T")


class UserError(ValueError):
    """An error that the user can fix; the message is one sentence: what is wrong, where, what to do."""


class ReverieWarning(UserWarning):
    """A warning: the operation works but is probably not what the user intended."""


def unknown(name: str, choices: Iterable[str], what: str) -> UserError:
    """Return the error for a name that is not among the choices; it suggests the closest one."""
    choices = list(choices)
    close = get_close_matches(name.lower(), choices, n=1, cutoff=0.6)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return UserError(f"unknown {what} {name!r}; {hint}choose from: {', '.join(choices)}")


def advice(message: str) -> str:
    """Return what to give instead, from a message of pydantic such as `Input should be less than 1`."""
    limit = message.removeprefix("Input should be ").partition(",")[0]
    if limit == message.partition(",")[0]:
        return message[:1].lower() + message[1:]
    return f"give a value {limit}" if limit.startswith(("less", "greater")) else f"give {limit}"


def pick(table: Mapping[str, T], name: str, what: str) -> T:
    """Return the entry of a table, or raise UserError with the valid names."""
    if name not in table:
        raise unknown(name, table, what)
    return table[name]


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error means out of memory; torch raises RuntimeErrors with texts that depend on the device."""
    message = str(error).lower()
    phrases = ("can't allocate memory", "not enough memory", "out of memory")
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and any(phrase in message for phrase in phrases))
