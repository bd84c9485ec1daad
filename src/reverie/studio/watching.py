"""Watching trainings: what changes in a run folder, told to every page that looks at it."""

from __future__ import annotations

import asyncio
from typing import Any

from reverie.base.errors import UserError
from reverie.studio.facts import Facts
from reverie.studio.library import Found
from reverie.studio.work import Busy, Channel, Stream

EVERY = 1.0  # seconds between looks
MOST_WATCHERS = 64


class Watchers:
    """Those who watch; each has a task that looks again and again until its page is gone."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self._tasks: set[asyncio.Task[None]] = set()

    def watch(self, run: Found) -> Stream:
        """Return the stream of what changes in a run."""
        if len(self._tasks) >= MOST_WATCHERS:
            raise Busy("too many pages watch trainings already; close some of them")
        channel = Channel()
        task = asyncio.ensure_future(self._look(run, channel))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return Stream(channel, task.cancel)

    async def _look(self, run: Found, channel: Channel) -> None:
        known: Any = None
        try:
            while True:
                seen = await asyncio.to_thread(self._stamp, run)
                if seen != known:
                    known = seen
                    try:
                        channel.send("run", await asyncio.to_thread(self.facts.run, run.id), droppable=True)
                    except UserError as error:
                        channel.send("failed", {"message": str(error)})
                        return
                if not seen[0]["training"] and seen[0]["queued"] is None:
                    return
                await asyncio.sleep(EVERY)
        finally:
            channel.end()

    def _stamp(self, run: Found) -> tuple[Any, ...]:
        """Return what differs whenever there is something new."""
        files = (run.path / "metrics.jsonl", run.path / "previews", run.path / "config.toml", run.path / "model.safetensors")
        sizes = [(path.stat().st_mtime_ns, path.stat().st_size) if path.exists() else None for path in files]
        return self.facts.trainings.state(run), sizes

    def close(self) -> None:
        """Let everybody go."""
        for task in self._tasks:
            task.cancel()
