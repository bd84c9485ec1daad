"""Posteriors over levels against Bayes' rule by hand, and a bound against the entropy of data whose numbers are independent."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from reverie.base.noise import Noise, image_seeds
from reverie.diffusion import posterior
from reverie.diffusion.lattice import LatticeDenoiser, level_of
from reverie.diffusion.learned import Learned
from reverie.diffusion.likelihood import best_end, continuous_bound, mean_and_error
from reverie.diffusion.likelihood.bound import MIN_LOG_SNR
from reverie.diffusion.posterior import posterior_mean

LEVELS, SHAPE = 5, (1, 2, 3)
SHARES = torch.tensor([0.5, 0.2, 0.1, 0.15, 0.05], dtype=torch.float64)


class Nothing(nn.Module):
    """A network that adds nothing to the estimate from each value."""

    def forward(self, x: Tensor, level: Tensor, cond: Tensor | None) -> Tensor:
        return torch.zeros(len(x), LEVELS, *x.shape[2:])


def data(n: int, seed: int) -> Tensor:
    index = torch.multinomial(SHARES, n * math.prod(SHAPE), True, generator=torch.Generator().manual_seed(seed))
    return (index.reshape(n, *SHAPE) * 2 / (LEVELS - 1) - 1).float()


def denoiser() -> LatticeDenoiser:
    made = LatticeDenoiser(Nothing(), Learned(first=2 * math.log(3 * (LEVELS - 1)), last=-8.0, bends=0), SHAPE, LEVELS, LEVELS)
    made.initialize(data(20_000, 0))
    return made


def test_the_estimate_is_the_posterior_mean() -> None:
    made, x0 = denoiser(), data(4, 1)
    for t in (0.1, 0.5, 0.9):
        alpha, sigma = (float(c) for c in made.schedule(t))
        x = alpha * x0 + sigma * torch.randn(x0.shape, generator=torch.Generator().manual_seed(2))
        values = torch.linspace(-1, 1, LEVELS)
        weights = made.log_prior.exp() * torch.exp(-((x[..., None] - alpha * values) ** 2) / (2 * sigma**2))
        shares = weights / weights.sum(-1, keepdim=True)
        torch.testing.assert_close(made(x, t).x0, (shares * values).sum(-1), rtol=1e-4, atol=1e-5)
        each = shares.gather(-1, level_of(x0, LEVELS)[..., None]).log().flatten(1).sum(1)
        torch.testing.assert_close(made.log_level(x0, x, t, None).float(), each, rtol=1e-4, atol=1e-4)


def test_the_bound_of_independent_numbers_is_their_entropy() -> None:
    made, x0 = denoiser(), data(3000, 1)
    entropy = -float((SHARES * SHARES.log()).sum()) * math.prod(SHAPE)
    with torch.no_grad():
        value, error = mean_and_error(continuous_bound(made, x0, Noise(image_seeds(0, len(x0))), draws=16, levels=LEVELS).nats)
    assert error is not None and error < 0.06 and abs(value - entropy) < 4 * error + 0.01


def test_the_chosen_end_is_as_good_as_the_best() -> None:
    made, x0, noise = denoiser(), data(400, 1), image_seeds(0, 400)
    worse = _Faulty(made)
    end = best_end(worse, x0, Noise(noise), levels=LEVELS)
    start = float(made.schedule.invert(MIN_LOG_SNR))

    def cost(end: float) -> float:
        return float(continuous_bound(worse, x0, Noise(image_seeds(1, 400)), draws=16, levels=LEVELS, end=end).nats.mean())

    costs = [cost(t) for t in torch.linspace(0.0, 0.9 * start, 16).tolist()]
    assert end > 0.02 and cost(end) < 1.02 * min(costs) < 0.9 * cost(0.0)


class _Faulty(LatticeDenoiser):
    """A denoiser whose noise is wrong where there is little of it, as a network's is."""

    def __init__(self, inner: LatticeDenoiser) -> None:
        super().__init__(inner.net, inner.schedule, SHAPE, LEVELS, LEVELS)
        self.log_prior = inner.log_prior

    def forward(self, x: Tensor, t: Tensor | float, cond: Tensor | None = None):  # type: ignore[no-untyped-def, override]
        from reverie.diffusion.pair import pair_of

        pair, (alpha, sigma) = super().forward(x, t, cond), self.schedule(t)
        return pair_of(x, pair.x0 + 0.15, alpha, sigma, "x0")


def test_the_frugal_mean_has_the_gradients_of_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    random = torch.Generator().manual_seed(3)
    shapes = ((3, 10, 4), (4, 6), (10, 6))
    given = [torch.randn(shape, generator=random, dtype=torch.float64).requires_grad_() for shape in shapes]
    values, cotangent = torch.linspace(-1, 1, 6, dtype=torch.float64), torch.randn(3, 10, generator=random, dtype=torch.float64)
    whole = posterior_mean(*given, values, recompute=False)
    by_autograd = torch.autograd.grad((whole * cotangent).sum(), given)
    monkeypatch.setitem(posterior.CHUNK, "cpu", 4 * 3 * 6)  # four places at once, and two at the end
    x0 = posterior_mean(*given, values, recompute=True)
    torch.testing.assert_close(x0, whole)
    for mine, theirs in zip(torch.autograd.grad((x0 * cotangent).sum(), given), by_autograd, strict=True):
        torch.testing.assert_close(mine, theirs)
