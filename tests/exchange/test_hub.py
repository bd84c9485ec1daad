"""Folders for a hub: a run leaves with a card and comes back the same; exports are whole or not there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reverie
from reverie.base.errors import UserError
from reverie.exchange import hub
from reverie.runs.run import Run

UNET = "unet:widths=[8,12],groups=4,embedding_dim=16"


def test_a_run_comes_back_from_its_folder_the_same(made: Callable[..., Run], tmp_path: Path) -> None:
    run = made("digits", UNET, (1, 8, 8), labels=3, early=True, clusters=4)
    folder = reverie.export(run, tmp_path / "hub", licence="mit", steps=3)
    assert sorted(p.name for p in folder.iterdir()) == sorted(hub.WRITTEN)
    back = reverie.import_model(folder, tmp_path / "back")
    assert np.array_equal(back.sample(4, steps=3).x, run.sample(4, steps=3).x)  # with its early state
    card = (folder / "README.md").read_text()
    assert card.startswith("---\n") and 'license: "mit"' in card and "Not measured" in card and "label 2" in card
    assert "| clusters | 4 |" in card


@pytest.mark.slow
def test_figures_with_their_errors_stand_in_the_card(digits_run: Run, tmp_path: Path) -> None:
    folder = reverie.export(digits_run, tmp_path / "hub", measure=True, sampler="ddim", steps=3)
    card = (folder / "README.md").read_text()
    assert "512 samples, seed 0, quick mode" in card and "| figure | samples | real data |" in card and " ± " in card


def test_nothing_of_the_machine_leaves(trained: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    np.save(tmp_path / "private-place.npy", rng.integers(0, 256, (30, 8, 8), dtype=np.uint8))
    run = reverie.train(str(tmp_path / "private-place.npy"), tmp_path / "run", network=UNET, steps=2, batch=4)
    reverie.train(str(tmp_path / "private-place.npy"), tmp_path / "tuned", start_from=run.path, steps=2, batch=4)
    folder = reverie.export(tmp_path / "tuned", tmp_path / "hub", steps=2)
    held = b"".join(p.read_bytes() for p in folder.iterdir())
    for secret in (str(tmp_path), f"{Path.home()}/", str(Path.cwd())):
        assert secret.encode() not in held, secret


def test_a_folder_of_others_is_never_replaced(made: Callable[..., Run], tmp_path: Path) -> None:
    run = made("digits", UNET, (1, 8, 8))
    folder = reverie.export(run, tmp_path / "hub", steps=2)
    with pytest.raises(UserError, match="--overwrite"):
        reverie.export(run, folder, steps=2)
    reverie.export(run, folder, steps=2, overwrite=True)
    (folder / "thesis.tex").write_text("mine")
    with pytest.raises(UserError, match="holds other files"):
        reverie.export(run, folder, steps=2, overwrite=True)
    assert (folder / "thesis.tex").read_text() == "mine"


@pytest.mark.parametrize("out", ["hub", "page.html"])
def test_an_export_that_fails_leaves_nothing(
    out: str, made: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = made("digits", UNET, (1, 8, 8))

    def fail(*_: Any) -> None:
        raise RuntimeError("on the way")

    monkeypatch.setattr("reverie.exchange.hub.card_text", fail)
    monkeypatch.setattr("reverie.exchange.html.page_of", fail)
    with pytest.raises(RuntimeError, match="on the way"):
        reverie.export(run, tmp_path / "out" / out, steps=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["digits"]


def test_what_is_no_model_is_refused(tmp_path: Path, command: Any, made: Callable[..., Run]) -> None:
    (tmp_path / "empty").mkdir()
    assert command("import", tmp_path / "empty", "--out", tmp_path / "run")[0] == 2
    assert command("import", tmp_path / "nowhere", "--out", tmp_path / "run")[0] == 2
    folder = reverie.export(made("digits", UNET, (1, 8, 8)), tmp_path / "hub", steps=2)
    config = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(config.replace("embedding_dim = 16", "embedding_dim = 1000000000"))
    code, _, said = command("import", folder, "--out", tmp_path / "run")
    assert code == 2 and said.startswith("error:") and not (tmp_path / "run").exists()


def test_the_command_says_what_it_wrote(made: Callable[..., Run], tmp_path: Path, command: Any) -> None:
    run = made("digits", UNET, (1, 8, 8), labels=2)
    code, out, _ = command("export", run.path, "--out", tmp_path / "digits.html", "--steps", 3)
    assert code == 0 and "digits.html" in out and (tmp_path / "digits.html").stat().st_size > 50_000
    assert command("export", run.path, "--out", tmp_path / "x.onnx", "--sampler", "rk45")[0] == 2
    assert command("export", run.path, "--out", tmp_path / "x", "--format", "pdf")[0] == 2


@pytest.mark.parametrize("name", ["run.onnx", "run.html"])
def test_a_model_of_levels_leaves_as_a_folder_only(name: str, tmp_path: Path) -> None:
    run = reverie.train("digits8", tmp_path / "run", steps=1, purpose="likelihood", network="unet:widths=[8,16]")
    with pytest.raises(UserError, match="predicts the levels of images"):
        reverie.export(run, tmp_path / name)
    assert not (tmp_path / name).exists() and reverie.export(run, tmp_path / "folder")
