from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from reverie.diffusion.denoiser import LowPrecision, NetDenoiser, WithCondition, noise_level
from reverie.diffusion.guidance import ClassifierFree
from reverie.diffusion.pair import TARGETS, pair_of, row
from reverie.diffusion.schedule import Cosine, Linear, Rectified, Schedule
from reverie.diffusion.schedules import SCHEDULES
from reverie.nets.mlp import ConditionalMLP
from tests.diffusion.test_oracle import mixture


def network(labels: int = 0) -> ConditionalMLP:
    """A network whose output is not zero, in float64."""
    torch.manual_seed(0)
    net = ConditionalMLP(labels=labels).double()
    nn.init.normal_(net.out.weight, std=0.3)
    return net


@pytest.mark.parametrize("target", TARGETS)
def test_another_schedule_after_training_gives_the_same_x0(target: str, schedule: Schedule) -> None:
    """Any two schedules agree at equal log-SNR, once x is brought to the other one's scale."""
    net = network()
    t = torch.tensor([0.2, 0.4, 0.6], dtype=torch.float64)  # noise levels that every schedule has
    trained = NetDenoiser(net, Linear(), target, 0.8)
    alpha, sigma = trained.schedule(t)
    x = torch.randn(3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    swapped = NetDenoiser(net, schedule, target, 0.8)
    other = schedule.invert(trained.schedule.log_snr(t))
    alpha2, sigma2 = schedule(other)
    x2 = x * ((alpha2**2 + sigma2**2) / (alpha**2 + sigma**2)).sqrt()[:, None]
    torch.testing.assert_close(swapped(x2, other).x0, trained(x, t).x0, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(swapped(x2, other).eps, trained(x, t).eps, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("target", TARGETS)
def test_the_pair_is_consistent_with_x_and_with_the_output(target: str, schedule: Schedule) -> None:
    model = NetDenoiser(network(), schedule, target, 0.8)
    x = torch.randn(4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    alpha, sigma = schedule(0.4)
    pair = model(x, 0.4)
    torch.testing.assert_close(pair.mix(alpha, sigma), x)
    torch.testing.assert_close(model.score(x, 0.4), -pair.eps / sigma)
    torch.testing.assert_close(pair_of(x, model.score(x, 0.4), alpha, sigma, "score").x0, pair.x0)
    size = (alpha**2 + sigma**2) ** 0.5
    c_in = 1 / (0.64 * alpha**2 + sigma**2) ** 0.5
    output = model.net(c_in * x, torch.full((4,), noise_level(alpha, sigma), dtype=torch.float64), None)
    torch.testing.assert_close(pair.mix(*row(target, alpha / size, sigma / size, 0.8)), output)


@given(batch=st.integers(1, 5), scalar=st.booleans(), double=st.booleans(), name=st.sampled_from(sorted(SCHEDULES)))
def test_shapes_and_dtypes(batch: int, scalar: bool, double: bool, name: str) -> None:
    dtype = torch.float64 if double else torch.float32
    model = NetDenoiser(network().to(dtype), SCHEDULES[name](), "v")
    t = torch.tensor(0.3) if scalar else torch.full((batch,), 0.3)
    x = torch.randn(batch, 2, dtype=dtype)
    pair = model(x, t)
    assert pair.x0.shape == pair.eps.shape == x.shape and pair.x0.dtype == pair.eps.dtype == dtype
    assert model.velocity(x, t).dtype == model.score(x, t).dtype == dtype


def test_noise_level_is_finite_and_monotone_everywhere() -> None:
    alpha = torch.tensor([0.0, 1e-9, 0.1, 0.7, 0.99, 1.0, 1.0], dtype=torch.float64)
    sigma = torch.tensor([1.0, 1.0, 1.0, 0.7, 0.1, 1e-9, 0.0], dtype=torch.float64)
    level = noise_level(alpha, sigma)
    assert torch.isfinite(level).all() and (level.diff() > -1e-12).all() and float(level.abs().max()) < 13.9
    inner = torch.linspace(-6, 6, 50, dtype=torch.float64)
    torch.testing.assert_close(noise_level((inner / 2).exp(), torch.ones(50).double()), inner, rtol=0, atol=1e-3)
    assert torch.isfinite(NetDenoiser(network(), Rectified(), "flow")(torch.ones(1, 2).double(), 1.0).x0).all()


def test_a_bfloat16_network_does_not_touch_the_schedule() -> None:
    model = NetDenoiser(network(), Cosine(), "v").to(torch.bfloat16)
    assert model.schedule(torch.tensor([0.5]))[0].dtype == torch.float64
    assert float(model.schedule(0.5)[0]) == float(Cosine()(0.5)[0])


def test_low_precision_is_close_and_gives_back_what_it_was_given() -> None:
    denoise = NetDenoiser(network().float(), Rectified(), "v")
    x, t = torch.randn(64, 2, generator=torch.Generator().manual_seed(1)), 0.4
    exact, rounded = denoise(x, t), LowPrecision(denoise)(x, t)
    assert rounded.x0.dtype == rounded.eps.dtype == torch.float32
    gap = float((rounded.x0 - exact.x0).abs().max())
    assert 0 < gap < 0.05 * float(exact.x0.std())  # bfloat16 has eight bits, and one layer follows another


def test_guidance_scales() -> None:
    oracle = mixture(Linear())
    calls: list[int] = []
    oracle.register_forward_pre_hook(lambda module, inputs: calls.append(len(inputs[0])))
    x = torch.randn(6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    t, cond = torch.linspace(0.1, 0.9, 6, dtype=torch.float64), torch.tensor([0, 1, 0, 1, 0, 1])
    plain, conditional = oracle(x, t), oracle(x, t, cond)
    calls.clear()
    for scale, expected in ((1.0, conditional.x0), (0.0, plain.x0), (3.0, plain.x0 + 3 * (conditional.x0 - plain.x0))):
        guided = ClassifierFree(oracle, scale)(x, t, cond)
        torch.testing.assert_close(guided.x0, expected)
        torch.testing.assert_close(guided.mix(*oracle.schedule(t)), x)
    assert calls == [6, 6, 12]  # one evaluation each, and one of double size
    torch.testing.assert_close(ClassifierFree(oracle, 3.0)(x, t, None).x0, plain.x0)


def test_guidance_follows_the_score_of_the_sharpened_label() -> None:
    """The guided score is the gradient of log p(x) + scale log p(label | x), exactly."""
    oracle = mixture(Linear())
    x = torch.randn(4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(4)).requires_grad_()
    cond = torch.tensor([0, 1, 1, 0])
    objective = oracle.log_prob(x, 0.3) + 2.5 * (oracle.log_prob(x, 0.3, cond) - oracle.log_prob(x, 0.3))
    (gradient,) = torch.autograd.grad(objective.sum(), x)
    torch.testing.assert_close(ClassifierFree(oracle, 2.5).score(x, 0.3, cond).detach(), gradient)


def test_given_fixes_the_condition() -> None:
    oracle, x, cond = mixture(Linear()), torch.ones(2, 2, dtype=torch.float64), torch.tensor([0, 1])
    torch.testing.assert_close(WithCondition(oracle, cond)(x, 0.5).x0, oracle(x, 0.5, cond).x0)
