"""The lock of a run folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from reverie.base.errors import UserError
from reverie.runs.lock import LOCK, Lock, Occupied

HOLDER = """
import pathlib, sys, time
from reverie.runs.lock import Lock
lock = Lock(pathlib.Path(sys.argv[1]))
print("locked", flush=True)
time.sleep(60)
"""


def test_one_holds_it_until_it_is_released_or_forgotten(tmp_path: Path) -> None:
    with Lock(tmp_path) as lock:
        with pytest.raises(Occupied, match="another training"):
            Lock(tmp_path)
        assert lock.held
    assert not lock.held and not list(tmp_path.iterdir())
    other = Lock(tmp_path)
    del other
    with Lock(tmp_path) as last:
        assert last.held
    assert not list(tmp_path.iterdir())


def test_a_lock_that_was_not_entered_is_replaced_within_a_program(tmp_path: Path) -> None:
    first = Lock(tmp_path / "run")
    second = Lock(tmp_path / "run")
    assert second.held and not first.held
    first.release()
    assert second.held and (tmp_path / "run" / LOCK).exists()


def test_folders_that_were_made_for_nothing_go_with_it(tmp_path: Path) -> None:
    lock = Lock(tmp_path / "a" / "b")
    lock.release()
    assert not list(tmp_path.iterdir())
    with Lock(tmp_path / "a" / "b"):
        (tmp_path / "a" / "b" / "x").write_text("kept")
    assert [p.name for p in (tmp_path / "a" / "b").iterdir()] == ["x"]


def test_the_file_is_not_emptied_and_a_link_not_followed(tmp_path: Path) -> None:
    (tmp_path / LOCK).write_text("of another program")
    holder = (tmp_path / LOCK).open()
    with Lock(tmp_path):
        assert holder.read() == "of another program"
    assert (tmp_path / LOCK).read_text() == "of another program"
    (tmp_path / LOCK).unlink()
    (tmp_path / "precious").write_text("thesis")
    (tmp_path / LOCK).symlink_to(tmp_path / "precious")
    with pytest.raises(UserError, match="is a link"):
        Lock(tmp_path)
    assert (tmp_path / "precious").read_text() == "thesis" and (tmp_path / LOCK).is_symlink()


def test_a_folder_in_its_place_is_not_held(tmp_path: Path) -> None:
    lock = Lock(tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "moved")
    with Lock(tmp_path / "run") as other:
        assert other.held and not lock.held
        lock.release()
        assert other.held and (tmp_path / "run" / LOCK).exists()


def test_a_killed_holder_holds_nothing(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline()
    with pytest.raises(Occupied):
        Lock(tmp_path)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert (tmp_path / LOCK).exists()
    with Lock(tmp_path) as lock:
        assert lock.held
