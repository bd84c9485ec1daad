"""JSON and TOML parsing with limits, for text from untrusted sources.

Errors are ValueErrors without the location, which the caller adds.
"""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

MAX_DEPTH = 16  # nesting depth of tables and lists
MAX_LENGTH = 4 * 2**20  # characters; 100,000 labels take fewer
MAX_PARTS = 10_000  # keys, tables and lists of a TOML text, each of which is slow to parse
MAX_SIGNS = 10**6  # commas, line ends and the like; a list of 100,000 labels with their counts has 400,000
MAX_DIGITS = 40  # of an integer, so that it fits into a float

# Strings and comments, which are skipped; unclosed quotes; and structural characters.
_TOML = re.compile(
    r'"""(?:[^"\\]++|\\(?s:.)|"(?!""))*+"""|\'\'\'(?:[^\']++|\'(?!\'\'))*+\'\'\''
    r'|"(?:[^"\\\n]++|\\.)*+"(?!")|""|\'[^\'\n]*+\'|#[^\n]*+|(?P<open>["\'])|(?P<sign>[.\n=,\[\]{}])'
)


def read_json(text: str) -> Any:
    """Return the value of a JSON text."""
    _check_length(text)
    try:
        return _within_limits(json.loads(text))
    except RecursionError:
        raise _too_deep() from None


def read_toml(text: str) -> dict[str, Any]:
    """Return the table of a TOML text.

    The nesting depth is checked before parsing: the time of `tomllib` grows with the square of the parts of a dotted key.
    """
    _check_length(text)
    depth = dots = parts = 0
    for count, match in enumerate(_TOML.finditer(text)):
        if match["open"]:
            raise ValueError(f"a string is not closed (line {text.count(chr(10), 0, match.start()) + 1})")
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
        if max(depth, dots) > MAX_DEPTH:
            raise _too_deep()
        if parts > MAX_PARTS or count > MAX_SIGNS:
            raise ValueError(f"more than {MAX_PARTS:,} keys, tables and lists, or more than {MAX_SIGNS:,} separators")
    table: dict[str, Any] = _within_limits(tomllib.loads(text))
    return table


def _check_length(text: str) -> None:
    if len(text) > MAX_LENGTH:
        raise ValueError(f"{len(text):,} characters exceed the limit of {MAX_LENGTH:,}")


def _too_deep() -> ValueError:
    return ValueError(f"nested more than {MAX_DEPTH} levels deep")


def _within_limits(value: Any) -> Any:
    """Return a value within the limits of depth and integer size; refuse others."""
    level, depth = [value], 0
    while level:
        if depth > MAX_DEPTH:
            raise _too_deep()
        if any(isinstance(part, int) and abs(part) >= 10**MAX_DIGITS for part in level):
            raise ValueError(f"an integer has more than {MAX_DIGITS} digits")
        inside = (part.values() if isinstance(part, dict) else part for part in level if isinstance(part, dict | list))
        level, depth = [part for parts in inside for part in parts], depth + 1
    return value
