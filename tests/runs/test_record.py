"""A run remembers how it is sampled: the defaults of its version, or those recorded in it, whatever the defaults are now."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tomli_w

import reverie
from reverie.base.errors import UserError
from reverie.base.parse import read_toml
from reverie.exchange.export_parts import split_run
from reverie.families.diffusion import sampling
from reverie.families.diffusion.settings import DiffusionSettings
from reverie.runs.folder import read_config
from reverie.runs.run import Run, load

KEPT = Path(__file__).parent / "format2"
OTHER = ("heun", 3, "trailing")


@pytest.fixture(params=["grey", "colour", "points"])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a run of the version before defaults were recorded, beside what it sampled then without options."""
    shutil.copytree(KEPT / request.param, tmp_path / request.param)
    return tmp_path / request.param


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a later version other defaults."""
    monkeypatch.setattr(sampling, "DEFAULTS", dict.fromkeys(sampling.DEFAULTS, OTHER))


def edited(run: Path, **changes: object) -> None:
    """Change keys of the table [family] of a run; None takes one out."""
    table = read_toml((run / "config.toml").read_text())
    family = {key: value for key, value in (table["family"] | changes).items() if value is not None}
    (run / "config.toml").write_text(tomli_w.dumps({**table, "family": family}))


def test_a_run_without_a_record_samples_as_its_version_did(old: Path, later: None) -> None:
    run = load(old)
    np.testing.assert_allclose(run.sample(8, seed=3).x, np.load(KEPT / f"{old.name}.npy"), atol=1e-4)
    assert run.record is not None and run.record.source == "version" and "version" in run.explain_sampling({})


def test_versions_are_reported_apart_by_their_tables(old: Path) -> None:
    wanted = {"grey": ("dpm++sde", 12, "uniform"), "colour": ("ddpm", 40, "uniform"), "points": ("dpm++2m", 20, "uniform")}
    first = ("ddim", 50, "uniform") if old.name == "points" else ("ddpm", 40, "uniform")
    for without, choice in (({"clusters": None}, wanted[old.name]), ({"clusters": None, "examples": None}, first)):
        edited(old, **without)
        family = read_config(old).family
        assert isinstance(family, DiffusionSettings) and family.sampling is not None and family.sampling.choice == choice


def test_a_recorded_run_samples_the_same_whatever_the_defaults_are_later(
    digits_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = digits_run.sample(4, seed=1).x
    monkeypatch.setattr(sampling, "DEFAULTS", dict.fromkeys(sampling.DEFAULTS, OTHER))
    again = load(digits_run.path)
    assert np.array_equal(again.sample(4, seed=1).x, before) and again.chosen_sampling({}) != OTHER
    facts = split_run(again, {}, "a page").facts({})
    assert (facts["sampler"], facts["steps"], facts["grid"]) == again.chosen_sampling({})
    assert again.record is not None and again.record.precision == "fp32"


def test_other_options_still_decide(old: Path) -> None:
    run = load(old)
    recorded = run.chosen_sampling({})
    assert run.chosen_sampling({"steps": 7, "grid": "karras"}) == (recorded[0], 7, "karras")
    assert run.chosen_sampling({"sampler": "heun"})[0] == "heun"


def test_newer_defaults_are_offered_in_a_line(
    old: Path, later: None, command: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    code, _, message = command("sample", old, "-n", 2, "--out", tmp_path / "x.npy")
    assert code == 0 and "--sampler heun --steps 3 --grid trailing" in message
    assert "heun" not in command("sample", old, "-n", 2, "--steps", 4, "--out", tmp_path / "y.npy")[2]


@pytest.mark.parametrize(
    ("record", "named"),
    [
        ({"sampler": "nonsense", "steps": 4, "grid": "uniform"}, "nonsense"),
        ({"sampler": "ddim", "steps": 0, "grid": "uniform"}, "steps"),
        ({"sampler": "ddim", "steps": 4, "grid": "karras:rho=-1"}, "rho"),
        ({"sampler": "ddim", "steps": 4, "grid": "uniform", "more": 1}, "more"),
    ],
)
def test_a_record_is_checked(old: Path, record: dict[str, object], named: str) -> None:
    edited(old, sampling=record)
    with pytest.raises(UserError, match=named) as error:
        load(old)
    assert "config.toml" in str(error.value)


def test_a_new_run_has_its_record_from_the_start(tmp_path: Path) -> None:
    training = reverie.training.prepare.prepare("spiral", tmp_path / "run", steps=4, points=100)
    assert "[family.sampling]" in (tmp_path / "run" / "config.toml").read_text()
    training.discard()
