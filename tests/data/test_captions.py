from __future__ import annotations

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from reverie.base.errors import UserError
from reverie.data import load_data
from reverie.data.captioned import ATTRIBUTES, measure_digits
from reverie.data.conditions import Attribute, make_conditions, normalize_caption

WORDS = ("a red square", "a blue circle", "two green lines", "a cat on a mat", "nothing at all", "five dots")


def pictures(folder: Path, count: int = 6, side: int = 8) -> list[str]:
    for k in range(count):
        Image.fromarray(np.full((side, side), 40 * k, np.uint8)).save(folder / f"p{k}.png")
    return [f"p{k}.png" for k in range(count)]


@pytest.mark.parametrize("form", ["jsonl", "csv", "txt"])
@pytest.mark.parametrize("labels", ["auto", "captions"])
def test_captions_are_read(tmp_path: Path, form: str, labels: str) -> None:
    names = pictures(tmp_path)
    if form == "jsonl":
        rows = [json.dumps({"file_name": n, "caption": w}) for n, w in zip(names, WORDS, strict=True)]
        (tmp_path / "metadata.jsonl").write_text("\n".join(rows))
    elif form == "csv":
        (tmp_path / "metadata.csv").write_text(
            "file_name,text\n" + "\n".join(f"{n},{w}" for n, w in zip(names, WORDS, strict=True))
        )
    else:
        for name, words in zip(names, WORDS, strict=True):
            (tmp_path / name).with_suffix(".txt").write_text(f"{words}\n")
    data = load_data(tmp_path, labels=labels)
    assert data.labels is None
    assert data.conditions is not None
    assert data.conditions.captions == WORDS
    assert data.report["labels_by"] == "captions"
    rows_ = data.batch(torch.arange(6))[1]
    assert rows_ is not None
    assert [data.conditions.form.caption(row) for row in rows_] == list(WORDS)
    part = data.take(torch.tensor([4, 1]))
    assert part.describe_conditions(torch.arange(2)) == [WORDS[4], WORDS[1]]
    assert load_data(tmp_path, labels="none").conditions is None
    assert load_data(tmp_path, labels="none").fingerprint() != data.fingerprint()


def test_missing_captions_are_null_conditions(tmp_path: Path) -> None:
    for name, words in zip(pictures(tmp_path), WORDS[:5], strict=False):
        (tmp_path / name).with_suffix(".txt").write_text(words)
    data = load_data(tmp_path)
    assert len(data) == 6
    assert any("1 image has no caption" in note for note in data.notes)
    rows = data.batch(torch.arange(6))[1]
    assert rows is not None
    assert rows[5].isnan().all()
    assert not rows[4].isnan().all()


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"\xff\xfe\x00\x81", "UTF-8"), (b"x" * (2**16 + 1), "KiB"), (b"", "empty")],
    ids=["binary", "huge", "empty"],
)
def test_hostile_texts_are_refused(tmp_path: Path, content: bytes, words: str) -> None:
    for name in pictures(tmp_path):
        (tmp_path / name).with_suffix(".txt").write_bytes(content)
    with pytest.raises(UserError, match=words):
        load_data(tmp_path, labels="captions")


def test_missing_captions_are_refused(tmp_path: Path) -> None:
    pictures(tmp_path)
    with pytest.raises(UserError, match="has no captions"):
        load_data(tmp_path, labels="captions")


def test_numbers_and_images_of_columns(tmp_path: Path) -> None:
    names = pictures(tmp_path)
    rows = [{"file_name": n, "angle": 10.0 * k, "edges": names[k + 3]} for k, n in enumerate(names[:3])]
    (tmp_path / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = load_data(tmp_path, labels="none", condition_columns="angle", condition_image="edges")
    assert len(data) == 3  # the others are conditions
    assert data.conditions is not None
    assert data.conditions.form.image == (1, 8, 8)
    row = data.batch(torch.arange(3))[1]
    assert row is not None
    torch.testing.assert_close(row[:, 0], torch.tensor([-1.0, 0.0, 1.0]))
    torch.testing.assert_close(row[:, 1:].mean(1), torch.tensor([120.0, 160.0, 200.0]) / 255)
    assert data.conditions.form.describe_vector(row[2]) == "angle=20"
    torch.testing.assert_close(data.conditions.form.vector(numbers={"angle": 20.0}, image=row[2, 1:].reshape(1, 8, 8)), row[2])


@pytest.mark.parametrize(
    ("row", "options", "words"),
    [
        ({"angle": "steep"}, {"condition_columns": "angle"}, "not a number"),
        ({"angle": "inf"}, {"condition_columns": "angle"}, "finite"),
        ({"angle": 1}, {"condition_columns": "age"}, "age"),
        ({"edges": "../../etc/passwd"}, {"condition_image": "edges"}, "not a usable image"),
        ({"edges": ""}, {"condition_image": "edges"}, "no image"),
    ],
)
def test_hostile_columns_are_refused(tmp_path: Path, row: dict, options: dict, words: str) -> None:
    names = pictures(tmp_path)
    (tmp_path / "metadata.jsonl").write_text("\n".join(json.dumps({"file_name": n, **row}) for n in names))
    with pytest.raises(UserError, match=words):
        load_data(tmp_path, labels="none", **options)


@settings(max_examples=20)
@given(st.lists(st.text(max_size=40), min_size=1, max_size=8))
def test_captions_round_trip(texts: list[str]) -> None:
    conditions = make_conditions(["a plain one", *texts])
    for text in texts:
        row, whole = conditions.form.tokens(text)
        if whole:
            assert conditions.form.caption(torch.from_numpy(row)) == normalize_caption(text).strip()


def test_attributes_of_captions() -> None:
    size = Attribute("size", ("small", "large"))
    assert size.of(["a Large dog", "a dog", "one small cat"]).tolist() == [1, -1, 0]


def bar(width: int, shear: float = 0.0) -> torch.Tensor:
    image = torch.zeros(1, 1, 64, 64)
    for row in range(12, 52):
        left = round(32 - width / 2 + shear * (32 - row))
        image[0, 0, row, left : left + width] = 255
    return image


@pytest.mark.parametrize("width", [3, 5, 8])
def test_thickness_is_the_width_of_a_stroke(width: int) -> None:
    measured = float(measure_digits(bar(width))["thickness"])
    assert measured == pytest.approx(2 * width * 40 / (2 * (40 + width)), rel=0.02)  # its ends are edges too


@pytest.mark.parametrize("shear", [-0.5, 0.0, 0.3])
def test_slant_is_the_shear_of_a_stroke(shear: float) -> None:
    assert float(measure_digits(bar(4, shear))["slant"]) == pytest.approx(shear, abs=0.02)


def test_left_out_combinations_keep_every_pair_of_words() -> None:
    data = load_data("captioned-digits")
    conditions = data.conditions
    assert conditions is not None
    assert conditions.unseen_images is not None
    assert len(data) + len(conditions.unseen) == 5000
    assert len(conditions.unseen_images) == len(conditions.unseen)
    seen, unseen = (
        {tuple(row) for row in torch.stack([a.of(captions) for a in ATTRIBUTES], 1).tolist()}
        for captions in (conditions.captions, conditions.unseen)
    )
    assert not seen & unseen
    assert len(unseen) <= 30
    for triple in unseen:
        for k in range(3):
            pair = tuple(value for j, value in enumerate(triple) if j != k)
            assert any(tuple(v for j, v in enumerate(other) if j != k) == pair for other in seen)
    assert (
        len({len(conditions.form.caption_tokenizer.encode(normalize_caption(word))) for a in ATTRIBUTES for word in a.words})
        == 1
    )  # one token each


def test_tar_files_of_images_and_captions(tmp_path: Path) -> None:
    folder, packed = tmp_path / "000", tmp_path / "shard.tar"
    folder.mkdir()
    with tarfile.open(packed, "w") as archive:
        for name, words in zip(pictures(folder), WORDS, strict=True):
            (folder / name).with_suffix(".txt").write_text(words)
            for file in (folder / name, (folder / name).with_suffix(".txt")):
                archive.add(file, file.name)
        archive.addfile(tarfile.TarInfo("link.png"))
    data = load_data(packed)
    assert data.conditions is not None
    assert data.conditions.captions == WORDS
    assert torch.equal(data.x, load_data(folder).x)
    packed.write_bytes(packed.read_bytes()[:700])
    with pytest.raises(UserError, match="tar"):
        load_data(packed)
    packed.write_bytes(b"\x1f\x8b no tar at all")
    with pytest.raises(UserError, match="tar"):
        load_data(packed)


def test_captions_in_memory() -> None:
    images = np.random.default_rng(0).integers(0, 255, (6, 8, 8)).astype(np.uint8)
    data = load_data((images, list(WORDS)), labels="captions")
    assert data.conditions is not None
    assert data.conditions.captions == WORDS
    with pytest.raises(UserError, match="one text for each image"):
        load_data((images, list(WORDS[:4])), labels="captions")
