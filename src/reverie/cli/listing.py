"""The commands that list names with their descriptions, and runs with their results."""

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
        str | None,
        typer.Argument(help="Kind of names, such as samplers.", metavar="[KIND]", autocompletion=_kinds, show_default=False),
    ] = None,
    json: JsonOption = False,
) -> None:
    """List the names that commands take, or those of one kind with description, options and source."""
    screen = screen_for(json, quiet=False)
    from reverie import api

    if kind is None:
        screen.table(api.names())
        return
    entries = api.entries(kind)
    width = max(len(entry.name) for entry in entries)
    lines = []
    for entry in entries:
        details = (entry.about, _format_options(entry.options), f"source: {entry.source}" if entry.source else "")
        for name, line in zip((entry.name, "", ""), filter(None, details), strict=False):
            lines.append(f"{name:<{width}}  {line}")
    values = {
        e.name: {"about": e.about, "options": {k: _plain(v) for k, v in e.options.items()}, "source": e.source} for e in entries
    }
    screen.result({kind: values}, "\n".join(lines))


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | None) else list(value) if isinstance(value, tuple) else str(value)


def _format_options(options: Mapping[str, Any]) -> str:
    """Return options with their defaults, followed by those without one."""

    def value(v: Any) -> str:
        return f"[{','.join(map(str, v))}]" if isinstance(v, tuple | list) else str(v)

    fixed = ", ".join(f"{key}={value(v)}" for key, v in options.items() if v is not None)
    chosen = ", ".join(key for key, v in options.items() if v is None)
    return "; ".join(filter(None, [fixed, f"chosen by default: {chosen}" if chosen else ""]))


def runs(
    folder: Annotated[Path, typer.Argument(help="Folder to search, three levels deep.", metavar="[FOLDER]")] = Path("runs"),
    json: JsonOption = False,
) -> None:
    """List runs with data, family, length, held-out metric and verdict."""
    screen = screen_for(json, quiet=False)
    from reverie import api

    overviews = api.runs(folder)
    rows = [("run", "data", "family", "length", "held out", "verdict")]
    broken = []
    for run in overviews:
        if run.problem is not None:
            broken.append(f"{run.path}: {run.problem}")
            continue
        length = f"{run.steps:,} steps, {api.format_duration(run.seconds)}" + (
            "" if run.finished else f", {run.fraction:.0%} done"
        )
        held_out = f"{run.held_out:.4g} {run.unit}".rstrip() if run.held_out is not None else "-"
        rows.append((run.path, f"{run.data} ({run.count:,})", run.family, length, held_out, run.verdict))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    if len(rows) == 1:
        lines = [] if broken else [f"no runs in {folder}; train one with: reverie train spiral"]
    screen.result({"runs": [run.as_row() for run in overviews]}, "\n".join([*lines, *broken]))
