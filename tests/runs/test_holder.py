"""Who trains in a folder can be told, so that it can be stopped."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from reverie.runs import lock
from reverie.runs.lock import LOCK, Lock, holder


def test_the_holder_of_a_lock_is_known_while_it_is_held(tmp_path: Path) -> None:
    assert holder(tmp_path) is None
    held = Lock(tmp_path)
    with held:
        assert holder(tmp_path) == os.getpid()
    assert holder(tmp_path) is None


def test_a_lock_file_that_was_left_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / LOCK).touch()
    assert holder(tmp_path) is None


def test_where_the_system_does_not_tell_who_it_is_told_that_someone_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "_LOCKS", tmp_path / "none")
    with Lock(tmp_path):
        assert holder(tmp_path) == 0
    assert holder(tmp_path) is None


def test_a_link_in_place_of_the_lock_is_no_lock(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    (tmp_path / LOCK).symlink_to(tmp_path / "other")
    assert holder(tmp_path) is None
