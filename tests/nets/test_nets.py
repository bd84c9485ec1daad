from __future__ import annotations

import math
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reverie.base.spec import build, parse
from reverie.nets import NETWORKS
from reverie.nets.embedding import LabelEmbedding, LearnedEmbedding, Level, SineEmbedding, SinusoidalEmbedding
from reverie.nets.mlp import RBF, ConditionalMLP

DIM = 32
SE = SinusoidalEmbedding(DIM)
POSITIONS = torch.arange(1000, dtype=torch.float64)


def test_sines_in_even_and_cosines_in_odd_places() -> None:
    embedded = SinusoidalEmbedding(4)(torch.tensor([3.0], dtype=torch.float64))[0]
    expected = [math.sin(3), math.cos(3), math.sin(3 / 100), math.cos(3 / 100)]
    torch.testing.assert_close(embedded, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("coordinate", range(DIM))
def test_each_coordinate_is_periodic(coordinate: int) -> None:
    period = SE.period(coordinate)
    shifted = SE(POSITIONS + period)[:, coordinate]
    torch.testing.assert_close(shifted, SE(POSITIONS)[:, coordinate], rtol=0, atol=1e-9)
    half = SE(POSITIONS + period / 2)[:, coordinate]
    torch.testing.assert_close(half, -SE(POSITIONS)[:, coordinate], rtol=0, atol=1e-9)  # and not with a shorter period


def test_no_two_of_a_thousand_positions_coincide() -> None:
    assert SE.smallest_gap(POSITIONS) > 0.5
    assert SE.smallest_gap(torch.tensor([1.0, 2.0, 1.0])) == 0  # it would notice


@given(offset=st.floats(-500, 500))
def test_distance_depends_on_the_offset_alone(offset: float) -> None:
    k = torch.tensor(offset, dtype=torch.float64)
    distances = (SE(POSITIONS + k) - SE(POSITIONS)).norm(dim=-1)
    torch.testing.assert_close(distances, SE.distance(k).expand(1000), rtol=1e-9, atol=1e-9)


@given(offset=st.floats(-500, 500))
def test_one_rotation_moves_every_position(offset: float) -> None:
    k = torch.tensor(offset, dtype=torch.float64)
    rotation = SE.rotation(k)
    torch.testing.assert_close(SE(POSITIONS) @ rotation.T, SE(POSITIONS + k), rtol=0, atol=1e-9)
    torch.testing.assert_close(rotation @ rotation.T, torch.eye(DIM, dtype=torch.float64), rtol=0, atol=1e-12)
    outside = torch.block_diag(*[torch.ones(2, 2)] * (DIM // 2)) == 0
    assert (rotation[outside] == 0).all()


def test_an_inclusive_embedding_reaches_the_base() -> None:
    """Coordinates row and row + 1 of dimension d turn with base^(-row / (d - 2)): from 1 to 1 / base."""
    d, pos = 8, 13.0
    embedded = SinusoidalEmbedding(d, inclusive=True)(torch.tensor([pos], dtype=torch.float64))[0]
    for row in range(0, d, 2):
        angle = pos / 10000 ** (row / (d - 2))
        assert embedded[row : row + 2].tolist() == pytest.approx([math.sin(angle), math.cos(angle)])
    inclusive = SinusoidalEmbedding(d, inclusive=True)
    assert inclusive.period(d - 1) == pytest.approx(2 * math.pi * 10000)
    assert (
        SinusoidalEmbedding(2, inclusive=True)(torch.tensor([1.0])).tolist() == SinusoidalEmbedding(2)(torch.ones(1)).tolist()
    )
    k = torch.tensor(17.0, dtype=torch.float64)
    torch.testing.assert_close(inclusive(POSITIONS) @ inclusive.rotation(k).T, inclusive(POSITIONS + k))
    torch.testing.assert_close(
        (inclusive(POSITIONS + k) - inclusive(POSITIONS)).norm(dim=-1), inclusive.distance(k).expand(1000)
    )


def test_sines_alone_are_no_circles() -> None:
    d, pos = 6, 3.0
    embedded = SineEmbedding(d)(torch.tensor([pos], dtype=torch.float64))[0]
    assert embedded.tolist() == pytest.approx([math.sin(pos / 10000 ** (2 * j / d)) for j in range(d)])
    steps = (SineEmbedding(DIM)(POSITIONS + 1) - SineEmbedding(DIM)(POSITIONS)).norm(dim=-1)
    assert steps.max() > 1.5 * steps.min()  # while those of circles are all alike
    assert torch.pdist(SineEmbedding(DIM)(POSITIONS)).min() > 0.01  # and yet no two positions coincide


SMALL = {
    "mlp": {"hidden": 8}, "rbf": {"hidden": 8}, "unet": {"height": 8, "width": 8, "widths": (8, 8)},
    "transformer": {"height": 8, "width": 8, "dim": 16, "layers": 1, "heads": 2},
}  # fmt: skip


@pytest.mark.parametrize("name", SMALL)  # but for that of diffusers, which has its own ways
def test_every_network_is_conditioned_on_the_level_by_every_embedding(name: str) -> None:
    shape = (2, 8, 8) if "height" in SMALL[name] else (2,)
    outputs = []
    for embedding in get_args(Level):
        torch.manual_seed(0)
        net = build(NETWORKS, {"name": name, "channels": 2, **SMALL[name], "embedding": embedding}, "network")
        for parameter in net.parameters():
            torch.nn.init.normal_(parameter, std=0.1)
        with torch.no_grad():
            low, high = net(torch.ones(2, *shape), torch.tensor([-3.0, 3.0]))
        assert (low - high).abs().max() > 1e-4, embedding
        outputs.append(low)
    assert min((a - b).abs().max() for k, a in enumerate(outputs) for b in outputs[:k]) > 1e-6


@pytest.mark.parametrize("dim", [0, 1, 3])
def test_an_odd_dimension_is_refused(dim: int) -> None:
    with pytest.raises(ValueError, match="even"):
        SinusoidalEmbedding(dim)


def test_learned_embedding_is_linear_between_rows() -> None:
    learned = LearnedEmbedding(5, -2.0, 2.0, rows=5)
    rows = learned(torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0]))
    torch.testing.assert_close(rows, learned.table)
    torch.testing.assert_close(learned(torch.tensor([0.25]))[0], 0.75 * learned.table[2] + 0.25 * learned.table[3])
    torch.testing.assert_close(learned(torch.tensor([9.0, -9.0])), learned.table[[4, 0]])


def test_label_embedding_owns_the_null_row() -> None:
    labels = LabelEmbedding(3, 4)
    torch.testing.assert_close(labels(torch.tensor([-1, 0, 2])), labels.table[[0, 1, 3]])
    torch.testing.assert_close(labels(None), labels.table[:1])


def test_default_mlp_has_about_six_thousand_parameters() -> None:
    assert 5500 < sum(p.numel() for p in ConditionalMLP().parameters()) < 6500


@pytest.mark.parametrize("labels", [0, 3])
@pytest.mark.parametrize("kind", ["mlp", "mlp:embedding=learned", "mlp:connector=multiply", "rbf", "rbf:embedding=learned"])
def test_every_parameter_gets_a_finite_gradient(kind: str, labels: int) -> None:
    net = build(NETWORKS, {**parse(kind), "channels": 3, "labels": labels}, "network")
    torch.nn.init.normal_(net.readout.weight if isinstance(net, RBF) else net.out.weight)
    cond = torch.arange(-1, 3).repeat(64) if labels else None
    out = net(torch.randn(256, 3), torch.linspace(-14, 14, 256), cond)
    assert out.shape == (256, 3)
    out.square().sum().backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().sum() > 0, name


def test_the_output_starts_at_zero() -> None:
    assert (ConditionalMLP()(torch.randn(5, 2), torch.zeros(5)) == 0).all()


def test_no_label_is_the_null_label() -> None:
    net = ConditionalMLP(labels=4)
    torch.nn.init.normal_(net.out.weight)
    x, level = torch.randn(6, 2), torch.zeros(6)
    torch.testing.assert_close(net(x, level, None), net(x, level, torch.full((6,), -1)))
    assert not torch.allclose(net(x, level, None), net(x, level, torch.zeros(6, dtype=torch.long)))


def test_the_connector_multiplies_what_it_would_add() -> None:
    net = ConditionalMLP(2, hidden=5, layers=1, connector="multiply")
    assert (net.projections[0].bias == 1).all()
    torch.nn.init.normal_(net.out.weight)
    x, level = torch.randn(7, 2), torch.linspace(-3, 3, 7)
    e = net.embedding(level * 20)
    h = net.layers[0](x) * net.projections[0](e)
    torch.testing.assert_close(net(x, level), net.out(h * torch.sigmoid(h)))


@pytest.mark.parametrize("labels", [0, 3])
def test_radial_basis_functions_by_their_formula(labels: int) -> None:
    net = RBF(3, hidden=4, labels=labels).double()
    assert (net(torch.randn(5, 3).double(), torch.zeros(5).double()) == 0).all()  # at first
    torch.nn.init.normal_(net.readout.weight)
    torch.nn.init.normal_(net.readout.bias)
    torch.nn.init.normal_(net.log_widths)
    x, level = torch.randn(6, 3).double(), torch.linspace(-2, 2, 6).double()
    cond = torch.tensor([-1, 0, 1, 2, 0, -1]) if labels else None
    out = net(x, level, cond)
    e = net.embedding(level * 20) + (net.label(cond) if net.label is not None else 0)
    for n in range(6):
        table = net.readout(e[n]).reshape(5, 3)
        wanted = table[4].clone()
        for k in range(4):
            wanted = wanted + table[k] * torch.exp(-(x[n] - net.centres[k]).square().sum() / (2 * net.log_widths[k].exp() ** 2))
        torch.testing.assert_close(out[n], wanted)
