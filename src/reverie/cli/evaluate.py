"""The commands that measure: evaluate, and compare, which trains first."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from reverie.base.errors import UserError
from reverie.cli.options import (
    DataDirOption,
    DeviceOption,
    JsonOption,
    MovedDataOption,
    ProcessesOption,
    QuietOption,
    completer,
    named,
    sampling,
    screen_for,
    training,
    writing,
)


@training
def compare(
    data: Annotated[
        str, typer.Argument(help="Name of a data set, or a path.", metavar="DATA", autocompletion=completer("data"))
    ],
    families: Annotated[
        str, named("families", "Two or more, with commas between, like gaussian,diffusion; or runs", "--families")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help="Write a report, X.html, that opens without a network.", metavar="X.html")
    ] = None,
    runs: Annotated[
        Path | None,
        typer.Option(
            "--runs", help="Folder for the runs, runs/compare-DATA if not given; finished ones are not trained again."
        ),
    ] = None,
    n: Annotated[int | None, typer.Option("-n", help="How many samples to measure; 2048, or 512 with --quick.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer samples and coarser error bars.")] = False,
    device: DeviceOption = "auto",
    json: JsonOption = False,
    quiet: QuietOption = False,
    **options: Any,
) -> None:
    """Train several families on the same data for the same time of the processor, and compare them."""
    screen = screen_for(json, quiet)
    from reverie import api

    if api.serve_if_worker(device):
        return
    if options.pop("family", None) is not None:
        raise UserError("give the families with --families")
    given = {key: value for key, value in options.items() if value is not None and value is not False}
    with api.process_group(given.pop("processes", 1), device):
        result = api.compare_families(data, families, out, runs=runs, n=n, quick=quick, screen=screen, device=device, **given)
    figures, text = result.figures(), str(result)
    if out is not None:
        figures["report"] = str(out)
        text += f"\n\nwrote {out}"
    screen.result(figures, text)


@sampling()
@writing
def evaluate(
    runs: Annotated[list[Path], typer.Argument(help="Folder of a run; several are compared.", metavar="RUN...")],
    n: Annotated[int | None, typer.Option("-n", help="How many samples to measure; 2048, or 512 with --quick.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Write a report, X.html, that opens without a network.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer samples and coarser error bars: one run takes a minute at most.")
    ] = False,
    features: Annotated[str, named("features", "What images are compared by; auto suits the data", "--features")] = "auto",
    data: MovedDataOption = None,
    data_dir: DataDirOption = None,
    processes: ProcessesOption = 1,
    device: DeviceOption = "auto",
    json: JsonOption = False,
    quiet: QuietOption = False,
    **options: Any,
) -> None:
    """Measure how good a run's samples are, or compare runs."""
    screen = screen_for(json, quiet)
    from reverie import api

    if api.serve_if_worker(device):
        return
    if out is not None:
        api.check_report(out)
    found, stopped = [], None
    opened = [api.load(path, device) for path in runs]  # all are there before work begins
    try:
        with api.process_group(processes, device):
            for run in opened:
                if len(runs) > 1:
                    screen.say(f"{run.path}:")
                with screen.reading() as on_progress:
                    found.append(api.evaluate(
                        run, n, quick=quick, features=features, data=data, data_dir=data_dir, say=screen.say,
                        on_progress=on_progress, seconds=None if len(runs) == 1 else math.inf, **options,
                    ))  # fmt: skip
    except api.EvaluationStopped as error:
        found.append(error.evaluation)
        stopped = error
    result = found[0] if len(found) == 1 else api.compare(found)
    figures, text = result.figures(), str(result)
    if out is not None:
        figures["report"] = str(result.save(out))
        text += f"\n\nwrote {out}"
    screen.result(figures, text)
    if stopped is not None:
        raise stopped
