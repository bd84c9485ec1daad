"""Foreign text, such as file and class names, made safe to display."""

from __future__ import annotations

import re

# Characters that control a terminal or reorder the text around them: control characters, line and paragraph breaks, changes of
# text direction; and bytes that are not text, which Python keeps as lone surrogates (PEP 383).
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_UNPRINTABLE_ON_A_LINE = re.compile(_UNPRINTABLE.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))


def visible(text: str, lines: bool = False) -> str:
    r"""Return a text with non-printable characters escaped: \x1b, \u202e, and \xe9 for a byte that is not text.

    lines: keep line breaks and tabs.
    """
    return (_UNPRINTABLE_ON_A_LINE if lines else _UNPRINTABLE).sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    code = code - 0xDC00 if 0xDC80 <= code <= 0xDCFF else code
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def storable(path: str) -> str:
    r"""Return the name of a file or folder as text; bytes that are not text become \xe9 and the like."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
