"""Samples on their way to disk."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from reverie import run as run_module
from reverie import verbs
from reverie.gallery.samplers import BUDGETS, draw_cell
from reverie.picture import coloured
from reverie.run import Run
from reverie.samplers import SAMPLERS
from reverie.samples import Samples, write


def halves(n: int, labels: bool) -> list[Samples]:
    x = np.random.default_rng(0).random((n, 4, 3)).astype(np.float32)
    names = [str(k) for k in range(n)] if labels else None
    cut = n // 2 + 1
    return [Samples(part, names and names[k * cut :][:cut]) for k, part in enumerate((x[:cut], x[cut:]))]


@pytest.mark.parametrize("labels", [False, True])
def test_batches_make_one_file_or_folder(labels: bool, tmp_path: Path) -> None:
    parts = halves(11, labels)
    files = write(parts, 11, tmp_path / "all.npy")
    np.testing.assert_array_equal(np.load(files[0]), np.concatenate([p.x for p in parts]))
    assert len(files) == 1 + labels
    images = write(parts, 11, tmp_path / "folder")
    assert [f.name for f in images[:3]] == ["00.png", "01.png", "02.png"] and len(images) == 11 + labels
    assert Image.open(images[10]).size == (3, 4)
    if labels:
        assert files[-1].read_text() == images[-1].read_text() and files[-1].read_text().split()[-1] == "10,10"


def test_a_failure_on_the_way_leaves_no_array(tmp_path: Path) -> None:
    def failing():
        yield halves(11, True)[0]
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write(failing(), 11, tmp_path / "all.npy")
    assert not list(tmp_path.iterdir())


def test_the_samples_are_the_same_in_batches_of_any_size(patterns_run: Run, monkeypatch, tmp_path: Path) -> None:
    whole = patterns_run.sample(25, steps=5, seed=3, sampler="ddpm")
    monkeypatch.setattr(run_module, "BATCH_VALUES", 14)
    told: list[tuple[int, int]] = []
    options = {"steps": 5, "seed": 3, "sampler": "ddpm"}
    verbs.sample_to(patterns_run, 25, tmp_path / "x.npy", on_progress=lambda *now: told.append(now), **options)
    np.testing.assert_allclose(np.load(tmp_path / "x.npy"), whole.x, atol=1e-5)
    labels = [line.split(",")[1] for line in (tmp_path / "x.labels.csv").read_text().split()[1:]]
    assert labels == whole.labels and told == [(k + 1, 20) for k in range(20)]


MEMORY = """
import resource, sys
import numpy as np
from reverie.samples import Samples, write
count = int(sys.argv[1])
write((Samples(np.zeros((100, 28, 28, 3), np.float32)) for _ in range(count // 100)), count, sys.argv[2])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def test_writing_takes_constant_memory(tmp_path: Path) -> None:
    """20,000 images are 188 MB: writing them must not need more than writing 200."""
    few, many = (
        int(subprocess.run([sys.executable, "-c", MEMORY, str(n), tmp_path / "x.npy"], capture_output=True, text=True).stdout)
        for n in (200, 20_000)
    )
    assert (tmp_path / "x.npy").stat().st_size > 188e6 and many < few + 20


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_gallery_spends_what_it_says(name: str, spiral_run: Run) -> None:
    cell = draw_cell(spiral_run, name, 1, 3, 0, None)
    assert cell.x.shape == (3, 2) and (name == "rk45" or 0 < cell.evaluations <= BUDGETS[1])


def test_the_gallery_of_samplers(command, spiral_run: Run, tmp_path: Path) -> None:
    code, out, _ = command("gallery", "samplers", spiral_run.path, "--out", tmp_path / "sheet.png")
    assert code == 0 and "sheet.png" in out and Image.open(tmp_path / "sheet.png").height > 1500


def test_what_is_transparent_is_shown_over_white() -> None:
    clear = np.zeros((2, 3, 3, 4), np.uint8)
    assert coloured(clear, 2).shape == (2, 6, 6, 3) and (coloured(clear, 2) == 255).all()
    grey = np.full((1, 2, 2), 7, np.uint8)
    assert (coloured(grey) == 7).all() and coloured(grey).shape == (1, 2, 2, 3)
