"""The command line as a user meets it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import imageio.v3 as iio
import numpy as np
import pytest
from PIL import Image, ImageSequence

from reverie import api
from reverie.data import DATASETS
from reverie.diffusion.samplers import GRIDS, SAMPLERS
from reverie.diffusion.schedules import SCHEDULES
from reverie.diffusion.views import VIEWS
from reverie.gallery import autodiff, coloring, embeddings
from reverie.nets import NETWORKS
from reverie.runs.run import Run


def test_help_does_not_load_torch() -> None:
    code = "import sys; sys.argv = ['reverie', '--help']\nfrom reverie.cli.main import main\n"
    code += "try: main()\nexcept SystemExit as end: assert end.code == 0\n"
    code += "assert not {'torch', 'numpy', 'matplotlib', 'sklearn'} & set(sys.modules), 'heavy import'"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for word in ("train", "sample", "evaluate", "inspect", "gallery", "--version"):
        assert word in done.stdout


def test_version_and_list(command) -> None:
    assert command("--version")[1].startswith("reverie 0.")
    code, out, _ = command("list", "--json")
    listed = json.loads(out)
    for kind, table in {"data": DATASETS, "schedules": SCHEDULES, "samplers": SAMPLERS, "grids": GRIDS, "views": VIEWS}.items():
        assert code == 0 and listed[kind] == list(table)
    assert set(NETWORKS) < set(listed["networks"]) and "unet-tiny" in listed["networks"]
    assert "ddim" in command("list", "samplers")[1]


def test_train_sample_evaluate_inspect(command, tmp_path: Path) -> None:
    run = tmp_path / "run"
    code, out, err = command("train", "spiral", "--out", run, "--steps", 200, "--points", 500)
    assert code == 0 and f"reverie sample {run} -n 2000" in out and "475 to train, 25 held out" in err
    assert Image.open(run / "loss.png").size[0] > 400

    points = tmp_path / "deep" / "points.npy"
    code, out, _ = command("sample", run, "-n", 20, "--out", points, "--seed", 4, "--json")
    assert code == 0 and json.loads(out) == {"files": [str(points)], "samples": 20, "seed": 4}
    x = np.load(points)
    assert x.shape == (20, 2) and x.dtype == np.float32

    code, out, _ = command("evaluate", run, "-n", 200, "--steps", 10, "--json")
    figures = json.loads(out)
    assert (
        code == 0 and figures["samples"] == 200 and {"mean_distance", "coverage_ks", "sliced_wasserstein_floor"} <= set(figures)
    )

    code, out, _ = command("inspect", run, "--json")
    assert code == 0 and json.loads(out)["steps"] == 200 and json.loads(out)["finished"]
    code, out, _ = command("inspect", "patterns", "--out", tmp_path / "patterns.png")
    assert code == 0 and "spiral 2,000" in out and (tmp_path / "patterns.png").exists()


def test_quiet_prints_nothing(command, tmp_path: Path) -> None:
    assert command("train", "moons", "--out", tmp_path / "run", "--steps", 3, "--quiet") == (0, "", "")
    assert command("sample", tmp_path / "run", "--out", tmp_path / "x.png", "--steps", 3, "-q") == (0, "", "")
    assert (tmp_path / "x.png").exists()


def test_the_film_shows_both_panels_and_holds_its_end(command, spiral_run: Run, tmp_path: Path) -> None:
    for name in ("film.gif", "film.mp4"):
        assert command("sample", spiral_run.path, "-n", 100, "--steps", 12, "--out", tmp_path / name)[0] == 0
    film = Image.open(tmp_path / "film.gif")
    durations = [frame.info["duration"] for frame in ImageSequence.Iterator(film)]
    assert len(durations) == 13 and durations[-1] >= 1500 and durations[0] == 250 and film.width > 1.6 * film.height
    frames = iio.imread(tmp_path / "film.mp4", plugin="FFMPEG")
    assert len(frames) == 13 + 8 and frames.shape[2] > 1.6 * frames.shape[1]

    def std_of(panel: np.ndarray) -> float:
        """How far apart the dots of a panel lie, below its title and inside its frame."""
        inner = panel[45:-15, 15:-15].min(-1) < 200
        return float(np.nonzero(inner)[1].std())

    middle = frames.shape[2] // 2
    assert std_of(frames[0][:, :middle]) > 1.5 * std_of(frames[0][:, middle:])  # noise on the left, the mean on the right
    assert std_of(frames[-1][:, :middle]) == pytest.approx(std_of(frames[-1][:, middle:]), rel=0.05)
    assert np.abs(frames[-1].astype(int) - frames[-8]).mean() < 1 < np.abs(frames[-1].astype(int) - frames[0]).mean()


def test_a_folder_gets_points_picture_and_labels(command, patterns_run: Run, tmp_path: Path) -> None:
    out = tmp_path / "images"
    assert (
        command("sample", patterns_run.path, "-n", 6, "--label", "all", "--guidance", 2, "--steps", 5, "--out", f"{out}/")[0]
        == 0
    )
    assert sorted(p.name for p in out.glob("[!.]*")) == ["picture.png", "points.labels.csv", "points.npy"]
    assert (out / "points.labels.csv").read_text().split() == [
        "index,label", "0,spiral", "1,moons", "2,circles", "3,checkerboard", "4,pinwheel", "5,spiral",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "pictures"),
    [
        ("transport", {"line", "clouds", "potentials", "convergence", "supports"}),
        ("kernels", {"gram", "components", "features", "texts"}),
    ],
)
def test_galleries_without_a_run(command, name: str, pictures: set[str], tmp_path: Path) -> None:
    assert command("gallery", name, "--out", tmp_path / "g")[0] == 0
    assert {p.stem for p in (tmp_path / "g").iterdir()} == pictures
    code, _, err = command("gallery", name, "--seed", -1, "--out", tmp_path / "h")
    assert code == 2 and "seed" in err


def test_galleries(command, spiral_run: Run, patterns_run: Run, tmp_path: Path) -> None:
    for name, pictures in (
        ("embeddings", embeddings.PICTURES),
        ("coloring", coloring.PICTURES),
        ("autodiff", autodiff.PICTURES),
    ):
        assert command("gallery", name, "--out", tmp_path / name)[0] == 0
        assert sorted(p.stem for p in (tmp_path / name).iterdir()) == sorted(pictures)
    assert command("gallery", "spiral", spiral_run.path, "--out", tmp_path / "s")[0] == 0
    wanted = {"forward.png", "reverse.png", "distance.png", "history.png", "forward.gif", "optimal.gif"}
    assert {p.name for p in (tmp_path / "s").iterdir()} == wanted
    film = Image.open(tmp_path / "s" / "optimal.gif")
    assert film.n_frames == 41
    code, _, err = command("gallery", "spiral", patterns_run.path, "--out", tmp_path / "p")
    assert code == 2 and "'patterns'" in err and "'spiral'" in err


def test_overwrite_replaces_a_run(command, tmp_path: Path) -> None:
    for _ in range(2):
        assert command("train", "moons", "--out", tmp_path / "r", "--steps", 2, "--overwrite")[0] == 0


def test_without_out_a_new_folder_is_chosen(command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("runs/moons", "runs/moons-2"):
        assert f"run:     {folder}" in command("train", "moons", "--steps", 2)[1]


def test_a_warning_is_one_line(command, tmp_path: Path) -> None:
    code, _, err = command("train", "spiral", "--out", tmp_path / "r", "--steps", 2, "--schedule", "scaled-linear", "-q")
    assert code == 0 and err.startswith("warning: the schedule ends at alpha = 0.0683") and err.count("\n") == 1


def test_control_c_saves_and_leaves_no_traceback(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = [sys.executable, "-m", "reverie", "train", "spiral", "--out", str(run), "--minutes", "5"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    waited = time.monotonic()
    while not (run / "model.safetensors").exists() and time.monotonic() - waited < 60:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in err and "reverie train --resume" in err
    assert api.load(run).sample(3).x.shape == (3, 2)
