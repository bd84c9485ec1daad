"""The process that trains in a folder is found, so that it can be stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from reverie.base.errors import UserError
from reverie.runs import lock
from reverie.runs.lock import LOCK, Lock, holder, interrupt


def test_the_holder_of_a_lock_is_known_while_it_is_held(tmp_path: Path) -> None:
    assert holder(tmp_path) is None
    held = Lock(tmp_path)
    with held:
        assert holder(tmp_path) == os.getpid()
    assert holder(tmp_path) is None


def test_a_lock_file_that_was_left_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / LOCK).touch()
    assert holder(tmp_path) is None


def test_without_proc_locks_the_holder_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "_LOCKS", tmp_path / "none")
    with Lock(tmp_path):
        assert holder(tmp_path) == 0
    assert holder(tmp_path) is None


def test_a_link_in_place_of_the_lock_is_no_lock(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    (tmp_path / LOCK).symlink_to(tmp_path / "other")
    assert holder(tmp_path) is None


SLEEPER = """
import fcntl, signal, sys, time
file = open(sys.argv[-1], "a")
fcntl.flock(file, fcntl.LOCK_EX)
print("locked", flush=True)
time.sleep(60)
"""


@contextmanager
def locking(path: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program that holds a file locked."""
    process = subprocess.Popen([sys.executable, *words, str(path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.stdout is not None and process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_training_is_interrupted_by_the_lock_that_it_holds(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    script = tmp_path / "reverie"  # as the console script is called
    script.write_text(SLEEPER)
    with locking(tmp_path / "run" / LOCK, str(script)) as process:
        interrupt(tmp_path / "run")
        assert process.wait(30) == -signal.SIGINT
    with pytest.raises(UserError, match="no training runs"):
        interrupt(tmp_path / "run")


@pytest.mark.parametrize("attack", ["hard link", "hard link whose first name is gone", "another program"])
def test_no_other_process_is_ever_interrupted(tmp_path: Path, attack: str) -> None:
    run, theirs, script = tmp_path / "run", tmp_path / "theirs", tmp_path / ("sleep.py" if "other" in attack else "reverie")
    run.mkdir()
    script.write_text(SLEEPER)
    with locking(run / LOCK if "other" in attack else theirs, str(script)) as process:
        if "link" in attack:
            os.link(theirs, run / LOCK)
        if "gone" in attack:
            theirs.unlink()
        assert holder(run) is not None
        with pytest.raises(UserError, match="stop it where it was started"):
            interrupt(run)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)


def test_a_lock_of_this_process_is_not_taken_for_a_command(tmp_path: Path) -> None:
    with Lock(tmp_path), pytest.raises(UserError, match=str(os.getpid())):
        interrupt(tmp_path)
