"""Helpers that the functions share: open runs and progress displays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reverie.runs.run import Run
    from reverie.runs.screen import Screen
    from reverie.runs.step import Step


def open_run(run: str | Path | Run, device: str) -> Run:
    """Return a run as it is, or load it from its folder."""
    from reverie.runs.run import Run, load

    return run if isinstance(run, Run) else load(run, device)


def progress_screen(progress: bool | None) -> Screen:
    """Return a progress display; by default it is active on a terminal and in notebooks."""
    from reverie.runs.screen import Screen, is_interactive

    return Screen(as_json=False, quiet=not (is_interactive() if progress is None else progress))


def with_callback(steps: Iterable[Step], on_step: Callable[[Step], None] | None) -> Iterator[Step]:
    """Yield the steps and call `on_step` with each."""
    for step in steps:
        if on_step:
            on_step(step)
        yield step
