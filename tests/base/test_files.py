"""Only regular files are opened; writes are atomic."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import numpy as np
import pytest

from reverie.base.cache import cache_folder
from reverie.base.errors import UserError
from reverie.base.files import atomic, expanded, own_file, read_own, write_array
from tests.files import KINDS, full_disk, put


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["config.toml", "inner/config.toml"])
def test_only_a_regular_file_is_opened(name: str, kind: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "inner").mkdir(parents=True)
    put(run / name, kind, tmp_path)
    with pytest.raises(UserError, match="expected a file"):
        own_file(run, name)


def test_links_inside_a_run_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x").write_text("text")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "inner").symlink_to(tmp_path / "other")
    with pytest.raises(UserError, match="inner is a link, expected a folder"):
        own_file(tmp_path / "run", "inner/x")
    (tmp_path / "latest").symlink_to(tmp_path / "other")
    assert read_own(tmp_path / "latest", "x") == "text" and own_file(tmp_path / "none", "x") == tmp_path / "none" / "x"
    with pytest.raises(UserError, match="larger than"):
        read_own(tmp_path / "latest", "x", max_bytes=3)


def test_failed_writes_leave_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"file too large"), full_disk(1000):
        write_array(tmp_path / "a" / "b" / "x.npy", np.zeros(1000))
    assert not list(tmp_path.iterdir())
    (tmp_path / "x.npy").write_text("older")
    with pytest.raises(RuntimeError), atomic(tmp_path / "x.npy") as temporary:
        temporary.write_text("newer")
        raise RuntimeError
    assert [p.name for p in tmp_path.iterdir()] == ["x.npy"] and (tmp_path / "x.npy").read_text() == "older"


def test_only_regular_files_are_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.png")
    with pytest.raises(UserError, match="not a regular file"), atomic(tmp_path / "x.png"):
        pass
    assert (tmp_path / "x.png").is_fifo()


@pytest.mark.parametrize("x", [np.arange(6.0).reshape(2, 3).T, np.zeros((0, 4), np.float32), np.array([True, False])])
def test_arrays_round_trip(x: np.ndarray, tmp_path: Path) -> None:
    write_array(tmp_path / "x.npy", x)
    back = np.load(tmp_path / "x.npy")
    assert back.dtype == x.dtype and back.shape == x.shape and (back == x).all()


def test_unknown_home_folder_names_the_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def nobody(number: int) -> None:
        raise KeyError(number)

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    with pytest.raises(UserError, match=r"HOME.*XDG_CACHE_HOME"):
        cache_folder()
    for path in ("~/data", "~nobody-by-this-name/data"):
        with pytest.raises(UserError, match="write the path in full"):
            expanded(path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "reverie"
