"""Jobs: one runs at a time, reports events to its client, and is cancelled when the client disconnects."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import traceback
import warnings
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from reverie.base.errors import ReverieWarning, UserError, out_of_memory
from reverie.studio.guard import Receive, Scope, Send
from reverie.studio.serialize import serialize

MAX_QUEUED = 12  # jobs behind the running one
MAX_EVENTS, MAX_BYTES = 96, 48 * 2**20  # buffered for one client
HEARTBEAT, SEND_TIMEOUT = 15.0, 60.0  # seconds between keep-alives; seconds without progress until a client is dropped
CONTESTED_TIMEOUT, POLL_INTERVAL = 3.0, 0.2  # seconds: send timeout while other jobs wait; interval of checks
STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no"),
]  # fmt: skip


class Cancelled(BaseException):
    """The job was cancelled; not an `Exception`, so that `except Exception` does not catch it."""


class Busy(UserError):
    """The queue is full."""


class Channel:
    """A buffer of events from any thread to one client; droppable events are dropped when the client is slow."""

    def __init__(self) -> None:
        self.loop, self.ready = asyncio.get_running_loop(), asyncio.Event()
        self._lock = threading.Lock()
        self._events: deque[tuple[bytes, bool]] = deque()
        self._bytes = 0
        self.ended = False

    def send(self, event: str, data: Any, *, droppable: bool = False) -> None:
        """Append an event; drop the oldest droppable ones if the buffer is full."""
        message = f"event: {event}\ndata: {json.dumps(serialize(data), allow_nan=False)}\n\n".encode()
        with self._lock:
            self._events.append((message, droppable))
            self._bytes += len(message)
            while len(self._events) > MAX_EVENTS or self._bytes > MAX_BYTES:
                index = next((k for k, (_, is_droppable) in enumerate(self._events) if is_droppable), 0)
                self._bytes -= len(self._events[index][0])
                del self._events[index]
        self._wake()

    def end(self) -> None:
        """Mark the end of the events."""
        self.ended = True
        self._wake()

    def _wake(self) -> None:
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.ready.set)

    def take(self) -> bytes:
        """Remove and return buffered events, up to the first large one."""
        parts: list[bytes] = []
        with self._lock:
            while self._events and sum(map(len, parts)) < 2**18:
                message, _ = self._events.popleft()
                self._bytes -= len(message)
                parts.append(message)
        return b"".join(parts)


class Job(Channel):
    """A function that runs in the worker thread.  function: receives the job, returns the data of the event `done`."""

    def __init__(self, function: Callable[[Job], Any]) -> None:
        super().__init__()
        self.function, self.cancelled = function, False

    def cancel(self) -> None:
        """Cancel the job at its next check."""
        self.cancelled = True

    def check(self) -> None:
        """Raise Cancelled if the job was cancelled."""
        if self.cancelled:
            raise Cancelled

    def progress(self, label: str, done: int, total: int) -> None:
        """Report progress; usable as `on_progress`."""
        self.check()
        self.send("progress", {"label": label, "done": done, "total": total}, droppable=True)

    def run(self) -> None:
        """Run the function and report its result or failure."""
        try:
            self.check()
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                result = self.function(self)
            notes = list(dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, ReverieWarning)))
            self.send("done", {**(result or {}), "warnings": notes})
        except Cancelled:
            pass
        except UserError as error:
            self.send("failed", {"message": str(error)})
        except Exception as error:
            if out_of_memory(error):
                self.send("failed", {"message": "out of memory; request fewer or smaller samples"})
            else:
                traceback.print_exc(file=sys.stderr)
                self.send("failed", {"message": "internal error of the studio; see its terminal for the traceback"})
        finally:
            self.end()


class WorkQueue:
    """Runs jobs in order in one worker thread."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "studio")
        self._jobs: deque[Job] = deque()  # the running one first

    def add(self, job: Job) -> None:
        """Append a job; raise Busy if the queue is full."""
        if len(self._jobs) > MAX_QUEUED:
            raise Busy(f"the queue of the studio is full: {MAX_QUEUED} jobs; try again in a few seconds")
        job.send("queued", {"ahead": len(self._jobs)})
        self._jobs.append(job)
        self._pool.submit(self._run, job)

    def _run(self, job: Job) -> None:
        try:
            job.run()
        finally:
            self._jobs.remove(job)

    def is_contested(self, job: Job) -> bool:
        """Return whether a job is running while others wait."""
        return len(self._jobs) > 1 and self._jobs[0] is job

    def close(self) -> None:
        """Cancel all jobs."""
        for job in list(self._jobs):
            job.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def wait(self) -> None:
        """Wait until cancelled jobs have stopped."""
        self._pool.shutdown(wait=True)


class EventStream:
    """A response that streams the events of a channel; calls `on_disconnect` when the client disconnects or stalls.

    is_contested: whether other jobs wait for this client's job, which shortens the timeout.
    """

    def __init__(
        self, channel: Channel, on_disconnect: Callable[[], object], is_contested: Callable[[], bool] = lambda: False
    ) -> None:
        self.channel, self.on_disconnect, self.is_contested = channel, on_disconnect, is_contested
        self._sent, self._sending = 0, False  # bytes sent, and whether a send is in progress

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until they end or the client disconnects."""
        unread = scope.get("state", {}).get("unread", lambda: 0)
        sending = asyncio.ensure_future(self._send(send))
        ends = (sending, asyncio.ensure_future(_disconnected(receive)), asyncio.ensure_future(self._until_stalled(unread)))
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if sending.done() and (error := sending.exception()) is not None and not isinstance(error, OSError):
                raise error
        finally:
            for task in ends:
                task.cancel()
            self.on_disconnect()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
        while True:
            ended = self.channel.ended
            body = self.channel.take()
            if not body and not ended:
                self.channel.ready.clear()
                if not self.channel.ended:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self.channel.ready.wait(), HEARTBEAT)
                body = self.channel.take() or b": keep-alive\n\n"
            last = ended and not body
            self._sending = True
            await send({"type": "http.response.body", "body": body, "more_body": not last})
            self._sending, self._sent = False, self._sent + len(body)
            if last:
                return

    async def _until_stalled(self, unread: Callable[[], int]) -> None:
        """Return when the client has read nothing for the timeout.  unread: returns the bytes sent but not yet read."""
        clock = asyncio.get_running_loop().time
        max_read, progress_time = -1, clock()
        while clock() - progress_time <= (CONTESTED_TIMEOUT if self.is_contested() else SEND_TIMEOUT):
            await asyncio.sleep(POLL_INTERVAL)
            pending = unread()
            if self._sent - pending > max_read or not (pending or self._sending):
                max_read, progress_time = self._sent - pending, clock()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
