"""Flows: every transform is undone, its volume is that of its Jacobian, and probabilities of levels sum to one."""

from __future__ import annotations

import itertools
import sys

import pytest
import torch
from torch import Tensor

import reverie
from reverie.base.errors import UserError
from reverie.families import FAMILIES
from reverie.families.flow import multiscale
from reverie.families.flow.histogram import Histogram, knots_of
from reverie.families.flow.model import Flow
from reverie.families.flow.multiscale import Multiscale, scales_of, squeeze, unsqueeze
from reverie.families.flow.settings import FlowSettings, build_flow
from reverie.families.flow.transforms import DENSE

POINTS = {"name": "standard", "mean": [0.0, 1.0, 0.0], "std": [1.0, 2.0, 0.5]}
LEVELS = {"name": "levels", "values": [0, 60, 120, 180, 255]}
CASES = {
    **{f"{name}-points": (name, (3,), POINTS) for name in DENSE},
    **{f"{name}-levels": (name, (1, 2, 3), LEVELS) for name in DENSE},
    "multiscale-grey": ("multiscale", (1, 8, 8), LEVELS),
    "multiscale-colour": ("multiscale", (3, 8, 4), LEVELS),
    "one-coordinate": ("spline", (1,), {"name": "standard", "mean": [0.0], "std": [1.0]}),
}


def made(transform: str, shape: tuple[int, ...], codec: dict[str, object], labels: int = 2) -> Flow:
    """Return a small flow whose weights are not those it begins with."""
    knots = (0, 1, 2, 4, 5) if transform == "multiscale" else ()
    settings = FlowSettings(transform=transform, layers=2, hidden=16, bins=5, widths=(8,), blocks=1, knots=knots, codec=codec)  # type: ignore[arg-type]  # a spec in a test
    flow = build_flow(settings, shape, labels, 0)
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in flow.parameters():
            p.add_(0.2 * torch.randn(p.shape, generator=random))
    return flow.eval()


def taken(flow: Flow, count: int) -> Tensor:
    """Return what the transform takes: numbers of [0, 1) where there are levels."""
    random = torch.Generator().manual_seed(2)
    if flow.codec.levels is None:
        return torch.randn(count, *flow.shape, generator=random)
    return torch.rand(count, *flow.shape, generator=random)


@pytest.mark.parametrize("case", CASES)
def test_every_transform_is_undone(case: str) -> None:
    flow = made(*CASES[case])
    x, cond = taken(flow, 32), torch.arange(32) % 2
    with torch.no_grad():
        z, _ = flow.transform(x, cond)
        assert z.shape == x.shape and (flow.transform.inverse(z, cond) - x).abs().max() < 1e-5
        assert not flow.transform.uniform or (z.min() >= 0 and z.max() <= 1)
        other, _ = flow.transform(x, 1 - cond)
    assert (other - z).abs().max() > 1e-3  # conditioned on labels


@pytest.mark.parametrize("case", CASES)
def test_the_volume_is_that_of_the_jacobian(case: str) -> None:
    flow = made(*CASES[case])
    x, cond = taken(flow, 3), torch.tensor([0, 1, 1])
    with torch.no_grad():
        volumes = flow.transform(x, cond)[1]
    for k in range(len(x)):
        own = cond[k : k + 1]
        jacobian = torch.autograd.functional.jacobian(lambda v, own=own: flow.transform(v[None], own)[0].flatten(), x[k])
        sign, log_det = torch.linalg.slogdet(jacobian.double().reshape(flow.size, flow.size))
        assert abs(float(sign)) == 1 and float(log_det) == pytest.approx(float(volumes[k]), abs=1e-3, rel=1e-4)


@pytest.mark.parametrize("name", DENSE)
def test_densities_of_points_integrate_to_one(name: str) -> None:
    flow = made(name, (2,), {"name": "standard", "mean": [0.0, 0.0], "std": [1.0, 1.0]}, labels=0)
    side = torch.linspace(-12, 12, 481)
    grid = torch.cartesian_prod(side, side)
    with torch.no_grad():
        mass = flow.transform.log_density(grid, None).double().exp().sum() * float(side[1] - side[0]) ** 2
    assert float(mass) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("shape", [(1, 2, 2), (2, 2, 2)])
def test_the_probabilities_of_all_images_sum_to_one(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]) -> None:
    monkeypatch.setattr(multiscale, "COARSEST", 2)
    codec = {"name": "levels", "values": [0, 255]}
    settings = FlowSettings(transform="multiscale", hidden=8, widths=(8,), knots=(0, 1, 2), codec=codec)
    flow = build_flow(settings, shape, 0, 0)
    assert isinstance(flow.transform, Multiscale) and len(flow.transform.shapes) == 2
    with torch.no_grad():
        for p in flow.parameters():
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(3)))
    states = torch.tensor(list(itertools.product([0.0, 1.0], repeat=flow.size))).reshape(-1, *shape)
    once = flow.log_prob(states, None, torch.arange(len(states))).nats
    again = flow.log_prob(states, None, 1000 + torch.arange(len(states))).nats
    assert float(once.exp().sum()) == pytest.approx(1, abs=1e-4)
    assert torch.allclose(once, again)  # uniform noise within a level changes nothing


def test_a_histogram_is_the_distribution_function_it_says() -> None:
    histogram = Histogram((0, 1, 3, 4))
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.2]]))
    v = torch.tensor([0.0, 0.125, 0.25, 0.5, 0.75, 0.875])
    u = histogram(logits.expand(6, 3), v)
    assert u.tolist() == pytest.approx([0, 0.25, 0.5, 0.65, 0.8, 0.9], abs=1e-4)
    assert histogram.log_density(logits, torch.tensor([0.5])).exp().item() == pytest.approx(0.6, abs=1e-4)


def test_knots_lie_where_the_mass_is() -> None:
    shares = torch.tensor([0.8, *[0.001] * 100, *[0.1 / 155] * 155])
    knots = knots_of(shares, 16)
    assert knots[:2] == (0, 1) and knots[-1] == 256 and len(knots) == 17 and list(knots) == sorted(set(knots))
    assert knots_of(torch.ones(5), 32) == (0, 1, 2, 3, 4, 5)  # never more bins than levels


def test_squares_go_to_channels_and_back() -> None:
    x = torch.arange(2 * 3 * 4 * 6.0).reshape(2, 3, 4, 6)
    assert torch.equal(unsqueeze(squeeze(x)), x)
    assert scales_of((1, 28, 28)) == [(1, 28, 28), (1, 14, 14), (1, 7, 7)]
    with pytest.raises(UserError, match="cannot be halved often enough"):
        scales_of((3, 45, 45))


def test_what_is_hidden_and_added_is_a_function_of_the_seed() -> None:
    settings = FlowSettings(transform="spline", hidden=16, layers=1, dropout=0.5, codec=LEVELS)
    flow = build_flow(settings, (1, 2, 2), 0, 0).train()
    x = torch.rand(8, 1, 2, 2).mul(4).round().div(4)
    assert torch.equal(flow.loss(x, None, 3), flow.loss(x, None, 3))
    assert not torch.equal(flow.loss(x, None, 3), flow.loss(x, None, 4))


def test_directions_are_inverse_and_timed() -> None:
    flow = made("maf", (3,), POINTS, labels=0)
    x = torch.randn(16, 3)
    assert torch.allclose(flow.from_latent(flow.to_latent(x)), x, atol=1e-4)
    there, back = flow.seconds_per_direction()
    assert 0 < there < 1 and 0 < back < 1


def test_a_missing_package_raises_a_user_error(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:  # type: ignore[no-untyped-def]  # a fixture
    monkeypatch.setitem(sys.modules, "zuko", None)
    with pytest.raises(UserError, match=r"zuko.*pip install 'reverie\[flow\]'"):
        reverie.train("spiral", tmp_path / "run", family="flow", points=50)
    assert not (tmp_path / "run").exists()


def test_a_flow_too_large_to_make_is_refused() -> None:
    settings = FlowSettings(transform="maf", hidden=4096, layers=64, codec={"name": "pixels"})
    with pytest.raises(UserError, match="parameters; give smaller"):
        FAMILIES["flow"].tensor_specs(settings, (3, 32, 32), 0)
