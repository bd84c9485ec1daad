"""Distillation: the energy distance of its loss, and students as runs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist, pdist

import reverie
from reverie.base.errors import UserError
from reverie.families.diffusion.distillation import COMPARED, DistillationTarget, Pool, drift, edges, energy_rows
from reverie.families.diffusion.model import Diffusion
from reverie.runs.run import Run
from reverie.training.distil import check_teacher, prepare_distillation
from reverie.training.resume import resume


def test_the_energy_distance_of_two_normals_is_the_closed_form() -> None:
    """2 E|a - b| - E|a - a'| - E|b - b'| for N(m, 1) and N(0, 1): folded normal means, in units of b's deviation."""
    n, m = 3000, 1.5
    a, b = torch.randn(2, n, 1, generator=torch.Generator().manual_seed(0))
    one = torch.zeros(n)
    found = float(energy_rows(a + m, b, one, one).mean())
    folded = 2 / math.sqrt(math.pi) * math.exp(-(m**2) / 4) + m * math.erf(m / 2)
    assert found == pytest.approx(2 * folded - 4 / math.sqrt(math.pi), abs=0.1)
    assert float(energy_rows(a, b, one, one).mean()) == pytest.approx(0, abs=0.01)


def test_labels_keep_pairs_apart() -> None:
    """Two labels that are exchanged are as far as they are, although the whole is the same; each drifts to its own."""
    label = torch.arange(200) % 2
    b = torch.randn(200, 1, generator=torch.Generator().manual_seed(0)) * 0.1 + 2.0 * label[:, None]
    a = b.roll(1, 0)  # the other label's
    assert float(energy_rows(a, b, torch.zeros(200), torch.zeros(200)).mean()) < 0.1
    assert float(energy_rows(a, b, label, label).mean()) > 1
    move = drift(a, b, label, label)
    assert bool((move[label == 0] < 0).all()) and bool((move[label == 1] > 0).all())


def test_samples_that_drift_become_the_data() -> None:
    """Particles that follow the drift take the two modes of the data, in their shares."""
    random = torch.Generator().manual_seed(0)
    modes = torch.where(torch.rand(1000, 1, generator=random) < 0.3, -1.0, 1.0)
    data = modes + 0.05 * torch.randn(1000, 1, generator=random)
    a, none = 0.1 * torch.randn(300, 1, generator=random), torch.zeros(1000)
    for k in range(400):
        a = a + 0.05 * 0.99**k * drift(a, data, none[:300], none)
    assert float((a < 0).double().mean()) == pytest.approx(0.3, abs=0.1)
    assert float((a.abs() - 1).abs().mean()) < 0.1


def test_edges_separate_blurred_from_sharp_images() -> None:
    """A step from -1 to 1 and a ramp have the same differences in sum, and others in each part of the image."""
    z = torch.full((2, 1, 8, 8), -1.0)
    z[0, ..., 4:] = 1.0
    z[1] = torch.linspace(-1, 1, 8)
    down, across, fine, parts, whole = edges(z)
    assert not down.any() and torch.allclose(across.sum(1), torch.tensor(16.0))
    assert torch.allclose(whole, torch.tensor([0.0, 16 / 64]))  # of the differences downwards, and across
    assert float(across[0].max()) == 2 and float(across[1].max()) == pytest.approx(2 / 7)
    assert [len(row[0]) for row in (fine, parts, whole)] == [128, 32, 2]


def test_what_is_cut_off_is_still_moved() -> None:
    """The gradient by samples beyond the limits is that by what they are cut off to."""
    made = torch.tensor([-3.0, 0.5, 2.0], requires_grad=True)
    for clipped, wanted in ((True, [-1.0, 0.5, 1.0]), (False, [-3.0, 0.5, 2.0])):
        found = DistillationTarget(None, 0.1, None, clipped).clamp(made)  # type: ignore[arg-type]
        assert found.tolist() == wanted
        assert torch.autograd.grad((found * torch.arange(3)).sum(), made)[0].tolist() == [0, 1, 2]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A small run of patterns with labels."""
    out = tmp_path_factory.mktemp("distil") / "teacher"
    return reverie.train("digits8", out, steps=60, network="unet:widths=[16,32]", augment="none", progress=False)


def test_a_student_is_a_run_that_draws_in_two_evaluations(teacher: Run, tmp_path: Path) -> None:
    """It has its own defaults, no early state, the teacher's labels, and samples in the requested number of steps."""
    run = reverie.distil(teacher.path, tmp_path / "fast", steps=25, progress=False)
    again = reverie.load(run.path)
    assert again.distilled and again.chosen_sampling({}) == ("ddpm", 2, "trailing:last=0.5") and again.autoguidance == 1
    assert again.sample(8, label="3").x.shape == (8, 8, 8)
    assert again.sample(2, steps=1).x.shape == (2, 8, 8)
    assert not (run.path / "early.safetensors").exists()
    rows = [row for row in again.metrics() if "held_out" in row]
    assert rows[-1]["held_out"] < rows[0]["held_out"]  # one evaluation comes nearer to the data
    assert run.diffusion_settings.distilled is not None and run.diffusion_settings.distilled.clipped
    for frame in again.frames(8, guidance=3.0):  # what is beyond the limits is cut off, and x stays a mixture of the two
        alpha, sigma = again.diffusion.denoiser.schedule(frame.t)
        assert float(frame.x0.abs().max()) <= 1
        torch.testing.assert_close(alpha * frame.x0 + sigma * frame.pair.eps, frame.x)
    measured = reverie.evaluate(again, n=64, quick=True, progress=False)
    why = [line for line in measured.verdict if "not measured: loss at each noise level, likelihood" in line]
    assert len(why) == 1 and "a student predicts no posterior means" in why[0]
    with pytest.raises(UserError, match="itself a student"):
        check_teacher(again, 1.0)


def test_a_student_resumes_bit_for_bit(teacher: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted and resumed it has the weights of one that was not; guidance is folded in by the same samples."""
    options: dict[str, Any] = {"steps": 8, "guidance": 1.5, "batch": 32}
    monkeypatch.setattr("reverie.training.distil.DRAWN", 128)
    list(prepare_distillation(teacher.path, tmp_path / "whole", **options))
    for step in prepare_distillation(teacher.path, tmp_path / "part", **options):
        if step.i >= 4:
            break
    list(resume(tmp_path / "part"))
    first, second = (reverie.load(tmp_path / name).model.state_dict() for name in ("whole", "part"))
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_what_cannot_be_distilled_is_refused_in_a_sentence(teacher: Run, tmp_path: Path) -> None:
    """Another family, guidance without labels, two lengths, an unknown option; and nothing is written."""
    other = reverie.train("spiral", tmp_path / "mixture", family="mixture:components=2", progress=False)
    with pytest.raises(UserError, match="family mixture, which cannot distil; families that can: diffusion"):
        reverie.distil(other.path, tmp_path / "no", progress=False)
    with pytest.raises(UserError, match="only one of"):
        reverie.distil(teacher.path, tmp_path / "no", steps=1, minutes=1, progress=False)
    with pytest.raises(UserError, match="cannot distil"):
        reverie.distil(teacher.path, tmp_path / "no", steps=1, wings=2, progress=False)
    assert not (tmp_path / "no").exists()


def test_the_training_loss_of_a_student_is_the_energy_distance_of_its_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mean over all features, each in units of the data's deviation there, as scipy's distances give it."""
    reverie.train("moons", tmp_path / "run", points=300, steps=30, network="mlp:hidden=8,layers=1", progress=False)
    training = prepare_distillation(tmp_path / "run", tmp_path / "fast", steps=1)
    model, seen, chosen = training.learner.model, list[list[torch.Tensor]](), list[torch.Tensor]()
    assert isinstance(model, Diffusion) and model.distillation_target is not None
    target, pick = model.distillation_target, type(model.distillation_target.pool).sample_indices
    monkeypatch.setattr(Pool, "sample_indices", lambda *given: (chosen.append(pick(*given)), chosen[-1])[1])
    model.distillation_target = replace(target, features=lambda z: (seen.append(target.features(z)), seen[-1])[1])
    for seed in range(4):
        found = model.loss(training.train.subsample(40), None, seed)
        peers, expected = chosen[-1][::COMPARED], []
        for mine, theirs, unit in zip(seen[-1], target.pool.features, target.pool.units, strict=True):
            a, b = (mine.detach() / unit).double().numpy(), theirs[peers].double().numpy()
            within = [pdist(x).mean() for x in (a, b)]
            expected.append((2 * cdist(a, b).mean() - sum(within)) / (b.std(0, ddof=1).mean() * b.shape[1] ** 0.5))
        assert found.shape == (40,) and float(found.detach().mean()) == pytest.approx(np.mean(expected), rel=1e-4, abs=1e-5)
    training.discard()


def test_points_are_distilled_too(tmp_path: Path) -> None:
    """A student of points, which have no features but themselves."""
    run = reverie.train("spiral", tmp_path / "points", steps=30, progress=False)
    with pytest.raises(UserError, match="trained without labels"):
        reverie.distil(run.path, tmp_path / "no", guidance=2.0, progress=False)
    student = reverie.distil(run.path, tmp_path / "fast", steps=10, progress=False)
    assert student.sample(5, steps=1).x.shape == (5, 2)
