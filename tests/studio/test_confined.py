"""A run may come from anyone: nothing that it refers to outside of the opened folder is read or requested."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from reverie.runs import run as runs
from reverie.studio import trainings
from reverie.studio.app import Studio
from reverie.studio.guard import Guard
from reverie.studio.library import path_id
from tests.studio.asgi import PORT, TOKEN
from tests.studio.test_app import done, fetch

RUN, ROWS = path_id("runs/theirs"), "".join(f"{k},{k % 7}\n" for k in range(40))
REQUESTS: dict[str, dict[str, Any]] = {
    "evaluate": {"runs": [RUN], "n": 16},
    "demo": {"demo": "field", "run": RUN},
    "sample": {"run": RUN, "n": 2, "steps": 2, "sampler": "ddpm:variance=optimal"},
}


@contextmanager
def listener() -> Iterator[tuple[int, list[Any]]]:
    """Record connections to a port of this machine."""
    came: list[Any] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            try:
                while True:
                    connection, peer = server.accept()
                    came.append(peer)
                    connection.close()
            except OSError:
                return

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield server.getsockname()[1], came
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def hostile(kind: str, root: Path, outside: Path, port: int) -> dict[str, str]:
    """Return replacements of lines in config.toml, and create the files that they refer to."""
    (outside / "rows.csv").write_text(ROWS)
    (outside / "answers.txt").write_text("a\n" * 40)
    source = 'source = "patterns"'
    match kind:
        case "address":
            return {source: f'source = "http://127.0.0.1:{port}/shards/a.tar"'}
        case "home":
            return {source: 'source = "~/rows.csv"'}
        case "path":
            return {source: f'source = "{outside}/rows.csv"'}
        case "name":
            return {source: 'source = ""', 'name = "patterns"': 'name = "../outside/rows.csv"'}
        case "pattern":
            (root / "{1..2}.tar").mkdir(exist_ok=True)
            return {source: f'source = "{outside}/{{1..2}}.tar"'}
        case "link":
            (root / "rows.csv").symlink_to(outside / "rows.csv")
            return {source: f'source = "{root}/rows.csv"'}
        case "files of a pattern":
            (root / "shards").mkdir()
            (root / "shards" / "1.tar").symlink_to(outside / "rows.csv")
            return {source: f'source = "{root}/shards/{{1..2}}.tar"'}
        case "labels":
            (root / "t-images-idx3-ubyte").write_bytes(b"\0")
            (root / "t-labels-idx1-ubyte").symlink_to(outside / "rows.csv")
            return {source: f'source = "{root}/t-images-idx3-ubyte"'}
        case "data_dir":
            return {source: 'source = "mnist"', "[data.reading]": f'[data.reading]\ndata_dir = "{outside}"'}
        case "pairs":
            (root / "texts.txt").write_text("b\n" * 40)
            return {
                source: f'source = "{root}/texts.txt"',
                "[data.reading]": f'[data.reading]\npairs = "{outside}/answers.txt"',
            }
        case _:
            (root / "texts.txt").write_text("b\n" * 40)
            (root / "answers.txt").symlink_to(outside / "answers.txt")
            return {source: f'source = "{root}/texts.txt"', "[data.reading]": '[data.reading]\npairs = "answers.txt"'}


ATTACKS = (
    "address", "home", "path", "name", "pattern", "link", "files of a pattern", "labels", "data_dir", "pairs", "linked pairs",
)  # fmt: skip


@pytest.fixture
def theirs(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Return a folder with a run, in which the studio is started, and one beside it, which is the home folder."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    outside.mkdir()
    shutil.copytree(folder / "runs" / "patterns", root / "runs" / "theirs")
    monkeypatch.setenv("HOME", str(outside))
    monkeypatch.delenv("REVERIE_DATA", raising=False)
    monkeypatch.chdir(root)
    return root, outside


def rewrite(root: Path, changes: dict[str, str]) -> None:
    config = root / "runs" / "theirs" / "config.toml"
    text = config.read_text()
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new, 1)
    config.write_text(text)


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_job_follows_references_of_a_run_out_of_the_folder(
    theirs: tuple[Path, Path], attack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, outside = theirs
    started: list[Any] = []
    monkeypatch.setattr(trainings.subprocess, "Popen", lambda *words, **how: started.append(words))
    with listener() as (port, came):
        rewrite(root, hostile(attack, root, outside, port))
        read = record_reads(monkeypatch, outside)
        guard = Guard(Studio(root, []).app(), port=PORT, token=TOKEN)
        for kind, request in REQUESTS.items():
            event, data = fetch(guard, f"/api/jobs/{kind}", request).events()[-1]
            assert event == ("done" if kind == "evaluate" else "failed")  # some metrics need no data
            assert str(root) in str(data)
        refused = fetch(guard, f"/api/runs/{RUN}/resume", {"options": {"minutes": 1}})
        assert refused.status == 400 and str(root) in refused.json()["message"]
        assert not started and not came and not read


def record_reads(monkeypatch: pytest.MonkeyPatch, outside: Path) -> list[Path]:
    """Record which files outside are opened."""
    read: list[Path] = []
    for name in ("open", "read_bytes", "read_text"):
        real = getattr(Path, name)

        def note(self: Path, *words: Any, real: Any = real, **how: Any) -> Any:
            if self.resolve().is_relative_to(outside):
                read.append(self)
            return real(self, *words, **how)

        monkeypatch.setattr(Path, name, note)
    return read


@pytest.mark.parametrize("table", ["start", "codec"])
def test_a_run_resumes_only_with_runs_in_the_folder(theirs: tuple[Path, Path], table: str, folder: Path) -> None:
    root, outside = theirs
    shutil.copytree(folder / "runs" / "patterns", outside / "other")
    rewrite(root, {"[family]": f'[{table}]\nrun = "{outside}/other"\nweights = "x"\n\n[family]'})
    refused = fetch(
        Guard(Studio(root, []).app(), port=PORT, token=TOKEN), f"/api/runs/{RUN}/resume", {"options": {"minutes": 1}}
    )
    assert refused.status == 400 and str(outside / "other") in refused.json()["message"]


def test_data_in_the_folder_and_builtin_data_are_read(theirs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    root, _ = theirs
    guard = Guard(Studio(root, []).app(), port=PORT, token=TOKEN)
    assert done(fetch(guard, "/api/jobs/sample", REQUESTS["sample"]))["labels"]
    assert done(fetch(guard, "/api/jobs/demo", REQUESTS["demo"]))["panels"]
    run = runs.load(root / "runs" / "theirs")
    rows = run.sample(40, steps=2).x
    (root / "own.csv").write_text("\n".join(f"{x},{y}" for x, y in rows))
    rewrite(root, {'source = "patterns"': f'source = "{root}/own.csv"'})
    _, data = fetch(Guard(Studio(root, []).app(), port=PORT, token=TOKEN), "/api/jobs/demo", REQUESTS["demo"]).events()[-1]
    assert "own.csv" in data["message"] and "outside" not in data["message"]  # read, but the data have changed


def test_files_of_builtin_data_may_be_in_the_data_folder(theirs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    root, outside = theirs
    rewrite(root, {'source = "patterns"': 'source = "mnist"', "[data.reading]": f'[data.reading]\ndata_dir = "{outside}"'})
    monkeypatch.setenv("REVERIE_DATA", str(outside))
    real = trainings.subprocess.Popen
    monkeypatch.setattr(trainings.subprocess, "Popen", lambda words, **how: real(["true"], **how))
    guard = Guard(Studio(root, []).app(), port=PORT, token=TOKEN)
    assert fetch(guard, f"/api/runs/{RUN}/resume", {"options": {}}).status == 200
