"""Foreign text is displayed without control characters, and any name can be stored."""

from __future__ import annotations

import os
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from reverie.base.visible import storable, visible


@given(st.text(st.characters()))
def test_control_characters_are_escaped(text: str) -> None:
    shown = visible(text)
    assert not any(unicodedata.category(sign) in ("Cc", "Cs", "Zl", "Zp") for sign in shown)
    assert shown.encode() and visible(shown) == shown if text else shown == ""


def test_printable_names_are_unchanged() -> None:
    assert visible("caf\xe9 \u06f3 \U0001f600 a\u200cb") == "caf\xe9 \u06f3 \U0001f600 a\u200cb"
    assert visible("\x1b[31mred\x07\n\u202e\x9b") == r"\x1b[31mred\x07\x0a\u202e\x9b"
    assert visible("one\n\ttwo\r", lines=True) == "one\n\ttwo\\x0d"
    latin = os.fsdecode(b"caf\xe9")
    assert visible(latin) == storable(latin) == r"caf\xe9" and storable("tab\t") == "tab\t"
