"""Runs with the keys of older versions load, sample the same, resume, and are written with the present keys."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reverie
from reverie.base.parse import read_toml
from reverie.data.augment import parse_augmentations
from reverie.families.diffusion.settings import DiffusionSettings
from reverie.runs.config import RENAMED_KEYS, with_present_keys
from reverie.runs.folder import read_config, read_metrics
from reverie.runs.run import Run, load

# Written by commit ed4230c: two runs stopped after 10 of 20 steps (points; labels, clusters and augmentation) and a finished
# one with a number as condition, each beside its samples then, X.npy, and those of the resumed run, X-resumed.npy.
OLD_KEYS, FORMAT_1 = Path(__file__).parent / "old_keys", Path(__file__).parent / "format1"
OPTIONS: dict[str, dict[str, Any]] = {"points": {}, "labels": {"label": "all"}, "numbers": {"condition": "angle=0.5"}}


def copied(name: str, folder: Path) -> Path:
    shutil.copytree(OLD_KEYS / name, folder / name)
    return folder / name


def samples(run: Run, name: str, **options: Any) -> np.ndarray:
    return run.sample(8, seed=3, steps=5, **OPTIONS[name], **options).x


def keys(value: Any, path: str = "") -> set[str]:
    """Return the dotted paths of all keys of a table."""
    if isinstance(value, list):
        return {key for one in value for key in keys(one, path)}
    if not isinstance(value, dict):
        return set()
    return {f"{path}{key}" for key in value} | {inner for key, one in value.items() for inner in keys(one, f"{path}{key}.")}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_run_with_old_keys_samples_the_same(name: str, tmp_path: Path) -> None:
    run = load(copied(name, tmp_path))
    np.testing.assert_allclose(samples(run, name), np.load(OLD_KEYS / f"{name}.npy"), atol=1e-4)


@pytest.mark.parametrize("name", ["points", "labels"])
def test_a_run_with_old_keys_resumes_and_gets_the_present_keys(name: str, tmp_path: Path) -> None:
    path = copied(name, tmp_path)
    sampler = load(path).chosen_sampling({})[0]
    run = reverie.train(resume=path)
    drawn = samples(run, name, sampler=sampler, autoguidance=1.0)
    np.testing.assert_allclose(drawn, np.load(OLD_KEYS / f"{name}-resumed.npy"), atol=1e-4)
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["i"] == 20 and all("train_loss" in row for row in rows if "held_out" in row)
    written = {"config.toml": keys(tomllib.loads((path / "config.toml").read_text())), "metrics.jsonl": keys(rows)}
    assert not any(written[file] & RENAMED_KEYS[file].keys() for file in RENAMED_KEYS)


def test_each_renamed_key_is_read() -> None:
    config = read_config(OLD_KEYS / "labels")
    old = read_toml((OLD_KEYS / "labels" / "config.toml").read_text())
    assert isinstance(config.family, DiffusionSettings) and config.requested == old["asked"]
    assert config.family.network["cond_dim"] == old["family"]["network"]["told"] == 4
    assert [spec.get("conditioned") for spec in config.family.augment] == [False, None]
    (number,) = read_config(OLD_KEYS / "numbers").data.condition.numbers  # type: ignore[union-attr]
    assert number.std == pytest.approx(0.797, abs=1e-3)
    for folder in (OLD_KEYS, FORMAT_1):
        row = read_metrics(folder / "points")[0]
        assert "train_levels" in row and row["appearance"].keys() == {"detail", "std", "nearest_neighbor", "noise"}
    assert read_config(FORMAT_1 / "images").requested == read_toml((FORMAT_1 / "images" / "config.toml").read_text())["asked"]


@pytest.mark.parametrize(
    ("table", "wanted"),
    [
        ({"seen": 1.0, "train_loss": 2.0}, {"seen": 1.0, "train_loss": 2.0}),  # both: refused by the schema, not overwritten
        ({"look": {"spread": 1}, "spread": 2}, {"appearance": {"std": 1}, "spread": 2}),
        ({"finding": {"look": "x"}}, {"finding": {"look": "x"}}),
        ([1], [1]),
    ],
)
def test_only_the_listed_keys_are_renamed(table: Any, wanted: Any) -> None:
    assert with_present_keys(table, "metrics.jsonl") == wanted


def test_a_renamed_option_of_a_spec_warns() -> None:
    with pytest.warns(DeprecationWarning, match="conditioned"):
        (spec,) = parse_augmentations("flip:told=no")
    assert spec["conditioned"] is False
