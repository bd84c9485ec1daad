"""The ELBO as bars: its terms sum to the whole, and each term of the integral is in its range of the log-SNR."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from reverie.data import load_data
from reverie.diffusion.likelihood import Bound
from reverie.draw.curves import bound_bars
from reverie.evaluation.bound_parts import RANGES, bars, bound_parts
from reverie.evaluation.likelihood import likelihood_section
from reverie.runs.run import Run
from tests.conftest import TINY


def test_each_term_counts_in_its_range() -> None:
    log_snr = torch.linspace(-8, 8, 33, dtype=torch.float64).expand(3, -1)
    pieces = torch.where(log_snr < -4, 1.0, torch.where(log_snr < 4, 0.0, 2.0)) * torch.tensor([[1.0], [2.0], [3.0]])
    found = bound_parts(Bound(torch.full((3,), 0.5), pieces, torch.tensor([-1.0, -2.0, -3.0]), log_snr, 7), 2.0, "nats")
    assert [row["part"] for row in found[1:3]] == ["-8.0 to -6.0", "-6.0 to -4.0"] and len(found) == RANGES + 2
    # 4 terms per range of 2, one more at the very end; the mean over data is twice a term; 2 nats per unit
    assert [row["nats"] for row in found] == pytest.approx([0.25, 4, 4, 0, 0, 0, 0, 8, 10, -1])
    assert found[0]["standard error"] == 0 and found[-1]["standard error"] == pytest.approx(1 / 3**0.5 / 2)


def test_the_bars_are_the_terms_and_the_whole() -> None:
    made = bound_bars([("prior", 0.1, 0.0), ("-1.0 to 0.0", 2.0, 0.1), ("reconstruction", -0.4, 0.05)], "nats")
    heights = [patch.get_height() for patch in made.axes[0].patches]
    assert heights == pytest.approx([0.1, 2.0, -0.4, 1.7])


def test_the_terms_in_a_report_sum_to_its_bound(trained: Callable[..., Run]) -> None:
    run = trained("digits8-likelihood", "digits8", steps=40, network=TINY, purpose="likelihood")
    train, held = load_data("digits8").split(0)
    x, labels = held.batch(torch.arange(24))
    found = likelihood_section(run, x, labels, train=train, n=24, flow_n=1, tolerance=0.1, steps=10)
    rows, whole = found.figures["the bound by log-SNR"], found.figures["bound, continuous time"]
    assert sum(row["bits/dim"] for row in rows) == pytest.approx(whole["value"], rel=1e-9)
    assert rows[0]["part"] == "prior" and rows[-1]["part"] == "reconstruction" and len(rows) == RANGES + 2
    assert found.figures["reference"]["value"] == pytest.approx(math.log2(17)) and len(found.pictures) == 2
    assert any("17 levels" in line for line in found.notes)
    assert bars(rows, "bits/dim").startswith(b"\x89PNG")
