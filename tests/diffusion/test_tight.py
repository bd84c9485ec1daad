"""A step of the bound in its three forms, and bounds by several paths against the truth."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import reverie
from reverie.base.errors import UserError
from reverie.base.noise import Noise, image_seeds
from reverie.diffusion.likelihood import FORMS, bound, importance_weighted, mean_and_error, step_kl
from reverie.diffusion.likelihood.bound import denoising_kl
from reverie.diffusion.likelihood.steps import even_times
from reverie.diffusion.oracle import GaussianDenoiser
from reverie.diffusion.pair import Pair
from reverie.diffusion.schedule import Cosine, Linear, LogLinear, Schedule

F = torch.float64


def oracle(schedule: Schedule) -> GaussianDenoiser:
    return GaussianDenoiser(schedule, torch.tensor([0.3, -0.2], dtype=F), torch.tensor([[0.5, 0.2], [0.2, 0.3]], dtype=F))


def data(n: int) -> torch.Tensor:
    made = oracle(Linear())
    noise = torch.randn(n, 2, dtype=F, generator=torch.Generator().manual_seed(5))
    return made.mean + noise * made.values.sqrt() @ made.vectors.T


@pytest.mark.parametrize("schedule", [Linear(), Cosine(), LogLinear()], ids=["linear", "cosine", "log-linear"])
@pytest.mark.parametrize("t, s", [(0.9, 0.8), (0.5, 0.1), (0.02, 0.01)])
def test_the_three_forms_are_one_number(schedule: Schedule, t: float, s: float) -> None:
    x0 = data(50)
    truth = Pair(x0, torch.randn(x0.shape, dtype=F, generator=torch.Generator().manual_seed(1)))
    whole = denoising_kl(oracle(schedule), truth, t, s, None, "posterior")
    for form in FORMS:
        torch.testing.assert_close(step_kl(oracle(schedule), truth, t, s, None, form), whole, rtol=1e-8, atol=1e-12)


def test_more_paths_come_closer_to_the_truth_and_do_not_pass_it() -> None:
    made, x0 = oracle(Cosine()), data(3000)
    exact = math.log(2 * math.pi * math.e) + math.log(float(made.values.prod())) / 2
    grid, seeds = even_times(Cosine(), 6, 0.01), image_seeds(0, len(x0))
    one, sixteen = (importance_weighted(made, x0, grid, Noise(seeds), paths=k) for k in (1, 16))
    assert (sixteen.gap > -1e-9).all() and torch.equal(one.nats, one.single)
    gap, error = mean_and_error(one.nats - sixteen.nats)
    assert error is not None and gap > 4 * error > 0
    value, error = mean_and_error(sixteen.nats)
    assert error is not None and value > exact - 4 * error
    plain, wrong = mean_and_error(bound(made, x0, grid, Noise(seeds)).nats)
    assert abs(plain - mean_and_error(one.nats)[0]) < 4 * math.hypot(error, wrong or 0)
    with pytest.raises(UserError, match="at least 1 path"):
        importance_weighted(made, x0, grid, Noise(seeds), paths=0)


@pytest.mark.slow
def test_paths_lie_between_the_bound_and_the_truth_for_a_trained_model(tmp_path: Path) -> None:
    random, std = np.random.default_rng(0), 0.2
    means = np.array([[1.0, 0.0], [-1.0, 0.5], [0.0, -1.0]])

    def draw(n: int) -> np.ndarray:
        return (means[random.integers(0, 3, n)] + std * random.normal(size=(n, 2))).astype(np.float32)

    model = reverie.train(draw(3000), tmp_path / "run", steps=1500, network="mlp:hidden=64").diffusion
    x = torch.from_numpy(draw(1000))
    away = (x[:, None] - torch.from_numpy(means)).square().sum(-1) / (2 * std**2)
    exact = math.log(3 * 2 * math.pi * std**2) - (-away).logsumexp(1)
    grid, seeds = even_times(model.denoiser.schedule, 40, 0.01), image_seeds(0, len(x))
    plain = model.bound(x, None, seeds, grid, "forward").nats
    tight = model.importance_weighted(x, None, seeds, grid, "forward", paths=16)
    flow = -model.log_prob(x, None, seeds, tolerance=1e-3).nats
    for more, less in ((plain, tight.nats), (tight.nats, exact), (flow, exact)):
        difference, error = mean_and_error(more - less)
        assert error is not None and difference > -3 * error
    gain, error = mean_and_error(tight.gap)
    assert error is not None and gain > 4 * error
