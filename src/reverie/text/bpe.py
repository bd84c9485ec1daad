"""Byte-pair encoding as it is told in books: the pair that stands together most often becomes one token, again and again.

`tokenizers` does the same quickly, and is what runs use; the tests hold both to the same merges.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

Pair = tuple[str, str]


def pairs_of(words: Mapping[tuple[str, ...], int]) -> Counter[Pair]:
    """Count neighbours in words, each as often as the word occurs."""
    found: Counter[Pair] = Counter()
    for word, times in words.items():
        for pair in itertools.pairwise(word):
            found[pair] += times
    return found


def merged(word: Sequence[str], pair: Pair) -> tuple[str, ...]:
    """Return a word in which a pair is one token wherever it stands, from the left: abab with (a, b) is (ab, ab)."""
    out, k = list[str](), 0
    while k < len(word):
        joined = tuple(word[k : k + 2]) == pair
        out.append("".join(pair) if joined else word[k])
        k += 1 + joined
    return tuple(out)


def merges(words: Iterable[str], most: int, least: int = 2) -> Iterator[tuple[Pair, int]]:
    """Yield the pairs that are made one, in order, and how often each stood there (Gage 1994; arXiv:1508.07909).

    words: of a text, none of which is merged with the next; least: how often a pair must stand there.  Of pairs that are
    equally common the one of the earlier tokens is taken, characters in order of their codes and then what was made of them.
    """
    spelled = Counter(tuple(word) for word in words)
    number = {sign: k for k, sign in enumerate(sorted({sign for word in spelled for sign in word}))}
    for _ in range(most):
        counts = pairs_of(spelled)
        if not counts:
            return
        pair = min(counts, key=lambda p: (-counts[p], number[p[0]], number[p[1]]))
        if counts[pair] < least:
            return
        yield pair, counts[pair]
        number.setdefault("".join(pair), len(number))
        changed: Counter[tuple[str, ...]] = Counter()
        for word, times in spelled.items():
            changed[merged(word, pair)] += times
        spelled = changed


def split(word: str, learned: Sequence[Pair]) -> tuple[str, ...]:
    """Return the tokens of a word: each merge in its order, wherever it applies."""
    parts = tuple(word)
    for pair in learned:
        parts = merged(parts, pair)
    return parts
