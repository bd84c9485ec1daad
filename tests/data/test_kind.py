"""Kinds of data: every dataset has one, and every table by kind is complete."""

from __future__ import annotations

from typing import get_args

import pytest
import torch

from reverie.base.errors import UserError
from reverie.data import load_data
from reverie.data.dataset import Dataset
from reverie.data.kind import DIMENSIONS, KINDS, WRITTEN, Kind, kind_of, kind_of_samples
from reverie.evaluation.sample_metrics import MEASURES
from reverie.families import FAMILIES
from reverie.families.diffusion.noise_levels import HELD_OUT_DRAWS
from reverie.families.diffusion.sampling import DEFAULTS, STEERED, data_of
from reverie.gallery import guidance, samplers
from reverie.runs.config import DataConfig
from reverie.runs.data_copy import DTYPES
from reverie.steering.restore import DEFAULT_METHOD, RESULTS
from reverie.training.previews import DRAWN


def test_every_kind_has_a_name() -> None:
    assert set(KINDS) == set(get_args(Kind))


@pytest.mark.parametrize("table", [MEASURES, DRAWN, DTYPES])
def test_tables_contain_every_numeric_kind(table: dict[Kind, object]) -> None:
    """Texts have tables of their own."""
    assert set(table) == set(get_args(Kind)) - set(WRITTEN) == set(DIMENSIONS.values())


@pytest.mark.parametrize("table", [STEERED, DEFAULT_METHOD, RESULTS, HELD_OUT_DRAWS, guidance.SHOWN, samplers.SHOWN])
def test_diffusion_tables_contain_its_kinds(table: dict[Kind, object]) -> None:
    assert set(table) == set(FAMILIES["diffusion"].kinds)


def test_sampling_has_defaults_for_every_kind_of_diffusion() -> None:
    """One default for grey images, one for colour images, and one for codes."""
    shapes = {"points": [(2,)], "images": [(1, 8, 8), (3, 8, 8)]}
    assert set(shapes) == set(FAMILIES["diffusion"].kinds)
    assert set(DEFAULTS) == {"codes", *(data_of(shape) for some in shapes.values() for shape in some)}


@pytest.mark.parametrize("family", FAMILIES)
def test_families_support_known_kinds(family: str) -> None:
    assert FAMILIES[family].kinds and set(FAMILIES[family].kinds) <= set(KINDS)


@pytest.mark.parametrize(("name", "kind"), [("spiral", "points"), ("oscillation", "series"), ("digits8", "images")])
def test_datasets_and_runs_agree_on_the_kind(name: str, kind: Kind) -> None:
    data = load_data(name, 20 if name != "oscillation" else 1280)
    assert data.kind == data.report["kind"] == kind_of(data.shape) == kind
    assert data.split(0)[1].kind == kind
    assert DataConfig(name=name, count=len(data), shape=data.shape).kind == kind


def test_kind_of_pairs() -> None:
    data = load_data("dates", 40)
    assert data.kind == data.report["kind"] == data.split(0)[1].kind == "pairs"
    assert DataConfig(name="dates", count=len(data), shape=data.shape, kind="pairs").kind == "pairs"
    with pytest.raises(ValueError, match=r"\(3, 8, 8\).*pairs"):
        DataConfig(name="dates", count=3, shape=(3, 8, 8), kind="pairs")


def test_kind_of_text() -> None:
    data = load_data("prose")
    assert data.kind == data.report["kind"] == data.split(0)[1].kind == "text"
    assert DataConfig(name="prose", count=len(data), shape=data.shape, kind="text").kind == "text"
    with pytest.raises(ValueError, match=r"\(3, 8, 8\).*text"):
        DataConfig(name="prose", count=3, shape=(3, 8, 8), kind="text")


def test_kind_without_pixels() -> None:
    assert Dataset("x", torch.empty(5, 3, 8, 8, dtype=torch.uint8, device="meta")).kind == "images"


def test_kind_of_samples() -> None:
    assert [kind_of_samples(shape) for shape in ((9, 2), (9, 8, 8), (9, 8, 8, 3))] == ["points", "images", "images"]


@pytest.mark.parametrize("shape", [(), (1, 2, 3, 4)])
def test_other_shapes_have_no_kind(shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="neither points"):
        kind_of(shape)
