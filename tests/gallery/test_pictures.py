"""Galleries of the forward process, the score, one fixed noise level and the normal distribution, where they have numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import kstest

from reverie import api
from reverie.base.errors import UserError
from reverie.base.spec import build
from reverie.data import load_data
from reverie.data.codec import CODECS
from reverie.diffusion.oracle import GaussianDenoiser
from reverie.diffusion.schedule import Linear, Schedule
from reverie.gallery.forward import FRAMES, walk
from reverie.gallery.normal import MEAN, STD, density, simulate
from reverie.gallery.score import arrows, field
from reverie.gallery.sigma import POINTS, learn
from reverie.runs.run import Run

PLAIN = {"name": "standard", "mean": [0.0, 0.0], "std": [1.0, 1.0]}


def test_a_walk_has_the_marginals_of_the_forward_process(schedule: Schedule) -> None:
    moments = walk(schedule, build(CODECS, PLAIN, "codec"), torch.full((4000, 2), 0.5), seed=3)
    assert len(moments) == FRAMES and moments[0][0] == 0 and moments[-1][0] == 1
    for t, shown in (moments[10], moments[-1]):
        alpha, sigma = (float(c) for c in schedule(t))
        size = max(1.0, (alpha**2 + sigma**2) ** 0.5)
        z = shown * size  # as it is where data do not fade, and else what is shown
        assert z.mean() == pytest.approx(0.5 * alpha, abs=4 * sigma / 8000**0.5 + 1e-6 * size)
        assert z.std() == pytest.approx(sigma, rel=4 / 16000**0.5 + 1e-3)


def test_a_walk_is_one_chain_and_not_fresh_noise_at_each_time() -> None:
    moments = [x.ravel() for _, x in walk(Linear(), build(CODECS, PLAIN, "codec"), torch.zeros(2000, 2), seed=0)]
    scale = float(Linear()(0.5)[0]) / float(Linear()(0.475)[0])
    _, sigma = (float(c) for c in Linear()(0.5))
    _, before = (float(c) for c in Linear()(0.475))
    assert np.corrcoef(moments[19], moments[20])[0, 1] == pytest.approx(scale * before / sigma, abs=0.02)


def test_the_forward_process_as_a_sheet_and_a_film(command, tmp_path: Path) -> None:
    code, out, err = command("gallery", "forward", "digits8", "--schedule", "log-linear", "--out", tmp_path)
    assert code == 0 and "forward.gif" in out, err
    with Image.open(tmp_path / "forward.gif") as film:
        assert film.n_frames == FRAMES
    with Image.open(tmp_path / "forward.png") as sheet:
        assert sheet.size[0] > 1000


def test_the_forward_process_takes_data_in_memory_and_refuses_what_is_unknown(tmp_path: Path) -> None:
    files = api.gallery("forward", tmp_path / "g", data=np.random.default_rng(0).normal(size=(50, 3)), schedule="rectified")
    assert [path.name for path in files] == ["forward.png", "forward.gif"] and all(path.exists() for path in files)
    for wrong, message in (
        ({"schedule": "liner"}, "did you mean 'linear'"),
        ({"seed": -1}, "seed"),
        ({"scales": "1"}, "no option 'scales'"),
    ):
        with pytest.raises(UserError, match=message):
            api.gallery("forward", tmp_path / "h", data="moons", **wrong)
    with pytest.raises(UserError, match="needs a dataset"):
        api.gallery("forward", tmp_path / "h")
    assert not (tmp_path / "h").exists()


def test_the_field_is_sigma_times_the_score() -> None:
    covariance = torch.tensor([[1.0, 0.6], [0.6, 2.0]], dtype=torch.float64)
    schedule = Linear()
    model = GaussianDenoiser(schedule, torch.tensor([0.3, -0.2], dtype=torch.float64), covariance)
    places = arrows((-2.0, 2.0), 5).double()
    assert places.shape == (25, 2) and places.abs().max() < 2
    x = places.clone().requires_grad_()
    (score,) = torch.autograd.grad(model.log_prob(x, 0.4).sum(), x)
    torch.testing.assert_close(field(model, places, 0.4), float(schedule(0.4)[1]) * score)


def test_the_score_of_points_in_the_plane_and_of_no_others(command, spiral_run: Run, tmp_path: Path) -> None:
    assert command("gallery", "score", spiral_run.path, "--out", tmp_path / "s.png")[0] == 0
    with Image.open(tmp_path / "s.png") as picture:
        assert picture.size == (1400, 740)
    images = Path(__file__).parents[1] / "runs" / "format1" / "images"
    code, _, err = command("gallery", "score", images, "--out", tmp_path / "i.png")
    assert code == 2 and "points in the plane" in err and not (tmp_path / "i.png").exists()
    with pytest.raises(UserError, match="no option 'sampler'"):
        api.gallery("score", tmp_path / "x.png", run=spiral_run, sampler="ddim")


def test_noise_is_normal(command, tmp_path: Path) -> None:
    x = simulate(100_000, seed=1)
    assert kstest((x - MEAN) / STD, "norm").pvalue > 1e-3
    heights, edges = np.histogram(x, 40, (MEAN - 2 * STD, MEAN + 2 * STD))
    wanted = density((edges[1:] + edges[:-1]) / 2, MEAN, STD) * np.diff(edges) * len(x)
    assert np.abs(heights - wanted).max() < 4.5 * np.sqrt(wanted.max())
    assert command("gallery", "normal", "--out", tmp_path / "n.png")[0] == 0 and (tmp_path / "n.png").exists()


@pytest.mark.slow
def test_one_noise_level_is_too_small_or_too_large() -> None:
    data, _ = load_data("spiral", POINTS, 1).batch(torch.arange(POINTS))
    small, middle, large, every = (learn(data, sigma, seed=1) for sigma in (0.02, 0.2, 2.0, None))
    assert small.wrong.double().mean() > 4 * middle.wrong.double().mean()  # off the data it was not trained
    assert large.wrong.sum() == 0 and large.error < 1e-2  # there is little to learn,
    assert large.drawn.off > 3 * middle.drawn.off and large.exact.off > 3 * middle.exact.off  # even for the exact score
    assert every.drawn.off < middle.drawn.off  # as sharp as little noise allows,
    assert every.drawn.apart < min(small.drawn.apart, large.drawn.apart)  # and spread over the data as much noise is
