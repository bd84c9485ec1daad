"""Inpainting and restoring end to end: exact known pixels, results, and user errors."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import reverie
from reverie.base.errors import ReverieWarning, UserError
from reverie.base.spec import build
from reverie.data.curve import closest_on_spiral
from reverie.data.single_image import read_mask, read_picture
from reverie.diffusion.condition import NULL
from reverie.diffusion.known import INPAINTERS
from reverie.diffusion.measurements import MEASUREMENTS
from reverie.runs.run import Run
from tests.conftest import TINY
from tests.training.test_image_runs import draw_folder


@pytest.fixture
def grey_run(digits_run: Run) -> Run:
    return digits_run


@pytest.fixture(scope="module")
def colour_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("runs")
    return reverie.train(str(draw_folder(folder / "x", "RGB", (8, 12))), folder / "colour", steps=4, network=TINY, batch=4)


@pytest.fixture
def pixels() -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, (8, 8), dtype=np.uint8)


@pytest.mark.parametrize("method", INPAINTERS)
def test_known_pixels_of_an_8_bit_file_are_exact(command, grey_run: Run, pixels, method: str, tmp_path: Path) -> None:
    fill = np.random.default_rng(4).random((8, 8)) < 0.5
    Image.fromarray(pixels).save(tmp_path / "image.png")
    Image.fromarray(np.where(fill, 255, 0).astype(np.uint8)).save(tmp_path / "mask.png")
    words = ("inpaint", grey_run.path, tmp_path / "image.png", "--mask", tmp_path / "mask.png", "-n", 3, "--steps", 4)
    code, out, err = command(*words, "--method", method, "--out", f"{tmp_path}/out/", "--json")
    found = json.loads(out)
    assert code == 0 and err == "" and found["results"] == 3 and found["method"] == method
    assert sorted(p.name for p in (tmp_path / "out").glob("[!.]*")) == ["0.png", "1.png", "2.png", "sheet.png"]
    results = np.stack([np.asarray(Image.open(tmp_path / "out" / f"{k}.png")) for k in range(3)])
    assert results.dtype == np.uint8 and (results[:, ~fill] == pixels[~fill]).all()
    assert (results[0][fill] != results[1][fill]).any()  # a seed each
    assert ("solver_residual" in found) == (method == "moment")


def test_known_pixels_of_colour_and_of_arrays_are_exact(command, colour_run: Run, tmp_path: Path) -> None:
    image = np.random.default_rng(5).random((8, 12, 3)).astype(np.float32)
    np.save(tmp_path / "image.npy", image)
    words = ("inpaint", colour_run.path, tmp_path / "image.npy", "--mask", "2:6,3:9", "-n", 2, "--steps", 3, "--label", "dark")
    assert command(*words, "--out", tmp_path / "out.npy")[0] == 0
    made = np.load(tmp_path / "out.npy")
    known = np.ones((8, 12), bool)
    known[2:6, 3:9] = False
    assert made.shape == (2, 8, 12, 3) and (made[:, known] == image[known]).all() and (made[:, ~known] != image[~known]).any()
    Image.fromarray((image * 255).astype(np.uint8)).save(tmp_path / "image.png")
    mask = np.zeros((8, 12), bool)
    mask[:, :6] = True
    one = reverie.inpaint(colour_run, tmp_path / "image.png", mask=mask, n=1, steps=3, method="replace")
    files = one.save(f"{tmp_path}/folder/")
    assert (np.asarray(Image.open(files[0]))[:, 6:] == (image * 255).astype(np.uint8)[:, 6:]).all() and (one.std == 0).all()


def test_result_k_depends_on_the_seed_and_k_alone(grey_run: Run, pixels, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = reverie.inpaint(grey_run, pixels, mask="top-half", n=3, steps=4, seed=7)
    monkeypatch.setattr(Run, "batch_size", lambda self: 2)
    parts = reverie.inpaint(grey_run, pixels, mask="top-half", n=3, steps=4, seed=7)
    np.testing.assert_allclose(parts.x, whole.x, atol=2e-5)
    other = reverie.inpaint(grey_run, pixels, mask="top-half", n=3, steps=4, seed=8)
    assert np.abs(other.x - whole.x).max() > 0.05
    np.testing.assert_allclose(whole.std, whole.x.std(0, ddof=1), atol=1e-6)


def test_without_a_label_the_label_is_hidden(grey_run: Run, pixels) -> None:
    """Otherwise each result would be conditioned on a random label."""
    seen: list[torch.Tensor] = []
    hook = grey_run.model.denoiser.register_forward_pre_hook(lambda module, args: seen.append(args[2]))
    try:
        reverie.inpaint(grey_run, pixels, mask="centre", n=2, steps=3, method="replace")
        assert seen and all(bool((cond == NULL).all()) for cond in seen)
        made = reverie.inpaint(grey_run, pixels, mask="centre", n=2, steps=3, method="replace", label="all")
        assert made.labels == ["0", "1"] and torch.equal(seen[-1], torch.tensor([0, 1]))
    finally:
        hook.remove()


def test_repaint_uses_the_requested_grid(grey_run: Run, pixels) -> None:
    def drawn(method: str, **options: Any) -> np.ndarray:
        return np.asarray(reverie.inpaint(grey_run, pixels, mask="centre", n=2, steps=6, method=method, **options).x)

    usual = drawn("repaint:repeats=3")
    assert np.array_equal(drawn("repaint:repeats=3", grid="uniform"), usual)
    other = drawn("repaint:repeats=3", grid="quadratic")
    assert not np.array_equal(other, usual) and not np.array_equal(other, drawn("replace", grid="quadratic"))
    with pytest.raises(UserError, match="repaint"):
        drawn("repaint", grid="zigzag")


def test_low_precision_is_refused_with_gradients(grey_run: Run, pixels) -> None:
    reverie.inpaint(grey_run, pixels, mask="centre", n=1, steps=2, method="replace", precision="bf16")
    with pytest.raises(UserError, match="bf16"):
        reverie.inpaint(grey_run, pixels, mask="centre", n=1, steps=2, method="dps", precision="bf16")


def test_too_many_results_and_duplicate_coordinates_are_refused(grey_run: Run, spiral_run: Run, pixels) -> None:
    with pytest.raises(UserError, match="number of samples"):
        reverie.inpaint(grey_run, pixels, mask="centre", n=10**12, steps=1, method="replace")
    with pytest.raises(UserError, match=r"--known.*twice"):
        reverie.inpaint(spiral_run, known="x=1,x=2")


def test_names_with_dollars_are_not_read_as_formulas(grey_run: Run, pixels, tmp_path: Path) -> None:
    made = reverie.inpaint(grey_run, pixels, mask="centre", n=1, steps=2, method="replace")
    dataclasses.replace(made, title="$^$", labels=["$^$"]).save(tmp_path / "sheet.png")
    assert (tmp_path / "sheet.png").exists()


@pytest.mark.parametrize("task", MEASUREMENTS)
@pytest.mark.parametrize("method", ["dps", "moment"])
def test_every_task_is_restored(command, grey_run: Run, colour_run: Run, task: str, method: str, tmp_path: Path) -> None:
    run = colour_run if task == "colour" else grey_run
    shape = run.config.data.shape
    clean = np.random.default_rng(6).random(shape[1:] if shape[0] == 1 else (*shape[1:], 3)).astype(np.float32)
    np.save(tmp_path / "clean.npy", clean)
    words = ("restore", run.path, tmp_path / "clean.npy", "--task", task, "--method", method, "-n", 2, "--steps", 8)
    code, out, _ = command(*words, "--degrade", "--out", tmp_path / "sheet.png", "--json")
    found = json.loads(out)
    assert code == 0 and Image.open(tmp_path / "sheet.png").width > 400
    assert len(found["psnr_each"]) == 2 and found["psnr"] == pytest.approx(np.mean(found["psnr_each"]))
    action = build(MEASUREMENTS, task, "task")
    y = action(torch.from_numpy(np.moveaxis(clean.reshape(*shape[1:], shape[0]), -1, 0).copy())[None])
    np.save(tmp_path / "given.npy", np.moveaxis(y[0].numpy(), 0, -1))
    words = ("restore", run.path, tmp_path / "given.npy", "--task", task, "--method", method, "-n", 2, "--steps", 8)
    code, out, _ = command(*words, "--out", tmp_path / "x.npy", "--json")
    assert code == 0 and "psnr" not in json.loads(out)
    assert json.loads(out)["residual"] == pytest.approx(found["residual"], rel=1e-3)  # the same y, the same seeds
    assert np.load(tmp_path / "x.npy").shape == (2, *clean.shape)


def test_a_coordinate_of_points_is_inpainted(command, spiral_run: Run, tmp_path: Path) -> None:
    words = ("inpaint", spiral_run.path, "--known", "x=0.25", "-n", 60, "--method", "repaint:jump=5,repeats=2")
    assert command(*words, "--out", f"{tmp_path}/out/")[0] == 0
    points = np.load(tmp_path / "out" / "points.npy")
    assert points.shape == (60, 2) and (points[:, 0] == np.float32(0.25)).all()
    assert np.median(closest_on_spiral(points)[1]) < 0.1
    assert (tmp_path / "out" / "sheet.png").exists()


def test_a_picture_of_another_size_is_resized_with_a_warning(grey_run: Run, tmp_path: Path) -> None:
    Image.new("RGB", (30, 20), (200, 10, 10)).save(tmp_path / "big.png")
    with pytest.warns(ReverieWarning, match=r"of 20x30 pixels was resized to 8x8 \(crop\)"):
        reverie.inpaint(grey_run, tmp_path / "big.png", mask="left-half", n=1, steps=2)


def test_masks_are_equal_in_every_form(tmp_path: Path) -> None:
    fill = np.zeros((6, 4), bool)
    fill[:3] = True
    for k, values in enumerate((fill, fill.astype(np.uint8), fill * np.uint8(255), fill.astype(np.float32))):
        np.save(tmp_path / f"{k}.npy", values)
    Image.fromarray(fill.astype(np.uint8)).save(tmp_path / "4.png")
    Image.fromarray(fill).save(tmp_path / "5.png")
    Image.fromarray(np.stack([fill * np.uint8(255)] * 3, -1)).save(tmp_path / "6.bmp")
    for mask in (*sorted(tmp_path.iterdir()), "top-half", "0:3,0:4"):
        assert (read_mask(mask, (3, 6, 4)) == np.broadcast_to(~fill, (3, 6, 4))).all(), mask


MISTAKES = [
    (("inpaint", "{grey}", "/dev/zero", "--mask", "left-half"), "not a regular file"),
    (("inpaint", "{grey}"), "--mask"),
    (("inpaint", "{grey}", "{tmp}/image.png"), "--mask"),
    (("inpaint", "{grey}", "{tmp}/image.png", "--mask", "{tmp}/wide.png"), "8x9 pixels; expected 8x8"),
    (("inpaint", "{grey}", "{tmp}/image.png", "--mask", "{tmp}/black.png"), "nothing to fill"),
    (("inpaint", "{grey}", "{tmp}/image.png", "--mask", "{tmp}/white.png"), "leaves no pixel known"),
    (("inpaint", "{grey}", "{tmp}/image.png", "--mask", "{tmp}/text.png"), "not an image"),
    (("inpaint", "{grey}", "{tmp}/image.png", "--mask", "{tmp}/cut.png"), "truncated"),
    (("inpaint", "{grey}", "{tmp}/image.png", "--mask", "left-hlaf"), "'left-hlaf'"),
    (("inpaint", "{grey}", "{tmp}/image.png", "--mask", "3:2,1:4"), "exceeds 8 rows"),
    (("inpaint", "{grey}", "{tmp}/image.png", "--mask", "0:9,1:4"), "exceeds 8 rows"),
    (("inpaint", "{grey}", "{tmp}/none.png", "--mask", "left-half"), "cannot be read: no such file"),
    (("inpaint", "{grey}", "{tmp}", "--mask", "left-half"), "is a folder"),
    (("inpaint", "{grey}", "{tmp}/text.png", "--mask", "left-half"), "not an image"),
    (("inpaint", "{grey}", "{tmp}/bad.npy", "--mask", "left-half"), "pickled"),
    (("inpaint", "{grey}", "{tmp}/nan.npy", "--mask", "left-half"), "not finite"),
    (("inpaint", "{grey}", "{tmp}/flat.npy", "--mask", "left-half"), "shape (9,)"),
    (("inpaint", "{grey}", "{tmp}/five.npy", "--mask", "left-half"), "shape (8, 8, 5)"),
    (("inpaint", "{grey}", "{tmp}/image.png", "--mask", "left-half", "--method", "repiant"), "did you mean 'repaint'"),
    (("inpaint", "{grey}", "{tmp}/image.png", "--mask", "left-half", "--method", "dps:scale=0"), "scale"),
    (("inpaint", "{grey}", "{tmp}/image.png", "--mask", "left-half", "--label", "ten"), "unknown label 'ten'"),
    (("inpaint", "{grey}", "{tmp}/image.png", "--mask", "left-half", "--guidance", "2"), "guidance needs a label"),
    (("inpaint", "{grey}", "{tmp}/image.png", "--mask", "left-half", "--steps", "0"), "between 1 and"),
    (("inpaint", "{grey}", "{tmp}/image.png", "--mask", "left-half", "-n", "0"), "from 1 to"),
    (("inpaint", "{grey}", "{tmp}/image.png", "--mask", "left-half", "--out", "{tmp}/x.gif"), "ends in .png or .npy"),
    (("inpaint", "{grey}", "{tmp}/image.png", "--mask", "left-half", "--known", "x=1"), "--known"),
    (("inpaint", "{points}", "{tmp}/image.png", "--mask", "left-half"), "run of points"),
    (("inpaint", "{points}"), "--known"),
    (("inpaint", "{points}", "--known", "x=0,y=1"), "all 2 coordinates"),
    (("inpaint", "{points}", "--known", "q=1"), "q=1"),
    (("inpaint", "{points}", "--known", "x=1e999"), "x=1e999"),
    (("inpaint", "{points}", "--known", "x=1", "--label", "3"), "without labels"),
    (("inpaint", "{tmp}/nowhere", "{tmp}/image.png", "--mask", "left-half"), "there is no run"),
    (("restore", "{grey}", "{tmp}/image.png"), "--task"),
    (("restore", "{grey}", "{tmp}/image.png", "--task", "upscale:factor=3"), "squares of 3"),
    (("restore", "{grey}", "{tmp}/image.png", "--task", "color"), "did you mean 'colour'"),
    (("restore", "{grey}", "{tmp}/image.png", "--task", "colour"), "3 channels"),
    (("restore", "{grey}", "{tmp}/image.png", "--task", "deblur:width=-1"), "width"),
    (("restore", "{grey}", "{tmp}/image.png", "--task", "deblur", "--noise", "-0.1"), "--noise"),
    (("restore", "{grey}", "{tmp}/image.png", "--task", "deblur", "--noise", "nan"), "--noise"),
    (("restore", "{grey}", "{tmp}/image.png", "--task", "deblur", "--method", "replace"), "unknown method 'replace'"),
    (("restore", "{points}", "{tmp}/image.png", "--task", "deblur"), "run of points"),
]


@pytest.mark.parametrize(("words", "message"), MISTAKES, ids=lambda v: " ".join(v[1:]) if isinstance(v, tuple) else "")
def test_user_errors(command, grey_run: Run, spiral_run: Run, pixels, tmp_path: Path, words, message: str) -> None:
    Image.fromarray(pixels).save(tmp_path / "image.png")
    for name, value, width in (("black", 0, 8), ("white", 255, 8), ("wide", 255, 9)):
        Image.new("L", (width, 8), value).save(tmp_path / f"{name}.png")
    (tmp_path / "text.png").write_text("not a picture")
    (tmp_path / "cut.png").write_bytes((tmp_path / "image.png").read_bytes()[:60])
    np.save(tmp_path / "bad.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.save(tmp_path / "nan.npy", np.full((8, 8), np.nan))
    np.save(tmp_path / "flat.npy", np.zeros(9))
    np.save(tmp_path / "five.npy", np.zeros((8, 8, 5)))
    before = sorted(tmp_path.rglob("*"))
    out = () if "--out" in words else ("--out", str(tmp_path / "x.png"))
    code, printed, err = command(*(w.format(tmp=tmp_path, grey=grey_run.path, points=spiral_run.path) for w in words), *out)
    assert code == 2 and printed == ""
    assert err.startswith("error: ") and err.count("\n") == 1 and message in err
    assert sorted(tmp_path.rglob("*")) == before


def test_arrays_of_wrong_shapes_are_refused(grey_run: Run, pixels) -> None:
    for mask in (np.zeros((8, 8), bool), np.ones((8, 8), bool), np.ones((4, 4), bool), np.ones((8, 8, 3), bool)):
        with pytest.raises(UserError, match="mask"):
            reverie.inpaint(grey_run, pixels, mask=mask)
    with pytest.raises(UserError, match="shape"):
        reverie.inpaint(grey_run, pixels[0], mask="left-half")


def test_masks_follow_their_image(tmp_path: Path) -> None:
    """A picture that is its own mask is filled where it is white, however both are resized."""
    white = np.zeros((32, 48), np.uint8)
    white[8:16, 16:32] = 255
    Image.fromarray(white).save(tmp_path / "x.png")
    boxes = {"crop": (slice(2, 4), slice(2, 6)), "stretch": (slice(2, 4), slice(2, 6)), "pad": (slice(2, 4), slice(2, 6))}
    for fit, box in boxes.items():
        picture = read_picture(tmp_path / "x.png", (1, 8, 8), "image", fit)
        assert picture.size == (32, 48)
        expected = np.zeros((8, 8), bool)
        expected[box] = True
        for mask in (tmp_path / "x.png", white > 0, "8:16,16:32", expected):
            known = read_mask(mask, (1, 8, 8), picture.size, fit)[0]
            assert (known == ~expected).all(), (fit, known)
            assert (picture.x[0][known] < 0.5).all() and (picture.x[0][~known] > 0.05).all()
    scratch = np.zeros((64, 64), bool)
    scratch[:, 9] = True  # a quarter of a pixel
    assert (~read_mask(scratch, (1, 16, 16), (64, 64))).sum() == 16
    with pytest.raises(UserError, match=r"30x30 pixels; expected 32x48, as its image, or of 8x8"):
        read_mask(np.eye(30), (1, 8, 8), (32, 48))


@pytest.mark.parametrize("fit", ["crop", "pad", "stretch"])
def test_a_picture_and_its_mask_of_any_size_are_inpainted(command, grey_run: Run, fit: str, tmp_path: Path) -> None:
    known = grey_run.config.data.model_copy(update={"reading": {"fit": fit}})
    run = dataclasses.replace(grey_run, config=grey_run.config.model_copy(update={"data": known}))
    photo = np.random.default_rng(8).integers(0, 256, (40, 64, 3), dtype=np.uint8)
    Image.fromarray(photo).save(tmp_path / "photo.png")
    mask = np.zeros((40, 64), np.uint8)
    mask[10:30, 20:40] = 255
    Image.fromarray(mask).save(tmp_path / "mask.png")
    with pytest.warns(ReverieWarning) as warned:
        made = reverie.inpaint(run, tmp_path / "photo.png", mask=tmp_path / "mask.png", n=1, steps=2, method="replace")
    assert [str(w.message) for w in warned] == [
        f"the image {tmp_path}/photo.png of 40x64 pixels was resized to 8x8 ({fit}), as is a mask of its size"
    ]
    fitted = read_picture(tmp_path / "photo.png", (1, 8, 8), "image", fit).x[0]
    filled = np.isnan(made.observed)
    assert filled.any() and (made.x[0][~filled] == fitted[~filled]).all()
    with pytest.warns(ReverieWarning):
        again = reverie.inpaint(run, photo, mask=mask, n=1, steps=2, method="replace")
    np.testing.assert_array_equal(again.x, made.x)


def test_pictures_of_any_size_are_restored(command, grey_run: Run, colour_run: Run, tmp_path: Path) -> None:
    Image.fromarray(np.random.default_rng(9).integers(0, 256, (20, 30, 3), dtype=np.uint8)).save(tmp_path / "photo.png")
    small = read_picture(tmp_path / "photo.png", (1, 4, 4), "image").x[0]
    np.save(tmp_path / "small.npy", small)
    results = []
    for name, message in (("photo.png", "20x30 pixels was resized to 4x4 (crop), then restored to 8x8"), ("small.npy", "")):
        words = ("restore", grey_run.path, tmp_path / name, "--task", "upscale:factor=2", "-n", 1, "--steps", 2)
        code, _, err = command(*words, "--out", tmp_path / "x.npy")
        assert code == 0 and message in err and bool(err) == bool(message)
        results.append(np.load(tmp_path / "x.npy"))
    np.testing.assert_array_equal(*results)
    for task in ("colour", "deblur", "upscale:factor=2", "upscale:factor=2 --degrade"):
        words = ("restore", colour_run.path, tmp_path / "photo.png", "--task", *task.split(), "-n", 1, "--steps", 2)
        code, _, err = command(*words, "--out", tmp_path / "x.npy")
        assert code == 0 and err.count("\n") == 1 and "20x30 pixels was resized to" in err
        assert ("4x6" in err) == (task == "upscale:factor=2")


def test_arrays_are_resized_like_files(grey_run: Run, tmp_path: Path) -> None:
    photo = np.random.default_rng(10).integers(0, 256, (20, 30, 4), dtype=np.uint8)
    Image.fromarray(photo).save(tmp_path / "photo.png")
    for shape in ((1, 8, 8), (3, 8, 8), (4, 8, 8)):
        from_file = read_picture(tmp_path / "photo.png", shape, "image", "pad").x
        for array in (photo, np.moveaxis(photo, -1, 0), photo / 255):
            np.testing.assert_array_equal(read_picture(array, shape, "image", "pad").x, from_file)
    with pytest.warns(ReverieWarning, match="the image of 20x30 pixels was resized to 8x8"):
        assert reverie.edit(grey_run, photo, 0.5, steps=2).x.shape == (1, 1, 8, 8)
