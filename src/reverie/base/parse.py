"""The one way JSON and TOML are read: text that anyone may have written comes back as plain values within limits.

What is wrong is a ValueError that says what; who reads the text knows where it stood.
"""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

DEPTH = 16  # tables and lists within each other
LONGEST = 4 * 2**20  # characters; 100,000 labels take fewer
MOST_PARTS = 10_000  # keys, tables and lists of a TOML text, each of which takes long to read
MOST_SIGNS = 10**6  # commas, ends of lines and the like in it; a list of 100,000 labels with their counts has 400,000
DIGITS = 40  # of a whole number, so that it is still a float as well

# Strings and comments, which are passed over; quotes that nothing closes; and the signs that open, close and part.
_TOML = re.compile(
    r'"""(?:[^"\\]++|\\(?s:.)|"(?!""))*+"""|\'\'\'(?:[^\']++|\'(?!\'\'))*+\'\'\''
    r'|"(?:[^"\\\n]++|\\.)*+"(?!")|""|\'[^\'\n]*+\'|#[^\n]*+|(?P<open>["\'])|(?P<sign>[.\n=,\[\]{}])'
)


def read_json(text: str) -> Any:
    """Return the value that a JSON text holds."""
    _check_length(text)
    try:
        return _within_limits(json.loads(text))
    except RecursionError:
        raise _too_deep() from None


def read_toml(text: str) -> dict[str, Any]:
    """Return the table that a TOML text holds.

    How deep it goes is counted before it is parsed: the time of `tomllib` grows with the square of the parts of a dotted key.
    """
    _check_length(text)
    depth = dots = parts = 0
    for count, match in enumerate(_TOML.finditer(text)):
        if match["open"]:
            raise ValueError(f"a string has no end (at line {text.count(chr(10), 0, match.start()) + 1})")
        match match["sign"]:
            case ".":
                dots += 1
            case "[" | "{":
                depth, dots, parts = depth + 1, 0, parts + 1
            case "]" | "}":
                depth, dots = depth - 1, 0
            case "=":
                dots, parts = 0, parts + 1
            case str():
                dots = 0
        if max(depth, dots) > DEPTH:
            raise _too_deep()
        if parts > MOST_PARTS or count > MOST_SIGNS:
            raise ValueError(f"it has more than {MOST_PARTS:,} keys, tables and lists, or more than {MOST_SIGNS:,} signs")
    table: dict[str, Any] = _within_limits(tomllib.loads(text))
    return table


def _check_length(text: str) -> None:
    if len(text) > LONGEST:
        raise ValueError(f"it has {len(text):,} characters; at most {LONGEST:,} are read")


def _too_deep() -> ValueError:
    return ValueError(f"it is nested more than {DEPTH} deep")


def _within_limits(value: Any) -> Any:
    """Return a value that is no deeper and has no larger whole numbers than allowed; refuse others."""
    level, depth = [value], 0
    while level:
        if depth > DEPTH:
            raise _too_deep()
        if any(isinstance(part, int) and abs(part) >= 10**DIGITS for part in level):
            raise ValueError(f"it holds a whole number of more than {DIGITS} digits")
        inside = (part.values() if isinstance(part, dict) else part for part in level if isinstance(part, dict | list))
        level, depth = [part for parts in inside for part in parts], depth + 1
    return value
