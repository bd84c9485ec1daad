"""The command that measures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from reverie.cli.options import (
    DataDirOption,
    DeviceOption,
    JsonOption,
    MovedDataOption,
    QuietOption,
    named,
    sampling,
    screen_for,
)


@sampling()
def evaluate(
    runs: Annotated[list[Path], typer.Argument(help="Folder of a run; several are compared.", metavar="RUN...")],
    n: Annotated[int | None, typer.Option("-n", help="How many samples to measure; 2048, or 512 with --quick.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Write a report, X.html, that opens without a network.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer samples and coarser error bars: under two minutes.")] = False,
    features: Annotated[str, named("features", "What images are compared by; auto suits the data", "--features")] = "auto",
    data: MovedDataOption = None,
    data_dir: DataDirOption = None,
    device: DeviceOption = "auto",
    json: JsonOption = False,
    quiet: QuietOption = False,
    **options: Any,
) -> None:
    """Measure how good a run's samples are, or compare runs."""
    screen = screen_for(json, quiet)
    from reverie import api

    if out is not None:
        api.check_report(out)
    found = []
    for run in [api.load(path, device) for path in runs]:  # all are there before work begins
        if len(runs) > 1:
            screen.say(f"{run.path}:")
        with screen.reading() as on_progress:
            found.append(api.evaluate(
                run, n, quick=quick, features=features, data=data, data_dir=data_dir, say=screen.say,
                on_progress=on_progress, **options,
            ))  # fmt: skip
    result = found[0] if len(found) == 1 else api.compare(found)
    figures, text = result.figures(), str(result)
    if out is not None:
        figures["report"] = str(result.save(out))
        text += f"\n\nwrote {out}"
    screen.result(figures, text)
