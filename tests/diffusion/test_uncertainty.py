"""Posterior covariances against closed forms."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from reverie.autodiff import color, detect
from reverie.base.errors import UserError
from reverie.diffusion.denoiser import NetDenoiser
from reverie.diffusion.oracle import DatasetDenoiser, GaussianDenoiser
from reverie.diffusion.schedule import Linear, Rectified, Schedule
from reverie.diffusion.uncertainty import posterior_covariance, posterior_variance

MEAN = torch.tensor([0.3, -0.4, 0.1], dtype=torch.float64)
COVARIANCE = torch.tensor([[0.8, 0.3, 0.1], [0.3, 0.5, 0.0], [0.1, 0.0, 0.3]], dtype=torch.float64)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_covariance_of_a_gaussian_given_its_noised_self(schedule: Schedule) -> None:
    alpha, sigma = schedule(0.6)
    eye = torch.eye(3, dtype=torch.float64)
    expected = torch.linalg.inv(torch.linalg.inv(COVARIANCE) + alpha**2 / sigma**2 * eye)
    denoiser, x = GaussianDenoiser(schedule, MEAN, COVARIANCE), draw(4, 3)
    torch.testing.assert_close(posterior_covariance(denoiser, x, 0.6), expected.expand(4, 3, 3))
    torch.testing.assert_close(posterior_variance(denoiser, x, 0.6), expected.diagonal().expand(4, 3))


def test_covariance_of_a_finite_set_is_that_of_its_weighted_members() -> None:
    data, schedule = draw(20, 1, 2, 2), Linear()
    t = torch.tensor([0.3, 0.5], dtype=torch.float64)
    alpha, sigma = schedule(t)
    x = draw(2, 1, 2, 2, seed=1)
    distance = (x[:, None] - alpha.reshape(-1, 1, 1, 1, 1) * data).square().flatten(2).sum(2)
    weights = (-distance / (2 * sigma[:, None] ** 2)).softmax(1)
    flat = data.flatten(1)
    mean = weights @ flat
    expected = torch.einsum("bn,ni,nj->bij", weights, flat, flat) - mean[:, :, None] * mean[:, None]
    denoiser = DatasetDenoiser(schedule, data)
    torch.testing.assert_close(posterior_covariance(denoiser, x, t), expected, rtol=1e-6, atol=1e-9)
    variance = posterior_variance(denoiser, x, t).flatten(1)
    torch.testing.assert_close(variance, expected.diagonal(dim1=1, dim2=2), rtol=1e-6, atol=1e-9)


class Local(nn.Module):
    """Two convolutions that ignore the noise level."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.layers = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.Tanh(), nn.Conv2d(6, 1, 3, padding=1))

    def forward(self, x: Tensor, level: Tensor, cond: Tensor | None = None) -> Tensor:
        out: Tensor = self.layers(x)
        return out


def test_variance_of_a_local_network_by_colouring() -> None:
    denoiser = NetDenoiser(Local(), Linear(), "x0").double().requires_grad_(False)
    x = draw(2, 1, 8, 8)
    plan = color(detect(lambda x: denoiser(x, 0.4).x0, x[:1]), "diagonal")
    assert plan.number == 9
    expected = posterior_covariance(denoiser, x, 0.4).diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(posterior_variance(denoiser, x, 0.4, plan=plan).flatten(1), expected)


@pytest.mark.parametrize("t", [1.0, torch.tensor([0.5, 1.0], dtype=torch.float64)], ids=["number", "tensor"])
def test_pure_noise_says_nothing_of_the_covariance(t: float | Tensor) -> None:
    denoiser = GaussianDenoiser(Rectified(), MEAN, COVARIANCE)
    for ask in (posterior_covariance, posterior_variance):
        with pytest.raises(UserError, match="alpha = 0"):
            ask(denoiser, draw(2, 3), t)


def test_a_plan_for_more_than_the_diagonal_is_refused() -> None:
    denoiser = GaussianDenoiser(Linear(), MEAN, COVARIANCE)
    with pytest.raises(UserError, match="'diagonal'"):
        posterior_variance(denoiser, draw(2, 3), 0.5, plan=color(torch.eye(3)))
