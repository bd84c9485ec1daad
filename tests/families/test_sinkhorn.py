"""The Sinkhorn generator: its loss is the divergence of the transport room, with its gradient, and it learns by it."""

from __future__ import annotations

from typing import get_args

import pytest
import torch

from reverie.base.errors import UserError
from reverie.data import load_data
from reverie.families import FAMILIES
from reverie.families.sinkhorn.family import SinkhornSettings
from reverie.families.sinkhorn.model import SinkhornGenerator
from reverie.transport import between, sinkhorn, sinkhorn_divergence

CODEC = {"name": "standard", "mean": [0.0, 0.0], "std": [1.0, 1.0]}


def generator(labels: int = 0, **options: object) -> SinkhornGenerator:
    settings = SinkhornSettings(latent=2, layers="dense", hidden=32, epsilon=0.1, codec=CODEC, **options)  # type: ignore[arg-type]  # few of them in a test
    made = FAMILIES["sinkhorn"].build(settings, (2,), labels, 0)
    assert isinstance(made, SinkhornGenerator)
    return made


@pytest.mark.parametrize("cost", ["squared", "euclidean"])
@pytest.mark.parametrize("epsilon", [0.3, 0.02])
def test_the_divergence_and_its_gradient_equal_those_of_the_transport_package(cost: str, epsilon: float) -> None:
    model, random = generator(cost=cost), torch.Generator().manual_seed(0)
    model.unit.fill_(2.0)
    x, y = torch.randn(60, 2, generator=random), 0.5 + torch.randn(70, 2, generator=random)
    ours, theirs = (x.clone().requires_grad_() for _ in range(2))
    mine = model.divergence(ours, y, epsilon)
    peer = sinkhorn_divergence(theirs, y, epsilon=epsilon, cost=cost, scale=2.0)
    mine.backward()
    peer.backward()
    assert ours.grad is not None and theirs.grad is not None
    assert mine.item() == pytest.approx(peer.item(), rel=1e-3)
    assert (ours.grad - theirs.grad).norm() < 0.02 * theirs.grad.norm()


def test_halves_are_moved_to_each_other() -> None:
    model, random = generator(), torch.Generator().manual_seed(1)
    x, y = torch.randn(41, 2, generator=random), 0.5 + torch.randn(41, 2, generator=random)

    def cost(a: torch.Tensor, b: torch.Tensor) -> float:
        return float(sinkhorn(between(a, b), 0.1, scale=1.0).value)

    (a, b), (c, d) = x.tensor_split(2), y.tensor_split(2)
    expected = (cost(a, c) + cost(b, d) - cost(a, b) - cost(c, d)) / 2
    assert float(model.energy(x, y, 0.1)) == pytest.approx(expected, abs=1e-3)


def test_blur_is_punished_where_batches_are_independent() -> None:
    model, random = generator(), torch.Generator().manual_seed(2)
    centres = torch.randn(400, 16, generator=random)  # so many dimensions that no two data are near
    true, shrunk = torch.randn(400, 16, generator=random), 0.7 * torch.randn(400, 16, generator=random)
    assert model.divergence(shrunk, centres, 0.05) < model.divergence(true, centres, 0.05)
    assert model.energy(shrunk, centres, 0.05) > model.energy(true, centres, 0.05)


@pytest.mark.parametrize("cost", get_args(SinkhornSettings.model_fields["cost"].annotation))
def test_transport_to_another_label_has_the_requested_cost(cost: str) -> None:
    model = generator(labels=3, label_cost=1.5, cost=cost)
    model.unit.fill_(2.0)
    points = model._points(torch.zeros(3, 2), torch.tensor([0, 1, 2]))
    wanted = 1.5 * 2.0 * (1 - torch.eye(3)).double()
    torch.testing.assert_close(between(points, points.clone(), cost=cost).matrix(), wanted, atol=1e-6, rtol=1e-6)


def test_epsilon_falls_to_the_given_one() -> None:
    model = generator()
    found = []
    for fraction in (0.0, 0.25, 0.5, 1.0):
        model.set_progress(fraction)
        found.append(model.epsilon_now)
    assert found[0] == 0.5 and found[0] > found[1] > found[2] == pytest.approx(0.1) == found[3]


def test_it_learns_by_the_divergence() -> None:
    data = load_data("spiral", 600)
    model, random = generator(), torch.Generator().manual_seed(0)
    model.initialize(data)
    first = model.held_out_metrics(data, 0)["held_out"]
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for k in range(60):
        x = data.batch(torch.randperm(len(data), generator=random)[:128])[0]
        optimizer.zero_grad()
        model.loss(x, None, k).mean().backward()
        optimizer.step()
    assert model.held_out_metrics(data, 0)["held_out"] < 0.3 * first


def test_components_are_the_axes_of_the_data() -> None:
    random = torch.Generator().manual_seed(0)
    model = generator(features=1)
    axis = torch.tensor([0.6, 0.8])
    x = torch.randn(400, 1, generator=random) * axis + 0.01 * torch.randn(400, 2, generator=random)
    model.initialize(load_data(x.numpy()))
    found = model.features[:, 0] / model.features[:, 0].norm()
    assert abs(float(found @ axis)) == pytest.approx(1, abs=1e-3)


def test_what_has_no_density_says_so() -> None:
    with pytest.raises(UserError, match="no likelihood"):
        generator().log_prob(torch.zeros(1, 2), None, torch.zeros(1, dtype=torch.int64))
