"""Being asked to stop: Ctrl-C and SIGTERM end a training after its step, if that ends soon, and anything else at once."""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

PATIENCE = 2.0  # seconds in which work that was asked to stop may come to a good end before it is broken off


class StopRequest:
    """Whether, and by which signal, an end was asked for.  code: the exit code of a program that ends for it.

    at_work: whether something is being done that may be broken off, by `Stopped`, when it takes longer than PATIENCE to end.
    """

    def __init__(self) -> None:
        self.by: int | None = None
        self.at_work = False

    def __call__(self) -> bool:
        """Tell whether an end was asked for."""
        return self.by is not None

    @property
    def code(self) -> int:
        """128 and the number of the signal, as a shell tells it; that of Ctrl-C if none was noted."""
        return 128 + (self.by or signal.SIGINT)


LAST = StopRequest()  # of the whole program, which must tell it after libraries have made an exit code of their own of it


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Note the first Ctrl-C or SIGTERM instead of dying of it; a second Ctrl-C interrupts at once.

    Work that has not ended some time after the first is broken off where `Request.at_work` allows it: previews and figures of
    large images take long, and nobody will look at them.  Signals reach only the main thread of a program; elsewhere nothing
    is changed.
    """
    request, overdue = StopRequest(), threading.Event()

    def expire() -> None:
        overdue.set()
        _thread.interrupt_main(signal.SIGINT)  # so that the handler is called in the main thread

    def note(number: int, frame: FrameType | None) -> None:
        if overdue.is_set():
            overdue.clear()
            if request.at_work:
                raise Stopped()
        elif request.by is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        elif request.by is None:
            request.by = LAST.by = number
            timer.start()

    timer = threading.Timer(PATIENCE, expire)
    timer.daemon = True
    with _handled(note, signal.SIGINT, signal.SIGTERM):
        try:
            yield request
        finally:
            timer.cancel()


@contextmanager
def interrupted_by_sigterm() -> Iterator[StopRequest]:
    """Let SIGTERM interrupt as Ctrl-C does, so that what is half written is removed; yield the last signal that was noted."""
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
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


class Stopped(KeyboardInterrupt):
    """A training ended because it was asked to, with everything kept."""

    def __init__(self) -> None:
        super().__init__("stopped; everything is kept")
