"""Resuming: the final weights equal those of an uninterrupted run, bit for bit."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import reverie
from reverie import api
from reverie.base.errors import UserError
from reverie.base.signals import stop_requests
from reverie.base.tensors import checksum
from reverie.runs import folder
from reverie.runs.config import build_model
from reverie.training import checkpoints
from reverie.training.learner import Learner
from tests.conftest import TINY

KILLER = """
import os, random, signal, sys, time
import torch
import torch._dynamo
torch.set_num_threads(1)
from reverie.draw.picture import contact_sheet, figure, png_bytes
import numpy as np
png_bytes(figure(1, 1)), contact_sheet(np.zeros((1, 8, 8), np.uint8), ["a"])  # loaded once, not by every child
from reverie.runs import folder
from reverie.runs.config import build_model
from reverie.training import checkpoints
from reverie import api
from reverie.base.errors import UserError
from reverie.training.learner import Learner
out, kills, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
random.seed(seed)
options = dict(points=400, steps=400, seed=3)

def work():
    try:
        training = api.begin(resume=out)
    except UserError as error:
        if "is finished" in str(error):
            return
        assert "no checkpoint" in str(error) or "there is no run" in str(error) or "not a run" in str(error), error
        training = api.begin("moons", out, overwrite=True, **options)
    for step in training:
        pass

def check():
    from pathlib import Path
    found = checkpoints.existing(Path(out))
    if found:
        config = folder.read_config(Path(out))
        for path in found:
            checkpoints.read(path, Learner(build_model(config), config.training))
    return int(found[0].stem) if found else 0

reached = []
for k in range(kills + 1):
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            print("child:", repr(error), flush=True)
            os._exit(1)
    if k < kills:
        time.sleep(random.uniform(0.05, 0.9))
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, status
    reached.append(check())
print(reached)
"""


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / folder.WEIGHTS_FILE)


def assert_equal(a: Path, b: Path) -> None:
    first, second = weights(a), weights(b)
    assert first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def killed(tmp_path: Path, kills: int, seed: int) -> None:
    out = tmp_path / "killed"
    words = [sys.executable, "-c", KILLER, str(out), str(kills), str(seed)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    reached = json.loads(done.stdout.splitlines()[-1])
    assert reached[-1] == 400 and reached == sorted(reached), reached
    reverie.train("moons", tmp_path / "whole", points=400, steps=400, seed=3)
    assert_equal(out, tmp_path / "whole")


@pytest.mark.slow  # by default images are broken off and resumed, below
def test_killed_five_times(tmp_path: Path) -> None:
    killed(tmp_path, 5, 0)


@pytest.mark.slow
def test_killed_fifty_times(tmp_path: Path) -> None:
    for k in range(5):
        killed(tmp_path / str(k), 10, k + 1)


@pytest.mark.parametrize("optimizer", [pytest.param("adamw", marks=pytest.mark.slow), "muon"])
def test_broken_off_and_resumed_images(tmp_path: Path, optimizer: str) -> None:
    """Both optimizers, labels, accumulation; broken off between reports by a request to stop, and at a report."""
    options = {"steps": 40, "optimizer": optimizer, "accumulate": 2, "batch": 16, "learning_rate": 2e-3, "network": TINY}
    reverie.train("digits8", tmp_path / "whole", **options)
    steps = iter(api.prepare("digits8", tmp_path / "parts", **options))
    assert len(list(islice(steps, 13))) == 13
    steps.close()
    training = api.begin(resume=tmp_path / "parts")
    assert "resuming at step 13" in list(training.introduction())
    for step in training:
        if step.i == 20:
            os.kill(os.getpid(), signal.SIGTERM)
            break
    assert training.learner.i == 20
    reverie.train(resume=tmp_path / "parts")
    assert_equal(tmp_path / "whole", tmp_path / "parts")
    reports = [row["i"] for row in reverie.load(tmp_path / "parts").metrics()]
    assert reports == list(range(1, 41))  # none twice, none left out


def test_a_stop_between_reports_keeps_the_losses_so_far(tmp_path: Path) -> None:
    """400 steps have a report every second step; stopping after an odd one leaves half a report to be continued."""
    whole = reverie.train("moons", tmp_path / "whole", points=300, steps=400)
    training = api.prepare("moons", tmp_path / "parts", points=300, steps=400)
    training.learner.average.update, plain = (
        (lambda k: (plain(k), k == 100 and os.kill(os.getpid(), signal.SIGINT))),
        (training.learner.average.update),
    )
    with pytest.raises(KeyboardInterrupt):
        list(training)
    assert training.learner.i == 101 and len(training.learner.window) == 1
    parts = reverie.train(resume=tmp_path / "parts")
    assert_equal(tmp_path / "whole", tmp_path / "parts")
    assert [row["loss"] for row in parts.metrics()] == [row["loss"] for row in whole.metrics()]


def test_changed_settings_and_data_are_refused(tmp_path: Path, command) -> None:
    run = tmp_path / "run"
    steps = iter(api.prepare("moons", run, points=300, steps=400))
    next(steps)
    steps.close()
    before = (run / "config.toml").read_bytes()
    code, _, err = command("train", "--resume", run, "--batch", 64, "--learning-rate", 0.1, "--steps", 500)
    assert code == 2 and "batch was 512 and is now 64" in err and "learning_rate was 0.005 and is now 0.1" in err
    assert "steps was 400 and is now 500" in err and err.count("\n") == 1
    code, _, err = command("train", "circles", "--resume", run)
    assert code == 2 and "circles " in err and "others" in err
    code, _, err = command("train", "--resume", run, "--network", "mlp:hidden=8", "--schedule", "linear")
    assert code == 2 and "network was" in err and "schedule was" in err
    code, _, err = command("train", "--resume", run, "--out", tmp_path / "other")
    assert code == 2 and "--out" in err
    assert (run / "config.toml").read_bytes() == before
    code, out, err = command("train", "moons", "--resume", run, "--steps", 400, "--schedule", "cosine", "--points", 300)
    assert code == 0 and "resuming at step 1" in err and "trained 400 steps" in out


def test_data_that_changed_are_refused(tmp_path: Path) -> None:
    import numpy as np

    data = tmp_path / "points.npy"
    np.save(data, np.random.default_rng(0).normal(size=(200, 2)).astype(np.float32))
    steps = iter(api.prepare(str(data), tmp_path / "run", steps=300))
    next(steps)
    steps.close()
    np.save(data, np.random.default_rng(1).normal(size=(210, 2)).astype(np.float32))
    with pytest.raises(UserError, match=r"expected 200, found 210"):
        api.begin(resume=tmp_path / "run")


def test_a_finished_run_resumes_only_when_extended(tmp_path: Path, command) -> None:
    run = tmp_path / "run"
    reverie.train("moons", run, points=300, steps=50)
    code, _, err = command("train", "--resume", run)
    assert code == 2 and "is finished" in err and "--extend" in err
    code, _, err = command("train", "--resume", run, "--extend")
    assert code == 2 and "--minutes or --steps" in err
    code, out, _ = command("train", "--resume", run, "--extend", "--steps", 30)
    assert code == 0 and "trained 80 steps" in out
    assert reverie.load(run).config.training.steps == 80
    code, _, err = command("train", "moons", "--extend")
    assert code == 2 and "--extend" in err


def begun(tmp_path: Path, reports: int = 3) -> Path:
    """Return a run that was broken off after a few reports, with two checkpoints."""
    run = tmp_path / "run"
    for _ in range(2):
        training = api.begin(resume=run) if run.exists() else api.prepare("moons", run, points=300, steps=400)
        steps = iter(training)
        for _ in islice(steps, reports):
            pass
        steps.close()
    assert len(checkpoints.existing(run)) == 2
    return run


def test_a_torn_checkpoint_is_reported_and_the_one_before_used(tmp_path: Path) -> None:
    run = begun(tmp_path)
    newest, before = checkpoints.existing(run)
    content = newest.read_bytes()
    for torn in (content[: len(content) // 2], content[:-8] + b"\1" * 8, b"", content[:100]):
        newest.write_bytes(torn)
        training = api.begin(resume=run)
        reported = list(training.introduction())
        assert "checkpoint before" in reported[0] and f"resuming at step {int(before.stem)}" in reported
    before.write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"no checkpoint of .* can be used"):
        api.begin(resume=run)


def rewritten(path: Path, change) -> None:
    """Change the tensors of a checkpoint and make its checksum right again."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        facts = json.loads(file.metadata()["facts"])
    tensors = load_file(path)
    change(tensors, facts)
    message = json.dumps(facts)
    save_file(tensors, path, {"facts": message, "checksum": checksum(tensors, message)})


HOSTILE = {
    "shape": (lambda t, f: t.update({next(iter(t)): torch.zeros(3, 3, 3)}), "tensors differ"),
    "extra": (lambda t, f: t.update({"now.model.extra": torch.zeros(3)}), "model.extra"),
    "dtype": (lambda t, f: t.update({n: v.double() for n, v in t.items()}), "float64"),
    "missing": (lambda t, f: t.pop(next(n for n in t if n.startswith("now.average."))), "tensors differ"),
    "optimizer": (lambda t, f: t.update({"now.optimizer.0.99.exp_avg": torch.zeros(2)}), "optimizer.0.99"),
    "nan": (lambda t, f: next(iter(t.values())).fill_(torch.nan), "not finite"),
    "step": (lambda t, f: f["now"].update(i=-5), "greater than or equal to 0"),
    "facts": (lambda t, f: f["now"].update(evil="os.system"), "evil"),
}


@pytest.mark.parametrize("kind", list(HOSTILE))
def test_a_hostile_checkpoint_is_refused(tmp_path: Path, kind: str) -> None:
    run = begun(tmp_path)
    change, message = HOSTILE[kind]
    for path in checkpoints.existing(run):
        rewritten(path, change)
    with pytest.raises(UserError, match=message):
        api.begin(resume=run)


def test_an_absurd_size_is_refused_without_allocating(tmp_path: Path) -> None:
    run = begun(tmp_path)
    header = json.dumps({"model.x": {"dtype": "F32", "shape": [10**10, 10], "data_offsets": [0, 4 * 10**11]}}).encode()
    for path in checkpoints.existing(run):
        path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 64)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError, match="damaged"):
        api.begin(resume=run)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes


def test_a_second_trainer_is_locked_out(tmp_path: Path) -> None:
    run = begun(tmp_path)
    steps = iter(api.begin(resume=run))
    next(steps)
    with pytest.raises(UserError, match="another training"):
        api.begin(resume=run)
    with pytest.raises(UserError, match="another training"):
        api.begin("moons", run, overwrite=True, steps=3)
    steps.close()
    assert api.begin(resume=run).learner.i > 0


def test_a_removed_folder_ends_the_training_in_one_sentence(tmp_path: Path) -> None:
    run = begun(tmp_path)
    steps = iter(api.begin(resume=run))
    next(steps)
    shutil.rmtree(run)
    with pytest.raises(UserError, match="was removed; the training stopped at step"):
        list(steps)
    assert not run.exists()


@pytest.mark.slow
def test_a_full_disk_ends_the_training_in_one_sentence_and_loses_nothing(tmp_path: Path) -> None:
    """A limit on the size of files, which the system enforces on every write, stands for the full disk."""
    run = begun(tmp_path)
    kept = {p.name: p.read_bytes() for p in checkpoints.existing(run)}
    script = f"""
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from reverie.cli.main import main
import sys, torch
torch.set_num_threads(1)
import reverie.api
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
sys.argv = ["reverie", "train", "--resume", {str(run)!r}]
main()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert done.returncode == 2 and len(errors) == 1 and "Traceback" not in done.stderr, done.stderr
    assert "cannot write" in errors[0]
    assert {p.name: p.read_bytes() for p in checkpoints.existing(run)} == kept
    reverie.train(resume=run)  # with free space again, it resumes


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_refused(tmp_path: Path) -> None:
    run = begun(tmp_path)
    run.chmod(0o555)
    with pytest.raises(UserError, match="cannot write"):
        list(api.begin(resume=run))
    run.chmod(0o755)


def test_the_newest_two_and_the_best_are_kept(tmp_path: Path) -> None:
    run = reverie.train("moons", tmp_path / "run", points=300, steps=600)
    names = sorted(p.name for p in (run.path / checkpoints.FOLDER).iterdir())
    assert len(names) == 3 and names[-1] == "best.safetensors" and names[-2] == "000000600.safetensors"
    learner = Learner(build_model(run.config), run.config.training)
    now = checkpoints.read(run.path / checkpoints.FOLDER / checkpoints.BEST, learner)["now"]
    best = min((row for row in run.metrics() if "held_out" in row), key=lambda row: row["held_out"])
    assert now.state.i == best["i"]


def test_one_control_c_asks_and_a_second_interrupts() -> None:
    before = signal.getsignal(signal.SIGINT)  # a job in the background ignores it
    with stop_requests() as stop:
        assert not stop()
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
        assert stop()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.5)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_run_that_was_killed_before_its_first_checkpoint_starts_at_step_0(tmp_path: Path, command) -> None:
    options = {"points": 300, "steps": 40, "seed": 5}
    whole = reverie.train("moons", tmp_path / "whole", **options)
    killed = api.prepare("moons", tmp_path / "killed", **options).run.path  # as a kill leaves it: a configuration and no more
    (killed / folder.METRICS).write_text('{"i": 0, "finding": {}}\n{"i": 1, "loss": 9.0, "fraction": 0.1, "seconds": 1.0}\n')
    code, out, err = command("train", "--resume", killed)
    assert code == 0 and "starts at step 0" in err and "trained 40 steps" in out
    ours, theirs = (load_file(run / folder.WEIGHTS_FILE) for run in (killed, whole.path))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert [row["i"] for row in folder.read_metrics(killed)] == [row["i"] for row in whole.metrics()]


@pytest.mark.slow
def test_a_killed_run_starts_with_the_weights_it_was_begun_with(tmp_path: Path) -> None:
    first = reverie.train("moons", tmp_path / "first", points=300, steps=30)
    options = {"points": 300, "steps": 5, "start_from": first.path}
    whole = reverie.train("circles", tmp_path / "whole", **options)
    killed = api.prepare("circles", tmp_path / "killed", **options).run.path
    again = reverie.train(resume=killed).model.state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in whole.model.state_dict().items())
    other = api.prepare("circles", tmp_path / "other", **options).run.path
    reverie.train("moons", first.path, points=300, steps=2, overwrite=True)
    with pytest.raises(UserError, match=r"weights of .* have changed"):
        reverie.train(resume=other)


def test_a_run_without_checkpoints_says_so(tmp_path: Path, command) -> None:
    run = begun(tmp_path)
    shutil.rmtree(run / checkpoints.FOLDER)
    code, _, err = command("train", "--resume", run)
    assert code == 2 and "has no checkpoint" in err and "--overwrite" in err and err.count("\n") == 1
    code, _, err = command("train", "--resume", tmp_path / "nothing")
    assert code == 2 and "there is no run" in err
