"""Steering a run: classifier guidance, illusions, edits, inversion, interpolation, from Python and from the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import imageio.v3 as iio
import numpy as np
import pytest
import torch
from PIL import Image
from typer.main import get_command

import reverie
from reverie.base.errors import UserError
from reverie.cli.main import app
from reverie.data.single_image import read_picture
from reverie.diffusion.classifier import Classifier
from reverie.diffusion.guidance import ClassifierGuided
from reverie.diffusion.pair import Pair
from reverie.diffusion.schedule import Cosine, Rectified
from reverie.families.language.token_sampling import OPTIONS
from reverie.runs.classifier_file import CLASSIFIER_FILE, ClassifierFacts, read_classifier, write_classifier
from reverie.runs.run import Run, load
from reverie.runs.sampling_options import Options


@pytest.fixture(scope="module")
def run(digits_run: Run) -> Run:
    return digits_run


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of points without labels."""
    return reverie.train("moons", tmp_path_factory.mktemp("runs") / "moons", steps=2)


@pytest.fixture(scope="module")
def image(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("images") / "seven.png"
    pixels = np.zeros((8, 8), np.uint8)
    pixels[1, 1:7] = pixels[2:7, 5] = 220
    Image.fromarray(pixels).save(path)
    return path


def test_the_noise_aware_classifier_guides(command, run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run.path, folder)
    code, _, err = command("sample", folder, "--label", "3", "--classifier-guidance", 2, "--out", tmp_path / "x.png")
    assert code == 2 and err.count("\n") == 1 and f"reverie train-classifier {folder}" in err
    code, out, _ = command("train-classifier", folder, "--steps", 150, "--json")
    found = json.loads(out)["accuracy"]
    assert code == 0 and found["0.05"] > 0.6 and found["0.05"] >= found["0.5"] >= found["0.95"] - 0.1
    mine = load(folder, "cpu")
    plain, guided = (mine.sample(8, label="3", steps=8, classifier_guidance=g).x for g in (0.0, 4.0))
    classifier = mine.classifier()
    shares = [classifier.log_prob(torch.from_numpy(2 * x - 1)[:, None], 0.05, torch.full((8,), 3)) for x in (plain, guided)]
    assert np.isfinite(guided).all() and shares[1].mean() > shares[0].mean()
    code, out, _ = command(
        "sample", folder, "--label", "3", "--guidance", 0, "--classifier-guidance", 2, "--steps", 3, "--out", tmp_path / "x.png"
    )
    assert code == 0 and Image.open(tmp_path / "x.png").width > 100

    file = folder / CLASSIFIER_FILE
    whole = file.read_bytes()
    for content, message in (
        (whole[: len(whole) // 2], "damaged"),
        (b"pickle", "damaged"),
        (whole.replace(mine.config.data.fingerprint.encode(), b"0" * 16), "checksum is wrong"),
        ((run.path / "model.safetensors").read_bytes(), "metadata"),
    ):
        file.write_bytes(content)
        with pytest.raises(UserError, match=message):
            read_classifier(folder, mine.config)
    write_classifier(folder, classifier, ClassifierFacts(fingerprint="0" * 16, steps=1, seconds=1, seed=0, held_out=1))
    with pytest.raises(UserError, match="different data"):
        read_classifier(folder, mine.config)
    assert command("train", "moons", "--out", folder, "--steps", 1, "--overwrite", "-q")[0] == 0 and not file.exists()


def test_the_classifier_is_one_for_all_schedules_and_vanishes_with_the_signal() -> None:
    one = Classifier(Cosine(), (1, 8, 8), 3, 0.6)
    other = Classifier(Rectified(), (1, 8, 8), 3, 0.6)
    other.load_state_dict(one.state_dict())
    x, s = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0)), 0.4
    t = float(other.schedule.invert(one.schedule.log_snr(s)))
    sizes = [(a**2 + b**2) ** 0.5 for a, b in (one.schedule(s), other.schedule(t))]
    torch.testing.assert_close(one(x, s), other(x * sizes[1] / sizes[0], t), rtol=1e-4, atol=1e-5)

    class Nothing(torch.nn.Module):
        schedule = other.schedule

        def forward(self, x: torch.Tensor, t: float, cond: object) -> Pair:
            return Pair(torch.zeros_like(x), x)

    guided = ClassifierGuided(Nothing(), other.log_prob, 1.0)  # type: ignore[arg-type]
    shifts = [guided(x, t, torch.arange(4) % 3).x0.detach() for t in (1.0, 0.9999, 0.999)]
    assert shifts[0].isfinite().all() and float(shifts[0].abs().max()) > 0
    torch.testing.assert_close(shifts[0], shifts[1], rtol=1e-2, atol=1e-3)
    torch.testing.assert_close(shifts[0], shifts[2], rtol=5e-2, atol=5e-3)
    assert torch.equal(guided(x, 1.0, torch.arange(4) % 3).eps, x)  # at pure noise eps is x itself


def test_composition_and_intervals_from_the_command_line(command, run: Run, tmp_path: Path) -> None:
    out = tmp_path / "x.npy"
    words = ("sample", run.path, "-n", 4, "--steps", 4, "--out", out, "-q")
    assert command(*words, "--label", "6:1.5,8:-1")[0] == 0
    composed = np.load(out)
    assert (tmp_path / "x.labels.csv").read_text().count("6:1.5,8:-1") == 4
    assert command(*words, "--label", "6:1")[0] == 0
    single = np.load(out)
    assert command(*words, "--label", "6")[0] == 0
    assert np.array_equal(single, np.load(out)) and not np.array_equal(single, composed)
    assert command(*words, "--label", "6", "--guidance", 3, "--guidance-interval", "0.3,0.7", "--guidance-rescale", 0.7)[0] == 0
    assert not np.array_equal(single, np.load(out))


def test_illusions_are_sampled_and_filmed(command, run: Run, tmp_path: Path) -> None:
    made = reverie.illusion(run, "identity,rotate180", "6,9", 3, steps=4, seed=2)
    assert made.x.shape == (3, 8, 8) and made.titles == ["identity: 6", "rotate180: 9"]
    assert np.allclose(made.in_view(1), made.x[:, ::-1, ::-1], atol=1e-6)
    first = reverie.illusion(run, "identity,rotate180", "6,9", 1, steps=4, seed=2)
    assert np.allclose(first.x[0], made.x[0], atol=1e-5)  # a picture does not depend on its batch
    words = (
        "illusion",
        run.path,
        "--views",
        "identity,flip_vertical,patches:count=2,seed=1",
        "--labels",
        "6,9,0",
        "--steps",
        3,
    )
    for name in ("i.png", "i.gif", "i.mp4", "i.npy"):
        code, out, _ = command(*words, "-n", 2, "--out", tmp_path / name)
        assert code == 0 and "patches:count=2,seed=1: 0" in out
    assert len(iio.imread(tmp_path / "i.mp4", plugin="FFMPEG")) > 100 and np.load(tmp_path / "i.npy").shape == (2, 8, 8)
    assert reverie.illusion(run, ["identity", "negate"], n=1, steps=2).titles == ["identity", "negate"]


def test_edits_go_from_the_image_to_a_new_one(command, run: Run, image: Path, tmp_path: Path) -> None:
    made = reverie.edit(run, image, (0.02, 0.5, 1.0), 3, label="3", seed=4, steps=10, sampler="heun")
    assert made.x.shape == (3, 3, 8, 8)
    assert np.abs(made.x[0] - made.image).mean() < 0.05 < np.abs(made.x[2] - made.image).mean()
    new = run.sample(3, label="3", seed=4, steps=10, sampler="heun").x
    assert np.array_equal(made.x[2], new)  # strength 1 is plain sampling
    Image.fromarray(np.zeros((20, 30, 3), np.uint8)).save(tmp_path / "wide.png")
    code, out, err = command(
        "edit", run.path, tmp_path / "wide.png", "--strength", "0.3,0.8", "-n", 2, "--steps", 3, "--out", tmp_path / "e.png"
    )
    assert (
        code == 0
        and "wrote" in out
        and "of 20x30 pixels was resized to 8x8 (crop)" in err
        and Image.open(tmp_path / "e.png").width > 300
    )


def test_inversion_reconstructs_the_image(command, run: Run, image: Path, tmp_path: Path) -> None:
    found = [reverie.invert(run, image, steps=steps, sampler="heun", label="7") for steps in (6, 24)]
    assert found[1].error < found[0].error and found[1].error < 0.05 and found[1].noise.shape == (8, 8)
    code, out, _ = command("invert", run.path, image, "--sampler", "ddim", "--steps", 5, "--out", tmp_path / "i.png", "--json")
    found = json.loads(out)
    assert code == 0 and found["rms_error"] > 0 and found["evaluations"] == 1 + 5 + 5
    assert Image.open(tmp_path / "i.png").width > 500


def test_interpolation_between_seeds_and_images(command, run: Run, image: Path, tmp_path: Path) -> None:
    options = {"sampler": "ddim", "steps": 6, "label": "7"}
    film = reverie.interpolate(run, 3, 5, 5, **options)  # type: ignore[arg-type]
    ends = [run.sample(1, seed=seed, **options).x[0] for seed in (3, 5)]  # type: ignore[arg-type]
    assert film.x.shape == (5, 8, 8) and repr(film) == "Interpolation(5 images of 8x8x1)"
    assert np.allclose(film.x[0], ends[0], atol=1e-5) and np.allclose(film.x[-1], ends[1], atol=1e-5)
    for name in ("w.mp4", "w.gif", "w.png", "w.npy"):
        words = ("interpolate", run.path, "--from", image, "--to", 5, "--frames", 6, "--steps", 3)
        assert command(*words, "--out", tmp_path / name)[0] == 0
    assert len(iio.imread(tmp_path / "w.mp4", plugin="FFMPEG")) >= 20 and np.load(tmp_path / "w.npy").shape == (6, 8, 8)


def test_the_guidance_sheet(command, run: Run, tmp_path: Path) -> None:
    sheet = tmp_path / "g.png"
    assert command("gallery", "guidance", run.path, "--scales", "1,3", "--steps", 2, "--out", sheet)[0] == 0
    assert Image.open(sheet).height > Image.open(sheet).width


def test_points_are_guided_too(command, tmp_path: Path) -> None:
    points = reverie.train("patterns", tmp_path / "run", steps=20, points=2000)
    found = reverie.train_classifier(points, steps=500)
    assert found["0.05"] > 0.26  # of five patterns that overlap
    x = points.sample(50, label="moons", guidance=2.0, guidance_interval=(0.2, 0.8), classifier_guidance=1.0, steps=5).x
    assert x.shape == (50, 2) and np.isfinite(x).all()
    assert command("gallery", "guidance", points.path, "--scales", "1,4", "--steps", 3, "--out", tmp_path / "g.png")[0] == 0
    code, _, err = command("sample", points.path, "--label", "moons", "--guidance", 2, "--guidance-rescale", 0.5)
    assert code == 2 and "model of points" in err


def test_single_images_are_read_safely(tmp_path: Path) -> None:
    Image.fromarray(np.full((4, 4, 4), 255, np.uint8)).save(tmp_path / "a.png")
    x = read_picture(tmp_path / "a.png", (3, 4, 4), "image").x
    assert x.shape == (3, 4, 4) and float(x.min()) == 1.0
    (tmp_path / "b.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"junk" * 10)
    for name, message in (("b.png", "cannot be read"), ("c.png", "no such file"), (".", "is a folder")):
        with pytest.raises(UserError, match=message):
            read_picture(tmp_path / name, (1, 8, 8), "image")


LABELLED = {"label": "3", "steps": 4}
DRAWN = {
    "sample": lambda run, image, **options: run.sample(2, **LABELLED | options).x,
    "inpaint": lambda run, image, **options: reverie.inpaint(run, image, mask="left-half", n=1, **LABELLED | options).x,
    "inpaint-replace": lambda run, image, **options: (
        reverie.inpaint(run, image, mask="left-half", n=1, method="replace", **LABELLED | options).x
    ),
    "restore": lambda run, image, **options: reverie.restore(run, image, task="deblur", n=1, **LABELLED | options).x,
    "edit": lambda run, image, **options: reverie.edit(run, image, 0.8, **LABELLED | options).x,
    "invert": lambda run, image, **options: reverie.invert(run, image, **LABELLED | options).noise,
    "interpolate": lambda run, image, **options: reverie.interpolate(run, 1, 2, 2, **LABELLED | options).x,
    "illusion": lambda run, image, **options: reverie.illusion(run, "identity,rotate180", "6,9", **{"steps": 4} | options).x,
}
CHANGES = [
    ({}, {"guidance": 4.0}),
    ({"guidance": 4.0}, {"guidance": 4.0, "guidance_interval": "0.3,0.9"}),
    ({"guidance": 4.0}, {"guidance": 4.0, "guidance_rescale": 0.7}),
    ({}, {"classifier_guidance": 5.0}),
    ({}, {"precision": "bf16"}),
    ({}, {"steps": 5}),
    ({}, {"grid": "quadratic"}),
]


@pytest.fixture(scope="module")
def classified(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with a classifier."""
    folder = tmp_path_factory.mktemp("runs") / "classified"
    shutil.copytree(run.path, folder)
    reverie.train_classifier(folder, steps=30)
    return load(folder, "cpu")


@pytest.mark.parametrize("name", DRAWN)
def test_every_function_that_samples_takes_every_sampling_option(name: str, classified: Run, image: Path) -> None:
    for before, after in CHANGES:
        if name in ("inpaint", "restore") and "precision" in after:
            with pytest.raises(UserError, match="bf16"):
                DRAWN[name](classified, image, **after)
        else:
            plain, changed = (DRAWN[name](classified, image, **options) for options in (before, after))
            assert np.isfinite(changed).all() and not np.array_equal(plain, changed), after


@pytest.mark.parametrize(
    ("name", "without"),
    [("sample", ()), ("evaluate", ()), ("inpaint", ()), ("restore", ()), ("edit", ()), ("illusion", ("label",)),
     ("invert", ("seed",)), ("interpolate", ("seed",))],
)  # fmt: skip
def test_every_command_that_samples_has_every_sampling_option(name: str, without: tuple[str, ...]) -> None:
    offered = [parameter.name for parameter in get_command(app).commands[name].params]
    of_text = set() if name in ("sample", "evaluate") else (set(OPTIONS) | {"beams"}) - {"prompt"}
    assert set(Options.__annotations__) - set(without) - of_text <= set(offered) and len(offered) == len(set(offered))
    assert not set(without) & set(offered)


MISTAKES = [
    (("edit", "{run}", "{image}", "--guidance-interval", "0.2,0.8"), "guidance needs a label"),
    (("edit", "{run}", "{image}", "--guidance-rescale", "0.5"), "guidance needs a label"),
    (("edit", "{run}", "{image}", "--strength", "1", "--grid", "level:t=0.5", "--sampler", "langevin"), "level"),
    (("interpolate", "{run}", "--from", "1", "--to", "2", "--label", "all"), "one label"),
    (("sample", "{run}", "--label", "12"), "unknown label '12'"),
    (("sample", "{run}", "--label", "6:1,12:2"), "unknown label '12'"),
    (("sample", "{bare}", "--guidance", "2"), "without labels"),
    (("sample", "{bare}", "--guidance-interval", "0.2,0.8"), "without labels"),
    (("sample", "{bare}", "--guidance-rescale", "0.5"), "without labels"),
    (("sample", "{bare}", "--classifier-guidance", "1"), "without labels"),
    (("sample", "{run}", "--guidance-rescale", "0.5"), "other than 1"),
    (("sample", "{run}", "--guidance", "2", "--guidance-interval", "0.8,0.2"), "low < high"),
    (("sample", "{run}", "--guidance", "2", "--guidance-interval", "0.8"), "two ends"),
    (("sample", "{run}", "--guidance", "2", "--guidance-rescale", "3"), "between 0"),
    (("sample", "{run}", "--classifier-guidance", "nan"), "within"),
    (("train-classifier", "{bare}"), "no labels"),
    (("train-classifier", "{run}", "--steps", "0"), "above 0"),
    (("train-classifier", "{run}", "--steps", "5", "--minutes", "1"), "only one of"),
    (("train-classifier", "{tmp}/nowhere"), "there is no run"),
    (("illusion", "{run}", "--views", "identity,rotate45", "--labels", "6,9"), "unknown view"),
    (("illusion", "{run}", "--views", "identity,rotate180", "--labels", "6"), "2 views need 2 labels"),
    (("illusion", "{run}", "--views", "identity,rotate180", "--labels", "6,x"), "unknown label 'x'"),
    (("illusion", "{run}", "--views", "identity,rotate180", "--labels", "6,9", "--out", "{tmp}/x.jpg"), "ends in .png"),
    (("illusion", "{run}", "--views", "identity", "--labels", "6", "-n", "0"), "from 1 to"),
    (("illusion", "{bare}", "--views", "identity"), "images"),
    (("edit", "{run}", "{image}", "--strength", "1.2"), "got 1.2"),
    (("edit", "{run}", "{image}", "--strength", "0"), "got 0"),
    (("edit", "{run}", "{image}", "--steps", "0"), "between 1 and"),
    (("edit", "{run}", "{tmp}/none.png"), "no such file"),
    (("edit", "{run}", "{run}/config.toml"), "not an image"),
    (("edit", "{run}", "{image}", "--label", "x"), "unknown label"),
    (("edit", "{run}", "{image}", "--guidance", "3"), "needs a label"),
    (("edit", "{run}", "{image}", "--grid", "zigzag"), "zigzag"),
    (("edit", "{bare}", "{image}"), "run of points"),
    (("invert", "{run}", "{image}", "--sampler", "ddpm"), "ddim or heun"),
    (("invert", "{run}", "{image}", "--sampler", "ddim:eta=1"), "ddim or heun"),
    (("invert", "{run}", "{image}", "--steps", "1"), "at least 2 times"),
    (("interpolate", "{run}", "--from", "1", "--to", "{tmp}/none.png"), "no such file"),
    (("interpolate", "{run}", "--from", "1", "--to", "2", "--frames", "1"), "from 2 to"),
    (("interpolate", "{bare}", "--from", "1", "--to", "2"), "run of points"),
    (("gallery", "guidance", "{bare}", "--out", "{tmp}/g.png"), "without labels"),
]


@pytest.mark.parametrize(("words", "message"), MISTAKES, ids=lambda v: " ".join(v) if isinstance(v, tuple) else "")
def test_user_errors(
    command, run: Run, bare: Run, image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = command(*(w.format(tmp=tmp_path, run=run.path, bare=bare.path, image=image) for w in words))
    assert code == 2 and out == ""
    assert err.startswith("error: ") and err.count("\n") == 1 and message in err
    assert not list(tmp_path.iterdir())
