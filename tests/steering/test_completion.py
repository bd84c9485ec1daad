"""Inpainting by autoregressive families, from Python and from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import reverie
from reverie.base.errors import UserError
from reverie.runs.run import Run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return reverie.train("digits8", tmp_path_factory.mktemp("runs") / "nade", family="nade:hidden=16", steps=5, progress=False)


@pytest.fixture(scope="module")
def image() -> np.ndarray:
    from sklearn.datasets import load_digits

    return (load_digits().images[3] / 16).astype(np.float32)


@pytest.mark.parametrize(("mask", "method"), [("bottom-half", "exact"), ("left-half", "particles")])
def test_known_pixels_are_kept_and_results_are_functions_of_their_seeds(
    run: Run, image: np.ndarray, mask: str, method: str
) -> None:
    made = reverie.inpaint(run, image, mask=mask, n=6, seed=3)
    kept = made.x[:, :4] if mask == "bottom-half" else made.x[:, :, 4:]
    expected = image[:4] if mask == "bottom-half" else image[:, 4:]
    assert np.abs(kept - expected).max() < 1 / 255 and made.figures["method"] == method and len(made) == 6
    assert np.array_equal(made.x[:2], reverie.inpaint(run, image, mask=mask, n=2, seed=3).x)
    assert made.labels is None and reverie.inpaint(run, image, mask=mask, n=1, label="3").labels == ["3"]


def test_another_order_than_that_of_the_likelihood_is_reported(image: np.ndarray, tmp_path: Path) -> None:
    options = {"family": "nade:hidden=8,orderless=true", "steps": 2, "progress": False}
    orderless = reverie.train("digits8", tmp_path / "run", **options)
    for mask, order in (("left-half", "known numbers first"), ("bottom-half", None)):
        figures = reverie.inpaint(orderless, image, mask=mask, n=1).figures
        assert figures["method"] == "exact" and figures.get("order") == order


def test_meaningless_options_are_refused(run: Run, image: np.ndarray) -> None:
    for options, message in (
        ({"mask": "left-half", "method": "dps"}, "--method"),
        ({"mask": np.zeros((8, 8), bool)}, "white"),
        ({"mask": "left-half", "sampler": "ddim"}, "--sampler"),
        ({"mask": "left-half", "label": "3:1.5"}, "label"),
    ):
        with pytest.raises(UserError, match=message):
            reverie.inpaint(run, image, **options)


def test_the_command_writes_a_sheet(command, run: Run, image: np.ndarray, tmp_path: Path) -> None:
    Image.fromarray((255 * image).astype(np.uint8)).save(tmp_path / "three.png")
    words = (
        "inpaint",
        run.path,
        tmp_path / "three.png",
        "--mask",
        "bottom-half",
        "-n",
        3,
        "--out",
        tmp_path / "x.png",
        "--json",
    )
    code, out, err = command(*words)
    assert code == 0 and json.loads(out)["method"] == "exact" and (tmp_path / "x.png").exists(), err


def test_a_film_shows_the_image_being_generated(run: Run, tmp_path: Path) -> None:
    film = run.sample(2, film=True)
    film.save(tmp_path / "film.gif")
    written = [(x > 0).any((0,)).sum() for _, x, _ in film.film]
    assert (tmp_path / "film.gif").exists() and written == sorted(written) and np.array_equal(film.film[-1][1], film.x)
