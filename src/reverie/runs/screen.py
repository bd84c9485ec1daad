"""Output to a terminal or notebook: progress on standard error, results on standard output."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn

from reverie.base.units import EXACT, format_speed
from reverie.base.visible import visible

if TYPE_CHECKING:
    from reverie.base.budget import Budget
    from reverie.runs.step import Step

EVERY = 10.0  # seconds between progress lines without a terminal
RECENT = 1.25  # the held-out loss is shown until this multiple of the step at which it was measured
FINISHING = 3.0  # without a terminal, stages are logged while more seconds than this are left
MAX_ITEMS = 32  # largest number of items in a line of a table
NOTE = 74  # width limit of a progress note, to fit 80 columns with a bar or percentage


def is_interactive() -> bool:
    """Return whether the output is interactive: a terminal, IPython or a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return sys.stderr.isatty() or (shell is not None and shell() is not None)


def format_duration(seconds: float) -> str:
    """Format a duration: 8 s, 3:20, 1:02:03."""
    total = round(seconds)
    if total < 60:
        return f"{total} s"
    hours, rest = divmod(total, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"


def progress_note(step: Step, check: Step | None) -> str:
    """Format the progress of a training in at most NOTE columns.

    check: the last check, whose losses on training and held-out data, or held-out NLL, replace the loss of the steps, which is
    measured at other noise levels.
    """
    metric = f"loss {step.loss or 0:.4g}"
    if check is not None:
        train = f"train {check.train_loss:.3g}" if check.train_loss is not None else metric
        name = "held-out NLL" if check.unit in EXACT else "held-out bound"
        metric = f"{name} {check.held_out:.3g} {check.unit}" if check.unit else f"{train}, held out {check.held_out:.3g}"
    left = f"{format_duration(step.seconds_left)} left" if step.fraction < 1 else "finishing"  # the stages after the last step
    return f"step {step.i:,}, {metric}, {format_speed(step.per_second)}, {left}"


def plain(value: Any) -> str:
    """Format a value as text."""
    match value:
        case float():
            return f"{value:.4g}"
        case dict():
            return _join_items([f"{visible(str(k))} {plain(v)}" for k, v in value.items()], ", ")
        case list() | tuple():
            separator = "; " if any(isinstance(v, dict) for v in value) else ", "
            return _join_items([plain(v) for v in value], separator)
        case None:
            return "unknown"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case _:
            return visible(str(value))


def _join_items(words: list[str], separator: str) -> str:
    """Join words, at most MAX_ITEMS; --json prints all."""
    rest = [f"and {len(words) - MAX_ITEMS:,} more"] if len(words) > MAX_ITEMS + 1 else []
    return separator.join(words[: MAX_ITEMS if rest else None] + rest) or "none"


class Screen:
    """Output as set by the options --json and --quiet."""

    def __init__(self, as_json: bool, quiet: bool) -> None:
        self.as_json, self.quiet = as_json, quiet
        self.console = Console(stderr=True, highlight=False)
        self.is_verbose = not quiet and not as_json

    def notify(self, text: str) -> None:
        """Print a line on standard error."""
        if self.is_verbose:
            print(visible(text, lines=True), file=sys.stderr)

    def result(self, values: Mapping[str, Any], text: str) -> None:
        """Print the result: values as JSON, or text."""
        if self.as_json:
            print(json.dumps(values))
        elif not self.quiet:
            print(visible(text, lines=True))

    def table(self, values: Mapping[str, Any]) -> None:
        """Print named values, one per line, and lists of sentences, one sentence per line."""
        width = max(map(len, values), default=0)

        def format_value(value: Any) -> str:
            sentences = isinstance(value, list) and any(isinstance(v, str) and v.count(" ") > 2 for v in value)
            return f"\n{'':<{width}}  ".join(map(plain, value)) if sentences else plain(value)

        self.result(
            values, "\n".join(f"{key.replace('_', ' '):<{width}}  {format_value(value)}" for key, value in values.items())
        )

    def _bar(self, *columns: ProgressColumn) -> Progress:
        default = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"), TimeElapsedColumn())
        can_draw = self.console.is_terminal and (not self.console.is_jupyter or find_spec("ipywidgets") is not None)
        shown = self.is_verbose and can_draw
        return Progress(*(columns or default), console=self.console, transient=True, disable=not shown)

    def follow_training(self, steps: Iterable[Step], budget: Budget | None = None) -> Step:
        """Show reports with the time left, and return the last one.

        budget: the time of the command, whose final stages and omissions are shown.
        """
        check: Step | None = None
        logged = time.monotonic()
        width = max(5, min(40, self.console.width - NOTE - 1))
        with self._bar(BarColumn(width), TextColumn("{task.fields[note]}")) as bar:
            task = bar.add_task("training", total=1.0, note="")
            stage = ""
            if budget is not None:

                def finishing(what: str, done: int, of: int, left: float) -> None:
                    note = f"finishing {done + 1}/{of}: {what}, {format_duration(left)} left"
                    bar.update(task, completed=done / of, note=note)
                    if bar.disable and left > FINISHING:
                        self.notify(note)

                budget.notify = lambda line: bar.console.print(visible(line), markup=False) if self.is_verbose else None
                budget.on_stage = finishing
            for step in steps:
                if step.stage != stage:
                    stage, check = step.stage, None
                    bar.console.print(f"{stage}:", markup=False) if self.is_verbose else None
                for finding in step.findings:
                    bar.console.print(visible(f"doctor: {finding}"), markup=False) if self.is_verbose else None
                if step.loss is None:
                    continue
                check = step if step.held_out is not None else check
                is_recent = check is not None and step.i <= RECENT * check.i
                note = progress_note(step, check if is_recent else None)
                bar.update(task, completed=step.fraction, note=note)
                if bar.disable and (time.monotonic() - logged > EVERY or (step.fraction >= 1 and step.seconds > EVERY)):
                    logged = time.monotonic()
                    self.notify(f"{step.fraction:4.0%} {note}")
        return step

    @contextmanager
    def reading(self) -> Iterator[Callable[[str, int, int], None]]:
        """Show progress bars with the time left: call the yielded function with (what, done, of)."""
        with self._bar() as bar:
            tasks: dict[str, tuple[Any, float]] = {}
            logged = time.monotonic()

            def update(what: str, done: int, of: int) -> None:
                nonlocal logged
                now = time.monotonic()
                if what not in tasks:
                    tasks[what] = bar.add_task(what, total=of, note=""), now
                task, start = tasks[what]
                left = (now - start) / done * (of - done) if done else 0.0
                note = f"{done:,}/{of:,}" + (f", {format_duration(left)} left" if left >= 1 else "")
                bar.update(task, completed=done, note=note)
                if bar.disable and now - logged > EVERY:
                    logged = now
                    self.notify(f"{what}: {note}")

            yield update

    @contextmanager
    def counting(self, what: str) -> Iterator[Callable[[str, int, int], None]]:
        """Show one progress bar with a fixed title: call the yielded function with (what, done, of)."""
        with self.reading() as update:
            yield lambda _, done, of: update(what, done, of)
