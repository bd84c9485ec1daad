"""Posterior covariances against closed forms; implicit against denoising score matching."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from reverie.autodiff import color, detect
from reverie.denoiser import NetDenoiser
from reverie.noise import Noise, image_seeds
from reverie.oracle import DatasetDenoiser, GaussianDenoiser
from reverie.posterior import implicit_score_loss, posterior_covariance, posterior_variance
from reverie.schedule import Linear, Schedule

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
    """Two convolutions that are told nothing of the noise level."""

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


def test_implicit_score_matching_of_a_linear_score_has_the_closed_form() -> None:
    # s(x) = -P (x - b): the minimum over P and b on any sample is the inverse of its covariance, and its mean
    x = draw(500, 2) @ torch.tensor([[1.0, 0.4], [0.0, 0.6]], dtype=torch.float64) + 0.3
    p, b = torch.eye(2, dtype=torch.float64).requires_grad_(), torch.zeros(2, dtype=torch.float64).requires_grad_()
    optimizer = torch.optim.LBFGS(
        [p, b], max_iter=200, tolerance_grad=1e-12, tolerance_change=1e-16, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = implicit_score_loss(lambda x: -(x - b) @ (p + p.T) / 2, x).mean()
        value.backward()
        return value

    optimizer.step(closure)
    torch.testing.assert_close(b.detach(), x.mean(0), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close((p + p.T).detach() / 2, torch.linalg.inv(x.T.cov(correction=0)), rtol=1e-4, atol=1e-5)


def train(loss, seed: int = 0, steps: int = 1500) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        score = nn.Sequential(nn.Linear(2, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 2)).double()
    optimizer = torch.optim.Adam(score.parameters(), lr=5e-3)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for i in range(steps):
        optimizer.zero_grad()
        loss(score, i).backward()
        optimizer.step()
        decay.step()
    return score.requires_grad_(False)


@pytest.mark.slow
def test_implicit_and_denoising_score_matching_agree_in_the_plane() -> None:
    sigma = 0.5
    centres = torch.tensor([[1.0, 0.0], [-1.0, 0.5]], dtype=torch.float64)

    def batch(i: int) -> tuple[Tensor, Tensor]:
        pick = torch.randint(2, (1024,), generator=torch.Generator().manual_seed(i))
        eps = Noise(image_seeds(i, 1024)).like(torch.empty(1024, 2, dtype=torch.float64))
        return centres[pick] + sigma * eps, eps

    pattern = torch.ones(2, 2).numpy()  # a dense network of two numbers: two products are the exact trace
    plan = color(pattern, "diagonal")
    implicit = train(lambda score, i: implicit_score_loss(score, batch(i)[0], plan).mean())
    denoising = train(lambda score, i: (score(batch(i)[0]) + batch(i)[1] / sigma).square().sum(1).mean() / 2)
    x, _ = batch(10**6)
    weights = (-(x[:, None] - centres).square().sum(2) / (2 * sigma**2)).softmax(1)
    truth = (weights @ centres - x) / sigma**2
    size = truth.square().sum(1).mean()
    errors = [(score(x) - truth).square().sum(1).mean() / size for score in (implicit, denoising)]
    apart = (implicit(x) - denoising(x)).square().sum(1).mean() / size
    assert max(errors) < 0.02 and apart < 0.02
