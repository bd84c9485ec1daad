"""Samples on their way to disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from reverie import api
from reverie.base.errors import UserError
from reverie.diffusion.samplers import SAMPLERS
from reverie.draw.picture import coloured, contact_sheet, enlargement, image_frames, max_film_samples
from reverie.gallery.samplers import BUDGETS, draw_cell
from reverie.runs import run as run_module
from reverie.runs.outputs import MANIFEST
from reverie.runs.run import Run
from reverie.runs.samples import Samples
from reverie.runs.writing import Interrupted, write
from tests.files import full_disk


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


def test_a_failure_leaves_no_array(tmp_path: Path) -> None:
    def failing():
        yield halves(11, True)[0]
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write(failing(), 11, tmp_path / "all.npy")
    assert not list(tmp_path.iterdir())


def test_the_samples_are_the_same_in_batches_of_any_size(patterns_run: Run, monkeypatch, tmp_path: Path) -> None:
    whole = patterns_run.sample(25, steps=5, seed=3, sampler="ddpm")
    monkeypatch.setattr(run_module, "BATCH_VALUES", 14)
    reported: list[tuple[str, int, int]] = []
    options = {"steps": 5, "seed": 3, "sampler": "ddpm"}
    api.sample_to(patterns_run, 25, tmp_path / "x.npy", on_progress=lambda *now: reported.append(now), **options)
    np.testing.assert_allclose(np.load(tmp_path / "x.npy"), whole.x, atol=1e-5)
    labels = [line.split(",")[1] for line in (tmp_path / "x.labels.csv").read_text().split()[1:]]
    assert labels == whole.labels
    assert [done for _, done, _ in reported[4::5]] == [7, 14, 21, 25]  # images, not evaluations
    assert reported == sorted(reported) and {(what, of) for what, _, of in reported} == {("sampling", 25)}


MEMORY = """
import resource, sys
import numpy as np
from reverie.runs.samples import Samples
from reverie.runs.writing import Interrupted, write
count = int(sys.argv[1])
write((Samples(np.zeros((100, 28, 28, 3), np.float32)) for _ in range(count // 100)), count, sys.argv[2])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.slow
def test_writing_takes_constant_memory(tmp_path: Path) -> None:
    """20,000 images are 188 MB: writing them must not need more than writing 200."""
    few, many = (
        int(subprocess.run([sys.executable, "-c", MEMORY, str(n), tmp_path / "x.npy"], capture_output=True, text=True).stdout)
        for n in (200, 20_000)
    )
    assert (tmp_path / "x.npy").stat().st_size > 188e6 and many < few + 20


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_gallery_spends_what_it_says(name: str, spiral_run: Run) -> None:
    cell = draw_cell(spiral_run, name, 1, 3)
    assert cell.x.shape == (3, 2) and (name == "rk45" or 0 < cell.evaluations <= BUDGETS[1])


def test_the_gallery_of_samplers(command, spiral_run: Run, tmp_path: Path) -> None:
    code, out, _ = command("gallery", "samplers", spiral_run.path, "--out", tmp_path / "sheet.png")
    assert code == 0 and "sheet.png" in out and Image.open(tmp_path / "sheet.png").height > 1500


def test_what_is_transparent_is_shown_over_white() -> None:
    clear = np.zeros((2, 3, 3, 4), np.uint8)
    assert coloured(clear, 2).shape == (2, 6, 6, 3) and (coloured(clear, 2) == 255).all()
    grey = np.full((1, 2, 2), 7, np.uint8)
    assert (coloured(grey) == 7).all() and coloured(grey).shape == (1, 2, 2, 3)


@pytest.mark.parametrize(
    ("count", "side", "wide"), [(4, 28, 510), (4, 64, 518), (16, 28, 458), (100, 28, 582), (2, 16, 518), (4, 8, 518)]
)
def test_small_images_are_enlarged_by_whole_factors(count: int, side: int, wide: int) -> None:
    images = np.random.default_rng(0).integers(0, 256, (count, side, side), dtype=np.uint8)
    sheet, across = contact_sheet(images), int(np.ceil(np.sqrt(count)))
    factor = enlargement(side, side, across)
    assert sheet.shape[1] == wide and 1 <= factor <= 32
    np.testing.assert_array_equal(sheet[2 : 2 + side * factor : factor, 2 : 2 + side * factor : factor, 0], images[0])


@pytest.mark.parametrize(("shape", "mode"), [((8, 8), "L"), ((64, 64, 3), "RGB"), ((16, 16, 4), "RGBA")])
def test_one_image_is_written_bare(shape: tuple[int, ...], mode: str, tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (1, *shape)).astype(np.float32) / 255
    Samples(x).save(tmp_path / "one.png")
    image = Image.open(tmp_path / "one.png")
    assert image.mode == mode
    np.testing.assert_array_equal(np.asarray(image), (x[0] * 255).round())


def test_sheets_and_films_say_their_labels(tmp_path: Path) -> None:
    x = np.full((4, 28, 28), 0.5, np.float32)
    plain, titled = (contact_sheet((x * 255).astype(np.uint8), t) for t in (None, ["گربه", "αλεπού", "猫", "dog"]))
    assert titled.shape[0] > plain.shape[0] + 20 and (titled[2 + 224 : 2 + 224 + 14] < 128).any()
    film = ((1.0, x, x), (0.5, x, x))
    (first, *_, last), (named, *_) = (list(image_frames(film, x, t)) for t in (None, ["a", "b", "c", "d"]))
    assert first.shape == last.shape and (first[:16] < 128).any() and (first != last).any()  # t above it
    assert named.shape[0] > first.shape[0] + 20


def test_labels_are_reported_where_all_are_requested(patterns_run: Run) -> None:
    assert patterns_run.sample(3, steps=2, label="all").titles == list(patterns_run.config.data.labels[:3])
    assert patterns_run.sample(3, steps=2).titles is None and patterns_run.sample(3, steps=2).labels is not None
    assert patterns_run.sample(3, steps=2, label="all", film=True).titles is not None


def stopping(n: int) -> list[Samples]:
    yield from halves(n, True)[:1]
    raise KeyboardInterrupt


def test_an_interrupted_folder_keeps_its_images(tmp_path: Path) -> None:
    with pytest.raises(Interrupted, match=f"the first 6 of 11 images are in {tmp_path}/x"):
        write(stopping(11), 11, tmp_path / "x")
    assert sorted(p.name for p in (tmp_path / "x").iterdir()) == [MANIFEST, *(f"{k:02d}.png" for k in range(6)), "labels.csv"]
    assert (tmp_path / "x" / "labels.csv").read_text().split() == ["index,label", *(f"{k},{k}" for k in range(6))]


def test_an_interrupted_array_keeps_whole_batches_under_another_name(tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_text("older")
    with pytest.raises(Interrupted, match=r"the first 600 of 1,100 samples are in .*x\.partial\.npy"):
        write((Samples(np.repeat(part.x, 100, 0), None) for part in stopping(11)), 1100, tmp_path / "x.npy")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.npy", "x.partial.npy"]
    np.testing.assert_array_equal(np.load(tmp_path / "x.partial.npy"), np.repeat(halves(11, True)[0].x, 100, 0))
    assert (tmp_path / "x.npy").read_text() == "older"


@pytest.mark.parametrize(("out", "kept"), [("x/", "no image was finished"), ("x.npy", "nothing was finished"), ("x.png", "")])
def test_an_interrupt_says_what_was_kept(command, spiral_run: Run, patterns_run: Run, monkeypatch, out, kept, tmp_path) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "decode_final", stop)
    code, message, err = command("sample", patterns_run.path, "-n", 3, "--steps", 2, "--out", f"{tmp_path}/{out}")
    assert code == 130 and message == "" and "interrupted; " in err
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_too_many_for_a_film_or_a_sheet_are_refused_at_once(command, patterns_run: Run, tmp_path: Path) -> None:
    images = Samples(np.zeros((10_001, 8, 8), np.float32))
    with pytest.raises(UserError, match="at most 10,000 images of 8x8"):
        images.save(tmp_path / "x.png")
    code, _, err = command("sample", patterns_run.path, "-n", 100_000, "--out", tmp_path / "x.mp4")
    assert code == 2 and "20,000 points" in err and "X.npy" in err
    assert 100 < max_film_samples((3, 64, 64)) < max_film_samples((1, 28, 28)) < 500
    with pytest.raises(UserError, match="film"):
        patterns_run.sample(100_000, film=True)
    assert not list(tmp_path.iterdir())


def listed(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def images(n: int, labels: bool = False) -> Samples:
    x = np.random.default_rng(n).random((n, 4, 3)).astype(np.float32)
    return Samples(x, [str(k) for k in range(n)] if labels else None)


@pytest.mark.parametrize("name", ["labels.csv", "0.png", "007.png"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_files_of_others_in_a_folder_are_neither_replaced_nor_removed(name: str, overwrite: bool, tmp_path: Path) -> None:
    (tmp_path / name).write_text("precious")
    (tmp_path / "notes.txt").write_text("precious")
    before = listed(tmp_path)
    with pytest.raises(UserError, match=f"contains {name}, "):
        images(3).save(f"{tmp_path}/", overwrite)
    assert listed(tmp_path) == before
    (tmp_path / name).unlink()
    images(3).save(f"{tmp_path}/", overwrite)
    assert (tmp_path / "notes.txt").read_text() == "precious" and len(listed(tmp_path)) == 5


def test_samples_in_a_folder_are_replaced_when_requested_and_none_is_left_over(tmp_path: Path) -> None:
    images(12, labels=True).save(f"{tmp_path}/x/")
    before = listed(tmp_path / "x")
    with pytest.raises(UserError, match=r"contains samples .* --overwrite"):
        images(3).save(f"{tmp_path}/x/")
    assert listed(tmp_path / "x") == before and len(before) == 14
    files = images(3).save(f"{tmp_path}/x/", overwrite=True)
    assert sorted(listed(tmp_path / "x")) == [MANIFEST, "0.png", "1.png", "2.png"] == [MANIFEST, *(f.name for f in files)]
    Samples(np.zeros((5, 2), np.float32), list("abcde")).save(tmp_path / "x", overwrite=True)
    assert sorted(listed(tmp_path / "x")) == [MANIFEST, "picture.png", "points.labels.csv", "points.npy"]
    (tmp_path / "x" / MANIFEST).write_text('{"images": 3, "named": ["../../thesis.txt"]}')
    with pytest.raises(UserError, match="is not replaced"):
        images(3).save(f"{tmp_path}/x/", overwrite=True)


def test_a_link_among_samples_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    images(3).save(f"{tmp_path}/x/")
    (tmp_path / "x" / "1.png").unlink()
    (tmp_path / "x" / "1.png").symlink_to(tmp_path / "thesis.txt")
    with pytest.raises(UserError, match="is a link"):
        images(3).save(f"{tmp_path}/x/", overwrite=True)
    assert (tmp_path / "thesis.txt").read_text() == "precious" and len(listed(tmp_path / "x")) == 4


def test_after_an_interrupt_or_a_kill_the_images_are_known_as_ours(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        write(stopping(11), 11, tmp_path / "x")
    (tmp_path / "x" / "10.png").write_text("precious")  # which was not reached
    with pytest.raises(UserError, match=r"contains 10\.png, "):
        images(3).save(f"{tmp_path}/x/", overwrite=True)
    (tmp_path / "x" / "10.png").unlink()
    (tmp_path / "x" / "03.png").rename(tmp_path / "x" / ".03-a_cdefg8.png")  # as a kill leaves it
    images(3).save(f"{tmp_path}/x/", overwrite=True)
    assert sorted(listed(tmp_path / "x")) == [MANIFEST, "0.png", "1.png", "2.png"]


def test_labels_beside_an_array_are_not_lost(tmp_path: Path) -> None:
    (tmp_path / "x.labels.csv").write_text("precious")
    for labels in (False, True):
        with pytest.raises(UserError, match=r"labels\.csv already exists"):
            images(3, labels).save(tmp_path / "x.npy")
    assert listed(tmp_path) == {"x.labels.csv": b"precious"}
    images(3, True).save(tmp_path / "x.npy", overwrite=True)
    images(4, True).save(tmp_path / "x.npy")  # those beside it are its own
    np.save(tmp_path / "x.npy", np.zeros((5, 2)))
    with pytest.raises(UserError, match=r"labels\.csv already exists"):
        images(3).save(tmp_path / "x.npy")
    np.save(tmp_path / "x.npy", np.zeros((4, 2)))
    images(3).save(tmp_path / "x.npy")
    assert sorted(listed(tmp_path)) == ["x.npy"]


def test_what_an_earlier_interrupt_kept_stays(tmp_path: Path) -> None:
    for _ in range(3):
        with pytest.raises(Interrupted):
            write(stopping(11), 11, tmp_path / "x.npy")
    kept = [f"x.partial{k}" for k in ("-2", "-3", "")]
    assert sorted(listed(tmp_path)) == sorted(f"{name}{end}" for name in kept for end in (".npy", ".labels.csv"))


@pytest.mark.parametrize("out", ["x/", "points/", "x.npy", "x.png", "x.gif", "x.mp4"])
def test_a_full_disk_leaves_nothing_and_is_reported_in_one_sentence(out: str, tmp_path: Path, capfd) -> None:
    noise = np.random.default_rng(0).random((8, 40, 40, 3)).astype(np.float32)
    made = Samples(noise, film=[(k / 10, noise, noise) for k in range(10)])
    if out == "points/":
        made = Samples(noise.reshape(-1, 2))
    with pytest.raises(UserError, match=f"cannot write {tmp_path}/deep/{out.rstrip('/')}"), full_disk(4500):
        made.save(f"{tmp_path}/deep/{out}")
    assert not list(tmp_path.iterdir()) and capfd.readouterr() == ("", "")
    if out.startswith("x."):
        made.save(tmp_path / out)
        assert (tmp_path / out).stat().st_size > 4500


def test_refused_commands_leave_no_folders(command, patterns_run: Run, tmp_path: Path) -> None:
    (tmp_path / "seven.npy").write_text("no array")
    run, deep = patterns_run.path, tmp_path / "a" / "b"
    for words in (
        ("sample", run, "--label", "nonsense", "--out", deep / "x.png"),
        ("sample", run, "--label", "nonsense", "--out", f"{deep}/"),
        ("sample", run, "--steps", 0, "--out", deep / "x.npy"),
        ("inpaint", run, "--known", "z=3", "--out", f"{deep}/"),
        ("edit", run, tmp_path / "seven.npy", "--out", deep / "x.png"),
        ("inspect", run, "--data-dir", tmp_path, "--device", "tpu", "--out", deep / "x.png"),
        ("gallery", "spiral", run, "--out", deep),
        ("gallery", "samplers", run, "--grid", "nonsense", "--out", deep / "x.png"),
        ("train", "moons", "--network", "nonsense", "--out", deep),
    ):
        code, _, err = command(*words)
        assert code == 2 and err.startswith("error: ") and [p.name for p in tmp_path.iterdir()] == ["seven.npy"], (words, err)


def test_sigterm_ends_sampling_as_control_c_does(command, patterns_run: Run, monkeypatch, tmp_path: Path) -> None:
    draw, drawn = Run.decode_final, []

    def second(run: Run, last: object) -> np.ndarray:
        drawn.append(1)
        if len(drawn) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return draw(run, last)

    monkeypatch.setattr(Run, "decode_final", second)
    monkeypatch.setattr(run_module, "BATCH_VALUES", 8)
    code, _, err = command("sample", patterns_run.path, "-n", 12, "--steps", 2, "--out", tmp_path / "x.npy")
    assert code == 143 and "the first 4 of 12 samples are in" in err and "Traceback" not in err
    assert sorted(listed(tmp_path)) == ["x.partial.labels.csv", "x.partial.npy"]


def test_no_label_is_taken_for_a_formula(tmp_path: Path) -> None:
    labels = ["=1+1", "@x", "-2", "+a", "cat", "-1.5e", "3"]
    Samples(np.zeros((7, 2), np.float32), labels=labels).save(tmp_path / "x.npy")
    rows = (tmp_path / "x.labels.csv").read_text().splitlines()
    assert rows == ["index,label", "0,'=1+1", "1,'@x", "2,-2", "3,'+a", "4,cat", "5,'-1.5e", "6,3"]


@pytest.mark.parametrize(("count", "classes", "across"), [(30, 10, 10), (34, 10, 10), (64, 10, 10), (30, 2, 6), (7, 10, 3)])
def test_classes_in_turn_stand_in_columns(count: int, classes: int, across: int) -> None:
    titles = [str(k % classes) for k in range(count)]
    sheet = contact_sheet(np.zeros((count, 8, 8), np.uint8), titles)
    expected = contact_sheet(np.zeros((count, 8, 8), np.uint8), titles, across)
    assert sheet.shape == expected.shape and (sheet == expected).all()


def test_an_image_file_of_another_kind_is_refused_with_the_kinds_there_are(digits_run: Run, tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        api.sample_to(digits_run, 1, tmp_path / "x.jpg")
    message = str(refused.value)
    assert (
        all(ending in message for ending in (".png", ".gif", ".mp4", ".npy"))
        and ".txt" not in message
        and ".csv" not in message
    )
