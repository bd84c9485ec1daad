"""Threads that fetch bytes from stores.  They never delay the end of the program, even if a server does not answer."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")

REQUESTS = 8  # concurrent requests


class FetchPool:
    """Daemon threads with a work queue; a ThreadPoolExecutor would wait for all requests at exit."""

    def __init__(self, threads: int) -> None:
        self._waiting: queue.SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]] = queue.SimpleQueue()
        for k in range(threads):
            threading.Thread(target=self._work, daemon=True, name=f"reverie-fetching-{k}").start()

    def submit(self, work: Callable[..., T], *arguments: Any) -> Future[T]:
        """Submit work, and return the future of its result."""
        future: Future[T] = Future()
        self._waiting.put((future, work, arguments))
        return future

    def _work(self) -> None:
        while True:
            future, work, arguments = self._waiting.get()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work(*arguments))
                except BaseException as error:  # raised where the result is requested
                    future.set_exception(error)
            del future, work, arguments  # or a block would be kept alive until the next request


@cache
def fetch_pool() -> FetchPool:
    """Return the fetch pool of this process."""
    return FetchPool(REQUESTS)
