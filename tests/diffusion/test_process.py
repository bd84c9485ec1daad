from __future__ import annotations

import numpy as np
import pytest
import torch

from reverie.base.noise import Noise, image_seeds
from reverie.diffusion.process import chain, gaussian_posterior, jump, posterior, transition
from reverie.diffusion.schedule import Linear, Schedule

N = 40_000


def test_chain_and_jump_agree_in_distribution(schedule: Schedule) -> None:
    x0 = torch.full((N, 1), 0.7, dtype=torch.float64)
    grid = torch.linspace(0.02, 0.8, 25, dtype=torch.float64)
    noise = Noise(image_seeds(1, N))
    *_, walked = chain(schedule, x0, grid, noise)
    jumped = jump(schedule, x0, grid[-1], noise)
    alpha, sigma = (float(c) for c in schedule(grid[-1]))
    for x in (walked, jumped):
        assert abs(float(x.mean()) - alpha * 0.7) < 3 * sigma / np.sqrt(N)
        assert abs(float(x.var()) / sigma**2 - 1) < 3 * np.sqrt(2 / N)


def test_transition_of_neighbours_is_beta() -> None:
    betas = np.linspace(1e-4, 0.02, 1000)
    i = torch.arange(1, 1001, dtype=torch.float64)
    scale, std = transition(Linear(), (i - 1) / 1000, i / 1000)
    np.testing.assert_allclose(scale.numpy(), np.sqrt(1 - betas), rtol=1e-10)
    np.testing.assert_allclose(std.numpy() ** 2, betas, rtol=1e-8)


@pytest.mark.parametrize(("t", "s"), [(0.9, 0.8), (0.5, 0.1), (0.2, 0.15)])
def test_posterior_agrees_with_bayes_rule_done_numerically(schedule: Schedule, t: float, s: float) -> None:
    x0, x = 0.4, float(schedule(t)[0]) * 0.4 + 0.9 * float(schedule(t)[1])
    (alpha_s, sigma_s), (scale, std) = schedule(s), transition(schedule, s, t)
    mean, variance = posterior(
        schedule, torch.full((1, 1), x, dtype=torch.float64), torch.full((1, 1), x0, dtype=torch.float64), t, s
    )
    reach = 12 * float(variance) ** 0.5
    u = np.linspace(float(mean) - reach, float(mean) + reach, 200_001)
    log_density = -((u - float(alpha_s) * x0) ** 2) / (2 * float(sigma_s) ** 2) - (x - float(scale) * u) ** 2 / (
        2 * float(std) ** 2
    )
    weights = np.exp(log_density - log_density.max())
    weights /= weights.sum()
    numeric = (weights * u).sum()
    assert float(mean) == pytest.approx(numeric, rel=1e-9, abs=1e-9 * max(1.0, abs(x)))
    assert float(variance) == pytest.approx((weights * (u - numeric) ** 2).sum(), rel=1e-6)


def test_bayes_rule_for_normals_agrees_with_the_joint_normal() -> None:
    """Y | x of the joint normal of (y, x): mean + C_yx / C_xx (x - E x), C_yy - C_yx² / C_xx."""
    random = torch.Generator().manual_seed(0)
    scale, std, prior_std = (torch.rand(50, generator=random, dtype=torch.float64) * 3 + 0.01 for _ in range(3))
    x, before = (torch.randn(50, 2, generator=random, dtype=torch.float64) for _ in range(2))
    mean, variance = gaussian_posterior(x, scale, std, before, prior_std)
    c_xx, c_yx = scale**2 * prior_std**2 + std**2, scale * prior_std**2
    torch.testing.assert_close(mean, before + (c_yx / c_xx)[:, None] * (x - scale[:, None] * before))
    torch.testing.assert_close(variance, prior_std**2 - c_yx**2 / c_xx)
    torch.testing.assert_close(1 / variance, scale**2 / std**2 + 1 / prior_std**2)
    for one, certain in (((2.0, 0.0, 1.5), x / 2), ((2.0, 0.7, 0.0), before)):  # x determines y; y is known
        mean, variance = gaussian_posterior(x, one[0], one[1], before, one[2])
        torch.testing.assert_close(mean, certain)
        assert variance == 0


def test_posterior_is_the_one_of_ho_et_al() -> None:
    betas = np.linspace(1e-4, 0.02, 1000)
    bar = np.cumprod(1 - betas)
    k = 400  # step number k + 1
    x, x0 = (torch.full((1, 1), v, dtype=torch.float64) for v in (1.3, -0.2))
    mean, variance = posterior(Linear(), x, x0, (k + 1) / 1000, k / 1000)
    expected = (
        np.sqrt(bar[k - 1]) * betas[k] / (1 - bar[k]) * -0.2 + np.sqrt(1 - betas[k]) * (1 - bar[k - 1]) / (1 - bar[k]) * 1.3
    )
    assert float(mean) == pytest.approx(expected, rel=1e-9)
    assert float(variance) == pytest.approx(betas[k] * (1 - bar[k - 1]) / (1 - bar[k]), rel=1e-8)
