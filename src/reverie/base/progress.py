"""Types of progress callbacks."""

from __future__ import annotations

from collections.abc import Callable

OnCount = Callable[[int, int], None]  # (number done, total)
OnProgress = Callable[[str, int, int], None]  # (stage, number done, total)


def silent(what: str, done: int, of: int) -> None:
    """Ignore progress."""
