"""The U-Net and the transformer: shapes, gradients, legal sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from reverie.base.errors import UserError
from reverie.base.spec import Spec, build
from reverie.data import Dataset
from reverie.diffusion.plan import (
    PRESETS,
    check_width,
    expectation,
    largest_colour_side,
    network_for,
    network_size,
    slow_size,
    small_for_the_budget,
    stem_for,
)
from reverie.nets import NETWORKS
from reverie.nets.dropout import seeded_dropout
from reverie.nets.transformer import Transformer, places
from reverie.nets.unet import UNet
from reverie.training.optimizer import OPTIMIZERS

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
    ("channels", "size", "stem"),
    [
        (1, (28, 28), 2), (1, (32, 32), 2), (1, (64, 64), 4), (1, (64, 48), 4), (1, (8, 8), 1), (1, (30, 30), 1),
        (3, (32, 32), 2), (3, (64, 64), 2), (4, (64, 64), 2),
    ],
)  # fmt: skip
def test_the_stem_is_chosen_so_that_the_size_is_legal_and_the_map_wide_enough(
    channels: int, size: tuple[int, int], stem: int
) -> None:
    assert stem_for(channels, *size, (32, 64)) == stem
    UNet(channels, *size, widths=(32, 64), stem=stem)


SHAPES = [(channels, size, size) for size in (8, 12, 16, 28, 32, 48, 64, 96, 128, 256) for channels in (1, 2, 3, 4)]


@pytest.mark.parametrize("name", [*PRESETS, "transformer"])
def test_no_planned_network_is_too_narrow_or_too_coarse(name: str) -> None:
    for shape in SHAPES:
        network = network_for(shape, 0, name)
        check_width(network)
        if name in ("unet-tiny", "unet-small", "unet-base"):
            assert max(shape[1:]) / (network["stem"] << len(network["widths"]) - 1) <= 16
        with torch.device("meta"):
            build(NETWORKS, network, "network")  # refuses sizes that it cannot take


@pytest.mark.parametrize(
    ("network", "figures"),
    [
        ("unet:stem=4", "4 folds 3 x 4 x 4 = 48 .* 32 channels.* 33% .* at most 3.* 48"),
        ("transformer:patch=8", "= 192 .* 128 channels.* at most 6.* 192"),
    ],
)
def test_a_network_that_cannot_hold_its_input_is_refused(network: str, figures: str) -> None:
    with pytest.raises(UserError, match=figures):
        check_width(network_for((3, 64, 64), 0, network))


RATE, PASSED_ON = 3e-2, 0.05


def noise_left(shape: tuple[int, int, int], network: Spec, steps: int = 80) -> float:
    """Return the mean squared error of a network that learns to give back the noise it is shown, new at every step.

    It ends once the noise is passed on: noise that was never seen before proves as much at any step as at the last.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = build(NETWORKS, network, "network")
    random = torch.Generator().manual_seed(1)
    optimizers = OPTIMIZERS["muon"](net, RATE, 0.0)
    count = max(2, 2048 // (shape[1] * shape[2]))  # so that small images show as much noise as large ones
    for k in range(steps):
        x = torch.randn(count, *shape, generator=random)
        lost = (net(x, torch.full((count,), -13.8)) - x).square().mean()
        if lost < PASSED_ON:
            break
        for optimizer in optimizers:
            optimizer.zero_grad()
        lost.backward()
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = RATE * (1 - k / steps)
            optimizer.step()
    return float(lost.detach())


SMALL_ONES = [("unet-tiny", 8, 4), ("unet-tiny", 32, 3), ("transformer", 32, 3)]


@pytest.mark.parametrize(("name", "size", "channels"), SMALL_ONES)
def test_a_planned_network_can_pass_on_noise(name: str, size: int, channels: int) -> None:
    shape = (channels, size, size)
    assert noise_left(shape, network_for(shape, 0, name)) < PASSED_ON


@pytest.mark.slow
@pytest.mark.parametrize("size", [8, 16, 32, 64, 128])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("name", [*PRESETS, "transformer"])
def test_every_planned_network_can_pass_on_noise(name: str, channels: int, size: int) -> None:
    # Whether it learns that in few steps is chance, the fewer places an image has the more so; that it can is proved by one
    # training that does, and no length helps a network that cannot hold its input.
    shape = (channels, size, size)
    assert any(noise_left(shape, network_for(shape, 0, name), steps) < PASSED_ON for steps in (150, 450))


def test_a_narrow_network_cannot_pass_on_noise() -> None:
    shape = (3, 32, 32)
    narrow = {**network_for(shape, 0, "unet-tiny"), "stem": 4}
    assert noise_left(shape, narrow) > 0.3  # 1 - 32 / 48, whatever it learns


def test_no_two_places_of_the_transformer_coincide() -> None:
    assert float(torch.pdist(places(7, 7, 128)).min()) > 0.5


def test_sizes_grow() -> None:
    counts = [sum(p.numel() for p in make(name).parameters()) for name in ("unet-tiny", "unet-small", "unet-base")]
    assert counts == sorted(counts)


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((3, 100, 70), "--size 100x72"),
        ((3, 70, 70), "--size 72x72"),
        ((3, 64, 64), None),
        ((3, 32, 32), None),
        ((1, 28, 28), None),
    ],
)
def test_a_size_that_prevents_folding_is_reported(shape: tuple[int, int, int], size: str | None) -> None:
    note = slow_size(network_for(shape, 0, "unet-tiny"))
    assert note is None if size is None else note and size in note


def test_short_budgets_on_a_cpu_get_small_colour_images_and_measured_expectations() -> None:
    assert largest_colour_side(5, None, "cpu") == 32 == largest_colour_side(None, None, "cpu")
    assert [largest_colour_side(*budget) for budget in ((15, None, "cpu"), (5, None, "cuda"), (None, 9, "cpu"))] == [64] * 3
    assert "rough shapes; in 15: " in expectation((3, 64, 64), 5)
    one, five = (expectation((1, 28, 28), minutes) for minutes in (1, 5))
    assert "colour" not in one + five and "in 1 minute on two cores: recognizable" in one and "; in 5: clean" in one
    assert "Fréchet distance of 1.7 to 3.1" in one and "Fréchet distance of 1.3 to 1.6" in five and "; in" not in five


def test_the_note_on_small_colour_images_names_the_options_for_larger_ones() -> None:
    data = Dataset("photos", torch.zeros(4, 3, 32, 32, dtype=torch.uint8), report={"sizes": {"400x300": 3, "other": 1}})
    assert "--size 64 --minutes 15" in str(small_for_the_budget(data, 32))
    assert small_for_the_budget(data, 64) is None
    assert small_for_the_budget(replace(data, report={"sizes": {"32x32": 4}}), 32) is None


def test_fourier_features_distinguish_the_last_bits_of_the_input() -> None:
    torch.manual_seed(0)
    net = UNet(height=8, width=8, widths=(8, 16), stem=1, fourier=(7,)).double()
    torch.nn.init.normal_(net.leave.weight)
    with torch.no_grad():
        net.enter.weight[:, 0] = 0  # x itself is not seen, only sin(128 pi x) and cos(128 pi x)
        x, level = torch.rand(2, 1, 8, 8, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
        plain, a_period, half_a_period = (net(x + step, level) for step in (0, 1 / 64, 1 / 128))
    torch.testing.assert_close(a_period, plain)
    assert float((half_a_period - plain).abs().max()) > 1e-3


def test_dropout_is_a_function_of_the_seed_and_only_of_training() -> None:
    net = UNet(height=8, width=8, widths=(8, 16), stem=1, dropout=0.5)
    for p in net.parameters():
        torch.nn.init.normal_(p, std=0.2)
    x, level = torch.randn(2, 1, 8, 8), torch.zeros(2)

    def drawn(seed: int) -> Tensor:
        torch.rand(seed)  # whatever else was drawn before
        with seeded_dropout(net, seed):
            y: Tensor = net(x, level)
        return y

    before = torch.random.get_rng_state()
    first, again, other = drawn(1), drawn(1), drawn(2)
    assert torch.equal(first, again) and not torch.equal(first, other)
    torch.random.set_rng_state(before)
    with seeded_dropout(net, 7):
        torch.rand(3)
    assert torch.equal(torch.random.get_rng_state(), before)
    net.eval()
    assert torch.equal(drawn(1), drawn(2))


@pytest.mark.parametrize(
    ("channels", "side", "minutes", "size"),
    [
        (3, 32, 4, "tiny"), (3, 32, 5, "mini"), (3, 32, 14, "mini"), (3, 32, 15, "small"), (3, 64, 19, "tiny"),
        (3, 64, 20, "mini"), (3, 64, 30, "small"), (8, 16, 10, "mini"), (8, 16, 15, "small"), (1, 28, 29, "tiny"),
        (1, 28, 30, "small"), (3, 32, 240, "base"),
    ],
)  # fmt: skip
def test_a_larger_network_is_chosen_where_the_time_is_worth_it(channels: int, side: int, minutes: float, size: str) -> None:
    """Measured for colour images of 32 x 32 (experiments/networks.md); larger images shift the limits by their pixels."""
    assert network_size(channels, side**2 / 32**2, minutes) == size
