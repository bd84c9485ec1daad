"""What noise is measured by: closed forms, and a network that is too narrow, trained for real."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import reverie
from reverie import api
from reverie.data.appearance import appearance_stats, grain
from reverie.diffusion.loss import loss
from reverie.diffusion.oracle import GaussianDenoiser
from reverie.diffusion.pair import Pair
from reverie.families.diffusion.noise_levels import T_RANGES, level_of
from reverie.nets.transformer import Transformer
from reverie.nets.unet import UNet
from reverie.runs.config import build_model
from reverie.runs.run import Run
from reverie.training.checks import NOISY
from reverie.training.linear import FirstMap, first_map, linear_filter, power
from reverie.training.summary import NOISE, SHORT
from reverie.training.trainer import Training

RANDOM = torch.Generator().manual_seed(0)


def test_the_grain_of_noise_is_its_variance_and_that_of_edges_is_none() -> None:
    noise = 0.5 * torch.randn(200, 3, 16, 16, generator=RANDOM)
    assert float(grain(noise).mean()) == pytest.approx(0.25, rel=0.02)
    ramp = torch.linspace(-1, 1, 16).expand(1, 1, 16, 16)
    assert float(grain(ramp)) == pytest.approx(0, abs=1e-10) and float(grain(ramp.sign())) == 0
    assert float(grain(torch.randn(5, 2)).sum()) == 0  # points have none


def test_textures_are_no_noise_beside_their_own_kind() -> None:
    """Fine stripes and speckles have much grain: it counts only beside the data's own."""
    zeros = torch.zeros(100)
    speckles = (torch.rand(200, 1, 16, 16, generator=RANDOM) < 0.3).float() * 2 - 1
    truth = appearance_stats(speckles[:100], zeros, -1, 1)
    assert truth.grain > 0.5 and appearance_stats(speckles[100:], zeros, -1, 1).noise(truth) < NOISY / 3
    smooth = functional.avg_pool2d(torch.randn(100, 3, 20, 20, generator=RANDOM), 5, 1).mul(3).clamp(-1, 1)
    truth = appearance_stats(smooth, zeros, -1, 1)
    hazy = smooth + 0.5 * smooth.std() * torch.randn(smooth.shape, generator=RANDOM)
    assert appearance_stats(hazy, zeros, -1, 1).noise(truth) == pytest.approx(0.25, abs=0.12)
    assert appearance_stats(torch.randn(smooth.shape, generator=RANDOM), zeros, -1, 1).noise(truth) > 3 * NOISY


def test_the_power_of_shifted_images_is_their_covariances_eigenvalues() -> None:
    one = torch.randn(3, 1, 4, 6, generator=RANDOM, dtype=torch.float64)
    every = torch.cat([one.roll((i, j), (2, 3)) for i in range(4) for j in range(6)])  # a set that looks the same everywhere
    covariance = torch.cov(every.flatten(1).T)
    torch.testing.assert_close(power(every).sort().values, torch.linalg.eigvalsh(covariance), atol=1e-8, rtol=0)


def test_the_linear_filters_loss_is_that_of_the_gaussian_denoiser(spiral_run: Run) -> None:
    """In two dimensions the best linear denoiser is the optimum of a Gaussian of the same covariance."""
    model = spiral_run.model
    z = torch.randn(4000, 2, generator=RANDOM) @ torch.tensor([[1.2, 0.4], [0.0, 0.3]])
    oracle = GaussianDenoiser(model.denoiser.schedule, z.mean(0), torch.cov(z.T))
    low = model.denoiser.schedule.t_min
    t = low + (1 - low) * (torch.arange(len(z), dtype=torch.float64) + 0.5) / len(z)
    t = t[torch.randperm(len(z), generator=RANDOM)]
    lost = loss(oracle, Pair(z, torch.randn(z.shape, generator=RANDOM)), t, None, model.denoiser.target)
    found = linear_filter(model, z)
    assert found is not None
    for k, level in enumerate(found.loss_levels):
        mine = lost[level_of(model, t, T_RANGES) == k]
        assert level == pytest.approx(float(mine.mean()), abs=4 * float(mine.std()) / len(mine) ** 0.5)
    assert linear_filter(model, z[:1]) is None and linear_filter(model, z * torch.nan) is None


def test_the_first_map_is_found(spiral_run: Run) -> None:
    def entry(net: nn.Module, *shape: int) -> FirstMap | None:
        model = build_model(spiral_run.config)
        model.denoiser.net, model.shape, model.model_shape = net, shape, shape
        return first_map(model)

    assert entry(UNet(3, 16, 16, (16, 32), stem=2), 3, 16, 16) == FirstMap(16, 12)
    assert entry(Transformer(3, 16, 16, patch=4, dim=32, layers=1, heads=2), 3, 16, 16) == FirstMap(32, 48)
    narrow = entry(UNet(3, 8, 8, (32, 64), stem=4), 3, 8, 8)
    assert narrow == FirstMap(32, 48) and narrow.lost == pytest.approx(1 / 3)
    assert first_map(spiral_run.model) is None


@pytest.fixture
def colours(tmp_path: Path) -> str:
    """Smooth coloured images, 8 x 8."""
    x = functional.interpolate(torch.rand(200, 3, 3, 3, generator=RANDOM), 8, mode="bicubic").clamp(0, 1)
    np.save(tmp_path / "colours.npy", (x * 255).byte().movedim(1, -1).numpy())
    return str(tmp_path / "colours.npy")


def trained(data: str, out: Path, network: str, monkeypatch: pytest.MonkeyPatch) -> Training:
    monkeypatch.setattr("reverie.families.diffusion.family.check_width", lambda network: None)  # as for older runs
    monkeypatch.setattr("reverie.training.loop.CHECK_SHARE", 1.0)  # all checks and previews, however busy the machine is
    monkeypatch.setattr("reverie.training.doctor.PREVIEW_SHARE", 1.0)
    training = api.prepare(data, out, steps=250, batch=32, network=network, augment="none")
    list(training)
    return training


@pytest.mark.slow
def test_a_network_too_narrow_for_its_input_is_found(colours: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = api.verdict(trained(colours, tmp_path / "run", "unet:stem=4", monkeypatch).run)
    assert [finding.check for finding in verdict.findings] == ["noisy_previews"], verdict
    found = verdict.findings[0]
    assert all(number in found.cause for number in ("48 values", "32 channels", "33%"))
    assert verdict.lines[0].startswith("1 ") and NOISE in verdict.lines[0] and "--network unet:stem=2" in verdict.lines[2]
    assert NOISE in verdict.lines[1]
    assert verdict.commands["retrain"].endswith("--batch 32 --network unet:stem=2 --augment none")


@pytest.mark.slow  # shorter runs without findings: tests/training/test_checks.py
def test_the_same_network_wide_enough_has_no_noise_finding(
    colours: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = api.verdict(trained(colours, tmp_path / "run", "unet:stem=2", monkeypatch).run)
    assert "noisy_previews" not in {finding.check for finding in verdict.findings}, verdict
    assert "noise" not in verdict.lines[0] and "are noise" not in verdict.lines[1]


def test_a_short_run_with_noisy_previews_is_too_short_to_assess(tmp_path: Path) -> None:
    run = reverie.train("digits8", tmp_path / "run", steps=2, batch=8)
    verdict = api.verdict(run)
    assert verdict.findings == () and verdict.lines[0].startswith(SHORT) and "2 steps" in verdict.lines[0]
    assert SHORT in verdict.lines[2] and "retrain" not in verdict.commands


@pytest.mark.slow
def test_a_network_that_predicts_the_clean_data_has_no_noise_finding(tmp_path: Path) -> None:
    run = reverie.train("digits8", tmp_path / "run", steps=150, batch=16, network="unet:widths=[8]", target="x0")
    assert "noisy_previews" not in {finding.check for finding in api.verdict(run).findings}
