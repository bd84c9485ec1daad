"""Sections of a report: of points, of images, and those that cannot be computed."""

from __future__ import annotations

import html
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from reverie.base.errors import UserError
from reverie.base.noise import image_seeds
from reverie.data import load_data
from reverie.diffusion.likelihood import mean_and_error
from reverie.evaluation.html_report import write_report
from reverie.evaluation.likelihood import likelihood_section
from reverie.evaluation.nfe_quality import nfe_section
from reverie.evaluation.noise_level_loss import noise_levels_section
from reverie.runs.run import Run
from reverie.runs.samples import Samples


def test_likelihood_of_points(spiral_run: Run) -> None:
    x, _ = load_data("spiral", 60, 777).batch(torch.arange(60))
    calls: list[tuple[int, int]] = []
    section = likelihood_section(
        spiral_run, x, n=60, flow_n=20, steps=20, paths=4, on_progress=lambda *done: calls.append(done)
    )
    figures = section.figures
    assert calls[-1] == (3, 3) and len(section.pictures) == 2
    assert figures["bound, 20 steps, 4 paths"]["n"] == figures["gain of 4 paths"]["n"] == 16
    assert figures["gain of 4 paths"]["value"] > 3 * figures["gain of 4 paths"]["error"] > 0
    assert any("4 paths for each of 16 data" in line for line in section.notes)
    exact = spiral_run.model.log_prob(x[:20], None, image_seeds(0, 20), 1e-3)
    assert (figures["flow"]["value"], figures["flow"]["error"]) == pytest.approx(mean_and_error(-exact.nats), rel=1e-6)
    assert figures["flow"]["unit"] == "nats" and figures["flow"]["n"] == 20 and figures["divergence"] == "exact"
    rows = figures["parts of the bound, 20 steps"]
    assert [row["part"] for row in rows] == ["prior", "denoising", "reconstruction", "whole"]
    assert sum(row["nats"] for row in rows[:3]) == pytest.approx(rows[3]["nats"])
    assert rows[3]["bits/dim"] == pytest.approx(rows[3]["nats"] / (2 * math.log(2)))
    # the reference is the normal distribution with the moments of the data
    covariance = np.cov(x.double().numpy().T)
    assert figures["reference"]["value"] == pytest.approx(0.5 * np.log(np.linalg.det(2 * np.pi * np.e * covariance)))


@pytest.mark.parametrize("points", [torch.rand(1, 2), torch.zeros(5, 2), torch.arange(6.0)[:, None].expand(6, 2)])
def test_degenerate_points_have_no_normal_reference(spiral_run: Run, points: torch.Tensor) -> None:
    section = likelihood_section(spiral_run, points, steps=5, flow_n=2)
    assert "reference" not in section.figures and "normal" not in " ".join(section.verdict)
    json.dumps(section.figures, allow_nan=False)


def test_likelihood_of_images(digits_run: Run) -> None:
    data = load_data("digits8")
    x, labels = data.batch(torch.arange(6))
    section = likelihood_section(digits_run, x, labels, n=6, flow_n=2, tolerance=1e-2, probes=2)
    assert section.figures["condition"] == "the label of each datum"
    assert section.figures["reference"]["value"] == 8 and section.figures["flow"]["unit"] == "bits/dim"
    assert section.figures["standard error of one datum by its divergence (nats)"] > 0
    assert 0 < section.figures["bound, continuous time"]["value"] < 20
    constant = likelihood_section(digits_run, torch.ones(2, *data.shape), n=2, flow_n=1, tolerance=1e-2)
    assert math.isfinite(constant.figures["flow"]["value"]) and constant.figures["condition"] == "none"
    alone = likelihood_section(digits_run, x[:1], labels[:1] if labels is not None else None, tolerance=1e-2)
    assert "error" not in alone.figures["flow"] and any("standard error" in line for line in alone.verdict)


def test_a_section_that_cannot_be_computed_gives_the_reason(digits_run: Run, spiral_run: Run) -> None:
    shape = digits_run.config.data.shape
    for x, why in (
        (None, "missing"), (torch.full((2, *shape), math.nan), "NaN"), (torch.full((2, *shape), 0.1234), "256 evenly spaced"),
        (torch.zeros(2, 5), "the run models"), (torch.zeros(0, *shape), "no held-out data"),
    ):  # fmt: skip
        section = likelihood_section(digits_run, x)
        assert why in section.figures["not_computable"] and not section.verdict and not section.pictures
    stored = noise_levels_section(spiral_run, None, None)
    assert stored.figures["source"] == "recorded by the training" and len(stored.figures["levels"]) == 4


def test_data_missing_and_nothing_recorded(spiral_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "metrics", lambda self: [])
    assert str(spiral_run.path) in noise_levels_section(spiral_run, None, None).figures["not_computable"]


def test_loss_by_noise_level_lies_above_the_optimum_of_the_set(spiral_run: Run) -> None:
    data = spiral_run.config.data
    train, held_out = load_data("spiral", 2000, data.seed).split(data.seed)
    section = noise_levels_section(spiral_run, train, held_out, levels=6)
    rows = section.figures["levels"]
    assert len(rows) == 6 and len(section.pictures) == 1
    for row in rows:
        error = math.hypot(row["training, standard error"], row["optimum of the training set, standard error"])
        assert row["training"] > row["optimum of the training set"] - 3 * error
        assert row["held out"] > 0 and row["held out, standard error"] > 0
    assert rows[0]["optimum of the training set"] < 0.8 * rows[0]["training"]  # a finite set has no detail


def test_quality_by_function_evaluations(spiral_run: Run) -> None:
    seen: list[int] = []

    def quality(samples: Samples) -> tuple[float, float | None]:
        seen.append(len(samples))
        return float(abs(samples.x.std() - 1)), 0.01

    section = nfe_section(
        spiral_run, quality, what="distance", unit="m", n=50, counts=(4, 8), samplers=("ddim", "heun"), floor=(0.1, 0.0)
    )
    rows = section.figures["results"]
    assert seen == [50] * 4 and [row["sampler"] for row in rows] == ["ddim", "ddim", "heun", "heun"]
    assert all(row["evaluations"] <= budget for row, budget in zip(rows, (4, 8, 4, 8), strict=True))
    best = min(row["value"] for row in rows)
    enough = min((row for row in rows if row["value"] < best + 0.02 * 2**0.5), key=lambda row: row["evaluations"])
    message = "has the lowest distance" if enough["value"] == best else "is sufficient"
    assert section.verdict[0].startswith(f"{enough['sampler']} with {enough['evaluations']} function evaluations {message}")
    vague = nfe_section(spiral_run, lambda samples: (0.0, None), what="distance", n=2, counts=(2,))
    assert vague.verdict[0].startswith("No significant difference in distance")
    with pytest.raises(UserError, match="rk45"):
        nfe_section(spiral_run, quality, what="distance", n=2, samplers=("rk45",))


def test_sections_go_into_a_report(spiral_run: Run, tmp_path: Path) -> None:
    x, _ = load_data("spiral", 8, 5).batch(torch.arange(8))
    sections = [likelihood_section(spiral_run, x, steps=5, flow_n=2), noise_levels_section(spiral_run, None, None)]
    text = write_report(tmp_path / "report.html", "Spiral", {"seed": 0}, sections).read_text(encoding="utf-8")
    assert text.count("data:image/png") == sum(len(s.pictures) for s in sections) == 3
    assert sections[0].verdict[0] in html.unescape(text)
