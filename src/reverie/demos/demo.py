"""The type of an interactive demo: a formula with its text, its controls, and the function that evaluates it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from reverie.base.errors import UserError, pick

Panel = dict[str, Any]
MAX_POINTS, MAX_SIDE, MAX_TEXT = 64, 40, 200
Requirement = Literal["nothing", "any", "diffusion", "labels", "points2d"]


@dataclass(frozen=True)
class Control:
    """An adjustable parameter of a demo.

    kind: slider, integer, choice, text, points (in the plane) or matrix (a sparsity pattern); low, high, step: of a slider or
    an integer; choices: of a choice.
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
        """Return a valid value of this control; raise UserError for any other."""
        match self.kind:
            case "slider" | "integer":
                if isinstance(value, bool) or not isinstance(value, int | float) or not self.low <= value <= self.high:
                    raise UserError(f"{self.label} must lie between {self.low:g} and {self.high:g}, got {value!r}")
                return round(value) if self.kind == "integer" else float(value)
            case "choice":
                if not self.choices:
                    return str(value)[:MAX_TEXT]
                return pick(dict.fromkeys(self.choices, value), str(value), self.label)
            case "text":
                if not isinstance(value, str) or len(value) > MAX_TEXT:
                    raise UserError(f"{self.label} must be text of at most {MAX_TEXT} characters")
                return value
            case "points":
                return _check_points(value, self.label)
            case _:
                return _check_matrix(value, self.label)


def _check_points(value: Any, label: str) -> list[list[float]]:
    is_list = isinstance(value, list) and 1 <= len(value) <= MAX_POINTS
    if not is_list or not all(
        isinstance(p, list) and len(p) == 2 and all(isinstance(c, int | float) and abs(c) <= 1e3 for c in p) for p in value
    ):
        raise UserError(f"{label} must be 1 to {MAX_POINTS} pairs of numbers")
    return [[float(c) for c in p] for p in value]


def _check_matrix(value: Any, label: str) -> list[list[int]]:
    is_list = isinstance(value, list) and 1 <= len(value) <= MAX_SIDE and all(isinstance(row, list) for row in value)
    if not is_list or len({len(row) for row in value}) != 1 or not 1 <= len(value[0]) <= MAX_SIDE:
        raise UserError(f"{label} must be a matrix of at most {MAX_SIDE} x {MAX_SIDE}")
    return [[int(bool(c)) for c in row] for row in value]


@dataclass(frozen=True)
class Demo:
    """A formula that is evaluated interactively.

    text: three sentences; formula, more_formulas: LaTeX; command: the equivalent command, with RUN and DATA as placeholders;
    compute: returns {"panels": [...]} of the kinds in `reverie.demos.panels`; requires: what the run must have;
    hidden: shown on a different page from Demos.
    """

    title: str
    text: str
    formula: str
    command: str
    compute: Callable[..., dict[str, Any]]
    controls: tuple[Control, ...] = ()
    more_formulas: tuple[str, ...] = ()
    requires: Requirement = "nothing"
    hidden: bool = False

    @property
    def needs_run(self) -> bool:
        """Whether the demo is evaluated on a run."""
        return self.requires != "nothing"

    def describe(self) -> dict[str, Any]:
        """Return the data of a page before the demo is evaluated."""
        return {
            "title": self.title, "text": self.text, "command": self.command, "requires": self.requires, "hidden": self.hidden,
            "controls": [asdict(control) for control in self.controls],
        }  # fmt: skip

    def check(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return a value for each control, its default if missing; raise UserError for unknown controls and invalid values."""
        controls = {control.name: control for control in self.controls}
        for name in values:
            pick(controls, name, f"control of the demo {self.title!r}:")
        return {name: c.check(values[name]) if name in values else c.default for name, c in controls.items()}
