"""Runs whose data moved, were renamed, changed, or are gone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import reverie
from reverie import api
from reverie.base.errors import UserError
from reverie.data import load_data
from reverie.runs.config import DataConfig
from reverie.runs.folder import read_config
from reverie.runs.source_data import load_source_data
from tests.conftest import TINY
from tests.data.test_named_datasets import place, small_set


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("REVERIE_DATA", raising=False)
    yield


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    for k in range(12):
        (tmp_path / "photos" / "ab"[k % 2]).mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 255, (8, 8, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / "ab"[k % 2] / f"{k}.png")
    return tmp_path / "photos"


@pytest.fixture
def run(photos: Path, tmp_path: Path) -> Path:
    return reverie.train(str(photos), tmp_path / "run", steps=2, network=TINY, batch=4).path


def moved(photos: Path) -> Path:
    return photos.rename(photos.parent / "renamed")


QUICK = ("--quick", "-n", 6, "--steps", 2, "--features", "pixels")


def test_data_that_moved_are_reported_of_once(command, run: Path, photos: Path, tmp_path: Path) -> None:
    place = moved(photos)
    code, out, err = command("evaluate", run, *QUICK, "--out", tmp_path / "report.html")
    why = f"the data of the run are not at {photos}; if they have moved, add --data PATH"
    assert code == 0 and out.count(why) == 1 and why not in err and out.count("not measured:") == 1
    assert "precision, recall and diversity, two-sample test" in out and "not measured" in out
    assert (tmp_path / "report.html").read_text().count("not at") == 1
    code, out, _ = command("evaluate", run, *QUICK, "--data", place, "--json")
    found = json.loads(out)
    assert code == 0 and "kid" in found and "not_computable" not in found["sections"]["quality"]
    assert read_config(run).data.source == str(photos)  # looking at a run does not change it
    assert api.evaluate(run, 6, quick=True, steps=2, features="pixels", data=place)["kid"] == found["kid"]


def test_training_resumes_with_data_that_moved_and_remembers_where(command, run: Path, photos: Path) -> None:
    place = moved(photos)
    code, _, err = command("train", "--resume", run, "--extend", "--steps", 2)
    assert code == 2 and f"not at {photos}" in err and "--data PATH" in err
    code, out, err = command("train", "--resume", run, "--extend", "--steps", 2, "--data", place)
    assert code == 0 and "trained 4 steps" in out and read_config(run).data.source == str(place)
    again = place.rename(photos)
    assert api.train(str(again), resume=run, extend=True, steps=1).config.data.source == str(photos)
    assert api.train(resume=run, extend=True, steps=1).config.training.steps == 6


def test_other_data_are_refused_with_both_counts(command, run: Path, photos: Path, tmp_path: Path) -> None:
    before = (run / "config.toml").read_bytes()
    other = tmp_path / "other"
    shutil.copytree(photos, other)
    (other / "a" / "0.png").unlink()
    for words in (("evaluate", run, *QUICK), ("train", "--resume", run, "--extend", "--steps", 2), ("train-classifier", run)):
        code, out, err = command(*words, "--data", other)
        assert code == 2 and out == "" and err.count("\n") == 1, err
        assert f"{other} " in err and "12" in err and "11" in err
    shutil.copy(photos / "a" / "2.png", other / "a" / "0.png")
    code, _, err = command("evaluate", run, *QUICK, "--data", other)
    assert code == 2 and "others" in err
    code, _, err = command("evaluate", run, *QUICK, "--data", tmp_path / "nowhere")
    assert code == 2 and "no such file or folder" in err
    assert (run / "config.toml").read_bytes() == before


def test_data_belong_to_a_run_that_resumes(command, run: Path, photos: Path, tmp_path: Path) -> None:
    for words in (("--data", photos), (photos, "--resume", run, "--data", photos)):
        code, _, err = command("train", *words, "--out", tmp_path / "new") if words[0] == "--data" else command("train", *words)
        assert code == 2 and "--data" in err and "--resume RUN" in err


def test_an_option_that_nothing_uses_is_refused(command, run: Path, photos: Path, tmp_path: Path) -> None:
    for words in (("evaluate", run, *QUICK), ("train", "--resume", run, "--extend", "--steps", 2)):
        code, _, err = command(*words, "--data-dir", photos)
        assert (
            code == 2
            and "--data-dir" in err
            and "mnist, fashion, hoda, binarized-mnist, captioned-mnist" in err
            and "--data PATH" in err
        )
    code, _, err = command("train", photos, "--data-dir", photos, "--out", tmp_path / "new")
    assert code == 2 and "leave it out for" in err and not (tmp_path / "new").exists()
    with pytest.raises(UserError, match="leave it out for spiral"):
        load_data("spiral", data_dir=photos)


def test_a_run_remembers_where_the_files_of_its_data_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place(tmp_path / "files", small_set(tuple(k % 10 for k in range(20))))
    monkeypatch.chdir(tmp_path)
    run = reverie.train("mnist", tmp_path / "run", data_dir="files", steps=2, network=TINY, batch=4).path
    assert read_config(run).data.reading["data_dir"] == str(tmp_path / "files")
    monkeypatch.chdir("/")
    assert reverie.train(resume=run, extend=True, steps=1).config.training.steps == 3
    (tmp_path / "files").rename(tmp_path / "elsewhere")
    kept = reverie.train(resume=run, extend=True, steps=1, data_dir=tmp_path / "elsewhere").config.data.reading
    assert kept["data_dir"] == str(tmp_path / "elsewhere") == read_config(run).data.reading["data_dir"]
    files = reverie.train(str(tmp_path / "elsewhere"), resume=run, extend=True, steps=1).config.data
    assert files.source == str(tmp_path / "elsewhere") and "data_dir" not in files.reading


def test_tables_of_runs_that_learned_ids_as_well_are_read_as_they_were(tmp_path: Path) -> None:
    table = tmp_path / "a.csv"
    table.write_text("id,a,b\n" + "".join(f"{k},{k % 5},{k * k % 7}\n" for k in range(30)))
    before = load_data(table, columns="all")
    known = DataConfig(name="a", source=str(table), count=30, shape=(3,), fingerprint=before.fingerprint())
    assert load_source_data(known).fingerprint() == before.fingerprint()
    now = load_data(table)
    smaller = known.model_copy(update={"shape": (2,), "fingerprint": now.fingerprint(), "columns": now.columns})
    assert load_source_data(smaller).shape == (2,)
