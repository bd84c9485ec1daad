"""ONNX: the sampling loop of the docs, with onnxruntime alone, yields the samples of `reverie sample`."""

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
from reverie.exchange.onnx import Guided, example_inputs
from reverie.runs.run import Run

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")
UNET = "unet:widths=[8,12],groups=4,embedding_dim=16"
DOCUMENT = Path(__file__).parents[2] / "docs" / "book" / "exchange.md"


def loop() -> dict[str, Any]:
    """Return the names that the loop of the docs defines, without its last line, which samples."""
    code = re.search(r"```py\n(.*?)```", DOCUMENT.read_text(), re.S)
    assert code is not None
    defined: dict[str, Any] = {}
    exec(code[1].rsplit("images =", 1)[0], defined)
    return defined


@pytest.mark.slow
def test_the_loop_of_the_docs_samples_the_same_images(made: Callable[..., Run], tmp_path: Path) -> None:
    run = made("digits", UNET, (1, 8, 8), labels=3, early=True)
    file = reverie.export(run, tmp_path / "digits.onnx", sampler="dpm++sde", steps=7)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["digits", "digits.onnx"]  # no separate weights
    session = onnxruntime.InferenceSession(str(file))
    assert [i.name for i in session.get_inputs()] == ["x", "alpha", "sigma", "label", "guidance", "autoguidance"]
    facts = json.loads(session.get_modelmeta().custom_metadata_map["reverie"])
    assert len(facts["evaluations"]) == 7 and str(tmp_path) not in json.dumps(facts)
    draw = loop()["sample"]
    for n, guidance in ((1, 1.0), (5, 2.5)):
        expected = run.sample(n, label="label 1", guidance=guidance, sampler="dpm++sde", steps=7, seed=4).x
        found = draw(str(file), n, seed=4, label=[1] * n, guidance=guidance)
        assert np.abs(found[:, 0] - expected).max() < 1e-4 and np.ptp(expected) > 0.2


# Networks conditioned on clusters: with labels and augmentation, with an early checkpoint, alone, or of a student.
CLUSTERED: dict[str, dict[str, Any]] = {
    "labels": {"labels": 3, "early": True, "clusters": 5, "augment": [{"name": "flip"}]},
    "alone": {"clusters": 5},
    "student": {"labels": 3, "clusters": 5, "distilled": {"clipped": True}},
}
SAMPLING: dict[str, Any] = {"sampler": "dpm++2m", "steps": 3}


class Eager:
    """A session that computes the exported program without a file."""

    def __init__(self, run: Run) -> None:
        parts = split_run(run, SAMPLING, "a file")
        facts = {**parts.facts(SAMPLING), "evaluations": [e.as_dict() for e in parts.solver_steps(SAMPLING)]}
        self.custom_metadata_map, self.module = {"reverie": json.dumps(facts)}, Guided(parts)
        types = {torch.float32: "tensor(float)", torch.float64: "tensor(double)", torch.int64: "tensor(int64)"}
        self.inputs = [SimpleNamespace(name=name, type=types[example.dtype]) for name, example, _ in example_inputs(parts)]

    def get_modelmeta(self) -> Eager:
        """Return the holder of the metadata."""
        return self

    def get_inputs(self) -> list[SimpleNamespace]:
        """Return the inputs by name and type."""
        return self.inputs

    @torch.no_grad()
    def run(self, names: list[str], feed: dict[str, Any]) -> list[np.ndarray]:
        """Return the requested outputs."""
        out = self.module(*(torch.from_numpy(feed[i.name]) for i in self.inputs))
        return [dict(zip(("x0", "eps", "sample"), out, strict=True))[name].numpy() for name in names]


def check_clusters(run: Run, draw: Callable[..., np.ndarray], file: str) -> None:
    """Compare the loop of the docs with the samples of a run with clusters, which differ from those without."""
    labels, scale = run.labels(None, 6, 4), 2.5 if run.config.data.labels else 1.0
    given = {"seed": 4} | ({} if labels is None else {"label": labels.numpy(), "guidance": scale})
    found = draw(file, 6, **given)
    assert np.abs(found[:, 0] - run.sample(6, seed=4, guidance=scale, **SAMPLING).x).max() < 1e-4
    assert np.abs(found - draw(file, 6, cluster=-np.ones(6), **given)).max() > 1e-2
    if labels is not None:  # the null label hides the cluster
        assert np.array_equal(draw(file, 6, seed=4), draw(file, 6, seed=4, cluster=-np.ones(6)))


@pytest.mark.parametrize("name", CLUSTERED)
def test_clusters_are_selected_by_the_metadata(name: str, made: Callable[..., Run]) -> None:
    run = made(name, UNET, (1, 8, 8), **CLUSTERED[name])
    defined = loop()
    defined["onnxruntime"] = SimpleNamespace(InferenceSession=lambda _: Eager(run))
    check_clusters(run, defined["sample"], "no file")
    seeds, labels = image_seeds(9, 300), run.labels(None, 300, 9)
    assert run.diffusion.clusters is not None
    of = -np.ones(300) if labels is None else labels.numpy()
    found = defined["clusters"](seeds.numpy().astype(np.uint64), of, split_run(run, SAMPLING, "a file").clusters)
    assert np.array_equal(found, run.diffusion.clusters.sample(seeds, labels)) and len(set(found)) > 2


@pytest.mark.slow
@pytest.mark.parametrize("name", CLUSTERED)
def test_a_file_and_the_backend_have_the_same_clusters(name: str, made: Callable[..., Run], tmp_path: Path) -> None:
    run = made(name, UNET, (1, 8, 8), **CLUSTERED[name])
    check_clusters(run, loop()["sample"], str(reverie.export(run, tmp_path / "digits.onnx", **SAMPLING)))
    options = {"guidance": 2.5} if run.config.data.labels else {}
    swapped = with_backend(run, "onnx")
    assert np.abs(swapped.sample(5, **options, **SAMPLING).x - run.sample(5, **options, **SAMPLING).x).max() < 1e-4
    steered, plain = ([*r.frames(3, steer=lambda denoiser: denoiser, **SAMPLING)][-1].x0 for r in (swapped, run))
    assert (steered - plain).abs().max() < 1e-4  # without clusters


@pytest.mark.slow
def test_points_are_exported_in_user_units(made: Callable[..., Run], tmp_path: Path) -> None:
    run = made("points", "mlp:hidden=16", (2,), target="v", schedule={"name": "cosine"}, sigma_data=1.0)
    file = reverie.export(run, tmp_path / "points.onnx", steps=6)
    found = loop()["sample"](str(file), 20)
    assert np.abs(found - run.sample(20, steps=6).x).max() < 1e-4


@pytest.mark.slow
def test_sampling_by_onnx_runtime_yields_the_same(made: Callable[..., Run], tmp_path: Path, command: Any) -> None:
    run = made("digits", UNET, (1, 8, 8), labels=3, early=True)
    options: dict[str, Any] = {"label": "label 2", "guidance": 2.0, "sampler": "heun", "steps": 4}
    expected, found = run.sample(5, **options).x, with_backend(run, "onnx").sample(5, **options).x
    assert np.abs(found - expected).max() < 1e-4
    words = ("--backend", "onnx", "--steps", 2, "-n", 3, "--out", tmp_path / "x.npy")
    assert command("sample", run.path, *words)[0] == 0 and np.load(tmp_path / "x.npy").shape == (3, 8, 8)


def test_the_backend_refuses_a_run_conditioned_on_numbers(tmp_path: Path) -> None:
    table = tmp_path / "numbers"
    table.mkdir()
    images = np.random.default_rng(0).integers(0, 255, (8, 8, 8), dtype=np.uint8)
    for k, image in enumerate(images):
        Image.fromarray(image).save(table / f"{k}.png")
    rows = "".join(f"{k}.png,{k / 8}\n" for k in range(8))
    (table / "metadata.csv").write_text(f"file_name,size\n{rows}")
    network = "unet:widths=[8,12],groups=4,embedding_dim=16"
    run = reverie.train(table, tmp_path / "r", condition_columns="size", steps=1, network=network)
    with pytest.raises(UserError, match="--backend torch"):
        with_backend(run, "onnx")


def test_other_families_and_samplers_are_refused(tmp_path: Path, trained: Callable[..., Run], made: Callable[..., Run]) -> None:
    gaussian = trained("gaussian-for-export", "spiral", family="gaussian", points=200)
    for name in ("a.onnx", "a.html"):
        with pytest.raises(UserError, match="diffusion models"):
            reverie.export(gaussian, tmp_path / name)
    run = made("points", "mlp:hidden=16", (2,))
    with pytest.raises(UserError, match="adaptive"):
        reverie.export(run, tmp_path / "a.onnx", sampler="rk45")
    with pytest.raises(UserError, match=r"\.onnx"):
        reverie.export(run, tmp_path / "a.pdf")
    assert not list(tmp_path.glob("a.*"))
