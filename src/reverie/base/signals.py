"""Stop requests: Ctrl-C and SIGTERM end a training after the current step, or interrupt slow work."""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

GRACE_PERIOD = 2.0  # seconds after a stop request before interruptible work is interrupted


class StopRequest:
    """Whether and by which signal a stop was requested.  code: the exit code of the program.

    is_interruptible: whether the current work may be interrupted by `Stopped` if it takes longer than GRACE_PERIOD to end.
    """

    def __init__(self) -> None:
        self.by: int | None = None
        self.is_interruptible = False

    def __call__(self) -> bool:
        """Return whether a stop was requested."""
        return self.by is not None

    @property
    def code(self) -> int:
        """128 + the number of the signal, as shells report it; that of Ctrl-C if none was received."""
        return 128 + (self.by or signal.SIGINT)


LAST = StopRequest()  # of the whole program; it outlives libraries that replace the exit code


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Record the first Ctrl-C or SIGTERM as a stop request; a second Ctrl-C interrupts at once.

    After GRACE_PERIOD, work is interrupted if `StopRequest.is_interruptible` allows it, such as previews and metrics of large
    images.  Signals reach only the main thread of a program; in other threads nothing changes.
    """
    request, overdue = StopRequest(), threading.Event()

    def expire() -> None:
        overdue.set()
        _thread.interrupt_main(signal.SIGINT)  # calls the handler in the main thread

    def record(number: int, frame: FrameType | None) -> None:
        if overdue.is_set():
            overdue.clear()
            if request.is_interruptible:
                raise Stopped()
        elif request.by is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        elif request.by is None:
            request.by = LAST.by = number
            timer.start()

    timer = threading.Timer(GRACE_PERIOD, expire)
    timer.daemon = True
    with _handled(record, signal.SIGINT, signal.SIGTERM):
        try:
            yield request
        finally:
            timer.cancel()


@contextmanager
def interrupted_by_sigterm() -> Iterator[StopRequest]:
    """Let SIGTERM interrupt like Ctrl-C, so that partial files are removed; yield the last signal received."""
    LAST.by = None

    def interrupt(number: int, frame: FrameType | None) -> None:
        LAST.by = number
        raise KeyboardInterrupt

    with _handled(interrupt, signal.SIGTERM):
        yield LAST


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], None], *numbers: signal.Signals) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old_handler in previous.items():
            signal.signal(number, old_handler)


class Stopped(KeyboardInterrupt):
    """Training was stopped on request; all state is saved."""

    def __init__(self) -> None:
        super().__init__("stopped; everything is saved")
