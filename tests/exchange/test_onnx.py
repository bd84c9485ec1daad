"""ONNX: the loop of the documents draws, with onnxruntime alone, what `reverie sample` draws."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reverie
from reverie.api import with_backend
from reverie.base.errors import UserError
from reverie.runs.run import Run

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")
DOCUMENT = Path(__file__).parents[2] / "docs" / "exchange.md"


def loop() -> dict[str, Any]:
    """Return what the loop of the documents defines, without its last line, which draws."""
    code = re.search(r"```python\n(.*?)```", DOCUMENT.read_text(), re.S)
    assert code is not None
    defined: dict[str, Any] = {}
    exec(code[1].rsplit("images =", 1)[0], defined)
    return defined


@pytest.mark.slow
def test_the_loop_of_the_documents_draws_the_same_images(made: Callable[..., Run], tmp_path: Path) -> None:
    run = made("digits", "unet:widths=[8,12],groups=4,embedding_dim=16", (1, 8, 8), labels=3, early=True)
    file = reverie.export(run, tmp_path / "digits.onnx", sampler="dpm++sde", steps=7)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["digits", "digits.onnx"]  # no weights beside it
    session = onnxruntime.InferenceSession(str(file))
    assert [i.name for i in session.get_inputs()] == ["x", "alpha", "sigma", "label", "guidance", "autoguidance"]
    facts = json.loads(session.get_modelmeta().custom_metadata_map["reverie"])
    assert len(facts["evaluations"]) == 7 and str(tmp_path) not in json.dumps(facts)
    draw = loop()["draw"]
    for n, guidance in ((1, 1.0), (5, 2.5)):
        wanted = run.sample(n, label="label 1", guidance=guidance, sampler="dpm++sde", steps=7, seed=4).x
        found = draw(str(file), n, seed=4, label=[1] * n, guidance=guidance)
        assert np.abs(found[:, 0] - wanted).max() < 1e-4 and np.ptp(wanted) > 0.2


@pytest.mark.slow
def test_points_leave_in_their_own_units(made: Callable[..., Run], tmp_path: Path) -> None:
    run = made("points", "mlp:hidden=16", (2,), target="v", schedule={"name": "cosine"}, sigma_data=1.0)
    file = reverie.export(run, tmp_path / "points.onnx", steps=6)
    found = loop()["draw"](str(file), 20)
    assert np.abs(found - run.sample(20, steps=6).x).max() < 1e-4


@pytest.mark.slow
def test_sampling_by_onnx_runtime_draws_the_same(made: Callable[..., Run], tmp_path: Path, command: Any) -> None:
    run = made("digits", "unet:widths=[8,12],groups=4,embedding_dim=16", (1, 8, 8), labels=3, early=True)
    told: dict[str, Any] = {"label": "label 2", "guidance": 2.0, "sampler": "heun", "steps": 4}
    wanted, found = run.sample(5, **told).x, with_backend(run, "onnx").sample(5, **told).x
    assert np.abs(found - wanted).max() < 1e-4
    words = ("--backend", "onnx", "--steps", 2, "-n", 3, "--out", tmp_path / "x.npy")
    assert command("sample", run.path, *words)[0] == 0 and np.load(tmp_path / "x.npy").shape == (3, 8, 8)


def test_other_families_and_samplers_are_refused(tmp_path: Path, trained: Callable[..., Run], made: Callable[..., Run]) -> None:
    gaussian = trained("gaussian-for-export", "spiral", family="gaussian", points=200)
    for name in ("a.onnx", "a.html"):
        with pytest.raises(UserError, match="diffusion models only"):
            reverie.export(gaussian, tmp_path / name)
    run = made("points", "mlp:hidden=16", (2,))
    with pytest.raises(UserError, match="chooses its steps"):
        reverie.export(run, tmp_path / "a.onnx", sampler="rk45")
    with pytest.raises(UserError, match="cannot tell what"):
        reverie.export(run, tmp_path / "a.pdf")
    assert not list(tmp_path.glob("a.*"))
