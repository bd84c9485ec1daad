from __future__ import annotations

from pathlib import Path

import pytest
import torch

from reverie.data.conditions import Attribute, make_conditions
from reverie.data.dataset import Dataset
from reverie.evaluation.faithfulness import attributes_of, caption_accuracy, train_attribute_classifiers
from reverie.evaluation.verdicts import find_faults

ATTRIBUTES = (Attribute("light", ("dark", "bright")), Attribute("side", ("left", "right")))


def squares(count: int, seed: int, attributes: tuple[Attribute, ...] = ATTRIBUTES) -> Dataset:
    """Noisy images, dark or bright, with a square on the left or on the right."""
    random = torch.Generator().manual_seed(seed)
    light, side = torch.randint(0, 2, (2, count), generator=random)
    x = 40 + 90 * light[:, None, None, None] + torch.randint(0, 30, (count, 1, 8, 8), generator=random)
    for k in range(count):
        x[k, 0, 3:6, 1 + 4 * int(side[k]) : 4 + 4 * int(side[k])] += 80
    captions = [f"a {ATTRIBUTES[0].words[a]} square, {ATTRIBUTES[1].words[b]}" for a, b in zip(light, side, strict=True)]
    captions = [caption.replace(",", " on the") for caption in captions]
    return Dataset("squares", x.clamp(0, 255).byte(), conditions=make_conditions(captions, attributes=attributes))


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.usefixtures("own_cache")
def test_classifiers_distinguish_right_from_wrong_captions() -> None:
    train, held, new = (squares(n, seed) for n, seed in ((400, 0), (60, 1), (200, 2)))
    classifiers = train_attribute_classifiers(train, held)
    assert [classifier.attribute.name for classifier in classifiers] == ["light", "side"]
    assert new.conditions is not None
    x, captions = new.batch(torch.arange(200))[0], new.conditions.captions
    wrong = [caption.replace("dark", "?").replace("bright", "dark").replace("?", "bright") for caption in captions]
    found = caption_accuracy(classifiers, {"seen": (x, captions), "wrong": (x, wrong)})
    assert found["light, seen"]["value"] > 0.95
    assert found["side, seen"]["value"] > 0.95
    assert 0.35 < found["light, seen"]["shuffled"] < 0.65
    assert found["light, seen"]["chance"] == 0.5
    assert found["light, wrong"]["value"] < 0.05
    assert found["side, wrong"]["value"] == found["side, seen"]["value"]
    assert not find_faults("captions", {"light": found["light, seen"]})
    (message,) = find_faults("captions", {"light": found["light, wrong"]})
    assert "light: accuracy" in message


def test_without_attributes_the_most_informative_words_are_classified() -> None:
    names = {attribute.name for attribute in attributes_of(squares(200, 0, ()))}
    assert names == {"dark", "bright", "left", "right"}  # "square", "on" and "the" are in all of them
