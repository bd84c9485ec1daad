"""The few threads that ask stores for bytes.  They never keep a program from ending, however long a server is silent."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")

REQUESTS = 8  # that are made at a time


class FetchPool:
    """Threads that work off a queue, and end with the program, whose own pools would wait for all of it."""

    def __init__(self, threads: int) -> None:
        self._waiting: queue.SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]] = queue.SimpleQueue()
        for k in range(threads):
            threading.Thread(target=self._work, daemon=True, name=f"reverie-fetching-{k}").start()

    def submit(self, work: Callable[..., T], *arguments: Any) -> Future[T]:
        """Have something done, and return what will be its result."""
        future: Future[T] = Future()
        self._waiting.put((future, work, arguments))
        return future

    def _work(self) -> None:
        while True:
            future, work, arguments = self._waiting.get()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work(*arguments))
                except BaseException as error:  # carried over to whoever waits
                    future.set_exception(error)
            del future, work, arguments  # or a block would be held until the next one comes


@cache
def fetch_pool() -> FetchPool:
    """Return the threads of this process."""
    return FetchPool(REQUESTS)
