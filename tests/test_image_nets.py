"""The U-Net and the transformer: shapes, gradients, legal sizes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from reverie.checkpoint import NETWORKS
from reverie.errors import UserError
from reverie.nets.transformer import Transformer, places
from reverie.nets.unet import UNet
from reverie.plan import PRESETS, stem_for
from reverie.spec import build

IMAGE_SPECS = {**PRESETS, "transformer": {"name": "transformer"}}


def awaken(net: nn.Module) -> nn.Module:
    """Give layers that start at zero some weight, so that everything behind them is felt."""
    for parameter in net.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.1)
    return net


def make(name: str, **options: object) -> nn.Module:
    torch.manual_seed(0)
    return build(NETWORKS, {**IMAGE_SPECS[name], **options}, "network")


@pytest.mark.parametrize("name", IMAGE_SPECS)
def test_the_output_starts_at_zero_and_has_the_shape_of_the_input(name: str) -> None:
    x = torch.randn(2, 3, 32, 16)
    out = make(name, channels=3, height=32, width=16)(x, torch.zeros(2), None)
    assert out.shape == x.shape and (out == 0).all()


@pytest.mark.parametrize("labels", [0, 3])
@pytest.mark.parametrize("name", IMAGE_SPECS)
def test_every_parameter_gets_a_finite_gradient(name: str, labels: int) -> None:
    net = awaken(make(name, channels=1, height=16, width=16, labels=labels))
    cond = torch.arange(-1, 3).repeat(2) if labels else None
    out: Tensor = net(torch.randn(8, 1, 16, 16), torch.linspace(-10, 10, 8), cond)
    out.square().sum().backward()
    for where, parameter in net.named_parameters():
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), where
        assert parameter.grad.abs().sum() > 0, where


@pytest.mark.parametrize("name", IMAGE_SPECS)
def test_each_image_is_treated_alone_and_levels_and_labels_matter(name: str) -> None:
    net = awaken(make(name, channels=1, height=16, width=16, labels=2)).eval()
    x, level, cond = torch.randn(4, 1, 16, 16), torch.linspace(-5, 5, 4), torch.tensor([0, 1, -1, 0])
    whole = net(x, level, cond)
    torch.testing.assert_close(net(x[1:2], level[1:2], cond[1:2]), whole[1:2], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(net(x, level + 1, cond), whole, atol=1e-4)
    assert not torch.allclose(net(x, level, torch.tensor([1, 0, 0, 1])), whole, atol=1e-4)
    torch.testing.assert_close(net(x, level, None), net(x, level, torch.full((4,), -1)))


@given(channels=st.integers(1, 4), height=st.integers(1, 6), width=st.integers(1, 6), stem=st.sampled_from([1, 2, 4]))
def test_any_legal_size(channels: int, height: int, width: int, stem: int) -> None:
    unit = stem * 2
    net = UNet(channels, height * unit, width * unit, widths=(8, 12), stem=stem, groups=4, embedding_dim=8)
    x = torch.randn(1, channels, height * unit, width * unit)
    assert net(x, torch.zeros(1)).shape == x.shape


@pytest.mark.parametrize(
    ("build_it", "legal"),
    [
        (lambda: UNet(1, 30, 28), "28x28|32x28"),
        (lambda: UNet(1, 61, 47, widths=(8, 8, 8), stem=2), "64x48"),
        (lambda: UNet(1, 1, 1), "4x4"),
        (lambda: Transformer(1, 30, 28), "28x28|32x28"),
    ],
)
def test_an_illegal_size_names_the_nearest_legal_one(build_it, legal: str) -> None:
    with pytest.raises(UserError, match=legal):
        build_it()


@pytest.mark.parametrize(
    ("size", "stem"), [((28, 28), 2), ((32, 32), 2), ((64, 64), 4), ((64, 48), 4), ((8, 8), 1), ((30, 30), 1)]
)
def test_the_stem_is_chosen_so_that_the_size_is_legal(size: tuple[int, int], stem: int) -> None:
    assert stem_for(*size, levels=2) == stem
    UNet(1, *size, widths=(8, 8), stem=stem, groups=4, embedding_dim=8)


def test_no_two_places_of_the_transformer_coincide() -> None:
    assert float(torch.pdist(places(7, 7, 128)).min()) > 0.5


def test_sizes_grow() -> None:
    counts = [sum(p.numel() for p in make(name).parameters()) for name in ("unet-tiny", "unet-small", "unet-base")]
    assert counts == sorted(counts)
