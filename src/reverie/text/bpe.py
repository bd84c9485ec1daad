"""Byte-pair encoding in plain Python: repeatedly merge the most frequent pair of adjacent tokens.

Runs use the package `tokenizers`, which is fast; tests require both to learn the same merges.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

Pair = tuple[str, str]


def count_pairs(words: Mapping[tuple[str, ...], int]) -> Counter[Pair]:
    """Count adjacent pairs in words, weighted by word counts."""
    counts: Counter[Pair] = Counter()
    for word, count in words.items():
        for pair in itertools.pairwise(word):
            counts[pair] += count
    return counts


def apply_merge(word: Sequence[str], pair: Pair) -> tuple[str, ...]:
    """Return a word with every occurrence of a pair merged, from left to right: abab with (a, b) becomes (ab, ab)."""
    out, k = list[str](), 0
    while k < len(word):
        joined = tuple(word[k : k + 2]) == pair
        out.append("".join(pair) if joined else word[k])
        k += 1 + joined
    return tuple(out)


def merges(words: Iterable[str], most: int, least: int = 2) -> Iterator[tuple[Pair, int]]:
    """Yield the learned merges in order, each with the count of its pair (Gage 1994; arXiv:1508.07909).

    words: pre-tokenized text, so that no merge crosses a word boundary; most: the maximum number of merges; least: the minimum
    count of a pair.  Ties go to the pair of earlier tokens: characters by code point, then merged tokens by age.
    """
    words_as_tokens = Counter(tuple(word) for word in words)
    rank = {symbol: k for k, symbol in enumerate(sorted({symbol for word in words_as_tokens for symbol in word}))}
    for _ in range(most):
        counts = count_pairs(words_as_tokens)
        if not counts:
            return
        pair = min(counts, key=lambda p: (-counts[p], rank[p[0]], rank[p[1]]))
        if counts[pair] < least:
            return
        yield pair, counts[pair]
        rank.setdefault("".join(pair), len(rank))
        changed: Counter[tuple[str, ...]] = Counter()
        for word, count in words_as_tokens.items():
            changed[apply_merge(word, pair)] += count
        words_as_tokens = changed


def split(word: str, learned: Sequence[Pair]) -> tuple[str, ...]:
    """Return the tokens of a word by applying all merges in order."""
    parts = tuple(word)
    for pair in learned:
        parts = apply_merge(parts, pair)
    return parts
