"""Flows with dropout, and the generator with its decreasing epsilon, resume bit for bit."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

import reverie
from reverie import api

CASES: dict[str, tuple[str, str]] = {
    "dense": ("digits8", "flow:transform=spline,hidden=16,dropout=0.3"),
    "multiscale": ("digits8", "flow:hidden=16,widths=[8],blocks=1"),
    "generator": ("patterns", "sinkhorn:hidden=16"),
}


@pytest.mark.parametrize("case", ["dense", pytest.param("multiscale", marks=pytest.mark.slow), "generator"])
def test_a_training_goes_on_bit_for_bit(tmp_path: Path, case: str) -> None:
    data, family = CASES[case]
    options: dict[str, Any] = {"family": family, "steps": 8, "batch": 32}
    whole = reverie.train(data, tmp_path / "whole", **options)
    steps = iter(api.prepare(data, tmp_path / "parts", **options))
    assert len(list(islice(steps, 3))) == 3
    steps.close()
    parts = reverie.train(resume=tmp_path / "parts")
    kept, again = whole.model.state_dict(), parts.model.state_dict()
    assert kept.keys() == again.keys() and all(torch.equal(kept[name], again[name]) for name in kept)
