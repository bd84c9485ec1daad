from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest

from reverie.base.errors import UserError
from reverie.data import load_data
from reverie.data.curve import THETA_MAX, THETA_MIN, closest_on_spiral, spiral_curve
from reverie.data.dataset import Dataset
from reverie.data.reading import duplicate_note
from reverie.data.toy import PATTERNS, TOYS
from reverie.evaluation.metrics.points import score_spiral
from reverie.transport import sliced_wasserstein


def brute(points: np.ndarray, count: int = 100_000) -> tuple[np.ndarray, np.ndarray]:
    theta = np.linspace(THETA_MIN, THETA_MAX, count)
    curve = spiral_curve(theta)
    best = np.array([((curve - p) ** 2).sum(-1).argmin() for p in points])
    return theta[best], np.linalg.norm(curve[best] - points, axis=1)


HARD = np.array(
    [
        [-1 / 8, -1 / 8],  # the centre, from which all directions are equal
        spiral_curve(np.array(THETA_MIN)) - [0.1, 0.01],  # before the inner end
        spiral_curve(np.array(THETA_MAX)) + [-0.4, 0.02],  # beyond the outer end
        [50.0, -30.0],
        [0.0, 1.0],  # the end itself is (-1/8, 1)
        [0.52831359, 0.33548026],  # half way between two turns
    ]
)


def test_the_closest_point_agrees_with_brute_force() -> None:
    points = np.concatenate([np.random.default_rng(0).normal(0, 0.9, (600, 2)), HARD])
    _, distance = closest_on_spiral(points)
    _, expected = brute(points)
    assert (distance <= expected + 1e-12).all()  # never worse than 100,000 candidates
    half_cell = (THETA_MAX - THETA_MIN) / 100_000 / 2
    slack = (1.2**2 + 1.2 * expected) * half_cell**2  # speed and curvature of the curve are below 1.2
    assert (expected**2 - distance**2 <= slack + 1e-12).all()


def test_closest_point_of_centres_of_curvature() -> None:
    """Centres of curvature, where the second derivative vanishes and Newton steps are infinite."""
    theta = np.linspace(THETA_MIN, THETA_MAX, 300)[1:-1]
    d1 = np.stack([np.cos(theta) - theta * np.sin(theta), np.sin(theta) + theta * np.cos(theta)], -1) / (4 * np.pi)
    d2 = np.stack([-2 * np.sin(theta) - theta * np.cos(theta), 2 * np.cos(theta) - theta * np.sin(theta)], -1) / (4 * np.pi)
    curvature = (d1[:, 0] * d2[:, 1] - d1[:, 1] * d2[:, 0]) / (d1**2).sum(-1) ** 1.5
    normal = np.stack([-d1[:, 1], d1[:, 0]], -1) / np.linalg.norm(d1, axis=-1, keepdims=True)
    evolute = spiral_curve(theta) + normal / curvature[:, None]
    _, distance = closest_on_spiral(evolute)
    _, expected = brute(evolute, 20_001)
    assert (distance <= expected + 1e-12).all()


def test_closest_point_between_two_turns() -> None:
    """Half way between two turns, where a coarse search is ambiguous."""
    theta = np.linspace(THETA_MIN, THETA_MAX - 2 * np.pi, 200)
    ridge = (spiral_curve(theta) + spiral_curve(theta + 2 * np.pi)) / 2
    points = (ridge[:, None] + np.random.default_rng(2).normal(0, 0.004, (200, 5, 2))).reshape(-1, 2)
    _, distance = closest_on_spiral(points)
    _, expected = brute(points, 20_001)
    assert (distance <= expected + 1e-12).all()


@given(theta=st.floats(THETA_MIN, THETA_MAX))
def test_a_point_of_the_curve_is_its_own_closest(theta: float) -> None:
    found, distance = closest_on_spiral(spiral_curve(np.array([theta])))
    assert distance[0] < 1e-12 and found[0] == pytest.approx(theta, abs=1e-7)


def test_closest_point_may_be_an_end() -> None:
    theta, _ = closest_on_spiral(HARD[1:3])
    assert theta.tolist() == [THETA_MIN, THETA_MAX]


@pytest.mark.parametrize("name", [*TOYS, "patterns"])
@pytest.mark.parametrize("size", [2, 7, 2000])
def test_every_name_gives_points_of_any_size_seeded(name: str, size: int) -> None:
    data = load_data(name, size, seed=3)
    assert data.x.shape == (size, 2) and data.x.dtype == torch.float32 and torch.isfinite(data.x).all()
    assert float(data.x.abs().max()) < 2
    again, other = load_data(name, size, seed=3), load_data(name, size, seed=4)
    assert torch.equal(data.x, again.x) and data.fingerprint() == again.fingerprint() != other.fingerprint()


def test_the_spiral_is_on_its_curve_and_uniform_in_theta() -> None:
    points = load_data("spiral", 5000).x.numpy()
    assert points[:, 0].min() >= -1 and points[:, 0].max() <= 1
    figures = score_spiral(points)
    assert figures["mean_distance"] < 1e-7 and figures["coverage_ks"] < 0.03


def test_checkerboard_and_eight_gaussians() -> None:
    board = load_data("checkerboard", 4000).x.numpy()
    cells = np.floor((board + 1) * 2).astype(int)
    assert (cells.sum(1) % 2 == 0).all() and len(np.unique(cells, axis=0)) == 8
    ring = load_data("eight-gaussians", 8000).x.numpy()
    nearest = np.round(np.arctan2(ring[:, 1], ring[:, 0]) / (np.pi / 4)).astype(int) % 8
    assert np.bincount(nearest, minlength=8).min() > 850


def test_patterns_are_labelled() -> None:
    data = load_data("patterns", 5000)
    assert data.label_names == PATTERNS and data.labels is not None
    assert torch.bincount(data.labels).tolist() == [1000] * len(PATTERNS)
    on_curve = closest_on_spiral(data.x[data.labels == PATTERNS.index("spiral")].numpy().astype(float))[1]
    assert on_curve.max() < 1e-6
    moons = data.x[data.labels == PATTERNS.index("moons")].numpy()
    pure = TOYS["moons"](1000, np.random.default_rng(9))
    assert sliced_wasserstein(moons, pure, p=1) < 0.05


def test_the_split_is_a_function_of_the_seed() -> None:
    data = load_data("patterns", 1000)
    train, held = data.split(5)
    assert len(train) == 950 and len(held) == 50
    assert torch.equal(held.x, data.split(5)[1].x) and not torch.equal(held.x, data.split(6)[1].x)
    rows = {tuple(r) for r in torch.cat([train.x, held.x]).tolist()}
    assert rows == {tuple(r) for r in data.x.tolist()}


@pytest.mark.parametrize(("single", "times", "least"), [(80, 5, 190), (0, 2, 180), (1, 199, 190)])
def test_no_training_image_has_a_held_out_copy(single: int, times: int, least: int) -> None:
    """Some of 200 images are unique and the others occur `times` times."""
    random = np.random.default_rng(0)
    different = random.integers(0, 256, (200, 3, 8, 8), dtype=np.uint8)
    copied = np.repeat(different[single:], times, 0)[: 200 - single]
    data = Dataset("copies", torch.from_numpy(np.concatenate([different[:single], copied])))
    train, held = data.split(0)
    assert least <= len(train) <= 190 and len(held) == 10
    if times < 199:  # with only two images one must be in both parts
        assert not {row.numpy().tobytes() for row in train.x} & {row.numpy().tobytes() for row in held.x}
    assert torch.equal(held.x, data.split(0)[1].x)


@pytest.mark.parametrize(("name", "size", "match"), [("sprial", 100, "did you mean 'spiral'"), ("moons", 1, "from 2 to")])
def test_bad_requests_are_refused(name: str, size: int, match: str) -> None:
    with pytest.raises(UserError, match=match):
        load_data(name, size)


def test_sliced_wasserstein_of_a_shift_is_known() -> None:
    """A shift by v moves every projection by u·v; the mean of |u·v| over directions in the plane is 2|v|/pi."""
    x = np.random.default_rng(0).normal(size=(500, 2))
    assert float(sliced_wasserstein(x, x + [0.3, 0.4], p=1, directions=20_000)) == pytest.approx(2 * 0.5 / np.pi, rel=0.01)
    assert sliced_wasserstein(x, x[::-1], p=1) == 0


def test_score_spiral_notices_uneven_coverage() -> None:
    theta = np.random.default_rng(1).uniform(THETA_MIN, (THETA_MIN + THETA_MAX) / 2, 2000)
    figures = score_spiral(spiral_curve(theta))
    assert figures["coverage_ks"] == pytest.approx(0.5, abs=0.02) and figures["mean_distance"] < 1e-9
    assert kstest(theta, "uniform", (THETA_MIN, (THETA_MAX - THETA_MIN) / 2)).pvalue > 0.01


def test_duplicate_notes() -> None:
    assert duplicate_note(1, "image") == ("1 image is an exact copy of another",)
    assert duplicate_note(2, "point") == ("2 points are exact copies of others",) and duplicate_note(0, "image") == ()
