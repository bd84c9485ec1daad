"""Classifiers of a dataset's own labels: the time limit and the cache."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from reverie.base.cache import SWITCH, Cache, cache_folder
from reverie.base.tensors import write_tensors
from reverie.data import Dataset, classifiers, load_data
from reverie.data.classifiers import cached_classifier, can_classify, label_classifier
from reverie.nets.lenet import default_steps

SHORT = 0.2  # seconds


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Dataset, Dataset]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return load_data("digits8").split(0)


def count_trainings(monkeypatch: pytest.MonkeyPatch, longest: float = 1e9) -> list[float]:
    """Record the time limit of each training, and shorten unlimited ones."""
    made: list[float] = []
    train = classifiers.train_classifier

    def counted(*args: object, seconds: float, **options: object) -> object:
        made.append(seconds)
        return train(*args, seconds=min(seconds, longest), **options)  # type: ignore[arg-type]

    monkeypatch.setattr(classifiers, "train_classifier", counted)
    return made


def kept() -> Path:
    (path,) = (cache_folder() / "classifiers").glob("*.safetensors")
    return path


def test_a_classifier_is_trained_once(parts: tuple[Dataset, Dataset], monkeypatch: pytest.MonkeyPatch) -> None:
    made = count_trainings(monkeypatch)
    first, again = (label_classifier(*parts, seconds=SHORT) for _ in range(2))
    x = parts[1].subsample(20)
    assert made == [SHORT] and again.cached and not first.cached
    assert again.facts == first.facts and torch.equal(again.net(x)[1], first.net(x)[1])
    assert first.facts.steps < default_steps(len(parts[0])) and first.facts.seconds > 0
    assert not label_classifier(*parts, seed=1, seconds=SHORT).cached  # another seed
    assert not label_classifier(*parts, seconds=4 * SHORT).cached  # it was trained for less than half of this limit
    assert (
        len(made) == 3 and cached_classifier(parts[0]) is None
    )  # without a limit, incompletely trained classifiers are not used


def test_complete_trainings_serve_any_limit(parts: tuple[Dataset, Dataset], monkeypatch: pytest.MonkeyPatch) -> None:
    made = count_trainings(monkeypatch)
    monkeypatch.setattr("reverie.nets.lenet.MAX_STEPS", 20)
    label_classifier(*parts)
    assert label_classifier(*parts, seconds=1e-6).cached and label_classifier(*parts).cached and len(made) == 1


@pytest.mark.parametrize("damage", ["cut", "changed", "not finite", "other form", "no checksum", "link"])
def test_damaged_files_are_replaced(
    damage: str, parts: tuple[Dataset, Dataset], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    net, facts = (found := label_classifier(*parts, seconds=SHORT)).net, found.facts
    path, made = kept(), count_trainings(monkeypatch)
    content = path.read_bytes()
    match damage:
        case "cut":
            path.write_bytes(content[:-100])
        case "changed":
            path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        case "not finite":
            state = net.state_dict()
            state["out.bias"][0] = torch.nan
            write_tensors(path, state, facts.model_dump_json())
        case "other form":
            write_tensors(path, {"out.bias": net.state_dict()["out.bias"]}, facts.model_dump_json())
        case "no checksum":
            from safetensors.torch import save_file

            save_file(net.state_dict(), path, {"facts": facts.model_dump_json()})
        case "link":
            path.rename(tmp_path / "elsewhere")
            path.symlink_to(tmp_path / "elsewhere")
    again = label_classifier(*parts, seconds=SHORT)
    assert made == [SHORT] and not again.cached


RIGHT = {"format": 2, "steps": 50, "seconds": 1.0, "accuracy": 0.5, "held_out": 7}


@pytest.mark.parametrize(
    "facts", ["", "[1, 2]", "{}", *(json.dumps({**RIGHT, **wrong}) for wrong in (
        {"steps": 0}, {"steps": "50"}, {"seconds": -1.0}, {"accuracy": 7.0}, {"accuracy": float("nan")}, {"held_out": 0},
        {"held_out": float("inf")}, {"format": 1}, {"more": 1}))],
)  # fmt: skip
def test_invalid_records_are_ignored(facts: str, parts: tuple[Dataset, Dataset]) -> None:
    net = label_classifier(*parts, seconds=SHORT).net
    write_tensors(kept(), net.state_dict(), json.dumps(RIGHT))
    assert label_classifier(*parts, seconds=SHORT).facts.steps == 50
    write_tensors(kept(), net.state_dict(), facts)
    assert not label_classifier(*parts, seconds=SHORT).cached


def test_without_a_cache_nothing_is_stored(parts: tuple[Dataset, Dataset], monkeypatch: pytest.MonkeyPatch) -> None:
    made = count_trainings(monkeypatch)
    monkeypatch.setenv(SWITCH, "off")
    label_classifier(*parts, seconds=SHORT)
    assert not cache_folder().exists()
    monkeypatch.delenv(SWITCH)
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert not label_classifier(*parts, seconds=SHORT).cached and made == [SHORT, SHORT]


def test_the_cache_evicts_the_least_recently_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    from pydantic import TypeAdapter

    from reverie.base.tensors import tensor_specs

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache, x = Cache("some", 5000), {"x": torch.zeros(1000, dtype=torch.uint8)}
    folder = tmp_path / "reverie" / "some"
    for k, name in enumerate("abcd"):
        cache.write(name, x, "1")
        os.utime(folder / f"{name}.safetensors", (k, k))
    assert cache.read("a", lambda _: tensor_specs(x), TypeAdapter(int)) is not None  # most recently used
    (folder / ".e-12345678.safetensors").write_bytes(b"begun")
    os.utime(folder / ".e-12345678.safetensors", (0, 0))
    cache.write("f", x, "1")
    cache.write("large", {"x": torch.zeros(2000, dtype=torch.uint8)}, "1")
    names = {path.name for path in folder.iterdir()}
    assert names == {f"{name}.safetensors" for name in "acdf"}
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 5000


def test_data_without_a_classifier() -> None:
    images = load_data("digits8")
    assert can_classify(images) and not can_classify(load_data("spiral", 50))
    assert not can_classify(Dataset("few", images.x[:, :, :3], images.labels, images.label_names))
