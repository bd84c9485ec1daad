from __future__ import annotations

import math
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

import reverie
from reverie import api
from reverie.base.errors import ReverieWarning, UserError
from reverie.data import load_data
from reverie.diffusion.pair import Pair
from reverie.evaluation.metrics.points import score_spiral
from reverie.evaluation.reports import Evaluation
from reverie.families.diffusion.noise_levels import held_out_metrics
from reverie.runs.config import TrainingConfig, build_model
from reverie.runs.run import Run
from reverie.training.learner import Average
from reverie.training.loader import batches
from reverie.training.loop import learning_rate
from reverie.transport import sliced_wasserstein


def test_one_seed_one_result(tmp_path: Path) -> None:
    runs = [reverie.train("moons", tmp_path / str(k), steps=20, points=500, seed=k % 2) for k in range(3)]
    first, other, again = (torch.cat([p.flatten() for p in run.model.parameters()]) for run in runs)
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_the_global_random_state_is_left_alone(tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    reverie.train("moons", tmp_path / "run", steps=3, points=100)
    assert torch.equal(torch.rand(1), expected)


def test_training_lowers_the_held_out_loss(spiral_run: Run) -> None:
    held = [row for row in spiral_run.metrics() if "held_out" in row]
    assert len(held) >= 2 and held[-1]["held_out"] < held[0]["held_out"]
    assert held[-1]["held_out_levels"][0] < 0.9 * held[0]["held_out_levels"][0]  # little noise is where there is most to learn


def test_the_run_folder_is_whole(spiral_run: Run) -> None:
    files = {"config.toml", "model.safetensors", "metrics.jsonl", "loss.png", "previews", "checkpoints"}
    assert {p.name for p in spiral_run.path.iterdir()} == files
    assert "step-0000800.png" in {p.name for p in (spiral_run.path / "previews").iterdir()}
    last = spiral_run.metrics()[-1]
    assert last["i"] == 800 and last["fraction"] == 1 and len(last["held_out_levels"]) == 4
    assert last["held_out"] == pytest.approx(np.mean(last["held_out_levels"]), rel=1e-6)


def test_minutes_are_kept(tmp_path: Path) -> None:
    steps = list(api.prepare("moons", tmp_path / "run", minutes=0.05, points=500))
    assert 2 <= len(steps) <= 8 and steps[-1].fraction == 1 and 0.6 <= steps[-1].seconds < 30
    assert steps[0].held_out is not None  # weights are on disk from the first report on


def test_an_iteration_broken_off_saves_the_weights(tmp_path: Path) -> None:
    training = api.prepare("moons", tmp_path / "run", steps=10_000, points=500)
    steps = iter(training)
    for _ in islice(steps, 3):
        pass
    steps.close()
    assert reverie.load(tmp_path / "run").sample(4).x.shape == (4, 2)


def test_every_datum_is_visited_once_an_epoch() -> None:
    data = load_data("moons", 100)
    seen = torch.cat([x for x, _ in islice(batches(data, 10, 0), 10)])
    assert torch.equal(seen.sort(0).values, data.x.sort(0).values)
    later = torch.cat([x for x, _ in islice(batches(data, 10, 0), 10, 20)])
    assert not torch.equal(seen, later)


def test_learning_rate_warms_up_and_ends_at_zero() -> None:
    settings = TrainingConfig(steps=100, learning_rate=1.0, warmup=0.1)
    rates = [learning_rate(settings, k / 100) for k in range(101)]
    assert 0 < rates[0] < 0.02 and max(rates) == pytest.approx(1, abs=0.03) and rates[-1] == pytest.approx(0, abs=1e-9)


def test_the_average_is_of_the_last_share_of_steps(spiral_run: Run) -> None:
    """Weights that grow like the step number are averaged over a horizon of `share` of the steps."""
    model = build_model(spiral_run.config)
    average = Average(model, 0.05)
    with torch.no_grad():
        for i in range(4000):
            for p in model.parameters():
                p.fill_(float(i))
            average.update(i)
    value = float(next(average.model.parameters()).flatten()[0])
    assert value == pytest.approx(4000 * (1 - 0.05 / 1.05), rel=0.01)


def test_held_out_loss_is_repeatable_and_right(spiral_run: Run) -> None:
    data = load_data("spiral", 200, seed=9)
    first = held_out_metrics(spiral_run.model, data, 0)
    assert first == held_out_metrics(spiral_run.model, data, 0)
    z = spiral_run.model.codec.encode(data.x).repeat(100, 1)
    random = torch.Generator().manual_seed(1)
    t = torch.rand(len(z), generator=random, dtype=torch.float64) * 0.999 + 0.001
    with torch.no_grad():
        many = spiral_run.model.loss_at(Pair(z, torch.randn(z.shape, generator=random)), t, None)
    assert first["held_out"] == pytest.approx(float(many.mean()), abs=4 * float(many.std()) / math.sqrt(800))


@pytest.mark.parametrize("times", ["uniform", "stratified", "logit-normal"])
def test_times_and_noise_are_independent(spiral_run: Run, times: str) -> None:
    """The size of the noise does not depend on the time it is drawn for."""
    family = spiral_run.config.family.model_copy(update={"times": times})
    model = build_model(spiral_run.config.model_copy(update={"family": family}))
    drawn: list[tuple[torch.Tensor, torch.Tensor]] = []
    model.loss_at = lambda truth, t, cond, reported: drawn.append((t, truth.eps.square().sum(1))) or t  # type: ignore[method-assign]
    x = torch.zeros(512, 2)
    for seed in range(300):
        model.loss(x, None, seed)
    t, size = torch.cat([t for t, _ in drawn]), torch.cat([s for _, s in drawn]).double()
    for part in t.argsort().chunk(4):
        assert abs(float(size[part].mean()) - 2) < 4 * 2 / math.sqrt(len(part))


def test_a_schedule_that_keeps_signal_warns_at_training_and_sampling(tmp_path: Path) -> None:
    schedule = "linear:steps=40,beta_start=8e-6,beta_end=9e-5"
    with pytest.warns(ReverieWarning, match=r"0\.976"):
        run = reverie.train("spiral", tmp_path / "run", steps=2, points=100, schedule=schedule)
    with pytest.warns(ReverieWarning, match=r"0\.976"):
        run.sample(2, steps=2)


def test_a_loss_that_is_not_finite_stops_the_run_and_saves_nothing(tmp_path: Path) -> None:
    training = api.prepare("spiral", tmp_path / "run", steps=400, points=500)
    with torch.no_grad():
        next(training.learner.model.parameters()).fill_(torch.inf)
        training.learner.good = training.learner.snapshot()  # there is nothing good to go back to
    with pytest.raises(UserError, match=r"stopped at step 1: the loss became nan, for the third time.*--learning-rate"):
        list(training)
    assert not (tmp_path / "run").exists()


def test_labels_follow_the_data(patterns_run: Run) -> None:
    names = patterns_run.config.data.labels
    drawn = patterns_run.labels(None, 5000, 0)
    assert drawn is not None
    shares = torch.bincount(drawn, minlength=len(names)) / 5000
    assert (shares - 0.2).abs().max() < 0.02
    assert torch.equal(drawn[:10], patterns_run.labels(None, 10, 0))
    assert patterns_run.labels("all", 7, 0).tolist() == [0, 1, 2, 3, 4, 0, 1]
    with pytest.raises(UserError, match="did you mean 'moons'"):
        patterns_run.sample(2, label="mons")


def test_a_label_draws_its_pattern(patterns_run: Run) -> None:
    """Samples under a label lie closer to that pattern than to any other."""
    names = patterns_run.config.data.labels
    fresh = {name: load_data(name, 500, seed=7).x.numpy() for name in names}
    for name in names:
        x = patterns_run.sample(500, label=name, guidance=1.5).x
        distance = {k: float(sliced_wasserstein(x, y, p=1)) for k, y in fresh.items()}
        assert min(distance, key=distance.__getitem__) == name, distance


def test_samples_do_not_depend_on_how_many(patterns_run: Run) -> None:
    many, few = patterns_run.sample(64, seed=2), patterns_run.sample(5, seed=2)
    np.testing.assert_allclose(many.x[:5], few.x, atol=2e-5)
    assert many.labels is not None and few.labels is not None and list(many.labels[:5]) == list(few.labels)


def test_guidance_without_labels_is_refused(spiral_run: Run) -> None:
    with pytest.raises(UserError, match="without labels"):
        spiral_run.sample(2, guidance=2.0)
    with pytest.raises(UserError, match="without labels"):
        spiral_run.sample(2, label="moons")


def test_the_spiral_is_learned(spiral_run: Run) -> None:
    """Few steps bring samples near the curve and all along it; noise of the same spread is at 0.20 and 0.18."""
    found = score_spiral(spiral_run.sample(2000).x)
    assert found["mean_distance"] < 0.08 and found["coverage_ks"] < 0.06, found


def _quality(tmp_path: Path, seed: int) -> Evaluation:
    return reverie.evaluate(reverie.train("spiral", tmp_path / str(seed), seed=seed), 2000, seed=seed)


def assert_good(figures: Evaluation) -> None:
    assert figures["mean_distance"] <= 0.02 and figures["coverage_ks"] <= 0.06, figures


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2, 3, 4])
def test_the_spiral_is_learned_from_every_seed(tmp_path: Path, seed: int) -> None:
    figures = _quality(tmp_path, seed)
    print(figures)
    assert_good(figures)
