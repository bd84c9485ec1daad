from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from reverie.nets.unet import UNet
from reverie.training.optimizer import OPTIMIZERS, STATE, Muon, adamw, muon, orthogonalise


@pytest.mark.parametrize("shape", [(8, 8), (16, 100), (3, 4, 30)])
def test_orthogonalise_keeps_the_singular_vectors(shape: tuple[int, ...]) -> None:
    """Against the polar factor from the singular value decomposition."""
    g = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    o = orthogonalise(g)
    u, s, vh = torch.linalg.svd(g, full_matrices=False)
    turned = u.mT @ o @ vh.mT  # diagonal when the singular vectors are the same
    values = turned.diagonal(dim1=-2, dim2=-1)
    assert (turned - torch.diag_embed(values)).abs().max() < 1e-9
    large = s > 0.05 * s.amax(-1, keepdim=True)  # small ones are lifted towards 1, not all the way in four steps
    assert values[large].min() > 0.4 and values.max() < 1.25


def test_orthogonalise_is_the_polynomial_iteration() -> None:
    """The small-side form equals the iteration done on the matrix itself."""
    g = torch.randn(6, 20, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x = g / g.norm()
    for _ in range(4):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    torch.testing.assert_close(orthogonalise(g), x)


def test_muon_step_by_hand() -> None:
    w = nn.Parameter(torch.zeros(4, 6, dtype=torch.float64))
    optimizer = Muon([w], lr=0.1, momentum=0.9)
    g1, g2 = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    expected, momentum = torch.zeros_like(w), torch.zeros_like(w)
    for g in (g1, g2):
        w.grad = g.clone()
        optimizer.step()
        momentum = 0.9 * momentum + 0.1 * g
        expected = expected - 0.1 * 0.2 * 6**0.5 * orthogonalise(0.1 * g + 0.9 * momentum)
    torch.testing.assert_close(w.detach(), expected)


def test_tall_matrices_and_convolutions_are_treated_alike() -> None:
    random = torch.Generator().manual_seed(3)
    g = torch.randn(12, 5, generator=random)
    tall, wide = nn.Parameter(torch.zeros(12, 5)), nn.Parameter(torch.zeros(5, 12))
    conv = nn.Parameter(torch.zeros(5, 3, 2, 2))
    tall.grad, wide.grad, conv.grad = g, g.T.contiguous(), g.T.reshape(5, 3, 2, 2).contiguous()
    Muon([tall, wide, conv], lr=1.0).step()
    torch.testing.assert_close(tall.T, wide)
    torch.testing.assert_close(conv.flatten(1), wide)


def test_every_parameter_belongs_to_one_optimizer() -> None:
    net = UNet(labels=3)
    for build in (adamw, muon):
        owned = [id(p) for o in build(net, 1e-2, 0.0) for p in o.param_groups[0]["params"]]
        assert sorted(owned) == sorted(id(p) for p in net.parameters())
    by_muon = muon(net, 1e-2, 0.0)[1].param_groups[0]["params"]
    assert all(p.ndim >= 2 for p in by_muon) and net.label.table not in set(by_muon)


def quadratic(w: Tensor, a: Tensor) -> Tensor:
    return ((w - a) ** 2 * torch.logspace(-2, 0, w.shape[1])).sum()


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_it_descends(name: str) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(8, 8)
    goal = torch.randn(8, 8, generator=torch.Generator().manual_seed(4))
    optimizers = OPTIMIZERS[name](layer, 0.05, 0.0)
    first = float(quadratic(layer.weight, goal))
    for _ in range(200):
        loss = quadratic(layer.weight, goal) + layer.bias.square().sum()
        for o in optimizers:
            o.zero_grad()
        loss.backward()
        for o in optimizers:
            o.step()
    assert float(quadratic(layer.weight, goal)) < 0.05 * first


def test_the_table_of_states_is_right() -> None:
    layer = nn.Linear(3, 3)
    for optimizer in muon(layer, 0.1, 0.0):
        layer(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        for p in optimizer.param_groups[0]["params"]:
            assert set(optimizer.state[p]) == set(STATE[type(optimizer)])
