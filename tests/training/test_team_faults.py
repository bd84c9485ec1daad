"""Failures of one of several processes: all end with a message, and no state is lost."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import reverie
from reverie.training import checkpoints
from tests.training.test_team import LONG, ONE_THREAD, begun, followers, trained, wait_for_checkpoint

pytestmark = pytest.mark.slow
FAILS_AT = """
import os
if os.environ.get("RANK") == "1":
    import reverie.data.dataset as module
    batch, calls = module.Dataset.batch, []

    def failing(self, index):
        calls.append(1)
        if len(calls) > 60:
            raise OSError(5, "input/output error", "shard-0003.tar")
        return batch(self, index)

    module.Dataset.batch = failing
"""


def ended(processes: list[int], seconds: float = 30) -> bool:
    """Return whether none of these processes runs, or will soon."""
    end = time.monotonic() + seconds
    while any(Path(f"/proc/{k}").exists() for k in processes):
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def assert_goes_on(out: Path, same_as: Path) -> None:
    """Check that a run resumes to the bits of an undisturbed one."""
    assert checkpoints.existing(out)
    found = reverie.train(resume=out, progress=False).model.state_dict()
    alone = trained(same_as, 1, exact=True, steps=LONG)
    assert all(torch.equal(alone[name], found[name]) for name in alone)


def test_a_second_ctrl_c_ends_at_once_and_the_checkpoint_stays(tmp_path: Path) -> None:
    leader = begun(tmp_path / "run", "--processes", "2")
    wait_for_checkpoint(leader, tmp_path / "run")
    others = followers(leader.pid)
    os.kill(others[0], signal.SIGSTOP)  # so that the step is never over
    time.sleep(1)
    leader.send_signal(signal.SIGINT)
    time.sleep(1)
    assert leader.poll() is None
    leader.send_signal(signal.SIGINT)
    message, _ = leader.communicate(timeout=60)
    assert leader.returncode == 130 and "interrupted; resume from step" in message and "Traceback" not in message, message
    assert others and ended(others)
    assert_goes_on(tmp_path / "run", tmp_path / "alone")


def test_followers_of_a_leader_that_was_killed_before_they_met_end(tmp_path: Path) -> None:
    leader = begun(tmp_path / "run", "--processes", "2")
    end = time.monotonic() + 600  # only for one that hangs
    while not (others := followers(leader.pid)) and time.monotonic() < end:
        time.sleep(0.01)
    leader.kill()
    leader.communicate(timeout=60)
    assert others and ended(others)


def test_a_slow_process_is_waited_for(tmp_path: Path) -> None:
    leader = begun(tmp_path / "run", "--processes", "2")
    wait_for_checkpoint(leader, tmp_path / "run")
    slow = followers(leader.pid)[0]
    for _ in range(3):
        os.kill(slow, signal.SIGSTOP)
        time.sleep(1.5)
        os.kill(slow, signal.SIGCONT)
        time.sleep(0.2)
    message, _ = leader.communicate(timeout=300)
    assert leader.returncode == 0, message
    alone = trained(tmp_path / "alone", 1, exact=True, steps=LONG)
    found = reverie.load(tmp_path / "run").model.state_dict()
    assert all(torch.equal(alone[name], found[name]) for name in alone)


def test_a_process_that_does_not_answer_ends_the_training_after_the_time_out(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(ONE_THREAD, "REVERIE_TIMEOUT", "25")
    leader = begun(tmp_path / "run", "--processes", "2")
    wait_for_checkpoint(leader, tmp_path / "run")
    others = followers(leader.pid)
    os.kill(others[0], signal.SIGSTOP)
    message, _ = leader.communicate(timeout=200)
    assert leader.returncode == 2 and "did not respond within 25 seconds" in message and "--resume RUN" in message, message
    assert "Traceback" not in message and ended(others)
    assert_goes_on(tmp_path / "run", tmp_path / "alone")


def started(
    out: Path, *options: str, before: Callable[[], None] | None = None, **also: str
) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, "-m", "reverie", "train", "spiral", "--points", "400", "--steps", "400", "--processes", "2"]
    return subprocess.run(
        [*call, "--out", str(out)], env={**ONE_THREAD, **also}, capture_output=True, text=True, check=False,
        preexec_fn=before, timeout=300,  # a limit for this process and its children alone
    )  # fmt: skip


def test_a_full_disk_of_all_processes_is_one_sentence(tmp_path: Path) -> None:
    def full() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    done = started(tmp_path / "run", before=full)
    assert done.returncode == 2 and "cannot write" in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert done.stderr.count("error:") == 1


def test_a_process_that_can_no_longer_read_its_data_is_named(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(FAILS_AT)
    done = started(tmp_path / "run", PYTHONPATH=str(tmp_path))
    assert done.returncode == 2 and "process 1 of 2: " in done.stderr and "shard-0003.tar" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    assert checkpoints.existing(tmp_path / "run")
    assert reverie.train(resume=tmp_path / "run", progress=False).metrics()[-1]["i"] == 400
