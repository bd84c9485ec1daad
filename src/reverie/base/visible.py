"""Text that others wrote, such as names of files and classes, as it may be shown: seen, and never obeyed."""

from __future__ import annotations

import re

# What steers a terminal or turns the text around it: control signs, breaks of lines and paragraphs, changes of direction; and
# bytes of a name that are no text, which Python keeps as lone surrogates (PEP 383).
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_UNSEEN_ON_A_LINE = re.compile(_UNSEEN.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))


def visible(text: str, lines: bool = False) -> str:
    r"""Return a text in which signs that would not be seen are escaped: \x1b, \u202e, and \xe9 for a byte that is no text.

    lines: the text is several lines of our own, whose breaks and tabulators stay.
    """
    return (_UNSEEN_ON_A_LINE if lines else _UNSEEN).sub(_escaped, text)


def _escaped(sign: re.Match[str]) -> str:
    code = ord(sign[0])
    code = code - 0xDC00 if 0xDC80 <= code <= 0xDCFF else code
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def storable(path: str) -> str:
    r"""Return the name of a file or folder as text: bytes that are none, as Latin-1 leaves them, become \xe9 and the like."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
