"""How long work tells how far it is."""

from __future__ import annotations

from collections.abc import Callable

OnCount = Callable[[int, int], None]  # (how much is done, of how much)
OnProgress = Callable[[str, int, int], None]  # (what is being done, how much of it is done, of how much)


def silent(what: str, done: int, of: int) -> None:
    """Tell nobody."""
