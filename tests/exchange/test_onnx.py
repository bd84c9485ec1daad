"""ONNX: the loop of the documents draws, with onnxruntime alone, what `reverie sample` draws."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import reverie
from reverie.api import with_backend
from reverie.base.errors import UserError
from reverie.base.noise import image_seeds
from reverie.exchange.export_parts import split_run
from reverie.exchange.onnx import Guided, inputs_of
from reverie.runs.run import Run

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")
UNET = "unet:widths=[8,12],groups=4,embedding_dim=16"
DOCUMENT = Path(__file__).parents[2] / "docs" / "book" / "exchange.md"


def loop() -> dict[str, Any]:
    """Return what the loop of the documents defines, without its last line, which draws."""
    code = re.search(r"```py\n(.*?)```", DOCUMENT.read_text(), re.S)
    assert code is not None
    defined: dict[str, Any] = {}
    exec(code[1].rsplit("images =", 1)[0], defined)
    return defined


@pytest.mark.slow
def test_the_loop_of_the_documents_draws_the_same_images(made: Callable[..., Run], tmp_path: Path) -> None:
    run = made("digits", UNET, (1, 8, 8), labels=3, early=True)
    file = reverie.export(run, tmp_path / "digits.onnx", sampler="dpm++sde", steps=7)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["digits", "digits.onnx"]  # no weights beside it
    session = onnxruntime.InferenceSession(str(file))
    assert [i.name for i in session.get_inputs()] == ["x", "alpha", "sigma", "label", "guidance", "autoguidance"]
    facts = json.loads(session.get_modelmeta().custom_metadata_map["reverie"])
    assert len(facts["evaluations"]) == 7 and str(tmp_path) not in json.dumps(facts)
    draw = loop()["sample"]
    for n, guidance in ((1, 1.0), (5, 2.5)):
        wanted = run.sample(n, label="label 1", guidance=guidance, sampler="dpm++sde", steps=7, seed=4).x
        found = draw(str(file), n, seed=4, label=[1] * n, guidance=guidance)
        assert np.abs(found[:, 0] - wanted).max() < 1e-4 and np.ptp(wanted) > 0.2


# What a network is told clusters with: beside labels and changes of the data, with an early state, alone, or of a student.
TOLD: dict[str, dict[str, Any]] = {
    "labels": {"labels": 3, "early": True, "clusters": 5, "augment": [{"name": "flip"}]},
    "alone": {"clusters": 5},
    "student": {"labels": 3, "clusters": 5, "distilled": {"clipped": True}},
}
WAY: dict[str, Any] = {"sampler": "dpm++2m", "steps": 3}


class Eager:
    """A session that computes what the file would, without writing it."""

    def __init__(self, run: Run) -> None:
        parts = split_run(run, WAY, "a file")
        facts = {**parts.facts(WAY), "evaluations": [e.as_dict() for e in parts.solver_steps(WAY)]}
        self.custom_metadata_map, self.module = {"reverie": json.dumps(facts)}, Guided(parts)
        types = {torch.float32: "tensor(float)", torch.float64: "tensor(double)", torch.int64: "tensor(int64)"}
        self.inputs = [SimpleNamespace(name=name, type=types[example.dtype]) for name, example, _ in inputs_of(parts)]

    def get_modelmeta(self) -> Eager:
        """Return what holds the metadata."""
        return self

    def get_inputs(self) -> list[SimpleNamespace]:
        """Return the inputs by name and type."""
        return self.inputs

    @torch.no_grad()
    def run(self, names: list[str], feed: dict[str, Any]) -> list[np.ndarray]:
        """Return the outputs that are asked for."""
        out = self.module(*(torch.from_numpy(feed[i.name]) for i in self.inputs))
        return [dict(zip(("x0", "eps", "sample"), out, strict=True))[name].numpy() for name in names]


def check_clusters(run: Run, draw: Callable[..., np.ndarray], file: str) -> None:
    """Hold the loop of the documents to the samples of a run that is told clusters, and these to others where none is told."""
    labels, scale = run.labels(None, 6, 4), 2.5 if run.config.data.labels else 1.0
    given = {"seed": 4} | ({} if labels is None else {"label": labels.numpy(), "guidance": scale})
    found = draw(file, 6, **given)
    assert np.abs(found[:, 0] - run.sample(6, seed=4, guidance=scale, **WAY).x).max() < 1e-4
    assert np.abs(found - draw(file, 6, cluster=-np.ones(6), **given)).max() > 1e-2
    if labels is not None:  # without a label there is no cluster either
        assert np.array_equal(draw(file, 6, seed=4), draw(file, 6, seed=4, cluster=-np.ones(6)))


@pytest.mark.parametrize("name", TOLD)
def test_clusters_are_drawn_by_what_the_metadata_tell(name: str, made: Callable[..., Run]) -> None:
    run = made(name, UNET, (1, 8, 8), **TOLD[name])
    defined = loop()
    defined["onnxruntime"] = SimpleNamespace(InferenceSession=lambda _: Eager(run))
    check_clusters(run, defined["sample"], "no file")
    seeds, labels = image_seeds(9, 300), run.labels(None, 300, 9)
    assert run.diffusion.clusters is not None
    of = -np.ones(300) if labels is None else labels.numpy()
    found = defined["clusters"](seeds.numpy().astype(np.uint64), of, split_run(run, WAY, "a file").clusters)
    assert np.array_equal(found, run.diffusion.clusters.sample(seeds, labels)) and len(set(found)) > 2


@pytest.mark.slow
@pytest.mark.parametrize("name", TOLD)
def test_a_file_and_the_backend_draw_the_same_clusters(name: str, made: Callable[..., Run], tmp_path: Path) -> None:
    run = made(name, UNET, (1, 8, 8), **TOLD[name])
    check_clusters(run, loop()["sample"], str(reverie.export(run, tmp_path / "digits.onnx", **WAY)))
    told = {"guidance": 2.5} if run.config.data.labels else {}
    swapped = with_backend(run, "onnx")
    assert np.abs(swapped.sample(5, **told, **WAY).x - run.sample(5, **told, **WAY).x).max() < 1e-4
    steered, plain = ([*r.frames(3, steer=lambda denoiser: denoiser, **WAY)][-1].x0 for r in (swapped, run))
    assert (steered - plain).abs().max() < 1e-4  # where nothing is told


@pytest.mark.slow
def test_points_leave_in_their_own_units(made: Callable[..., Run], tmp_path: Path) -> None:
    run = made("points", "mlp:hidden=16", (2,), target="v", schedule={"name": "cosine"}, sigma_data=1.0)
    file = reverie.export(run, tmp_path / "points.onnx", steps=6)
    found = loop()["sample"](str(file), 20)
    assert np.abs(found - run.sample(20, steps=6).x).max() < 1e-4


@pytest.mark.slow
def test_sampling_by_onnx_runtime_draws_the_same(made: Callable[..., Run], tmp_path: Path, command: Any) -> None:
    run = made("digits", UNET, (1, 8, 8), labels=3, early=True)
    told: dict[str, Any] = {"label": "label 2", "guidance": 2.0, "sampler": "heun", "steps": 4}
    wanted, found = run.sample(5, **told).x, with_backend(run, "onnx").sample(5, **told).x
    assert np.abs(found - wanted).max() < 1e-4
    words = ("--backend", "onnx", "--steps", 2, "-n", 3, "--out", tmp_path / "x.npy")
    assert command("sample", run.path, *words)[0] == 0 and np.load(tmp_path / "x.npy").shape == (3, 8, 8)


def test_a_run_that_is_told_numbers_is_refused_by_the_backend(tmp_path: Path) -> None:
    table = tmp_path / "told"
    table.mkdir()
    images = np.random.default_rng(0).integers(0, 255, (8, 8, 8), dtype=np.uint8)
    for k, image in enumerate(images):
        Image.fromarray(image).save(table / f"{k}.png")
    rows = "".join(f"{k}.png,{k / 8}\n" for k in range(8))
    (table / "metadata.csv").write_text(f"file_name,size\n{rows}")
    network = "unet:widths=[8,12],groups=4,embedding_dim=16"
    run = reverie.train(table, tmp_path / "r", condition_columns="size", steps=1, network=network)
    with pytest.raises(UserError, match="use --backend torch"):
        with_backend(run, "onnx")


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
