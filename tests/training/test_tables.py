"""Tables from the file to the samples, and the family that is chosen for each kind of data."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

import reverie
from reverie import api
from reverie.base.errors import UserError
from reverie.data import load_data
from reverie.data.kind import Kind
from reverie.families import FAMILIES
from reverie.runs.folder import read_config
from reverie.runs.run import load

SMALL: dict[str, Any] = {"steps": 3, "batch": 8}


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with an id, gaps, and names that a spreadsheet would take for a formula."""
    random, path = np.random.default_rng(0), tmp_path_factory.mktemp("people") / "people.csv"
    rows = [
        f"{k},{'' if k % 17 == 3 else round(random.normal(172, 9), 1)},{random.normal(70, 12):.1f},{'fm'[k % 2]}"
        for k in range(90)
    ]
    path.write_text("id,height (cm),=weight,sex\n" + "\n".join(rows))
    return path


@pytest.fixture(scope="module")
def run(people: Path) -> Path:
    return reverie.train(str(people), people.parent / "run", network="mlp:hidden=8", **SMALL).path


def cells(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def test_samples_of_named_columns_are_written_as_a_table_with_the_names(run: Path, tmp_path: Path) -> None:
    assert read_config(run).data.columns == ("height (cm)", "=weight")
    samples = reverie.sample(run, 7, out=tmp_path / "a.csv")
    head, *rows = cells(tmp_path / "a.csv")
    assert head == ["height (cm)", "'=weight", "label"]
    assert np.array_equal(np.array([row[:2] for row in rows], np.float32), samples.x)
    assert [row[2] for row in rows] == list(samples.labels or ())
    samples[2:5].save(tmp_path / "b.csv")
    assert cells(tmp_path / "b.csv") == [head, *rows[2:5]]
    for form in ("png", "gif"):
        assert reverie.sample(run, 5, out=tmp_path / f"a.{form}").columns == ("height (cm)", "=weight")


def test_a_run_without_names_of_columns_is_loaded_and_its_samples_have_numbered_ones(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "old"
    path.mkdir()
    for file in run.iterdir():
        if file.is_file():
            (path / file.name).write_bytes(file.read_bytes())
    lines = (path / "config.toml").read_text().splitlines()
    begin = next(k for k, line in enumerate(lines) if line.startswith("columns = ["))
    end = begin if lines[begin].endswith("]") else lines.index("]", begin)
    (path / "config.toml").write_text("\n".join([*lines[:begin], *lines[end + 1 :]]))
    reverie.sample(load(path), 3, out=tmp_path / "a.csv")
    assert cells(tmp_path / "a.csv")[0] == ["x1", "x2", "label"]


def test_images_and_text_are_no_tables(tmp_path: Path) -> None:
    made = reverie.train("digits8", tmp_path / "digits", network="unet:widths=[8,12],groups=4,embedding_dim=16", **SMALL)
    with pytest.raises(UserError, match=r"a\.csv"):
        reverie.sample(made, 2, out=tmp_path / "a.csv")
    assert not (tmp_path / "a.csv").exists()


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random, path = np.random.default_rng(0), tmp_path_factory.mktemp("series") / "series.csv"
    values = np.convolve(random.normal(size=639), np.ones(40) / 40, "valid")
    path.write_text("day,a,b\n" + "\n".join(f"{k},{v:.4f},{random.normal():.3f}" for k, v in enumerate(values)))
    return path


def test_each_kind_of_data_has_one_default_family_that_takes_it() -> None:
    for kind in get_args(Kind):
        (default,) = [family for family in FAMILIES.values() if kind in family.default_for]
        assert kind in default.kinds


def data_of(kind: str, series: Path) -> tuple[Any, dict[str, Any]]:
    return {
        "series": (str(series), {"window": 24}),
        "array": (np.cumsum(np.ones((300, 1)), 0) % 7, {"window": 24}),
        "pairs": ("dates", {"points": 60}),
        "text": ("prose", {}),
    }[kind]  # type: ignore[return-value]


@pytest.mark.parametrize("kind", ["series", "array", "pairs", "text"])
def test_a_kind_that_diffusion_does_not_take_is_given_a_family_that_does_and_this_is_reported(
    kind: str, series: Path, tmp_path: Path
) -> None:
    data, reading = data_of(kind, series)
    training = api.begin(data, tmp_path / "run", **SMALL, **reading)
    family = training.run.config.family.name
    taken = training.run.kind
    assert taken in FAMILIES[family].kinds and taken in FAMILIES[family].default_for
    (line,) = [line for line in training.introduction() if line.startswith("family: ")]
    assert family in line and "diffusion" in line and "--family" in line
    with pytest.raises(UserError, match=f"diffusion takes .*{family}"):
        api.begin(data, tmp_path / "other", family="diffusion", **SMALL, **reading)
    assert not (tmp_path / "other").exists()


def test_a_series_is_trained_and_written_without_naming_a_family(series: Path, tmp_path: Path) -> None:
    made = reverie.train(str(series), tmp_path / "run", window=24, **SMALL)
    assert made.config.data.columns == ("a", "b")
    reverie.sample(made, 2, out=tmp_path / "a.csv")
    head, *rows = cells(tmp_path / "a.csv")
    assert head == ["series", "moment", "a", "b"] and len(rows) == 48 and rows[25][:2] == ["1", "1"]
    assert load_data(tmp_path / "a.csv", window=24, columns="a,b").shape == (24, 2)
