"""The page, opened from the disk by a browser without network access, yields the samples of `reverie sample`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reverie
from reverie.base.errors import UserError
from reverie.base.noise import image_seeds
from reverie.exchange.html_page import PAINTING, page_of
from reverie.runs.run import Run
from tests.exchange.conftest import Browser

LAST = "sampled.films.map((film) => [...film[film.length - 1].x0])"
NETS: dict[str, tuple[str, dict[str, Any]]] = {
    "unet": ("unet:widths=[8,12],groups=4,embedding_dim=16,stem=2", {}),
    "teaching": ("unet-teaching:widths=[4,8]", {"target": "v", "schedule": {"name": "cosine"}}),
    "waves": ("unet:widths=[8],groups=2,fourier=[1,3],embedding=learned,blocks=2,stem=1", {"target": "edm"}),
    "transformer": ("transformer:dim=16,heads=2,layers=2,embedding=sine", {"target": "x0"}),
}

CLUSTERED: dict[str, tuple[str, float, dict[str, Any]]] = {  # networks conditioned on clusters, and guidance
    "labels": (NETS["unet"][0], 1.75, {"labels": 4, "early": True, "clusters": 6, "augment": [{"name": "flip"}]}),
    "alone": (NETS["transformer"][0], 1.0, {"clusters": 6}),
    "student": (NETS["unet"][0], 1.75, {"labels": 4, "clusters": 6, "distilled": {"clipped": True}}),
}


def samples_of(browser: Browser, file: Path, shape: tuple[int, ...]) -> tuple[Any, np.ndarray]:
    page = browser.open(file)
    return page, np.array(browser.value(page, LAST), dtype=np.float64).reshape(-1, *shape)


@pytest.mark.parametrize("name", NETS)
def test_the_page_samples_the_same_images(name: str, browser: Browser, made: Callable[..., Run], tmp_path: Path) -> None:
    network, options = NETS[name]
    channels = 3 if name == "unet" else 1
    run = made(name, network, (channels, 12, 8), labels=4, early=name == "unet", **options)
    file = reverie.export(run, tmp_path / "page.html", steps=6, guidance=1.75, seed=5)
    page, found = samples_of(browser, file, (channels, 12, 8))
    assert len(found) == 16 and browser.errors == []
    assert [url for url in browser.requests if not url.startswith(("file:", "blob:"))] == []
    expected = run.sample(16, steps=6, guidance=1.75, seed=5).x.reshape(16, 12, 8, channels).transpose(0, 3, 1, 2)
    assert np.abs(np.clip((found + 1) / 2, 0, 1) - expected).max() < 1e-3 and np.ptp(expected) > 0.2
    labels = browser.value(page, "sampled.labels")  # with the frequencies of the data, from each image's own stream
    assert labels == run.labels(None, 16, 5).tolist()


@pytest.mark.parametrize("name", CLUSTERED)
def test_the_page_selects_the_same_clusters(name: str, browser: Browser, made: Callable[..., Run], tmp_path: Path) -> None:
    network, guidance, options = CLUSTERED[name]
    run = made(name, network, (1, 8, 8), **options)
    file = reverie.export(run, tmp_path / "page.html", steps=4, guidance=guidance, seed=5)
    page, found = samples_of(browser, file, (8, 8))
    expected = run.sample(16, steps=4, guidance=guidance, seed=5).x
    assert np.abs(np.clip((found + 1) / 2, 0, 1) - expected).max() < 1e-3 and np.ptp(expected) > 0.2
    clusters = run.diffusion.clusters
    assert clusters is not None and browser.errors == []
    expected = clusters.sample(image_seeds(5, 16), run.labels(None, 16, 5)).tolist()
    assert browser.value(page, "sampled.clusters") == expected and len(set(expected)) > 2


def test_inpainting_has_no_cluster(browser: Browser, made: Callable[..., Run], tmp_path: Path) -> None:
    run = made("digits", NETS["unet"][0], (1, 8, 8), clusters=5)
    page = browser.open(reverie.export(run, tmp_path / "page.html", steps=2))
    browser.value(page, "(openPaint(sampled.films[0][1].x0, -1), easel.mask.fill(1), refill(), 1)")  # the whole image
    page.wait_for_selector("body[data-painted=done]")
    pixels = "(c) => [...c.getContext('2d').getImageData(0, 0, 8, 8).data]"
    found = browser.value(page, f"[...document.querySelectorAll('#variants canvas')].map({pixels})")
    *_, last = run.frames(8, first=8, steer=lambda denoiser: denoiser, **PAINTING)  # without an effect
    expected = 255 * run.model.decode(last.x0)[:, 0].clamp(0, 1).numpy()
    assert np.abs(np.array(found).reshape(8, 8, 8, 4)[..., 0] - expected).max() < 1


@pytest.mark.parametrize("network", ["mlp:hidden=16,connector=multiply", "rbf:hidden=12"])
def test_the_page_samples_the_same_points(network: str, browser: Browser, made: Callable[..., Run], tmp_path: Path) -> None:
    run = made("points", network, (2,), labels=2, target="v", schedule={"name": "cosine"}, sigma_data=1.0)
    page = browser.open(reverie.export(run, tmp_path / "page.html", sampler="ddpm", steps=5))
    expected = run.sample(500, sampler="ddpm", steps=5).x
    groups, films = browser.value(page, "sampled.members"), browser.value(page, LAST)
    for members, film in zip(groups, films, strict=True):
        found = np.array(film).reshape(2, -1).T * [0.7, 1.2] + [0.3, -0.2]
        assert np.abs(found - expected[members]).max() < 1e-3
    assert sorted(m for group in groups for m in group) == list(range(500)) and browser.errors == []


def test_inpainting_keeps_the_other_pixels_and_pictures_are_saved(
    browser: Browser, made: Callable[..., Run], tmp_path: Path
) -> None:
    run = made("digits", NETS["unet"][0], (1, 16, 16), labels=2)
    page = browser.open(reverie.export(run, tmp_path / "page.html", steps=4))
    with page.expect_download() as download:
        page.click("#save")
    assert Path(download.value.path()).read_bytes().startswith(b"\x89PNG")
    page.click("#x0", position={"x": 20, "y": 20})
    box = page.locator("#easel").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.up()
    painted = np.array(browser.value(page, "[...easel.mask]")).reshape(16, 16)
    assert 3 < painted.sum() < 60 and painted[8, 8] and not painted[0, 0]
    page.click("#refill")
    page.wait_for_selector("body[data-painted=done]")
    pixels = "(c) => [...c.getContext('2d').getImageData(0, 0, 16, 16).data]"
    pixels = f"[...document.querySelectorAll('#variants canvas')].map({pixels})"
    variants = np.array(browser.value(page, pixels)).reshape(8, 16, 16, 4)[..., 0]
    kept = np.array(browser.value(page, "[...easel.image.data]")).reshape(16, 16, 4)[..., 0]
    assert (variants[:, painted == 0] == kept[painted == 0]).all()
    assert len({variant[painted == 1].tobytes() for variant in variants}) > 1
    assert browser.errors == []


def test_hostile_names_are_inert_text(made: Callable[..., Run]) -> None:
    facts = {"data": "</title><script>alert(1)</script>{{weights}}", "labels": ["</script><script>alert(2)</script>"]}
    page = page_of(facts, b"\0\0\0\0")
    assert "<script>alert" not in page and page.count("AAAAAA==") == 1
    assert "default-src 'none'" in page and "unsafe-inline" not in page


def test_unsupported_models_are_refused(made: Callable[..., Run], tmp_path: Path) -> None:
    run = made("space", "mlp:hidden=8", (3,), codec={"name": "standard", "mean": [0.0] * 3, "std": [1.0] * 3})
    with pytest.raises(UserError, match="3 coordinates"):
        reverie.export(run, tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()
