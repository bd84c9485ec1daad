from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reverie.nets.embedding import LabelEmbedding, LearnedEmbedding, SinusoidalEmbedding
from reverie.nets.mlp import ConditionalMLP

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
@pytest.mark.parametrize("embedding", ["sinusoidal", "learned"])
def test_every_parameter_gets_a_finite_gradient(embedding: str, labels: int) -> None:
    net = ConditionalMLP(3, embedding=embedding, labels=labels)
    torch.nn.init.normal_(net.out.weight)
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
