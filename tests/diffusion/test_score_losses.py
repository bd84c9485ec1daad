"""Every loss of a score model has one minimum: the score."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from reverie.autodiff import color
from reverie.base.noise import Noise, image_seeds
from reverie.diffusion.likelihood import denoising_score_loss, fisher_divergence, implicit_score_loss, sliced_score_loss

CENTRES, SIGMA = torch.tensor([[1.0, 0.0], [-1.0, 0.5]], dtype=torch.float64), 0.5
PLAN = color(torch.ones(2, 2).numpy(), "diagonal")  # two products are the exact trace of two dense numbers


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def true_score(x: Tensor) -> Tensor:
    weights = (-(x[:, None] - CENTRES).square().sum(2) / (2 * SIGMA**2)).softmax(1)
    return (weights @ CENTRES - x) / SIGMA**2


def quadrature(points: int = 60) -> tuple[Tensor, Tensor, Tensor]:
    """Return x0 and eps of two equally likely centres with noise, (n, 2) each, and weights that sum to 1: (n,)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(points)
    weights = weights / weights.sum()
    eps = torch.tensor(np.stack(np.meshgrid(nodes, nodes), -1).reshape(-1, 2))
    share = torch.tensor(np.outer(weights, weights).reshape(-1))
    x0 = CENTRES.repeat_interleave(len(eps), 0)
    return x0, eps.repeat(2, 1), share.repeat(2) / 2


def features(x: Tensor) -> Tensor:
    """Return monomials up to degree 2 and three bumps: (n, 9)."""
    a, b = x[:, :1], x[:, 1:]
    powers = [a**i * b**j for i in range(3) for j in range(3 - i)]
    bumps = [(-(x - c).square().sum(1, keepdim=True)).exp() for c in (CENTRES[0], CENTRES[1], CENTRES.mean(0))]
    return torch.cat([*powers, *bumps], 1)


def test_four_losses_have_one_minimum_in_a_linear_family() -> None:
    # each loss is a quadratic function of the coefficients, and its expectation is taken by quadrature
    x0, eps, share = quadrature()
    x = x0 + SIGMA * eps
    signs = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)[:, None].expand(2, len(x), 2)  # all, but for sign
    losses: dict[str, Callable[[Callable[[Tensor], Tensor]], Tensor]] = {
        "fisher": lambda score: fisher_divergence(score, true_score, x),
        "denoising": lambda score: denoising_score_loss(score, x0, eps, SIGMA),
        "implicit": lambda score: implicit_score_loss(score, x, PLAN),
        "sliced": lambda score: sliced_score_loss(score, x, signs),
    }
    found = {}
    for name, loss in losses.items():

        def value(flat: Tensor, loss: Callable[[Callable[[Tensor], Tensor]], Tensor] = loss) -> Tensor:
            return (share * loss(lambda x: features(x) @ flat.reshape(-1, 2))).sum()

        slope, zero = torch.func.grad(value), torch.zeros(18, dtype=torch.float64)
        curve = torch.stack([slope(unit) - slope(zero) for unit in torch.eye(18, dtype=torch.float64)], 1)
        found[name] = torch.linalg.solve(curve, -slope(zero))
    scale = found["fisher"].abs().max()
    for name in ("denoising", "implicit", "sliced"):
        torch.testing.assert_close(found[name] / scale, found["fisher"] / scale, rtol=0, atol=1e-5, msg=name)


def test_losses_differ_by_constants_only() -> None:
    x0, eps, share = quadrature()
    x = x0 + SIGMA * eps
    values = []
    for seed in range(3):
        weights = 0.3 * draw(9, 2, seed=seed)

        def score(x: Tensor, weights: Tensor = weights) -> Tensor:
            return features(x) @ weights

        fisher = (share * fisher_divergence(score, true_score, x)).sum()
        values.append([
            float((share * loss).sum() - fisher)
            for loss in (denoising_score_loss(score, x0, eps, SIGMA), implicit_score_loss(score, x, PLAN))
        ])  # fmt: skip
    for other in values[1:]:
        assert other == pytest.approx(values[0], rel=1e-5)
    size = float((share * true_score(x).square().sum(1)).sum())
    assert values[0][1] == pytest.approx(-size / 2, rel=1e-5)  # theorem 1 of Hyvärinen: minus half the mean square score
    assert float(fisher_divergence(true_score, true_score, x).max()) == 0


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
    denoising = train(
        lambda score, i: denoising_score_loss(score, batch(i)[0] - sigma * batch(i)[1], batch(i)[1], sigma).mean()
    )
    x, _ = batch(10**6)
    weights = (-(x[:, None] - centres).square().sum(2) / (2 * sigma**2)).softmax(1)
    truth = (weights @ centres - x) / sigma**2
    size = truth.square().sum(1).mean()
    errors = [(score(x) - truth).square().sum(1).mean() / size for score in (implicit, denoising)]
    apart = (implicit(x) - denoising(x)).square().sum(1).mean() / size
    assert max(errors) < 0.02 and apart < 0.02
