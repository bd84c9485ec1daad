"""The default sampling of images is selected when a training ends: what keeps the detail that the network knows."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import reverie
from reverie.base.deadline import Deadline
from reverie.base.noise import Noise
from reverie.base.scalar import Time, expand
from reverie.base.spec import build
from reverie.data.appearance import octave_powers
from reverie.data.dataset import Dataset
from reverie.diffusion.denoiser import Denoiser
from reverie.diffusion.oracle import GaussianDenoiser
from reverie.diffusion.pair import Pair, pair_of
from reverie.diffusion.samplers import GRIDS, SAMPLERS, start, trajectory
from reverie.diffusion.schedule import Schedule
from reverie.diffusion.schedules import SCHEDULES
from reverie.families.diffusion.sampling import SamplerChoice
from reverie.families.diffusion.sampling_record import format_choice
from reverie.kernels import Polynomial
from reverie.runs.folder import EARLY_FILE
from reverie.runs.run import Run, load
from reverie.training import selection
from reverie.training.selection import CANDIDATES, MAX_MEAN, Reference, samples_for, select_sampling
from reverie.training.summary import verdict
from tests.conftest import TINY

FINE = 0.05  # standard deviation of detail that no sampling may lose


class Exact(Denoiser):
    """The optimal denoiser of white noise of one standard deviation in every number."""

    def __init__(self, schedule: Schedule, std: float) -> None:
        super().__init__()
        self.schedule, self.variance = schedule, std**2
        self.place = torch.nn.Parameter(torch.zeros(1), requires_grad=False)  # which says where it is

    def forward(self, x: Tensor, t: Time, cond: Tensor | None = None, reported: Tensor | None = None) -> Pair:
        alpha, sigma = (expand(c, x) for c in self.schedule(t))
        x0 = alpha * self.variance / (alpha**2 * self.variance + sigma**2) * x
        return pair_of(x, x0, *self.schedule(t), "x0")


def kept(choice: SamplerChoice, std: float) -> float:
    """Return the standard deviation of samples of the exact denoiser over the data's."""
    schedule = SCHEDULES["rectified"]()
    variance = torch.eye(1, dtype=torch.float64) * std**2
    denoise = GaussianDenoiser(schedule, torch.zeros(1, dtype=torch.float64), variance)
    grid = build(GRIDS, choice[2], "grid")(schedule, choice[1])
    noise = Noise(torch.arange(10_000))
    x = start(schedule, float(grid[0]), noise.like(torch.empty(10_000, 1, dtype=torch.float64)))
    *_, last = trajectory(denoise, build(SAMPLERS, choice[0], "sampler"), x, grid, noise)
    return float(last.x0.std()) / std


@pytest.fixture(scope="module")
def colour(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of colour images of nothing but fine detail, which knows next to nothing yet."""
    x = 0.5 + FINE / 2 * torch.randn(256, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    out = tmp_path_factory.mktemp("runs") / "fine"
    images = x.clamp(0, 1).permute(0, 2, 3, 1).numpy()
    return reverie.train(images, out, steps=8, batch=16, network=TINY, augment="none", clusters=0, labels="none")


def held_of(run: Run) -> Dataset:
    x = 0.5 + FINE / 2 * torch.randn(128, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    return Dataset("held out", x)


def test_the_even_grid_loses_fine_detail_and_others_keep_it() -> None:
    """Data N(0, s²), rectified schedule, 20 steps: standard deviation of samples over s for s = 0.3, 0.1, 0.05, 0.02, 0.01."""
    table = {
        ("dpm++2m", 20, "uniform"): (1.00, 0.87, 0.66, 0.38, 0.27),
        ("dpm++2m", 20, "log-snr"): (1.01, 1.03, 1.02, 1.02, 1.01),
        ("dpm++2m", 20, "karras"): (1.06, 1.09, 1.08, 1.07, 1.03),
        ("dpm++sde", 20, "uniform"): (1.05, 0.85, 0.63, 0.33, 0.20),
        ("dpm++sde", 20, "refined"): (1.19, 1.12, 1.06, 1.03, 0.99),
    }
    for choice, wanted in table.items():
        assert [kept(choice, s) for s in (0.3, 0.1, 0.05, 0.02, 0.01)] == pytest.approx(wanted, abs=0.03), choice


def test_what_is_selected_keeps_fine_detail_of_the_exact_denoiser(colour: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run = load(colour.path)
    (colour.path / EARLY_FILE).unlink(missing_ok=True)
    assert run.record is not None and kept(run.record.choice, FINE) < 0.9  # the default of colour images
    monkeypatch.setattr(run.diffusion, "denoiser", Exact(run.diffusion.denoiser.schedule, FINE))
    selected = select_sampling(run, held_of(run), 32)
    assert selected is not None
    found = selected.record
    assert kept(found.choice, FINE) > 0.9 and found.source == "selected" and len(found.candidates) == len(CANDIDATES)
    chosen = found.candidates[0]
    assert (chosen.sampler, chosen.steps, chosen.grid) == found.choice and all(0.8 < ratio < 1.25 for ratio in chosen.octaves)
    lost = next(c for c in found.candidates if (c.sampler, c.steps, c.grid) == ("dpm++2m", 20, "uniform"))
    assert max(lost.octaves) < 0.6


def test_the_same_weights_data_and_steps_select_the_same(colour: Run) -> None:
    first, again = (select_sampling(load(colour.path), held_of(colour), 16) for _ in range(2))
    assert first is not None and first == again and first.record.samples > 16


def _simulated(
    monkeypatch: pytest.MonkeyPatch, seed: int, n: int, distance: float = 1.0
) -> tuple[selection.Selection | None, dict[str, int], int]:
    """Select among candidates whose features are normal, farther from the data by candidate; with distance 0 all equally far.

    Return the selection, the samples of each candidate by its scale and sampler, and the evaluations of all.
    """
    counts: dict[str, int] = {}
    spent = 0

    def measure(
        run: Run, reference: object, many: int, choice: SamplerChoice, scale: float, seed_: int = 0, start: int = 0
    ) -> selection.Measured:
        nonlocal spent
        spent += many * choice[1] * (1 if scale == 1 else 2)
        name = f"{choice} {scale}"
        counts[name] = counts.get(name, 0) + many
        place = 0.35 * CANDIDATES.index(choice) + 0.5 * abs(scale - 1.5)
        key = seed * 100 + 10 * CANDIDATES.index(choice) + round(2 * scale) + 1
        parts = [torch.randn(600, 16, generator=torch.Generator().manual_seed(k)) for k in (seed * 100, key)]
        features = torch.stack(parts).sum(0)[start : start + many].double() / math.sqrt(2)
        features[:, 0] += distance * place
        power = torch.randn(1, 3, generator=torch.Generator().manual_seed(key)).mul(0.2).exp().expand(many, 3)
        return selection.Measured(choice, scale, features, power.double())

    reference = Reference.__new__(Reference)
    reference.features = torch.randn(512, 16, generator=torch.Generator().manual_seed(0)).double()
    reference.power, reference.kernel = torch.ones(512, 3).double(), Polynomial(3, 1.0, 1 / 16)
    monkeypatch.setattr(selection, "measure", measure)
    monkeypatch.setattr(selection, "Reference", lambda held_out: reference)
    monkeypatch.setattr(selection, "_can_guide", lambda run: True)
    monkeypatch.setattr(selection, "candidates_of", lambda run: CANDIDATES)
    return select_sampling(None, None, n), counts, spent  # type: ignore[arg-type]  # neither is used


def test_the_best_candidates_share_the_evaluations_of_those_that_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    selected, counts, spent = _simulated(monkeypatch, 0, 20)
    assert selected is not None and len(counts) == len(selected.record.candidates) == 18
    every = sum(20 * (20 if name.endswith(" 1.0") else 40) for name in counts)
    assert 0.9 * every < spent <= every
    assert sorted(counts.values())[:14] == [10] * 14 and selected.record.samples == max(counts.values()) > 40


def test_only_a_significantly_better_candidate_replaces_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = set()
    for seed, distance in product(range(3), (0, 1, 3)):
        selected, counts, _ = _simulated(monkeypatch, seed, 20, distance)
        assert selected is not None and counts[f"{CANDIDATES[0]} 1.0"] == max(counts.values())  # always a finalist
        rows = {(c.sampler, c.steps, c.grid, c.autoguidance): c for c in selected.record.candidates}
        final = [rows[key] for key in rows if counts[f"{key[:3]} {key[3]}"] == max(counts.values())]
        default = rows[(*CANDIDATES[0], 1.0)]
        tied = default.distance - min(row.distance for row in final) <= default.error
        assert (selected.record.candidates[0] is default) == tied
        outcomes.add(tied)
    assert outcomes == {True, False}


def test_a_stage_that_is_over_selects_nothing(colour: Run) -> None:
    assert select_sampling(load(colour.path), held_of(colour), 16, Deadline(0.0)) is None


def test_few_steps_and_other_kinds_keep_the_table(colour: Run, spiral_run: Run) -> None:
    held = held_of(colour)
    assert samples_for(colour, held, 8 * 16) == 0 and samples_for(colour, held, 10**9) == MAX_MEAN
    assert samples_for(colour, held.take(torch.arange(1)), 10**9) == 0
    assert samples_for(spiral_run, Dataset("points", torch.zeros(100, 2)), 10**9) == 0
    assert colour.record is not None and colour.record.source == "default"


def test_the_default_of_the_data_is_a_candidate(colour: Run, digits_run: Run) -> None:
    assert selection.candidates_of(colour) == CANDIDATES
    assert selection.candidates_of(digits_run) == (("dpm++sde", 12, "uniform"), *CANDIDATES)


def test_a_training_records_its_selection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Callable[..., tuple[int, str, str]]
) -> None:
    """With a budget that pays for it, in two parts and in one; the record decides what is sampled."""
    monkeypatch.setattr(selection, "SHARE", 1e4)
    monkeypatch.setattr(selection, "MAX_MEAN", 16)
    options = {"steps": 24, "batch": 16, "network": TINY, "augment": "none", "seed": 3}
    whole = reverie.train("digits8", tmp_path / "whole", **options)
    training = reverie.training.prepare.prepare("digits8", tmp_path / "parts", **options)
    for step in training:
        if step.i >= 10:
            break
    del step, training
    parts = reverie.train(resume=tmp_path / "parts")
    assert whole.record is not None and whole.record == parts.record and whole.autoguidance == parts.autoguidance
    assert whole.record.source == "selected" and whole.record.samples > 16 and whole.record.precision == "fp32"
    sampler, steps, grid = whole.record.choice
    named = whole.sample(4, sampler=sampler, steps=steps, grid=grid, autoguidance=whole.autoguidance).x
    assert np.array_equal(load(whole.path).sample(4).x, named)
    assert format_choice(whole.record.choice) in verdict(whole).lines[1]
    line = command("sample", whole.path, "-n", 2, "--steps", "auto", "--out", tmp_path / "x.npy")[2]
    assert format_choice(whole.record.choice) in line and f"{whole.record.samples} samples" in line


def test_octaves_share_out_the_power_of_an_image() -> None:
    """A wave of one frequency lies in its octave, and all octaves together have the variance (Parseval)."""
    place = torch.arange(16) / 16
    for k, octave in ((1, 2), (2, 2), (3, 1), (4, 1), (5, 0), (8, 0)):
        wave = torch.cos(2 * math.pi * k * place).expand(16, 16)[None, None]
        power = octave_powers(wave)
        assert power.shape == (1, 3) and power.argmax() == octave and power[0, octave] > 0.99 * power.sum()
    x = torch.rand(3, 2, 16, 12, generator=torch.Generator().manual_seed(0))
    total = x.sub(x.mean((2, 3), keepdim=True)).square().sum((1, 2, 3)) * 16 * 12
    torch.testing.assert_close(octave_powers(x).sum(1), total.double(), rtol=1e-5, atol=1e-5)
