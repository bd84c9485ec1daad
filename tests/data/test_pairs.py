"""Pairs of texts: files of every format, hostile ones, generated datasets, and the held-out split."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest
import torch

from reverie.base.errors import UserError
from reverie.data import load_data
from reverie.data.pair_sets import english, longer_pairs, ordinal, persian, year_in_words
from reverie.data.text_pairs import TextPairs, make_pairs

ROWS = [(f"source {k}, with a comma", f"target {k}") for k in range(12)]


def pairs_in(path: Path, **options: str) -> list[tuple[str, str]]:
    """Return the pairs of a file."""
    found = load_data(path, **options)
    assert isinstance(found.x, TextPairs) and found.kind == "pairs"
    return list(found.x.pairs())


def test_formats_of_pairs(tmp_path: Path) -> None:
    table = tmp_path / "a.csv"
    table.write_text("source,target,more\n" + "".join(f'"{s}",{t},1\n' for s, t in ROWS))
    assert pairs_in(table) == ROWS
    tabs = tmp_path / "a.tsv"
    tabs.write_text("english\tfarsi\n" + "".join(f"{s}\t{t}\n" for s, t in ROWS))
    assert pairs_in(tabs, pairs="english,farsi") == ROWS
    bare = tmp_path / "bare.tsv"
    bare.write_text("".join(f"{t}\tx\t{s}\n" for s, t in ROWS))
    assert pairs_in(bare, pairs="3,1") == ROWS
    lines = tmp_path / "a.jsonl"
    lines.write_text("".join(json.dumps({"source": s, "target": t}) + "\n" for s, t in ROWS))
    assert pairs_in(lines) == ROWS
    (tmp_path / "en.txt").write_text("\n".join(s for s, _ in ROWS))
    (tmp_path / "fa.txt").write_text("\n".join(t for _, t in ROWS))
    assert pairs_in(tmp_path / "en.txt", pairs=str(tmp_path / "fa.txt")) == ROWS
    assert pairs_in(tmp_path / "en.txt", pairs="elsewhere/fa.txt") == ROWS  # beside the source file, for moved files


def test_other_files_are_not_pairs(tmp_path: Path) -> None:
    numbers = tmp_path / "points.csv"
    numbers.write_text("source,target\n" + "".join(f"{k},{k % 2}\n" for k in range(20)))
    assert load_data(numbers).kind == "points"
    text = tmp_path / "text.jsonl"
    text.write_text('{"text": "' + "word " * 60 + '"}\n')
    assert load_data(text).kind == "text"


CASES = {
    "empty.csv": ("", "at least 10|empty"),
    "header.csv": ("source,target\n", "0 pairs"),
    "few.csv": ("source,target\na,b\n", "1 pairs .*at least 10"),
    "hollow.csv": ("source,target\n" + "a,\n" * 12, r"12 skipped, first row 2: its 'target' is empty"),
    "ragged.tsv": ("source\ttarget\n" + "alone\n" * 12, "no text in 'target'"),
    "long.csv": ("source,target\n" + f"{'x' * 3000},b\n" * 12, "3,000 characters.* 2,048"),
    "broken.jsonl": ('{"source": "a", "target": "b"}\n' + "{not json\n" * 12, "skipped, first line 2"),
    "quotes.csv": ('source,target\na,"b\n', "cannot be read as a table"),
}


@pytest.mark.parametrize("name", CASES)
def test_hostile_files_are_refused(tmp_path: Path, name: str) -> None:
    text, words = CASES[name]
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=words):
        load_data(tmp_path / name, pairs="source,target" if name != "empty.csv" else None)


def test_invalid_pairs_options_are_refused(tmp_path: Path) -> None:
    table, binary, text = tmp_path / "a.csv", tmp_path / "b.csv", tmp_path / "a.txt"
    table.write_text("de,en\n" + "ja,yes\n" * 12)
    binary.write_bytes(b"source,target\n\xff\xfe\x00,b\n")
    text.write_text("a\n" * 12)
    (tmp_path / "short.txt").write_text("a\n" * 11)
    for path, pairs, words in (
        (table, "de,fr", "no column 'fr'; it has: de, en"), (table, "de", "like --pairs english,persian"),
        (table, "de,de", "like --pairs"), (binary, "source,target", "is not UTF-8 text"), (table, "0,1", "from 1"),
        (text, "missing.txt", "there is no file 'missing.txt'"), (text, str(tmp_path / "short.txt"), "12 lines but .* 11"),
        (tmp_path, "a,b", "is a folder"), ("dates", "a,b", "leave --pairs out"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=words):
            load_data(path, pairs=pairs)
    with pytest.raises(UserError, match="leave --window out"):
        load_data("dates", 20, window=16)
    with pytest.raises(UserError, match=r"row 3 of "):
        (tmp_path / "c.csv").write_text("source,target\n" + "a,b\n,c\n" * 12)
        load_data(tmp_path / "c.csv", strict=True)


def test_sources_are_either_trained_on_or_held_out(tmp_path: Path) -> None:
    pairs = [(f"{k % 40}", f"{k}") for k in range(200)]
    train, held = make_pairs(pairs).split(3)
    assert len(train) + len(held) == 200 and len(held) == 10
    assert not {s for s, _ in train.pairs()} & {s for s, _ in held.pairs()}
    for name in ("reversal", "dates", "numbers-en", "numbers-fa"):
        data = load_data(name, 400)
        train, held = (part.x for part in data.split(0))
        assert isinstance(train, TextPairs) and isinstance(held, TextPairs) and len(held) == 20
        seen = list(train.pairs())
        assert not {s for s, _ in seen} & {s for s, _ in held.pairs()}
        assert name == "reversal" or not {t for _, t in seen} & {
            t for _, t in held.pairs()
        }  # no date and no number is in both parts
        assert data.fingerprint() == load_data(name, 400).fingerprint() != load_data(name, 400, 1).fingerprint()


def test_batches_are_padded_texts() -> None:
    x = make_pairs([("ab", "cde"), ("", "f")])
    assert x.shape == (2, 2, 3)
    end = 0x110000
    assert x.take(torch.tensor([1, 0])).tolist() == [[[end] * 3, [102, end, end]], [[97, 98, end], [99, 100, 101]]]


def test_numbers_in_words() -> None:
    words_of = {0: "zero", 7: "seven", 20: "twenty", 21: "twenty-one", 100: "one hundred", 110: "one hundred ten",
              1000: "one thousand", 123_456: "one hundred twenty-three thousand four hundred fifty-six",
              900_019: "nine hundred thousand nineteen", 1_000_000: "one million"}  # fmt: skip
    assert {number: english(number) for number in words_of} == words_of
    gofteh = {0: "صفر", 3: "سه", 18: "هجده", 20: "بیست", 45: "چهل و پنج", 100: "صد", 123: "صد و بیست و سه", 200: "دویست",
              999: "نهصد و نود و نه", 1000: "هزار", 1001: "هزار و یک", 2010: "دو هزار و ده", 21_000: "بیست و یک هزار",
              345_678: "سیصد و چهل و پنج هزار و ششصد و هفتاد و هشت", 1_000_000: "یک میلیون"}  # fmt: skip
    assert {number: persian(number) for number in gofteh} == gofteh
    assert [ordinal(k) for k in (1, 2, 3, 5, 8, 9, 12, 20, 21, 30)] == [
        "first", "second", "third", "fifth", "eighth", "ninth", "twelfth", "twentieth", "twenty-first", "thirtieth",
    ]  # fmt: skip
    assert [year_in_words(y) for y in (1900, 1905, 1998, 2000, 2007, 2012, 2099)] == [
        "nineteen hundred", "nineteen oh five", "nineteen ninety-eight", "two thousand", "two thousand seven", "twenty twelve",
        "twenty ninety-nine",
    ]  # fmt: skip


def test_words_parse_back_to_numbers_and_days() -> None:
    """Parsed back by an independent parser."""
    units = {english(k): k for k in range(1, 100)}
    data = load_data("numbers-en", 300).x
    assert isinstance(data, TextPairs)
    for words, digits in data.pairs():
        total, group = 0, 0
        for word in words.split():
            if word == "hundred":
                group *= 100
            elif word == "thousand":
                total, group = group * 1000, 0
            else:
                group += units.get(word, 0)
        assert total + group == int(digits)
    days = load_data("dates", 300).x
    assert isinstance(days, TextPairs)
    for words, iso in days.pairs():
        day = datetime.date.fromisoformat(iso)
        assert day.strftime("%B").lower() in words and (str(day.year) in words or year_in_words(day.year) in words)
        assert all(name not in words or name == day.strftime("%A").lower() for name in ("monday", "friday", "sunday"))


def test_longer_sources_are_longer() -> None:
    for name in ("reversal", "numbers-en", "numbers-fa"):
        found = longer_pairs(name, 50, 0, 20)
        assert len(found) > 20 and min(len(source) for source, _ in found) > 20
    assert longer_pairs("dates", 50, 0, 20) == []
