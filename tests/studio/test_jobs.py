"""The queue is bounded, and so are the buffered events of a client that does not read."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from reverie.base.errors import UserError
from reverie.studio import jobs
from reverie.studio.jobs import MAX_BYTES, MAX_EVENTS, MAX_QUEUED, Busy, Channel, EventStream, Job, WorkQueue


def test_a_client_that_never_reads_misses_only_droppable_events() -> None:
    async def run() -> bytes:
        channel = Channel()
        channel.send("start", {})
        for k in range(2000):
            channel.send("frame", {"k": k, "image": "x" * 100_000}, droppable=True)
            assert len(channel._events) <= MAX_EVENTS and channel._bytes <= MAX_BYTES
        channel.send("done", {"all": True})
        found = b""
        while part := channel.take():
            found += part
        return found

    found = asyncio.run(run())
    assert found.startswith(b"event: start") and found.endswith(b'event: done\ndata: {"all": true}\n\n')
    assert b'"k": 1999' in found and b'"k": 3,' not in found


def test_a_stalled_client_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "SEND_TIMEOUT", 0.05)

    async def run() -> bool:
        job = Job(lambda job: {})
        job.send("frame", {}, droppable=True)

        async def receive() -> Any:
            await asyncio.sleep(60)

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                await asyncio.sleep(60)

        await asyncio.wait_for(EventStream(job, job.cancel)({}, receive, send), 5)
        return job.cancelled

    assert asyncio.run(run())


def test_a_stalled_client_does_not_block_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "CONTESTED_TIMEOUT", 0.1)

    async def run() -> tuple[bytes, bool]:
        queue, began = WorkQueue(), time.monotonic()

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
        queue.add(deaf)
        stream = asyncio.ensure_future(EventStream(deaf, deaf.cancel, lambda: queue.is_contested(deaf))({}, receive, send))
        await asyncio.sleep(0.5)
        assert not deaf.cancelled  # no other job waits
        queue.add(other)
        while not other.ended:
            await asyncio.sleep(0.01)
        assert time.monotonic() - began < 25
        await stream
        queue.close()
        return other.take(), deaf.cancelled

    found, cancelled = asyncio.run(run())
    assert b"event: done" in found and cancelled


def test_jobs_run_in_order_and_a_full_queue_refuses_more() -> None:
    async def run() -> tuple[int, int, list[int]]:
        queue, gate, order = WorkQueue(), threading.Event(), []
        jobs, refused = [], 0
        for k in range(200):
            job = Job(lambda job, k=k: (gate.wait(5), order.append(k), {"k": k})[-1])  # type: ignore[misc]
            try:
                queue.add(job)
                jobs.append(job)
            except Busy:
                refused += 1
        gate.set()
        for _ in range(200):
            if all(job.ended for job in jobs):
                break
            await asyncio.sleep(0.02)
        queue.close()
        assert all(b"event: done" in job.take() for job in jobs)
        return len(jobs), refused, order

    served, refused, order = asyncio.run(run())
    assert served == MAX_QUEUED + 1 and refused == 200 - served and order == sorted(order)


def test_a_cancelled_job_never_starts_and_a_running_one_stops_at_its_next_check() -> None:
    async def run() -> list[str]:
        queue, did, gate = WorkQueue(), [], threading.Event()

        def long(job: Job) -> dict[str, Any]:
            gate.wait(5)
            job.progress("work", 1, 2)
            did.append("continued")
            return {}

        first, second = Job(long), Job(lambda job: did.append("second"))  # type: ignore[func-returns-value]
        queue.add(first)
        queue.add(second)
        first.cancel()
        second.cancel()
        gate.set()
        while not (first.ended and second.ended):
            await asyncio.sleep(0.01)
        queue.close()
        return did

    assert asyncio.run(run()) == []


def test_user_errors_are_shown_and_internal_errors_are_not(capsys: pytest.CaptureFixture[str]) -> None:
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

    messages = asyncio.run(run())
    assert b"this is why" in messages[0] and b"secret" not in messages[1] and b"memory" in messages[2]
    assert "secret path" in capsys.readouterr().err
