"""A run folder belongs to one training from the claim to the end, and only files of Reverie are removed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reverie
from reverie import api
from reverie.base.errors import UserError
from reverie.base.files import atomic
from reverie.runs.lock import IDLE, Lock
from reverie.training import checkpoints
from reverie.training.claim import FILES, FOLDERS, is_left, is_own
from tests.files import full_disk, put

SMALL: Any = {"points": 60, "steps": 2, "batch": 16, "network": "mlp:hidden=8,layers=1"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with every file that a run can have."""
    x = np.random.default_rng(0).normal(size=(60, 2)).astype(np.float32)
    run = tmp_path_factory.mktemp("runs") / "whole"
    options = {key: value for key, value in SMALL.items() if key != "points"}
    reverie.train((x, ["a", "b"] * 30), run, keep_data=True, tensorboard=True, **options)
    reverie.train_classifier(run, steps=1)
    return run


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


@pytest.fixture(autouse=True)
def _no_hang() -> Iterator[None]:
    """Reading from a FIFO would wait for ever."""

    def late(*_: object) -> None:
        raise TimeoutError("hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def contents(place: Path) -> dict[str, bytes | None]:
    """Return every path below a folder with what its file holds."""
    return {str(p.relative_to(place)): p.read_bytes() if p.is_file() and not p.is_symlink() else None for p in place.rglob("*")}


def test_every_file_of_a_run_is_known(run: Path) -> None:
    names = [str(p.relative_to(run)) for p in run.rglob("*") if p.is_file()]
    assert len(names) > 9 and all(is_own(name) and not is_left(name) for name in names)
    assert {p.name for p in run.iterdir() if p.is_dir()} == set(FOLDERS)
    with ExitStack() as stack:
        left = [stack.enter_context(atomic(run / name)).relative_to(run) for name in names if "events" not in name]
        assert all(is_left(str(name)) and not is_own(str(name)) for name in left)
    for name in ("notes.txt", ".notes-abcdefgh.txt", "checkpoints/mine.safetensors", ".config.toml", "previews/a/step-1.png"):
        assert not is_own(name) and not is_left(name)


PLACES = (*FILES, ".lock", "previews/step-0000001.png", "checkpoints/000000001.safetensors", *FOLDERS)


@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
@pytest.mark.parametrize(
    "words", [("--resume", "{run}", "--extend", "--steps", "2"), ("spiral", "--out", "{run}", "--overwrite")]
)
def test_what_is_no_file_of_the_run_is_refused_and_nothing_touched(
    command, run: Path, tmp_path: Path, words, kind: str
) -> None:
    (tmp_path / "precious").write_text("thesis")
    for place in PLACES:
        if kind == "folder" and place in FOLDERS:
            continue
        saved = tmp_path / "saved"
        if there := (run / place).exists():
            (run / place).rename(saved)
        put(run / place, kind, tmp_path)
        before = contents(tmp_path)
        code, out, err = command("train", *(word.format(run=run) for word in words), "--device", "cpu")
        assert code == 2 and out == "" and err.startswith("error: ") and err.count("\n") == 1, (place, err)
        assert str(place) in err and contents(tmp_path) == before, (place, err)
        (run / place).rmdir() if kind == "folder" else (run / place).unlink()
        if there:
            saved.rename(run / place)


@pytest.mark.parametrize("kind", ["endless", "fifo"])
@pytest.mark.parametrize("place", ["config.toml", "model.safetensors", "metrics.jsonl", "classifier.safetensors"])
def test_readers_refuse_what_is_no_file_of_the_run(command, run: Path, tmp_path: Path, place: str, kind: str) -> None:
    (tmp_path / "precious").write_text("thesis")
    (run / place).unlink()
    put(run / place, kind, tmp_path)
    before = contents(tmp_path)
    requested = {
        "config.toml": ("train", "--config", run, "--out", tmp_path / "new"),
        "model.safetensors": ("train", "spiral", "--from", run, "--out", tmp_path / "new"),
        "metrics.jsonl": ("inspect", run),
        "classifier.safetensors": (
            "sample",
            run,
            "-n",
            1,
            "--steps",
            1,
            "--classifier-guidance",
            2,
            "--out",
            tmp_path / "x.npy",
        ),
    }
    code, _, err = command(*requested[place])
    assert code == 2 and err.startswith("error: ") and err.count("\n") == 1 and contents(tmp_path) == before
    if place != "classifier.safetensors":
        code, out, _ = command("runs", run, "--json")
        assert code == 0 and '"problem"' in out and contents(tmp_path) == before


def test_a_linked_folder_of_previews_is_not_written_through(run: Path, tmp_path: Path) -> None:
    """It is put there after the training began, when all has been looked at already."""
    (tmp_path / "photos").mkdir()
    training = api.begin(resume=run, extend=True, steps=5)
    shutil.rmtree(run / "previews")
    (run / "previews").symlink_to(tmp_path / "photos")
    with pytest.raises(UserError, match="previews is a link"):
        list(training)
    assert not list((tmp_path / "photos").iterdir()) and (run / "previews").is_symlink()


def test_a_folder_is_ours_from_the_claim_on(tmp_path: Path) -> None:
    """Two trainings are begun, the second to overwrite the first: the one that came first ends with its own configuration."""
    first = api.begin("moons", tmp_path / "run", overwrite=True, seed=1, **SMALL)
    IDLE.clear()  # as if the others came from another program
    with pytest.raises(UserError, match="another training"):
        api.begin("circles", tmp_path / "run", overwrite=True, seed=2, **SMALL)
    with pytest.raises(UserError, match="another training"):
        api.begin(resume=tmp_path / "run")
    list(first)
    kept = api.load(tmp_path / "run")
    assert kept.config.data.name == "moons" and kept.config.training.seed == 1 and not (tmp_path / "run" / ".lock").exists()
    second = api.begin("circles", tmp_path / "run", overwrite=True, seed=2, **SMALL)
    second.close()
    with pytest.raises(UserError, match="prepare a new one"):
        list(second)
    assert api.begin(resume=tmp_path / "run").run.config.data.name == "circles"


def test_a_training_can_be_prepared_again(tmp_path: Path) -> None:
    """As when a cell of a notebook is run once more."""
    first = api.begin("moons", tmp_path / "run", **SMALL)
    second = api.begin("circles", tmp_path / "run", overwrite=True, **SMALL)
    with pytest.raises(UserError, match="prepare a new one"):
        list(first)
    list(second)
    assert api.load(tmp_path / "run").config.data.name == "circles"


def test_a_refused_claim_changes_nothing(tmp_path: Path) -> None:
    training = api.begin("moons", tmp_path / "run", **SMALL)
    IDLE.clear()
    before = contents(tmp_path)
    for options in ({"overwrite": True}, {}):
        with pytest.raises(UserError):
            api.begin("circles", tmp_path / "run", **SMALL, **options)
    with pytest.raises(UserError, match="--overwrite"):
        training.close()
        api.begin("circles", tmp_path / "run", **SMALL)
    assert {**contents(tmp_path), "run/.lock": b""} == before


def test_two_that_choose_a_folder_at_once_get_one_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    there, others = os.path.lexists, []

    def free_but_taken_at_once(path: Path) -> bool:
        if others or path != Path("runs/moons"):
            return there(path)
        others.append(Lock(path).__enter__())
        return False

    monkeypatch.setattr(os.path, "lexists", free_but_taken_at_once)
    assert api.begin("moons", **SMALL).run.path == Path("runs/moons-2") and others[0].held


def test_a_classifier_is_not_trained_where_another_training_is_at_work(run: Path) -> None:
    steps = iter(api.begin(resume=run, extend=True, steps=5))
    next(steps)
    before = (run / "classifier.safetensors").read_bytes()
    with pytest.raises(UserError, match="another training"):
        reverie.train_classifier(run, steps=1)
    steps.close()
    assert (run / "classifier.safetensors").read_bytes() == before
    reverie.train_classifier(run, steps=2)
    assert (run / "classifier.safetensors").read_bytes() != before


def killed(run: Path, *names: str) -> None:
    """Leave what a kill -9 leaves: the lock, and files that were about to be renamed."""
    run.mkdir(exist_ok=True)
    (run / ".lock").touch()
    for name in names:
        with suppress(RuntimeError), atomic(run / name) as temporary:
            raise RuntimeError
        temporary.write_bytes(b"half")


def test_the_same_command_works_after_a_kill(command, tmp_path: Path) -> None:
    words = ("train", "moons", "--out", tmp_path / "run", "--steps", 2, "--points", 50, "-q")
    run = tmp_path / "run"
    killed(run, "config.toml", "data.safetensors")
    assert command(*words) == (0, "", "")
    killed(run, "model.safetensors", "checkpoints/000000002.safetensors", "previews/step-0000002.png")
    assert command(*words, "--overwrite") == (0, "", "")
    assert all(is_own(str(p.relative_to(run))) for p in run.rglob("*") if p.is_file())
    killed(run, "model.safetensors", "checkpoints/000000002.safetensors")
    assert command("train", "--resume", run, "--extend", "--steps", 1, "-q") == (0, "", "")
    assert all(is_own(str(p.relative_to(run))) for p in run.rglob("*") if p.is_file())


@pytest.mark.parametrize(
    "name", ["notes.txt", ".lock", "checkpoints/mine.safetensors", "previews/.step-1.png", "previews/photos/1.png"]
)
def test_a_file_that_is_not_ours_is_never_removed(command, run: Path, name: str) -> None:
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).write_text("precious")
    before = contents(run)
    code, _, err = command("train", "moons", "--out", run, "--overwrite", "--steps", 2)
    assert code == 2 and "--out" in err and contents(run) == before
    assert command("train", "--resume", run, "--extend", "--steps", 1, "-q")[0] == 0 and (run / name).read_text() == "precious"


def test_files_of_a_run_without_its_configuration_are_kept(command, tmp_path: Path) -> None:
    """A model of someone else's may be called model.safetensors as well."""
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "model.safetensors").write_text("precious")
    code, _, err = command("train", "moons", "--out", tmp_path / "hub", "--overwrite", "--steps", 2)
    assert code == 2 and "model.safetensors" in err and contents(tmp_path / "hub") == {"model.safetensors": b"precious"}


def test_a_removal_that_is_cut_short_can_be_taken_up(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    removed: list[str] = []
    unlink = Path.unlink

    def stop(path: Path, missing_ok: bool = False) -> None:
        unlink(path, missing_ok)
        removed.append(path.name)
        if len(removed) == 4:
            raise MemoryError

    with monkeypatch.context() as patched, pytest.raises(MemoryError):
        patched.setattr(Path, "unlink", stop)
        api.begin("moons", run, overwrite=True, **SMALL)
    assert "config.toml" not in removed
    list(api.begin("moons", run, overwrite=True, **SMALL))
    assert api.load(run).config.data.name == "moons"


@pytest.mark.parametrize("free", [100, 3000])
def test_a_run_that_cannot_be_begun_leaves_nothing(tmp_path: Path, free: int) -> None:
    """The disk is full at the configuration, or at the copy of the data."""
    x = np.random.default_rng(0).normal(size=(1000, 2)).astype(np.float32)
    with pytest.raises(UserError, match="cannot write"), full_disk(free):
        api.begin(x, tmp_path / "deep" / "run", keep_data=True, steps=2)
    assert not list(tmp_path.iterdir())


def test_a_resumed_run_keeps_its_data_though_nothing_was_learned(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(run / "checkpoints")
    (run / "model.safetensors").unlink()
    kept = (run / "data.safetensors").read_bytes()

    def fail(*_: object, **__: object) -> None:
        raise UserError("the first step failed")

    monkeypatch.setattr("reverie.training.trainer.fit", fail)
    with pytest.raises(UserError, match="the first step failed"):
        list(api.begin(resume=run))
    assert (run / "data.safetensors").read_bytes() == kept and (run / "config.toml").exists()


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_training_with_its_code(command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: int) -> None:
    write = checkpoints.write

    def requested(*given: Any, **named: Any) -> None:
        write(*given, **named)
        monkeypatch.setattr(checkpoints, "write", write)
        os.kill(os.getpid(), by)

    monkeypatch.setattr(checkpoints, "write", requested)
    code, _, err = command("train", "moons", "--out", tmp_path / "run", "--minutes", 5, "--points", 50)
    assert code == 128 + by and "stopped at step" in err and "Traceback" not in err
    assert checkpoints.existing(tmp_path / "run") and not (tmp_path / "run" / ".lock").exists()


TRAIN = """
import sys
from reverie.cli.main import main
sys.argv = ["reverie", "train", "moons", "--out", sys.argv[1], "--overwrite", "--steps", "60", "--points", "200",
            "--network", f"mlp:hidden={sys.argv[2]}", "-q"]
main()
"""


@pytest.mark.slow
def test_of_two_programs_that_overwrite_one_wins_whole(tmp_path: Path) -> None:
    signal.alarm(0)  # eight programs take their time
    for k in range(4):
        programs = [
            subprocess.Popen([sys.executable, "-c", TRAIN, str(tmp_path / str(k)), hidden], stderr=subprocess.PIPE, text=True)
            for hidden in ("8", "16")
        ]
        errors = [program.communicate()[1] for program in programs]
        codes = [program.returncode for program in programs]
        assert set(codes) <= {0, 2} and 0 in codes and all("at work" in e for e, c in zip(errors, codes, strict=True) if c)
        run = api.load(tmp_path / str(k))  # which checks the weights against the configuration
        won = codes.index(0) if 2 in codes else None
        assert won is None or run.diffusion_settings.network["hidden"] == (8, 16)[won]
