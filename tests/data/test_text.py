"""Texts from every source, also hostile ones, are read or refused with a clear error."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import reverie
from reverie.base.errors import UserError
from reverie.data import load_data
from reverie.data.text_windows import END_OF_TEXT, TextWindows, join_texts, text_of, texts_of, windows_of

LINE = "A line of plain text, of which there are many.\n"


def texts(path: Path, **options) -> list[str]:
    data = load_data(path, **options)
    assert data.kind == "text" and isinstance(data.x, TextWindows)
    return data.x.texts()


def test_a_text_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(LINE * 20, encoding="utf-8")
    assert texts(tmp_path / "a.txt") == [LINE * 20]


@pytest.mark.parametrize("coding", ["utf-8-sig", "utf-16", "utf-32"])
def test_byte_order_marks(tmp_path: Path, coding: str) -> None:
    (tmp_path / "a.txt").write_text("سلام " * 60, encoding=coding)
    assert texts(tmp_path / "a.txt") == ["سلام " * 60]


def test_a_folder_of_texts(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "b.txt").write_text(LINE * 9)
    (tmp_path / "deep" / "a.txt").write_text("first " * 30)
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfe\xfd" * 9)
    (tmp_path / "notes.md").write_text("no text of ours")
    data = load_data(tmp_path)
    assert sorted(data.x.texts()) == sorted([LINE * 9, "first " * 30])
    assert any("bad.txt" in note for note in data.notes)
    with pytest.raises(UserError, match=r"bad\.txt"):
        load_data(tmp_path, strict=True)


def test_lines_of_json(tmp_path: Path) -> None:
    rows = [json.dumps({"text": f"text {k} " * 9, "id": k}) for k in range(5)]
    (tmp_path / "a.jsonl").write_text("\n".join([*rows, "{broken", '{"other": 1}', "", json.dumps("bare " * 20)]))
    data = load_data(tmp_path / "a.jsonl")
    assert len(data.x.texts()) == 6 and any("2 skipped, first line 6" in note for note in data.notes)
    with pytest.raises(UserError, match=r"line 6 of .*a\.jsonl"):
        load_data(tmp_path / "a.jsonl", strict=True)
    (tmp_path / "b.jsonl").write_text("\n".join(json.dumps({"verse": f"verse {k} " * 9}) for k in range(5)))
    assert len(texts(tmp_path / "b.jsonl", text="verse")) == 5
    with pytest.raises(UserError, match="no line with a text"):
        load_data(tmp_path / "b.jsonl")


def test_a_column_of_a_table(tmp_path: Path) -> None:
    rows = "".join(f'{k},"he said ""{k}"", and\nwent on for long enough"\n' for k in range(9))
    (tmp_path / "a.csv").write_text("id,text\n" + rows)
    assert texts(tmp_path / "a.csv")[3] == 'he said "3", and\nwent on for long enough'
    (tmp_path / "b.csv").write_text("id,verse\n" + rows)
    assert len(texts(tmp_path / "b.csv", text="verse")) == 9
    with pytest.raises(UserError, match="no column 'words'; it has: id, verse"):
        load_data(tmp_path / "b.csv", text="words")
    (tmp_path / "c.csv").write_text("x,y\n1,2\n3,4\n")
    assert load_data(tmp_path / "c.csv").kind == "points"


def test_fortunes(tmp_path: Path) -> None:
    (tmp_path / "literature").write_text("%\n".join(f"saying number {k}, which is wise\n" for k in range(12)))
    assert len(texts(tmp_path / "literature")) == 12


HOSTILE = {
    "binary": (bytes(range(256)) * 9, "is not UTF-8 text"),
    "zero bytes": (b"text\0text" * 90, "zero byte"),
    "latin": (("café " * 90).encode("latin-1"), "iconv"),
    "empty": (b"", "0 characters"),
    "short": (b"too short", "9 characters"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_binary_files_are_refused(tmp_path: Path, name: str) -> None:
    content, words = HOSTILE[name]
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(UserError, match=words):
        load_data(tmp_path / "a.txt")


def test_huge_lines_and_rare_characters(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 2_000_000, encoding="utf-8")
    assert len(load_data(tmp_path / "a.txt").x.codes) == 2_000_001
    odd = "\x1b[31mred\u202e\U0001f600\r\n" * 40
    (tmp_path / "b.txt").write_bytes(odd.encode())
    assert texts(tmp_path / "b.txt") == [odd]
    assert "\x1b" not in json.dumps(reverie.inspect(tmp_path / "b.txt"), ensure_ascii=False)


def test_windows_hold_out_the_end_of_a_text(tmp_path: Path) -> None:
    data = windows_of(join_texts(["".join(chr(33 + k % 90) for k in range(2000))]), 50)
    train, held = data.split(0)
    assert np.array_equal(np.concatenate([train.codes, held.codes]), data.codes) and len(held.codes) == 201
    assert train.take(torch.tensor([0, len(train) - 1])).shape == (2, 50)
    assert text_of(train.codes[-50:]) == text_of(train.take(torch.tensor([len(train) - 1]))[0].numpy())


def test_windows_hold_out_whole_texts_where_there_are_many() -> None:
    given = [f"text number {k} " * 3 for k in range(60)]
    train, held = windows_of(join_texts(given), 16).split(3)
    assert sorted(train.texts() + held.texts()) == sorted(given)
    assert 3 <= len(held.texts()) <= 6 and train.codes[0] == held.codes[0] == END_OF_TEXT
    again = windows_of(join_texts(given), 16).split(3)[1]
    assert again.texts() == held.texts() != windows_of(join_texts(given), 16).split(4)[1].texts()


def test_texts_are_split_at_their_ends() -> None:
    assert texts_of(join_texts(["a", "bc"])) == ["a", "bc"]
    assert texts_of(join_texts(["", "x", ""])) == ["x"]


@pytest.mark.parametrize("window", [3, 10**6])
def test_invalid_windows_are_refused(tmp_path: Path, window: int) -> None:
    (tmp_path / "a.txt").write_text(LINE * 20)
    with pytest.raises(UserError, match="window"):
        load_data(tmp_path / "a.txt", window=window)


def test_prose_is_described_and_drawn(tmp_path: Path) -> None:
    found = reverie.inspect("prose", out=tmp_path / "words.png")
    assert found["characters"] > 300_000 and found["texts"] > 50 and "the" in found["common_words"]
    assert (tmp_path / "words.png").read_bytes()[:4] == b"\x89PNG"


def test_other_families_refuse_text() -> None:
    with pytest.raises(UserError, match=r"family diffusion .*families that take text: rnn, lstm"):
        reverie.train("prose", "nowhere", family="diffusion", steps=1)
