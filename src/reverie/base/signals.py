"""Being asked to stop: Ctrl-C and SIGTERM end a training after the step it is at."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Request:
    """Whether, and by which signal, an end was asked for."""

    def __init__(self) -> None:
        self.by: int | None = None

    def __call__(self) -> bool:
        """Tell whether an end was asked for."""
        return self.by is not None


@contextmanager
def stop_requests() -> Iterator[Request]:
    """Note the first Ctrl-C or SIGTERM instead of dying of it; a second Ctrl-C interrupts at once.

    Signals reach only the main thread of a program; elsewhere nothing is changed.
    """
    request = Request()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def note(number: int, frame: FrameType | None) -> None:
        if request.by is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        request.by = number

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Stopped(KeyboardInterrupt):
    """A training ended because it was asked to, with everything kept.  code: the exit code of the program."""

    def __init__(self, by: int | None) -> None:
        super().__init__("stopped; everything is kept")
        self.code = 128 + (by or signal.SIGINT)
