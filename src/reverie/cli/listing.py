"""The commands that list: names with what they mean, and runs with how they went."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from reverie.cli.options import JsonOption, screen_for


def _kinds(incomplete: str) -> list[str]:
    from reverie import api

    return [kind for kind in api.KINDS if kind.startswith(incomplete)]


def list_names(
    kind: Annotated[
        str | None, typer.Argument(help="One kind, such as samplers, with what each is.", autocompletion=_kinds)
    ] = None,
    json: JsonOption = False,
) -> None:
    """List every name the other commands take; of one kind, with what each is and its options."""
    screen = screen_for(json, quiet=False)
    from reverie import api

    if kind is None:
        screen.table(api.names())
        return
    entries = api.entries(kind)
    width = max(len(entry.name) for entry in entries)
    lines = []
    for entry in entries:
        lines.append(f"{entry.name:<{width}}  {entry.about}")
        if entry.options:
            lines.append(f"{'':<{width}}  " + _written(entry.options))
    values = {e.name: {"about": e.about, "options": {k: _plain(v) for k, v in e.options.items()}} for e in entries}
    screen.result({kind: values}, "\n".join(lines))


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | None) else list(value) if isinstance(value, tuple) else str(value)


def _written(options: Mapping[str, Any]) -> str:
    """Write options with their defaults, as they are given, and then those without one."""

    def value(v: Any) -> str:
        return f"[{','.join(map(str, v))}]" if isinstance(v, tuple | list) else str(v)

    given = ", ".join(f"{key}={value(v)}" for key, v in options.items() if v is not None)
    chosen = ", ".join(key for key, v in options.items() if v is None)
    return "; ".join(filter(None, [given, f"chosen if not given: {chosen}" if chosen else ""]))


def runs(
    folder: Annotated[Path, typer.Argument(help="Where to look, up to three folders deep.", metavar="[FOLDER]")] = Path("runs"),
    json: JsonOption = False,
) -> None:
    """List runs: data, family, length, held-out figure and verdict."""
    screen = screen_for(json, quiet=False)
    from reverie import api

    found = api.runs(folder)
    rows = [("run", "data", "family", "length", "held out", "verdict")]
    broken = []
    for run in found:
        if run.problem is not None:
            broken.append(f"{run.path}: {run.problem}")
            continue
        length = f"{run.steps:,} steps, {api.clock(run.seconds)}" + ("" if run.finished else f", {run.fraction:.0%} done")
        held = f"{run.held_out:.4g} {run.unit}".rstrip() if run.held_out is not None else "-"
        rows.append((run.path, f"{run.data} ({run.count:,})", run.family, length, held, run.verdict))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    if len(rows) == 1:
        lines = [] if broken else [f"there are no runs in {folder}; train one with: reverie train spiral"]
    screen.result({"runs": [run.as_row() for run in found]}, "\n".join([*lines, *broken]))
