"""Folders for hubs: the same run after export and import, with a model card; exports are atomic."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markdown_it import MarkdownIt

import reverie
from reverie.base.errors import UserError
from reverie.exchange import hub
from reverie.runs.run import Run

ROOT = Path(__file__).parents[2]
UNET = "unet:widths=[8,12],groups=4,embedding_dim=16"


def test_an_imported_run_is_the_exported_one(made: Callable[..., Run], tmp_path: Path) -> None:
    run = made("digits", UNET, (1, 8, 8), labels=3, early=True, clusters=4)
    folder = reverie.export(run, tmp_path / "hub", licence="mit", steps=3)
    assert sorted(p.name for p in folder.iterdir()) == sorted(hub.WRITTEN)
    back = reverie.import_model(folder, tmp_path / "back")
    assert np.array_equal(back.sample(4, steps=3).x, run.sample(4, steps=3).x)  # with its early checkpoint
    card = (folder / "README.md").read_text()
    assert card.startswith("---\n") and 'license: "mit"' in card and "Not measured" in card and "label 2" in card
    assert "| clusters | 4 |" in card


@pytest.mark.slow
def test_the_card_contains_metrics_with_errors(digits_run: Run, tmp_path: Path) -> None:
    folder = reverie.export(digits_run, tmp_path / "hub", measure=True, sampler="ddim", steps=3)
    card = (folder / "README.md").read_text()
    assert "512 samples, seed 0" in card and "KID" in card and " ± " in card


@pytest.mark.parametrize("out", ["hub", "page.html", "model.onnx", "pipeline"])
def test_exports_contain_no_local_paths(out: str, tmp_path: Path) -> None:
    if out.endswith(".onnx"):
        pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    place = tmp_path / "hildegard"
    network = "diffusers-unet:widths=[8,16],norm_num_groups=4" if out == "pipeline" else UNET
    place.mkdir()
    np.save(place / "private.npy", np.random.default_rng(0).integers(0, 256, (30, 8, 8), dtype=np.uint8))
    run = reverie.train(str(place / "private.npy"), place / "run", network=network, steps=2, batch=4)
    if out == "hub":
        run = reverie.train(str(place / "private.npy"), place / "tuned", start_from=run.path, steps=2, batch=4)
    options: dict[str, Any] = {"format": "diffusers"} if out == "pipeline" else {"steps": 2}
    made = reverie.export(run.path, tmp_path / "out" / out, **options)
    held = b"".join(p.read_bytes() for p in (made.rglob("*") if made.is_dir() else [made]) if p.is_file())
    assert len(held) > 1000
    for secret in ("hildegard", str(tmp_path), f"{Path.home()}/", str(Path.cwd()), str(ROOT), "site-packages", sys.prefix):
        assert secret.encode() not in held, secret


NAMES = ("<script>alert(1)</script>", "[here](https://evil.example)", "![x](//evil.example/x.png)", "https://evil.example",
         "a | b", "`x`", "*b*", "# h", "www.evil.example", "a\\[b](c)", "<https://evil.example>", "&lt;b&gt;")  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_names_are_escaped_in_the_card(name: str, made: Callable[..., Run]) -> None:
    run = made("digits", UNET, (1, 8, 8), labels=2)
    data = run.config.data.model_copy(update={"name": name, "labels": (name, "plain")})
    card = hub.card_text(run, run.config.model_copy(update={"data": data}), hub.ModelCard(), None)
    tokens = [
        t for line in MarkdownIt().enable("table").parse(card.partition("---\n\n")[2]) for t in (line, *(line.children or ()))
    ]
    assert {t.type for t in tokens}.isdisjoint({"html_inline", "html_block", "link_open"})
    assert [t.attrs["src"] for t in tokens if t.type == "image"] == [hub.GRID]
    texts = ["".join(c.content for c in t.children or ()) for t in tokens if t.type == "inline"]
    assert texts[0] == name and name in texts and f"2: {name}, plain" in texts
    assert not re.search(r"(?<!\\)://|www\.", card)  # GitHub would turn them into links


def test_a_folder_with_other_files_is_never_replaced(made: Callable[..., Run], tmp_path: Path) -> None:
    run = made("digits", UNET, (1, 8, 8))
    folder = reverie.export(run, tmp_path / "hub", steps=2)
    with pytest.raises(UserError, match="--overwrite"):
        reverie.export(run, folder, steps=2)
    reverie.export(run, folder, steps=2, overwrite=True)
    (folder / "thesis.tex").write_text("mine")
    with pytest.raises(UserError, match="other files"):
        reverie.export(run, folder, steps=2, overwrite=True)
    assert (folder / "thesis.tex").read_text() == "mine"


@pytest.mark.parametrize("out", ["hub", "page.html"])
def test_a_failing_export_leaves_nothing(
    out: str, made: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = made("digits", UNET, (1, 8, 8))

    def fail(*_: Any) -> None:
        raise RuntimeError("on the way")

    monkeypatch.setattr("reverie.exchange.hub.card_text", fail)
    monkeypatch.setattr("reverie.exchange.html_page.page_of", fail)
    with pytest.raises(RuntimeError, match="on the way"):
        reverie.export(run, tmp_path / "out" / out, steps=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["digits"]


def test_folders_without_a_model_are_refused(tmp_path: Path, command: Any, made: Callable[..., Run]) -> None:
    (tmp_path / "empty").mkdir()
    assert command("import", tmp_path / "empty", "--out", tmp_path / "run")[0] == 2
    assert command("import", tmp_path / "nowhere", "--out", tmp_path / "run")[0] == 2
    folder = reverie.export(made("digits", UNET, (1, 8, 8)), tmp_path / "hub", steps=2)
    config = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(config.replace("embedding_dim = 16", "embedding_dim = 1000000000"))
    code, _, err = command("import", folder, "--out", tmp_path / "run")
    assert code == 2 and err.startswith("error:") and not (tmp_path / "run").exists()


def test_the_command_reports_its_output(made: Callable[..., Run], tmp_path: Path, command: Any) -> None:
    run = made("digits", UNET, (1, 8, 8), labels=2)
    code, out, _ = command("export", run.path, "--out", tmp_path / "digits.html", "--steps", 3)
    assert code == 0 and "digits.html" in out and (tmp_path / "digits.html").stat().st_size > 50_000
    assert command("export", run.path, "--out", tmp_path / "x.onnx", "--sampler", "rk45")[0] == 2
    assert command("export", run.path, "--out", tmp_path / "x", "--format", "pdf")[0] == 2


@pytest.mark.parametrize("name", ["run.onnx", "run.html"])
def test_a_model_of_levels_is_exported_to_a_folder_only(name: str, tmp_path: Path) -> None:
    run = reverie.train("digits8", tmp_path / "run", steps=1, purpose="likelihood", network="unet:widths=[8,16]")
    with pytest.raises(UserError, match="predicts the levels of images"):
        reverie.export(run, tmp_path / name)
    assert not (tmp_path / name).exists() and reverie.export(run, tmp_path / "folder")
