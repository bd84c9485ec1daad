"""Monitoring of trainings: changes in a run folder as events for every page that shows the run."""

from __future__ import annotations

import asyncio
from typing import Any

from reverie.base.errors import UserError
from reverie.studio.jobs import Busy, Channel, EventStream
from reverie.studio.library import LibraryItem
from reverie.studio.summaries import Summaries

POLL_INTERVAL = 1.0  # seconds
MAX_STREAMS = 64


class RunMonitor:
    """Polls the runs that pages show, with one task for each page."""

    def __init__(self, summaries: Summaries) -> None:
        self.summaries = summaries
        self._tasks: set[asyncio.Task[None]] = set()

    def stream(self, run: LibraryItem) -> EventStream:
        """Return a stream of the changes in a run."""
        if len(self._tasks) >= MAX_STREAMS:
            raise Busy(f"too many pages monitor trainings: {MAX_STREAMS}; close some of them and try again")
        channel = Channel()
        task = asyncio.ensure_future(self._poll(run, channel))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return EventStream(channel, task.cancel)

    async def _poll(self, run: LibraryItem, channel: Channel) -> None:
        previous: Any = None
        try:
            while True:
                stamp = await asyncio.to_thread(self._stamp, run)
                if stamp != previous:
                    previous = stamp
                    try:
                        channel.send("run", await asyncio.to_thread(self.summaries.run, run.id), droppable=True)
                    except UserError as error:
                        channel.send("failed", {"message": str(error)})
                        return
                if not stamp[0]["training"] and stamp[0]["queued"] is None:
                    return
                await asyncio.sleep(POLL_INTERVAL)
        finally:
            channel.end()

    def _stamp(self, run: LibraryItem) -> tuple[Any, ...]:
        """Return a value that differs whenever the run has changed."""
        files = (run.path / "metrics.jsonl", run.path / "previews", run.path / "config.toml", run.path / "model.safetensors")
        sizes = [(path.stat().st_mtime_ns, path.stat().st_size) if path.exists() else None for path in files]
        return self.summaries.trainings.state(run), sizes

    def close(self) -> None:
        """Cancel all tasks."""
        for task in self._tasks:
            task.cancel()
