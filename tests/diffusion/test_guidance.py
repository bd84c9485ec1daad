"""Guidance against closed forms, under every sampler."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from reverie.base.errors import UserError
from reverie.base.noise import Noise, image_seeds
from reverie.base.scalar import Time
from reverie.diffusion.condition import NULL
from reverie.diffusion.denoiser import Denoiser, NetDenoiser, WithCondition
from reverie.diffusion.guidance import AutoGuided, ClassifierFree, ClassifierGuided, read_interval
from reverie.diffusion.oracle import GaussianDenoiser, MixtureDenoiser
from reverie.diffusion.pair import Pair
from reverie.diffusion.samplers import SAMPLERS, start, trajectory
from reverie.diffusion.samplers.grids import Uniform
from reverie.diffusion.schedule import Cosine, Linear, LogLinear, Rectified, Schedule
from reverie.diffusion.views import Illusion, read_views
from reverie.nets.unet import UNet
from reverie.runs.labels import read_label, read_labels

COVARIANCE = torch.tensor([[0.5, 0.2], [0.2, 0.3]], dtype=torch.float64)
MEANS = torch.tensor([[0.3, -0.1], [1.0, 0.5], [-0.7, 0.8]], dtype=torch.float64)


def mixture(schedule: Schedule) -> MixtureDenoiser:
    """Three labelled Gaussians, each with a covariance of its own."""
    parts = [GaussianDenoiser(schedule, mean, COVARIANCE * (1 + k)) for k, mean in enumerate(MEANS)]
    return MixtureDenoiser(torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), parts)


class Shifted(Denoiser):
    """Labelled Gaussians that differ in their means only; "no label" is a Gaussian of its own: every guided law is one too."""

    def __init__(self, schedule: Schedule, none: Tensor, means: Tensor, covariance: Tensor) -> None:
        super().__init__()
        self.schedule, self.none, self.means, self.covariance = schedule, none, means, covariance
        self.calls: list[int] = []
        self.base = self.at(none)

    def at(self, mean: Tensor) -> GaussianDenoiser:
        return GaussianDenoiser(self.schedule, mean, self.covariance)

    def forward(self, x: Tensor, t: Time, cond: Tensor | None = None) -> Pair:
        self.calls.append(len(x))
        table = torch.cat([self.none[None], self.means])
        cond = torch.full((len(x),), NULL) if cond is None else cond
        flat = x.flatten(1)
        alpha, _ = self.schedule(t)
        shift = table[cond + 1] - self.none
        moved = Pair(flat, shift).mix(1.0, -alpha)  # a Gaussian elsewhere is this one, moved
        pair = self.base(moved, t)
        return Pair((pair.x0 + shift).reshape(x.shape), pair.eps.reshape(x.shape))

    def log_prob(self, x: Tensor, t: Time, label: Tensor) -> Tensor:
        """Log p(label | x) up to a constant, the labels being equally likely and exactly such a law."""
        alpha, _ = self.schedule(t)
        shift = Pair(torch.zeros_like(x), self.means[label] - self.none).mix(1.0, alpha)
        return self.base.log_prob(x - shift, t) - self.base.log_prob(x, t)


def draw(denoise: Denoiser, name: str, shape: Sequence[int] = (6, 2), steps: int = 8) -> Tensor:
    noise = Noise(image_seeds(3, shape[0]))
    grid = Uniform()(denoise.schedule, steps if name != "rk45" else 3)  # which takes its own steps between
    x = start(denoise.schedule, float(grid[0]), noise.like(torch.empty(*shape, dtype=torch.float64)))
    return list(trajectory(denoise, SAMPLERS[name](), x, grid, noise))[-1].x0


def points(n: int = 7) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    return torch.randn(n, 2, dtype=torch.float64, generator=random), torch.arange(n) % 3


@pytest.mark.parametrize("scale", [-1.0, 0.0, 0.5, 1.0, 3.0])
def test_the_score_is_that_of_the_sharpened_mixture(schedule: Schedule, scale: float) -> None:
    """(1 - w) grad log p(x) + w grad log p(x, label), by automatic differentiation of the closed density."""
    oracle, (x, cond) = mixture(schedule), points()
    for t in (0.1, 0.6, torch.linspace(0.1, 0.9, 7, dtype=torch.float64)):
        z = x.clone().requires_grad_()
        density = (1 - scale) * oracle.log_prob(z, t) + scale * oracle.log_prob(z, t, cond)
        (wanted,) = torch.autograd.grad(density.sum(), z)
        torch.testing.assert_close(ClassifierFree(oracle, scale).score(x, t, cond).detach(), wanted, rtol=1e-8, atol=1e-8)


def test_a_composition_is_the_weighted_sum_of_scores(schedule: Schedule) -> None:
    oracle, (x, _), t = mixture(schedule), points(), 0.4
    weights, labels = (1.5, -1.0), (0, 2)
    cond = torch.tensor(labels).expand(len(x), -1)
    z = x.clone().requires_grad_()
    shares = [oracle.log_prob(z, t, torch.full((len(x),), k)) for k in labels]
    density = oracle.log_prob(z, t) + 2 * sum(w * (p - oracle.log_prob(z, t)) for w, p in zip(weights, shares, strict=True))
    (wanted,) = torch.autograd.grad(density.sum(), z)
    guided = ClassifierFree(oracle, 2.0, weights=weights)
    torch.testing.assert_close(guided.score(x, t, cond).detach(), wanted, rtol=1e-8, atol=1e-8)
    classifier = ClassifierGuided(oracle, lambda x, t, y: oracle.log_prob(x, t, y) - oracle.log_prob(x, t), 2.0, weights)
    none = WithCondition(Plain(classifier), cond)
    torch.testing.assert_close(none.score(x, t).detach(), wanted, rtol=1e-6, atol=1e-6)


class Plain(Denoiser):
    """Classifier guidance around the unconditional model."""

    def __init__(self, guided: ClassifierGuided) -> None:
        super().__init__()
        self.schedule, self.guided = guided.schedule, guided
        inner = guided.inner
        guided.inner = ClassifierFree(inner, 0.0, weights=guided.weights)

    def forward(self, x: Tensor, t: Time, cond: Tensor | None = None) -> Pair:
        return self.guided(x, t, cond)


def test_only_the_estimates_that_count_are_made() -> None:
    oracle = Shifted(Cosine(), torch.zeros(2).double(), MEANS, COVARIANCE)
    x, cond = points()

    def calls(t: Time = 0.5, cond: Tensor | None = cond, **options: object) -> list[int]:
        oracle.calls.clear()
        ClassifierFree(oracle, **options)(x, t, cond)  # type: ignore[arg-type]
        return list(oracle.calls)

    n, two = len(x), torch.stack([cond, 1 - cond.clamp(max=1)], 1)
    assert calls(scale=1.0) == calls(scale=0.0) == calls(scale=3.0, cond=None) == [n]
    assert calls(scale=3.0) == [2 * n]
    assert calls(scale=3.0, interval=(0.1, 0.4)) == calls(scale=1.0, rescale=0.7) == [n]
    assert calls(scale=3.0, interval=(0.1, 0.4), t=0.4) == [2 * n]
    assert calls(scale=1.0, cond=two, weights=(1.5, -1.0)) == [3 * n]
    assert calls(scale=1.0, cond=two, weights=(1.5, -0.5)) == [2 * n]  # weights of sum 1 need no unconditional estimate
    assert calls(scale=0.0, rescale=0.5) == [2 * n]
    with pytest.raises(ValueError, match="2 conditions"):
        calls(scale=1.0, cond=two)


def test_outside_the_interval_the_model_is_not_guided() -> None:
    oracle, (x, cond) = mixture(Linear()), points(3)
    guided = ClassifierFree(oracle, 4.0, interval=(0.2, 0.5))
    times = torch.tensor([0.1, 0.3, 0.9], dtype=torch.float64)  # one datum inside, two outside, as rk45 may ask
    wanted = torch.stack([ClassifierFree(oracle, w)(x, times, cond).x0[k] for k, w in enumerate((1.0, 4.0, 1.0))])
    torch.testing.assert_close(guided(x, times, cond).x0, wanted)
    torch.testing.assert_close(guided(x, 0.1, cond).x0, oracle(x, 0.1, cond).x0)
    torch.testing.assert_close(guided(x, 0.2, cond).x0, ClassifierFree(oracle, 4.0)(x, 0.2, cond).x0)


def test_rescaling_gives_the_conditional_std(schedule: Schedule) -> None:
    oracle = Shifted(schedule, torch.zeros(16).double(), torch.randn(3, 16).double(), torch.eye(16).double())
    x, cond, t = torch.randn(5, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1)), torch.arange(5) % 3, 0.6
    plain, free = oracle(x, t, cond), ClassifierFree(oracle, 5.0)(x, t, cond)
    whole = ClassifierFree(oracle, 5.0, rescale=1.0)(x, t, cond)
    torch.testing.assert_close(whole.x0.std(1), plain.x0.std(1))
    torch.testing.assert_close(ClassifierFree(oracle, 5.0, rescale=0.3)(x, t, cond).x0, 0.3 * whole.x0 + 0.7 * free.x0)
    torch.testing.assert_close(whole.mix(*schedule(t)), x)


@pytest.mark.parametrize("make", [pytest.param(Cosine, marks=pytest.mark.slow), LogLinear, Rectified])
@pytest.mark.parametrize("name", SAMPLERS)
def test_the_exact_classifier_makes_conditional_samples(name: str, make: type[Schedule]) -> None:
    """An unconditional mixture guided by its own p(label | x) at scale 1 follows the conditional trajectory of each seed."""
    oracle, cond = mixture(make()), torch.arange(6) % 3

    def exact(x: Tensor, t: Time, label: Tensor) -> Tensor:
        return oracle.log_prob(x, t, label) - oracle.log_prob(x, t)

    guided = WithCondition(ClassifierGuided(ClassifierFree(oracle, 0.0), exact, 1.0), cond)
    # where alpha = 0 (Rectified at t = 1) the gradient is taken at alpha = 1e-4, which moves the first step by as much
    close = 1e-3 if name != "rk45" else 5e-3
    torch.testing.assert_close(draw(guided, name), draw(WithCondition(oracle, cond), name), rtol=close, atol=close)


@pytest.mark.parametrize("make", [pytest.param(Linear, marks=pytest.mark.slow), Rectified])
@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_under_every_guidance_gives_the_right_gaussian(name: str, make: type[Schedule]) -> None:
    """Guided Gaussians of one covariance are Gaussians with another mean: every seed must end where that one's does."""
    none = torch.tensor([0.2, 0.1], dtype=torch.float64)
    oracle = Shifted(make(), none, MEANS, COVARIANCE)
    cond, two = torch.full((6,), 1), torch.tensor([1, 2]).expand(6, -1)
    steered: dict[str, tuple[Denoiser, Tensor]] = {
        "free": (WithCondition(ClassifierFree(oracle, 2.5), cond), none + 2.5 * (MEANS[1] - none)),
        "composed": (
            WithCondition(ClassifierFree(oracle, 1.0, weights=(1.5, -1.0)), two),
            none + 1.5 * (MEANS[1] - none) - (MEANS[2] - none),
        ),
        "classifier": (
            WithCondition(ClassifierGuided(ClassifierFree(oracle, 0.0), oracle.log_prob, 2.0), cond),
            none + 2.0 * (MEANS[1] - none),
        ),
        "both": (
            WithCondition(ClassifierGuided(ClassifierFree(oracle, 1.5), oracle.log_prob, 0.5), cond),
            none + 2.0 * (MEANS[1] - none),
        ),
    }
    for kind, (denoise, mean) in steered.items():
        close = (1e-3 if kind in ("classifier", "both") else 1e-7) if name != "rk45" else 5e-3
        torch.testing.assert_close(
            draw(denoise, name), draw(oracle.at(mean), name), rtol=close, atol=close, msg=lambda m, k=kind: f"{k}: {m}"
        )


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_under_illusions_gives_the_right_gaussian(name: str) -> None:
    """With independent pixels the views' mean is a Gaussian whose mean is the mean of the conditions, each taken back."""
    random = torch.Generator().manual_seed(5)
    means = torch.randn(2, 16, dtype=torch.float64, generator=random)
    oracle = Shifted(Cosine(), torch.zeros(16).double(), means, 0.4 * torch.eye(16).double())
    views = list(read_views("rotate90,negate", (1, 4, 4)).values())
    taken = torch.stack([view.back(mean.reshape(4, 4)).flatten() for view, mean in zip(views, means, strict=True)])
    conds = torch.tensor([[0], [1]]).expand(-1, 3)
    steered = Illusion(WithCondition(ClassifierFree(oracle, 2.0), None), views, conds)
    got = draw(steered, name, (3, 1, 4, 4)).flatten(1)
    assert set(oracle.calls) == {12}  # two views and both halves of guidance in one batch
    wanted = draw(oracle.at(2.0 * taken.mean(0)), name, (3, 16))
    close = 1e-7 if name != "rk45" else 5e-3
    torch.testing.assert_close(got, wanted, rtol=close, atol=close)


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_under_every_wrapper_is_finite_on_a_small_model(name: str) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = UNet(1, 8, 8, widths=(8,), stem=2, groups=2, embedding_dim=8, labels=3, attention=False)
        for p in net.parameters():
            torch.nn.init.normal_(p, std=0.1)
    model = NetDenoiser(net.double(), Rectified(), "flow")
    cond, views = torch.arange(2), list(read_views("identity,rotate180,negate", (1, 8, 8)).values())
    guided = ClassifierFree(model, 3.0, interval=(0.1, 0.9), rescale=0.5)

    def classifier(x: Tensor, t: Time, label: Tensor) -> Tensor:
        return model(x, t).x0.flatten(1)[:, :3].log_softmax(-1).gather(1, label[:, None])[:, 0]

    both = ClassifierGuided(guided, classifier, 0.5)
    composed = ClassifierFree(model, 2.0, weights=(1.5, -1.0))
    for steered in (
        WithCondition(guided, cond),
        WithCondition(both, cond),
        WithCondition(composed, torch.stack([cond, cond + 1], 1)),
        Illusion(WithCondition(both, None), views, torch.tensor([0, 1, 2])[:, None].expand(-1, 2)),
    ):
        x = draw(steered, name, (2, 1, 8, 8), steps=5)
        assert x.isfinite().all() and x.shape == (2, 1, 8, 8)


def test_labels_names_and_compositions() -> None:
    names = ("6", "8", "cat, black", "a:1")
    assert read_label("8", names).labels == read_label(8, names).labels == (1,)  # a class number from Python
    assert read_label("a:1", names).weights == (1.0,)  # a name is a name
    odd = read_label("x:1,y:2,z:-1", ("all", "x:1,y", "z"))
    assert odd.labels == (1, 2) and odd.weights == (2.0, -1.0)  # names may hold colons and commas
    found = read_label("6:1.5, 8:-1,cat, black:.5", names)
    assert found.labels == (0, 1, 2) and found.weights == (1.5, -1.0, 0.5)
    assert read_labels("6,cat, black,8", names) == (0, 2, 1) and read_labels(["8", "cat, black"], names) == (1, 2)
    for text, message in (
        ("7", "unknown label '7'"),
        ("6:1,7:2", "unknown label '7'"),
        ("6:1,8", "unknown label"),
        ("6:1e9", "within"),
    ):
        with pytest.raises(UserError, match=message):
            read_label(text, names)
    with pytest.raises(UserError, match="unknown label '7'"):
        read_labels("6,7", names)
    assert read_interval("0.2,0.8") == (0.2, 0.8) and read_interval(None) == (0.0, 1.0)
    for text in ("0.8,0.2", "0.5", "a,b", "0,nan", "-1,0.5", ""):
        with pytest.raises(UserError):
            read_interval(text)


@pytest.mark.parametrize("schedule", [Cosine(), Rectified()], ids=["cosine", "rectified"])
@pytest.mark.parametrize("scale", [1.0, 1.5, 2.0, 3.0])
def test_autoguidance_of_gaussians_scales_the_deviation_by_a_power_of_their_ratio(schedule: Schedule, scale: float) -> None:
    """Derivatives d log x / d log sigma add up: N(0, s²) guided away from N(0, r²) has std s (s / r)^(scale - 1)."""
    strong, weak = (GaussianDenoiser(schedule, torch.zeros(1).double(), torch.tensor([[v]]).double()) for v in (0.25, 0.49))
    x = torch.linspace(-2, 2, 9, dtype=torch.float64)[:, None]
    grid = Uniform()(schedule, 4000)
    *_, last = trajectory(AutoGuided(strong, weak, scale), SAMPLERS["heun"](), x, grid, Noise(image_seeds(0, 9)))
    expected = x * 0.5 * (0.5 / 0.7) ** (scale - 1)
    torch.testing.assert_close(last.x0, expected, atol=2e-3, rtol=5e-3)
