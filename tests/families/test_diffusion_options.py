"""Options of the family diffusion: they reach config.toml and survive loading, and a run without one has its default."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch

import reverie
from reverie import api
from reverie.base.errors import UserError
from reverie.diffusion.loss import Absolute, Huber, loss
from reverie.diffusion.pair import Pair
from reverie.evaluation.noise_level_loss import noise_levels_section
from reverie.families.diffusion.noise_levels import held_out_metrics, level_of, optimum
from reverie.runs.run import load
from reverie.training.linear import linear_filter
from reverie.training.suggestions import rerun_settings, sizes

CONDITION_OPTIONS = {
    "loss": "huber:delta=0.5",
    "schedule": "linear:steps=300,scale=false",
    "network": "mlp:hidden=8,embedding=sine,connector=multiply",
}


@pytest.mark.filterwarnings("ignore:the schedule ends")
def test_options_reach_the_configuration_and_survive_loading(command, tmp_path: Path) -> None:
    words = [word for key, value in CONDITION_OPTIONS.items() for word in (f"--{key}", value)]
    out = tmp_path / "r"
    code, _, err = command("train", "moons", "--points", 200, "--steps", 3, "--out", out, *words)
    assert code == 0, err
    table = tomllib.loads((out / "config.toml").read_text())["family"]
    assert table["loss"] == {"name": "huber", "delta": 0.5}
    assert table["schedule"]["scale"] is False and table["schedule"]["steps"] == 300
    assert (table["network"]["connector"], table["network"]["embedding"]) == ("multiply", "sine")
    run = load(out)
    assert isinstance(run.diffusion.measure, Huber) and run.diffusion.measure.delta == 0.5
    assert run.diffusion.denoiser.net.multiplies and run.sample(2, steps=2).x.shape == (2, 2)
    again = rerun_settings(out)
    assert {key: again[key] for key in CONDITION_OPTIONS} == CONDITION_OPTIONS
    for key, other in {"loss": "mae", "schedule": "linear:steps=300", "network": "mlp:hidden=8,embedding=sine"}.items():
        code, _, err = command("train", "--resume", out, "--extend", "--steps", 2, f"--{key}", other)
        assert code == 2 and f"{key} was" in err
    assert command("train", "--resume", out, "--extend", "--steps", 1, *words)[0] == 0


def test_the_radial_basis_network_and_additive_noise_train_and_sample(tmp_path: Path) -> None:
    run = reverie.train("patterns", tmp_path / "r", points=300, steps=30, network="rbf:hidden=16", schedule="additive:steps=50")
    x = load(run.path).sample(40, label="moons", guidance=2.0).x
    assert x.shape == (40, 2) and (abs(x) < 10).all()
    assert sizes(run.diffusion_settings.network).larger == "rbf:hidden=32"


def older(path: Path, table: str, *keys: str) -> None:
    """Make a run look as if it had been kept before options were there."""
    config = tomllib.loads((path / "config.toml").read_text())
    for key in keys:
        del (config["family"][table] if table else config["family"])[key]
    (path / "config.toml").write_text(tomli_w.dumps(config))


def test_a_run_kept_without_an_option_has_its_default(tmp_path: Path) -> None:
    run = reverie.train("moons", tmp_path / "r", points=200, steps=2, network="mlp:hidden=8", schedule="linear")
    before = sizes(run.diffusion_settings.network)
    older(run.path, "schedule", "scale")
    older(run.path, "network", "connector")
    older(run.path, "", "loss")
    assert load(run.path).sample(3, seed=1).x.tolist() == run.sample(3, seed=1).x.tolist()
    assert before.larger is not None and sizes(load(run.path).diffusion_settings.network) == before
    same: dict[str, Any] = {"schedule": "linear", "network": "mlp:hidden=8", "loss": "mse"}
    list(api.begin(resume=run.path, extend=True, steps=1, **same))
    other = {"schedule": "linear:scale=false", "network": "mlp:hidden=8,connector=multiply", "loss": "mae"}
    for key, value in other.items():
        with pytest.raises(UserError, match=f"{key} was"):
            api.begin(resume=run.path, extend=True, steps=1, **{key: value})


def test_figures_of_squared_errors_stay_those_under_another_loss(tmp_path: Path) -> None:
    run = reverie.train("moons", tmp_path / "r", points=400, steps=20, network="mlp:hidden=8", loss="mae")
    model, data = run.diffusion, reverie.data.load_data("moons", 400)
    assert isinstance(model.measure, Absolute)
    figures = held_out_metrics(model, data, seed=0)
    whole, noise = figures["held_out"], figures["noise_error_levels"]
    row = [row for row in run.metrics() if "held_out" in row][-1]
    assert row["loss"] > 0 and not row.get("optimum_levels") and not row.get("linear_levels")
    assert optimum(model, data) is None and linear_filter(model, model.encode(data.subsample(100))) is None
    # by hand: the mean absolute error of v, and the mean squared error of eps in the noisiest range
    random = torch.Generator().manual_seed(5)
    z = model.encode(data.subsample(400)).repeat(50, 1)
    t = model.denoiser.schedule.t_min + (1 - model.denoiser.schedule.t_min) * torch.rand(len(z), generator=random).double()
    with torch.no_grad():
        truth = Pair(z, torch.randn(z.shape, generator=random))
        absolute = loss(model.denoiser, truth, t, target="v", measure=Absolute())
        squared = loss(model.denoiser, truth, t, target="eps")
    assert whole == pytest.approx(float(absolute.mean()), rel=0.1)
    assert noise[3] == pytest.approx(float(squared[level_of(model, t, 4) == 3].mean()), rel=0.1)
    section = noise_levels_section(run, data, data, levels=4)
    assert section.figures["loss"] == "uniform mae loss of v"
    assert "squared errors" in json.dumps(section.figures["optimum of the training set"])
