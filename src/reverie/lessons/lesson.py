"""What a lesson is: a formula that acts, with its words and what can be changed of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from reverie.base.errors import UserError, pick

Panel = dict[str, Any]
MOST_POINTS, MOST_SIDE, MOST_TEXT = 64, 40, 200
Of = Literal["nothing", "any", "diffusion", "labels", "plane"]


@dataclass(frozen=True)
class Control:
    """Something that can be changed.

    kind: slider, whole, choice, text, points (places in the plane) or cells (a pattern of a matrix); low, high, step: of a
    slider; choices: of a choice; label: what it is called.
    """

    name: str
    label: str
    default: Any
    kind: str = "slider"
    low: float = 0.0
    high: float = 1.0
    step: float = 0.01
    choices: tuple[str, ...] = ()

    def check(self, value: Any) -> Any:
        """Return a value that was given for it; refuse what is none."""
        match self.kind:
            case "slider" | "whole":
                if isinstance(value, bool) or not isinstance(value, int | float) or not self.low <= value <= self.high:
                    raise UserError(f"{self.label} must lie between {self.low:g} and {self.high:g}, got {value!r}")
                return round(value) if self.kind == "whole" else float(value)
            case "choice":
                return (
                    pick(dict.fromkeys(self.choices, value), str(value), self.label) if self.choices else str(value)[:MOST_TEXT]
                )
            case "text":
                if not isinstance(value, str) or len(value) > MOST_TEXT:
                    raise UserError(f"{self.label} must be text of at most {MOST_TEXT} signs")
                return value
            case "points":
                return _points(value, self.label)
            case _:
                return _cells(value, self.label)


def _points(value: Any, label: str) -> list[list[float]]:
    fine = isinstance(value, list) and 1 <= len(value) <= MOST_POINTS
    if not fine or not all(
        isinstance(p, list) and len(p) == 2 and all(isinstance(c, int | float) and abs(c) <= 1e3 for c in p) for p in value
    ):
        raise UserError(f"{label} must be 1 to {MOST_POINTS} pairs of numbers")
    return [[float(c) for c in p] for p in value]


def _cells(value: Any, label: str) -> list[list[int]]:
    fine = isinstance(value, list) and 1 <= len(value) <= MOST_SIDE and all(isinstance(row, list) for row in value)
    if not fine or len({len(row) for row in value}) != 1 or not 1 <= len(value[0]) <= MOST_SIDE:
        raise UserError(f"{label} must be a matrix of at most {MOST_SIDE} x {MOST_SIDE}")
    return [[int(bool(c)) for c in row] for row in value]


@dataclass(frozen=True)
class Lesson:
    """A formula at work.

    words: three sentences; formula: LaTeX, and `also` more of it; command: what makes the same figure, where RUN and DATA stand
    for a run and its data; of: what it acts on; work: returns {"panels": [...]}, whose kinds `reverie.lessons.show` makes.
    """

    title: str
    words: str
    formula: str
    command: str
    work: Callable[..., dict[str, Any]]
    controls: tuple[Control, ...] = ()
    also: tuple[str, ...] = ()
    of: Of = "nothing"
    hidden: bool = False  # a part of another page

    @property
    def of_run(self) -> bool:
        """Whether it acts on a run."""
        return self.of != "nothing"

    def told(self) -> dict[str, Any]:
        """Return what a page shows of it before anything is worked out."""
        return {
            "title": self.title, "words": self.words, "command": self.command, "of": self.of, "hidden": self.hidden,
            "controls": [asdict(control) for control in self.controls],
        }  # fmt: skip

    def check(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return a value for each control: what was given, or the default; refuse what is no control, or no value of it."""
        known = {control.name: control for control in self.controls}
        for name in values:
            pick(known, name, f"control of the lesson {self.title!r}:")
        return {name: c.check(values[name]) if name in values else c.default for name, c in known.items()}
