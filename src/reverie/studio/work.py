"""Work for clients: one piece at a time, told as events, cancelled when nobody listens any more."""

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
from reverie.studio.plain import as_json

WAITING = 12  # pieces of work that may wait for their turn
KEPT_EVENTS, KEPT_BYTES = 96, 48 * 2**20  # that wait for one client to read them
HEARTBEAT, PATIENCE = 15.0, 60.0  # seconds between signs of life; that a client may take to read an event
STALLED, LOOK = 3.0, 0.2  # seconds that it may take while others wait for its work to end, and between looks whether they do
STREAM = [
    (b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no"),
]  # fmt: skip


class Cancelled(BaseException):
    """Nobody wants this work any more; not an `Exception`, so that nothing on the way takes it for a failure."""


class Busy(UserError):
    """There is no place in the queue."""


class Channel:
    """Events on their way from any thread to one client; what can be missed is dropped where the client is slow."""

    def __init__(self) -> None:
        self.loop, self.ready = asyncio.get_running_loop(), asyncio.Event()
        self._lock = threading.Lock()
        self._events: deque[tuple[bytes, bool]] = deque()
        self._bytes = 0
        self.ended = False

    def send(self, event: str, data: Any, *, droppable: bool = False) -> None:
        """Put an event on its way."""
        message = f"event: {event}\ndata: {json.dumps(as_json(data), allow_nan=False)}\n\n".encode()
        with self._lock:
            self._events.append((message, droppable))
            self._bytes += len(message)
            while len(self._events) > KEPT_EVENTS or self._bytes > KEPT_BYTES:
                old = next((k for k, (_, may_go) in enumerate(self._events) if may_go), 0)
                self._bytes -= len(self._events[old][0])
                del self._events[old]
        self._wake()

    def end(self) -> None:
        """Say that no more events come."""
        self.ended = True
        self._wake()

    def _wake(self) -> None:
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.ready.set)

    def take(self) -> bytes:
        """Return the events that wait, up to the first large one."""
        parts: list[bytes] = []
        with self._lock:
            while self._events and sum(map(len, parts)) < 2**18:
                message, _ = self._events.popleft()
                self._bytes -= len(message)
                parts.append(message)
        return b"".join(parts)


class Job(Channel):
    """A piece of work, which is given itself to tell how far it is.  do: returns what the event `done` tells."""

    def __init__(self, do: Callable[[Job], Any]) -> None:
        super().__init__()
        self.do, self.cancelled = do, False

    def cancel(self) -> None:
        """Note that nobody listens any more."""
        self.cancelled = True

    def check(self) -> None:
        """Stop here if nobody listens any more."""
        if self.cancelled:
            raise Cancelled

    def progress(self, what: str, done: int, of: int) -> None:
        """Tell how far the work is; in the form that all verbs take as on_progress."""
        self.check()
        self.send("progress", {"what": what, "done": done, "of": of}, droppable=True)

    def run(self) -> None:
        """Do the work, in the thread that works, and tell how it ended."""
        try:
            self.check()
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                found = self.do(self)
            notes = list(dict.fromkeys(str(w.message) for w in said if issubclass(w.category, ReverieWarning)))
            self.send("done", {**(found or {}), "notes": notes})
        except Cancelled:
            pass
        except UserError as error:
            self.send("failed", {"message": str(error)})
        except Exception as error:
            if out_of_memory(error):
                self.send("failed", {"message": "there is not enough memory for this; ask for fewer or smaller things"})
            else:
                traceback.print_exc(file=sys.stderr)
                self.send("failed", {"message": "the studio failed at this, and its terminal says why"})
        finally:
            self.end()


class Lane:
    """The one thread that works, and those who wait for it."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "studio")
        self._jobs: deque[Job] = deque()  # the one at work, and those that wait, in turn

    def add(self, job: Job) -> None:
        """Put a job last, and refuse where too many wait."""
        if len(self._jobs) > WAITING:
            raise Busy("the studio has much to do; try again in a few seconds")
        job.send("queued", {"before": len(self._jobs)})
        self._jobs.append(job)
        self._pool.submit(self._do, job)

    def _do(self, job: Job) -> None:
        try:
            job.run()
        finally:
            self._jobs.remove(job)

    def is_contested(self, job: Job) -> bool:
        """Tell whether others wait for a job that is at work."""
        return len(self._jobs) > 1 and self._jobs[0] is job

    def close(self) -> None:
        """Cancel everything."""
        for job in list(self._jobs):
            job.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def wait(self) -> None:
        """Wait until the work that was cancelled has ended."""
        self._pool.shutdown(wait=True)


class Stream:
    """The answer that streams the events of a channel; when the client goes away, or takes nothing for long, `left` is called.

    contested: whether others wait for what the client asked for, so that less patience is due.
    """

    def __init__(self, channel: Channel, left: Callable[[], object], contested: Callable[[], bool] = lambda: False) -> None:
        self.channel, self.left, self.contested = channel, left, contested
        self._sent, self._sending = 0, False  # bytes, and whether some are on their way

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until there are no more or nobody reads."""
        unread = scope.get("state", {}).get("unread", lambda: 0)
        work = asyncio.ensure_future(self._send(send))
        ends = (work, asyncio.ensure_future(_disconnected(receive)), asyncio.ensure_future(self._until_stalled(unread)))
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if work.done() and (error := work.exception()) is not None and not isinstance(error, OSError):
                raise error
        finally:
            for task in ends:
                task.cancel()
            self.left()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": STREAM})
        while True:
            ended = self.channel.ended
            body = self.channel.take()
            if not body and not ended:
                self.channel.ready.clear()
                if not self.channel.ended:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self.channel.ready.wait(), HEARTBEAT)
                body = self.channel.take() or b": still here\n\n"
            last = ended and not body
            self._sending = True
            await send({"type": "http.response.body", "body": body, "more_body": not last})
            self._sending, self._sent = False, self._sent + len(body)
            if last:
                return

    async def _until_stalled(self, unread: Callable[[], int]) -> None:
        """Return when the client has taken no byte for longer than it may.  unread: bytes that it has not taken yet."""
        clock = asyncio.get_running_loop().time
        most, since = -1, clock()
        while clock() - since <= (STALLED if self.contested() else PATIENCE):
            await asyncio.sleep(LOOK)
            waiting = unread()
            if self._sent - waiting > most or not (waiting or self._sending):
                most, since = self._sent - waiting, clock()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
