"""Variances that a run learned, or that were measured on its data: kept, loaded, used by sampler and bound, refused."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path

import pytest
import torch

import reverie
from reverie import api
from reverie.base.errors import UserError
from reverie.base.noise import image_seeds
from reverie.data import load_data
from reverie.diffusion.likelihood import mean_and_error
from reverie.diffusion.samplers import GRIDS
from reverie.runs.error_curve_file import ERROR_CURVE_FILE
from reverie.runs.run import Run, load

MLP = "mlp:hidden=24"


@pytest.fixture(scope="module")
def learned_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that learned variances."""
    folder = tmp_path_factory.mktemp("runs") / "r"
    return reverie.train("moons", folder, points=1000, steps=250, batch=256, network=MLP, variance="learned")


def test_the_bound_of_a_trained_model_is_lowest_with_its_own_variance_and_lower_with_the_optimal_than_with_fixed_ones(
    learned_run: Run,
) -> None:
    x, _ = load_data("moons", 600, 7).batch(torch.arange(600))
    grid = GRIDS["uniform"](end=0.02)(learned_run.diffusion.denoiser.schedule, 11)
    nats = {}
    for name in ("posterior", "forward", "optimal", "learned"):
        nats[name] = learned_run.diffusion.bound(x, None, image_seeds(0, 600), grid, name, error=learned_run.mean_error()).nats
    for better, worse in (("optimal", "posterior"), ("optimal", "forward"), ("learned", "forward"), ("learned", "posterior")):
        gain, error = mean_and_error(nats[worse] - nats[better])
        assert error is not None and gain > 2 * error, (better, worse, gain, error)


def test_a_run_without_learned_variances_has_the_optimal_one(spiral_run: Run, tmp_path: Path) -> None:
    shutil.copytree(spiral_run.path, tmp_path / "r")
    run, n = load(tmp_path / "r"), 400
    x, _ = load_data("spiral", n, 12345).batch(torch.arange(n))
    grid = GRIDS["uniform"](end=0.02)(run.diffusion.denoiser.schedule, 11)
    best, *fixed = (
        run.diffusion.bound(x, None, image_seeds(0, n), grid, name, error=run.mean_error()).nats
        for name in ("optimal", "posterior", "forward")
    )
    for other in fixed:
        gain, error = mean_and_error(other - best)
        assert error is not None and gain > 2 * error
    with pytest.raises(UserError, match="no learned variances"):
        run.sample(2, sampler="ddpm:variance=learned")
    with pytest.raises(UserError, match=r"give error=run.mean_error\(\)"):
        run.diffusion.bound(x, None, image_seeds(0, n), grid, "optimal")


def test_learned_variances_are_kept_and_sampled_with(learned_run: Run, command, tmp_path: Path) -> None:
    table = tomllib.loads((learned_run.path / "config.toml").read_text())["family"]
    assert table["variance"] == "learned" and table["network"]["outputs"] == 2
    run = load(learned_run.path)
    samples = {name: run.sample(50, sampler=f"ddpm:variance={name}", steps=5).x for name in ("posterior", "optimal", "learned")}
    assert all(x.shape == (50, 2) and abs(x).max() < 10 for x in samples.values())
    assert abs(samples["learned"] - samples["posterior"]).max() > 1e-3 < abs(samples["learned"] - samples["optimal"]).max()
    assert samples["learned"].tolist() == learned_run.sample(50, sampler="ddpm:variance=learned", steps=5).x.tolist()
    code, _, err = command("sample", run.path, "-n", 2, "--sampler", "ddpm:variance=best", "--out", tmp_path / "x.npy")
    assert code == 2 and "variance" in err and not (tmp_path / "x.npy").exists()
    shutil.copytree(learned_run.path, tmp_path / "r")
    assert [step.i for step in api.begin(resume=tmp_path / "r", extend=True, steps=1, network=MLP, variance="learned")]
    with pytest.raises(UserError, match="variance was"):
        api.begin(resume=tmp_path / "r", extend=True, steps=1, variance="fixed")


def test_the_error_curve_is_measured_once_per_weights_and_again_for_a_damaged_file(learned_run: Run, tmp_path: Path) -> None:
    shutil.copytree(learned_run.path, tmp_path / "r")
    file = tmp_path / "r" / ERROR_CURVE_FILE
    file.unlink(missing_ok=True)
    found = load(tmp_path / "r").mean_error()
    kept = json.loads(file.read_text())
    assert kept["share"] == found.share.tolist()
    changed = {**kept, "share": [0.5] * len(kept["share"])}
    file.write_text(json.dumps(changed))  # is believed, as its weights are right
    assert load(tmp_path / "r").mean_error().share.tolist() == changed["share"]
    for wrong in (
        {**changed, "weights": "0" * 64},
        {**changed, "log_snr": changed["log_snr"][::-1]},
        {**changed, "share": [-1]},
    ):
        file.write_text(json.dumps(wrong))
        assert load(tmp_path / "r").mean_error().share.tolist() == kept["share"]
        assert json.loads(file.read_text()) == kept
    file.unlink()
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="is a link"):
        load(tmp_path / "r").mean_error()
    assert not (tmp_path / "elsewhere").exists()


def test_a_run_whose_data_are_gone_says_what_the_optimal_variance_needs(tmp_path: Path) -> None:
    points = torch.randn(100, 2, generator=torch.Generator().manual_seed(0)).numpy()
    run = reverie.train(points, tmp_path / "r", steps=2, network="mlp:hidden=8")
    with pytest.raises(UserError, match="needs the training data of the run"):
        run.sample(2, sampler="ddpm:variance=optimal")


@pytest.mark.parametrize(
    "options, wrong",
    [
        ({"variance": "best"}, "unknown variance 'best'"),
        ({"weight": "vlb:steps=-2"}, "'steps' of the weight 'vlb'"),
        ({"weight": "mixed:share=2"}, "'share' of the weight 'mixed'"),
        ({"schedule": "learned", "weight": "mixed"}, "trained by the bound"),
    ],
)
def test_invalid_options_raise_user_errors(options: dict[str, str], wrong: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=wrong):
        reverie.train("moons", tmp_path / "r", points=100, steps=1, network="mlp:hidden=8", **options)
    assert not (tmp_path / "r").exists()


def test_level_denoisers_have_variances(tmp_path: Path) -> None:
    unet = "unet:widths=[8,12],groups=4,embedding_dim=16"
    with pytest.raises(UserError, match="leave --variance out"):
        reverie.train("digits8", tmp_path / "a", steps=1, purpose="likelihood", variance="learned", network=unet)
    run = reverie.train("digits8", tmp_path / "r", steps=2, purpose="likelihood", network=unet, weight="vlb:steps=4")
    assert run.diffusion_settings.times == "stratified" and run.diffusion.denoiser.has_variance
    assert run.sample(2, sampler="ddpm:variance=learned", steps=4).x.shape == (2, 8, 8)
