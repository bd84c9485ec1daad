from __future__ import annotations

import pytest
import torch

from reverie.diffusion.oracle import DatasetDenoiser, GaussianDenoiser, MixtureDenoiser
from reverie.diffusion.schedule import Linear, Rectified, Schedule

MEAN = torch.tensor([0.3, -0.4], dtype=torch.float64)
COVARIANCE = torch.tensor([[0.8, 0.3], [0.3, 0.5]], dtype=torch.float64)


def mixture(schedule: Schedule) -> MixtureDenoiser:
    parts = [
        GaussianDenoiser(schedule, torch.tensor(m, dtype=torch.float64), COVARIANCE * c)
        for m, c in (([1, 0], 0.1), ([-1, 1], 0.3))
    ]
    return MixtureDenoiser(torch.tensor([0.3, 0.7], dtype=torch.float64), parts)


def test_gaussian_is_the_linear_regression_of_x0_on_x(schedule: Schedule) -> None:
    t = torch.tensor(0.6)
    alpha, sigma = schedule(t)
    x = torch.randn(7, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    gain = alpha * COVARIANCE @ torch.linalg.inv(alpha**2 * COVARIANCE + sigma**2 * torch.eye(2))
    expected = MEAN + (x - alpha * MEAN) @ gain.T
    torch.testing.assert_close(GaussianDenoiser(schedule, MEAN, COVARIANCE)(x, t).x0, expected)


@pytest.mark.parametrize("make", [lambda s: GaussianDenoiser(s, MEAN, COVARIANCE), mixture])
def test_score_is_the_gradient_of_the_log_density(make, schedule: Schedule) -> None:
    oracle, t = make(schedule), torch.tensor([0.2, 0.5, 0.9])
    x = torch.randn(3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    (gradient,) = torch.autograd.grad(oracle.log_prob(x, t).sum(), x)
    torch.testing.assert_close(oracle.score(x, t).detach(), gradient, rtol=1e-8, atol=1e-9)


def test_exact_flow_solves_the_probability_flow_equation(schedule: Schedule) -> None:
    oracle = GaussianDenoiser(schedule, MEAN, COVARIANCE)
    x = torch.randn(5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    h = 1e-5
    slope = (oracle.flow(x, 0.6, 0.6 + h) - oracle.flow(x, 0.6, 0.6 - h)) / (2 * h)
    torch.testing.assert_close(oracle.velocity(x, 0.6), slope, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(oracle.flow(oracle.flow(x, 0.9, 0.3), 0.3, 0.9), x)


def test_mixture_label_picks_a_component() -> None:
    oracle = mixture(Linear())
    x = torch.randn(6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    cond = torch.tensor([0, 1, -1, 0, 1, -1])
    picked = oracle(x, 0.5, cond).x0
    for k in range(2):
        torch.testing.assert_close(picked[cond == k], oracle.components[k](x[cond == k], 0.5).x0)
    torch.testing.assert_close(picked[cond == -1], oracle(x[cond == -1], 0.5).x0)


@pytest.mark.parametrize("chunk", [1, 7, 4096])
def test_dataset_optimum_is_the_direct_sum_in_any_chunks(schedule: Schedule, chunk: int) -> None:
    random = torch.Generator().manual_seed(4)
    data = torch.rand(30, 1, 3, 2, generator=random, dtype=torch.float64)
    x = torch.randn(5, 1, 3, 2, generator=random, dtype=torch.float64)
    t = torch.linspace(0.05, 0.95, 5, dtype=torch.float64)
    alpha, sigma = (c[:, None] for c in schedule(t))
    squared = ((x.flatten(1)[:, None] - alpha[..., None] * data.flatten(1)) ** 2).sum(-1)
    weights = (-squared / (2 * sigma**2)).softmax(1)
    expected = (weights @ data.flatten(1)).reshape(x.shape)
    torch.testing.assert_close(DatasetDenoiser(schedule, data, chunk=chunk)(x, t).x0, expected, rtol=1e-8, atol=1e-10)


def test_dataset_optimum_under_a_label_sees_only_that_label() -> None:
    random = torch.Generator().manual_seed(5)
    data, labels = torch.rand(20, 2, generator=random), torch.arange(20) // 10
    oracle = DatasetDenoiser(Rectified(), data, labels, chunk=6)
    x = torch.randn(4, 2, generator=random)
    expected = DatasetDenoiser(Rectified(), data[10:])(x, 0.3).x0
    torch.testing.assert_close(oracle(x, 0.3, torch.ones(4, dtype=torch.long)).x0, expected)
    torch.testing.assert_close(oracle(x, 0.3, torch.full((4,), -1)).x0, oracle(x, 0.3).x0)


def test_dataset_optimum_at_little_noise_is_the_member_itself() -> None:
    data = torch.rand(50, 784, generator=torch.Generator().manual_seed(6))
    oracle = DatasetDenoiser(Linear(), data, chunk=16)
    torch.testing.assert_close(oracle(data * float(Linear()(0.001)[0]), 0.001).x0, data)


def test_sixty_thousand_images_fit() -> None:
    data = torch.rand(60_000, 784, generator=torch.Generator().manual_seed(7))
    x0 = DatasetDenoiser(Linear(), data)(torch.randn(8, 784), 0.99).x0
    torch.testing.assert_close(x0, data.mean(0).expand(8, -1), rtol=0, atol=0.2)
