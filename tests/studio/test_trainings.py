"""Trainings started from the page: one of each name, two at a time, the others queued."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from reverie.studio import trainings
from reverie.studio.app import Studio
from reverie.studio.guard import Guard
from reverie.studio.library import path_id
from tests.studio.asgi import PORT, TOKEN, Answer, call

STUDIOS: list[Studio] = []  # of the current test


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Return the processes that the studio starts; each sleeps instead of training."""
    made: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def start(words: list[str], **how: Any) -> subprocess.Popen[bytes]:
        made.append(real(["sleep", "300"], **how))
        made[-1].args = words
        return made[-1]

    monkeypatch.setattr(trainings.subprocess, "Popen", start)
    yield made
    for studio in STUDIOS:
        studio.trainings.close()
    STUDIOS.clear()
    for process in made:
        process.kill()
        process.wait()


def guarded(folder: Path) -> Guard:
    STUDIOS.append(Studio(folder, []))
    return Guard(STUDIOS[-1].app(), port=PORT, token=TOKEN)


def fetch(app: Guard, *requests: tuple[str, Any]) -> list[Answer]:
    """Send all requests at once."""

    async def run() -> list[Answer]:
        return await asyncio.gather(*(call(app, "GET" if body is None else "POST", path, body=body) for path, body in requests))

    return asyncio.run(run())


def starting(*names: str) -> list[tuple[str, Any]]:
    return [("/api/trainings", {"data": "spiral", "name": name}) for name in names]


def until(what: Callable[[], Any]) -> None:
    end = time.monotonic() + 60
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


def states(app: Guard) -> dict[str, Any]:
    rows = fetch(app, ("/api/runs", None))[0].json()
    return {row["name"]: "training" if row["training"] else row["queued"] for row in rows}


def test_of_many_requests_with_one_name_one_starts(tmp_path: Path, processes: list[subprocess.Popen[bytes]]) -> None:
    answers = fetch(guarded(tmp_path), *starting(*["same"] * 16))
    assert sorted(answer.status for answer in answers) == [200] + [400] * 15 and len(processes) == 1
    assert all("same" in answer.json()["message"] for answer in answers if answer.status == 400)


def test_two_trainings_run_and_the_others_follow_in_order(tmp_path: Path, processes: list[subprocess.Popen[bytes]]) -> None:
    app = guarded(tmp_path)
    assert {answer.status for name in "abcde" for answer in fetch(app, *starting(name))} == {200} and len(processes) == 2
    assert states(app) == {"runs/a": "training", "runs/b": "training", "runs/c": 0, "runs/d": 1, "runs/e": 2}
    stop = fetch(app, (f"/api/runs/{path_id('runs/d')}/stop", {}))[0]
    assert stop.status == 200 and states(app) == {"runs/a": "training", "runs/b": "training", "runs/c": 0, "runs/e": 1}
    processes[0].kill()
    until(lambda: len(processes) == 3)
    assert f"--out={tmp_path}/runs/c" in processes[2].args
    processes[1].kill()
    until(lambda: len(processes) == 4)
    assert f"--out={tmp_path}/runs/e" in processes[3].args
    assert states(app)["runs/c"] == states(app)["runs/e"] == "training"


def test_the_queue_is_bounded(tmp_path: Path, processes: list[subprocess.Popen[bytes]]) -> None:
    app = guarded(tmp_path)
    answers = fetch(app, *starting(*(f"n{k}" for k in range(23))))
    assert [answer.status for answer in answers].count(200) == trainings.MAX_RUNNING + trainings.MAX_QUEUED
    assert len(processes) == trainings.MAX_RUNNING == 2
    refused = next(answer for answer in answers if answer.status == 400)
    assert str(trainings.MAX_QUEUED) in refused.json()["message"]


def test_a_run_is_resumed_once(tmp_path: Path, folder: Path, processes: list[subprocess.Popen[bytes]]) -> None:
    key = path_id("runs/patterns")
    shutil.copytree(folder / "runs", tmp_path / "runs")
    answers = fetch(guarded(tmp_path), *[(f"/api/runs/{key}/resume", {"options": {}})] * 8)
    assert sorted(answer.status for answer in answers) == [200] + [400] * 7 and len(processes) == 1


def test_a_closed_studio_starts_no_queued_training(tmp_path: Path, processes: list[subprocess.Popen[bytes]]) -> None:
    studio = Studio(tmp_path, [])
    for name in "abc":
        studio.trainings.start("spiral", name, {})
    assert studio.trainings.close() == ["runs/c"]
    processes[0].kill()
    processes[0].wait()
    time.sleep(0.2)
    assert len(processes) == 2 and processes[1].poll() is None
