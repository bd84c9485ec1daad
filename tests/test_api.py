"""The verbs as Python calls them: data in memory, progress, what is drawn, and signatures that help."""

from __future__ import annotations

import inspect
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import reverie
from reverie import api
from reverie.base.errors import UserError
from reverie.cli.options import options_of_training
from reverie.data.dataset import Dataset
from reverie.data.in_memory import MEMORY_SOURCE
from reverie.data.lazy import FileImages
from reverie.data.pixels import Recipe
from reverie.evaluation.reports import find_data
from reverie.families import FAMILIES
from reverie.runs.config import TrainingConfig
from reverie.runs.data_copy import DATA_COPY, check_copyable
from reverie.runs.run import Run
from reverie.runs.screen import is_interactive
from reverie.training import prepare
from reverie.training.training_options import TrainingOptions

VERBS = sorted(set(reverie.__all__) - {"ReverieWarning", "UserError", "__version__"})
X = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 3)).astype(np.uint8)
Y = ["a", "b"] * 20
SMALL: Any = {"steps": 3, "batch": 8, "network": "unet:widths=[8],blocks=1", "augment": "none"}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return reverie.train((X, Y), tmp_path_factory.mktemp("runs") / "kept", keep_data=True, **SMALL)


@pytest.fixture
def forgotten(kept: Run, tmp_path: Path) -> Run:
    """The same run without the copy of its data."""
    shutil.copytree(kept.path, tmp_path / "run")
    (tmp_path / "run" / DATA_COPY).unlink()
    return reverie.load(tmp_path / "run")


def test_a_run_from_memory_remembers_what_it_learned(kept: Run, forgotten: Run) -> None:
    data = kept.config.data
    assert data.source == MEMORY_SOURCE and data.labels == ("a", "b") and data.count == 40 and len(data.fingerprint) == 16
    assert find_data(kept, 10)[0].fingerprint() == find_data(forgotten, 10, data=(X, Y))[0].fingerprint()


def test_data_that_were_not_kept_must_be_given_again(forgotten: Run, command: Any, tmp_path: Path) -> None:
    for act in (
        lambda **given: reverie.evaluate(forgotten, 4, **given),
        lambda **given: reverie.train(resume=forgotten.path, extend=True, steps=1, **given),
        lambda **given: reverie.train_classifier(forgotten, steps=1, **given),
    ):
        with pytest.raises(UserError, match="pass them again with data=x"):
            act()
        with pytest.raises(UserError, match="does not contain the training data"):
            act(data=(X[::-1], Y))
    code, _, err = command("train", "--resume", forgotten.path, "--extend", "--steps", 1)
    assert code == 2 and "--data FILE.npy" in err
    assert reverie.train(resume=forgotten.path, extend=True, steps=1, data=(X, Y)).metrics()[-1]["i"] == 4
    np.savez(tmp_path / "a.npz", x=X, y=Y)
    assert command("train", "--resume", forgotten.path, "--extend", "--steps", 1, "--data", tmp_path / "a.npz")[0] == 0
    assert reverie.load(forgotten.path).config.data.source == str(tmp_path / "a.npz")


def test_kept_data_serve_without_being_given(kept: Run, tmp_path: Path) -> None:
    shutil.copytree(kept.path, tmp_path / "run")
    assert reverie.train(resume=tmp_path / "run", extend=True, steps=1).metrics()[-1]["i"] == 4
    found = reverie.evaluate(tmp_path / "run", 8, quick=True, features="pixels", steps=2, out=tmp_path / "r.html")
    assert found["fingerprint"] == kept.config.data.fingerprint and (tmp_path / "r.html").stat().st_size > 10_000
    assert repr(found).startswith("Evaluation(") and len(repr(found)) < 300


@pytest.mark.parametrize(
    ("parts", "needle"),
    [
        ({"x": torch.zeros(40, 3, 8, 8)}, "does not fit the data of this run"),
        (
            {"x": torch.zeros(9, 3, 8, 8, dtype=torch.uint8), "labels": torch.zeros(9, dtype=torch.int64)},
            "does not fit the data",
        ),
        ({"x": torch.zeros(40, 3, 8, 8, dtype=torch.uint8), "labels": torch.full((40,), 2)}, "labels that this run"),
        ({"x": torch.zeros(40, 3, 8, 8, dtype=torch.uint8), "labels": torch.zeros(40, dtype=torch.int64)}, "others"),
        (None, "truncated or damaged"),
    ],
)
def test_a_kept_copy_is_not_trusted(forgotten: Run, parts: dict[str, torch.Tensor] | None, needle: str) -> None:
    if parts is None:
        (forgotten.path / DATA_COPY).write_bytes(b"\x10\0\0\0\0\0\0\0{}")
    else:
        save_file(parts, forgotten.path / DATA_COPY)
    with pytest.raises(UserError, match=needle):
        find_data(forgotten, 10)


def test_nothing_is_kept_unasked_and_a_copy_goes_with_its_run(tmp_path: Path) -> None:
    points: Any = {"steps": 2, "batch": 16}
    x = np.random.default_rng(0).normal(size=(50, 2))
    reverie.train(x, tmp_path / "run", keep_data=True, **points)
    assert (tmp_path / "run" / DATA_COPY).exists()
    reverie.train(torch.from_numpy(x), tmp_path / "run", overwrite=True, **points)
    assert not (tmp_path / "run" / DATA_COPY).exists()
    with pytest.raises(UserError, match="keep_data is for a new run"):
        reverie.train(resume=tmp_path / "run", keep_data=True)


def test_inspect_takes_data_in_memory() -> None:
    assert reverie.inspect((X, Y))["labels"] == {"a": 20, "b": 20}


def test_training_is_silent_where_nobody_watches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quiet: Any = {"steps": 2, "points": 50, "batch": 16}
    run = reverie.train("moons", tmp_path / "a", **quiet)
    assert capsys.readouterr() == ("", "")
    reverie.train("moons", tmp_path / "b", progress=True, **quiet)
    out, err = capsys.readouterr()
    assert out == "" and "48 to train, 2 held out" in err and "trained 2 steps" in err and f"run: {tmp_path / 'b'}" in err
    assert api.verdict(run).lines[2] in err


def test_a_terminal_shows_a_bar(tmp_path: Path) -> None:
    code = f"import reverie; reverie.train('moons', {str(tmp_path / 'run')!r}, steps=10, points=200, batch=16)"
    terminal = "import pty, sys; sys.exit(pty.spawn([sys.executable, '-c', sys.argv[1]]) >> 8)"
    done = subprocess.run([sys.executable, "-c", terminal, code], capture_output=True, timeout=300, check=True)
    assert b"\x1b[" in done.stdout and "━".encode() in done.stdout and b"trained 10 steps" in done.stdout


def test_notebooks_are_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_interactive()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))  # loaded, but not at work
    assert not is_interactive()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: "a shell"))
    assert is_interactive()


def test_images_too_many_for_memory_are_not_kept() -> None:
    with pytest.raises(UserError, match="keep_data"):
        check_copyable(Dataset("many", FileImages((), (), Recipe(8, 8, 3))))


def test_tab_lists_the_verbs_alone() -> None:
    assert dir(reverie) == sorted(reverie.__all__) and {"train", "sample", "evaluate", "load"} <= set(dir(reverie))


@pytest.mark.parametrize("name", VERBS)
def test_signatures_help(name: str) -> None:
    verb = getattr(reverie, name)
    parameters = inspect.signature(verb).parameters
    assert f"`reverie.{name}(" in verb.__doc__  # an example
    for p in parameters.values():
        assert "Any" not in str(p.annotation).replace("Mapping[str, Any]", "") and p.annotation is not p.empty, p
        assert p.kind is not p.VAR_KEYWORD or "Unpack" in str(p.annotation), p
    if "on_progress" in parameters:
        assert parameters["on_progress"].annotation == "OnProgress | None"
    if name not in ("load", "train_classifier", "text_cost", "answers"):
        assert "out" in parameters


def test_every_option_of_training_has_a_type() -> None:
    taken = {*inspect.signature(prepare.prepare).parameters, *inspect.signature(prepare.resume).parameters}
    flags = {parameter.name for parameter in options_of_training().values()}
    of_families = {key for key in prepare.FAMILY_OPTIONS if key in flags}  # others are given with the family's name
    known = taken | {*prepare.READING, *TrainingConfig.model_fields, *FAMILIES["diffusion"].option_names, *of_families}
    assert set(TrainingOptions.__annotations__) == known - {*prepare.NO_OPTIONS}


@pytest.mark.parametrize("sampler", ["ddpm", "ddim"])
def test_image_k_of_a_seed_is_drawn_alone(kept: Run, sampler: str) -> None:
    options: Any = {"seed": 5, "steps": 4, "sampler": sampler}
    whole = kept.sample(5, **options)
    for k in (0, 3):
        alone = reverie.sample(kept, 1, first=k, **options)
        np.testing.assert_allclose(alone[0], whole[k], atol=1e-6)
        assert alone.labels == whole.labels[k : k + 1]  # type: ignore[index]
    np.testing.assert_allclose(kept.sample(3, first=2, film=True, **options).x, whole.x[2:], atol=1e-6)
    for wrong in (-1, 1.5, 10**13):
        with pytest.raises(UserError, match="index of the first sample"):
            kept.sample(1, first=wrong, **options)


def test_samples_are_handy(kept: Run, tmp_path: Path) -> None:
    samples = reverie.sample(kept, 4, steps=2, label="a", out=tmp_path / "s.png")
    assert (tmp_path / "s.png").exists() and repr(samples) == "Samples(4 images of 8x8x3, label a)"
    assert samples[0].shape == (8, 8, 3) and np.array_equal(samples[-1], samples.x[3])
    assert len(samples[1:3]) == 2 and samples[1:3].labels == ["a", "a"] and len(list(samples)) == 4
    assert [image.size for image in samples.images] == [(8, 8)] * 4 and samples.images[0].mode == "RGB"
    assert np.array_equal(np.asarray(samples.images[2]), (samples[2] * 255).round())
    assert repr(kept).endswith("diffusion of data: 40 images of 8x8x3)") and len(repr(kept)) < 200


def test_samples_of_points_have_no_images(spiral_run: Run) -> None:
    samples = spiral_run.sample(3, steps=2)
    assert repr(samples) == "Samples(3 points of 2 coordinates)" and samples[1].shape == (2,)
    with pytest.raises(UserError, match=r"use \.x"):
        _ = samples.images


def test_every_result_saves_itself(kept: Run, tmp_path: Path) -> None:
    few: Any = {"steps": 2}
    made = {
        "edit": reverie.edit(kept, X[0], 0.5, out=tmp_path / "edit.png", **few),
        "invert": reverie.invert(kept, X[0], out=tmp_path / "invert.png", **few),
        "interpolate": reverie.interpolate(kept, 1, 2, 3, out=tmp_path / "interpolate.gif", **few),
        "illusion": reverie.illusion(kept, "identity,rotate180", out=tmp_path / "illusion.png", **few),
        "inpaint": reverie.inpaint(kept, X[0], mask="left-half", n=2, out=tmp_path / "inpaint.png", **few),
        "restore": reverie.restore(kept, X[0], task="deblur", n=2, out=tmp_path / "restore.png", **few),
    }
    assert {path.stem for path in tmp_path.iterdir()} == set(made)
    for name, result in made.items():
        assert result.save(tmp_path / f"{name}.npy") == [tmp_path / f"{name}.npy"]
        assert np.isfinite(np.load(tmp_path / f"{name}.npy")).all() and len(repr(result)) < 120
    with pytest.raises(UserError, match=r"edit\.txt.*\.png"):
        reverie.edit(kept, X[0], out=tmp_path / "edit.txt")
