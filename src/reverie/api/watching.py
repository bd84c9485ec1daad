"""What the verbs share: a run that is open, and progress where someone sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reverie.runs.run import Run
    from reverie.runs.screen import Screen
    from reverie.runs.step import Step


def opened(run: str | Path | Run, device: str) -> Run:
    """Return a run that is open already as it is, and open one that is told by its folder."""
    from reverie.runs.run import Run, load

    return run if isinstance(run, Run) else load(run, device)


def watched(progress: bool | None) -> Screen:
    """Return what shows progress: asked for, or else wherever someone is likely to see it."""
    from reverie.runs.screen import Screen, someone_watches

    return Screen(as_json=False, quiet=not (someone_watches() if progress is None else progress))


def reported(steps: Iterable[Step], on_step: Callable[[Step], None] | None) -> Iterator[Step]:
    """Pass reports on, and tell them to whoever asked for them."""
    for step in steps:
        if on_step:
            on_step(step)
        yield step
