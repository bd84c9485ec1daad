"""The queue is bounded, and so is what waits for a client that does not read."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from reverie.base.errors import UserError
from reverie.studio import work
from reverie.studio.work import KEPT_BYTES, KEPT_EVENTS, WAITING, Busy, Channel, Job, Lane, Stream


def test_a_client_that_never_reads_costs_bounded_memory_and_misses_only_frames() -> None:
    async def run() -> bytes:
        channel = Channel()
        channel.send("start", {})
        for k in range(2000):
            channel.send("frame", {"k": k, "image": "x" * 100_000}, droppable=True)
            assert len(channel._events) <= KEPT_EVENTS and channel._bytes <= KEPT_BYTES
        channel.send("done", {"all": True})
        found = b""
        while part := channel.take():
            found += part
        return found

    found = asyncio.run(run())
    assert found.startswith(b"event: start") and found.endswith(b'event: done\ndata: {"all": true}\n\n')
    assert b'"k": 1999' in found and b'"k": 3,' not in found


def test_a_client_that_takes_no_byte_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "PATIENCE", 0.05)

    async def run() -> bool:
        job = Job(lambda job: {})
        job.send("frame", {}, droppable=True)

        async def receive() -> Any:
            await asyncio.sleep(60)

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                await asyncio.sleep(60)

        await asyncio.wait_for(Stream(job, job.cancel)({}, receive, send), 5)
        return job.cancelled

    assert asyncio.run(run())


def test_one_who_takes_no_byte_does_not_keep_others_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "STALLED", 0.1, raising=False)

    async def run() -> tuple[bytes, bool]:
        lane, began = Lane(), time.monotonic()

        def long(job: Job) -> dict[str, Any]:
            while time.monotonic() - began < 30:
                job.progress("work", 0, 1)
                time.sleep(0.01)
            return {}

        async def receive() -> Any:
            await asyncio.sleep(60)

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                await asyncio.sleep(60)

        deaf, other = Job(long), Job(lambda job: {"other": 1})
        lane.add(deaf)
        contested = (lambda: lane.is_contested(deaf),) if hasattr(lane, "is_contested") else ()
        stream = asyncio.ensure_future(Stream(deaf, deaf.cancel, *contested)({}, receive, send))
        await asyncio.sleep(0.5)
        assert not deaf.cancelled  # nobody else wants anything yet
        lane.add(other)
        while not other.ended:
            await asyncio.sleep(0.01)
        assert time.monotonic() - began < 25
        await stream
        lane.close()
        return other.take(), deaf.cancelled

    found, cancelled = asyncio.run(run())
    assert b"event: done" in found and cancelled


def test_too_many_are_told_to_wait_and_all_others_are_answered_in_turn() -> None:
    async def run() -> tuple[int, int, list[int]]:
        lane, gate, order = Lane(), threading.Event(), []
        jobs, refused = [], 0
        for k in range(200):
            job = Job(lambda job, k=k: (gate.wait(5), order.append(k), {"k": k})[-1])  # type: ignore[misc]
            try:
                lane.add(job)
                jobs.append(job)
            except Busy:
                refused += 1
        gate.set()
        for _ in range(200):
            if all(job.ended for job in jobs):
                break
            await asyncio.sleep(0.02)
        lane.close()
        assert all(b"event: done" in job.take() for job in jobs)
        return len(jobs), refused, order

    served, refused, order = asyncio.run(run())
    assert served == WAITING + 1 and refused == 200 - served and order == sorted(order)


def test_a_cancelled_job_never_begins_and_a_running_one_stops_at_its_next_check() -> None:
    async def run() -> list[str]:
        lane, did, gate = Lane(), [], threading.Event()

        def long(job: Job) -> dict[str, Any]:
            gate.wait(5)
            job.progress("work", 1, 2)
            did.append("went on")
            return {}

        first, second = Job(long), Job(lambda job: did.append("second"))  # type: ignore[func-returns-value]
        lane.add(first)
        lane.add(second)
        first.cancel()
        second.cancel()
        gate.set()
        while not (first.ended and second.ended):
            await asyncio.sleep(0.01)
        lane.close()
        return did

    assert asyncio.run(run()) == []


def test_mistakes_and_failures_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    async def run() -> list[bytes]:
        def mistake(job: Job) -> dict[str, Any]:
            raise UserError("this is why")

        def failure(job: Job) -> dict[str, Any]:
            raise RuntimeError("secret path /home/x")

        def full(job: Job) -> dict[str, Any]:
            raise MemoryError

        jobs = [Job(mistake), Job(failure), Job(full)]
        for job in jobs:
            job.run()
        return [job.take() for job in jobs]

    said = asyncio.run(run())
    assert b"this is why" in said[0] and b"secret" not in said[1] and b"memory" in said[2]
    assert "secret path" in capsys.readouterr().err
