"""Shared passages, against a search of every substring."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reverie.data.text_windows import codes_of
from reverie.text.passages import Passages

WORDS = st.text("abc", min_size=1, max_size=40)


def longest(text: str, long: str) -> int:
    return max(n for n in range(len(text) + 1) if any(text[k : k + n] in long for k in range(len(text) - n + 1)))


@settings(max_examples=30, deadline=None)
@given(long=WORDS, texts=st.lists(WORDS, min_size=1, max_size=4))
def test_the_longest_shared_passage(long: str, texts: list[str]) -> None:
    found = Passages(codes_of(long), [codes_of(text) for text in texts]).longest()
    assert found.tolist() == [longest(text, long) for text in texts]


@settings(max_examples=30, deadline=None)
@given(long=WORDS, text=WORDS, n=st.integers(1, 9))
def test_new_strings(long: str, text: str, n: int) -> None:
    grams = [text[k : k + n] for k in range(len(text) - n + 1)]
    found = Passages(codes_of(long), [codes_of(text)]).novel(n)[0]
    assert np.isnan(found) if not grams else found == pytest.approx(np.mean([gram not in long for gram in grams]))
