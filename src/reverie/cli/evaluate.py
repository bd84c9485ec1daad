"""The commands that evaluate runs and compare model families."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from reverie.base.errors import UserError
from reverie.cli.options import (
    DataDirOption,
    DataName,
    DeviceOption,
    JsonOption,
    MovedDataOption,
    ProcessesOption,
    QuietOption,
    option,
    sampling,
    screen_for,
    training,
    writing,
)

CountOption = Annotated[
    int | None, option("Number of samples to evaluate", "-n", default="2048, with --quick 512", metavar="N")
]
ReportOption = Annotated[Path | None, option("Self-contained HTML report to write", "--out", default="none", metavar="X.html")]


@training
def compare(
    data: DataName,
    families: Annotated[
        str,
        option("Two or more families or runs, separated by commas, such as gaussian,diffusion", "--families", metavar="NAMES",
               kind="families"),
    ],
    out: ReportOption = None,
    runs: Annotated[
        Path | None,
        option("Folder of the runs, where finished ones are reused", "--runs", default="runs/compare-DATA", metavar="FOLDER"),
    ] = None,
    n: CountOption = None,
    quick: Annotated[bool, option("Fewer samples and wider error bars", "--quick")] = False,
    device: DeviceOption = "auto",
    json: JsonOption = False,
    quiet: QuietOption = False,
    **options: Any,
) -> None:  # fmt: skip
    """Train several model families on the same data for the same CPU time, and compare them."""
    screen = screen_for(json, quiet)
    from reverie import api

    if api.serve_if_worker(device):
        return
    if options.pop("family", None) is not None:
        raise UserError("compare takes no --family; name the families with --families")
    chosen = {key: value for key, value in options.items() if value is not None and value is not False}
    with api.process_group(chosen.pop("processes", 1), device):
        result = api.compare_families(data, families, out, runs=runs, n=n, quick=quick, screen=screen, device=device, **chosen)
    figures, text = result.figures(), str(result)
    if out is not None:
        figures["report"] = str(out)
        text += f"\n\nwrote {out}"
    screen.result(figures, text)


@sampling()
@writing
def evaluate(
    runs: Annotated[list[Path], typer.Argument(help="Folder of a run; several are compared.", metavar="RUN...")],
    n: CountOption = None,
    out: ReportOption = None,
    quick: Annotated[bool, option("Fewer samples and wider error bars; at most a minute for one run", "--quick")] = False,
    features: Annotated[str, option("Image features for distances", "--features", metavar="NAME", kind="features")] = "auto",
    data: MovedDataOption = None,
    data_dir: DataDirOption = None,
    processes: ProcessesOption = 1,
    device: DeviceOption = "auto",
    json: JsonOption = False,
    quiet: QuietOption = False,
    **options: Any,
) -> None:
    """Evaluate the samples of a run against its data, or compare runs."""
    screen = screen_for(json, quiet)
    from reverie import api

    if api.serve_if_worker(device):
        return
    if out is not None:
        api.check_report(out)
    evaluations, stopped = [], None
    loaded = [api.load(path, device) for path in runs]  # before work starts
    try:
        with api.process_group(processes, device):
            for run in loaded:
                if len(runs) > 1:
                    screen.notify(f"{run.path}:")
                with screen.reading() as on_progress:
                    evaluations.append(api.evaluate(
                        run, n, quick=quick, features=features, data=data, data_dir=data_dir, notify=screen.notify,
                        on_progress=on_progress, seconds=None if len(runs) == 1 else math.inf, **options,
                    ))  # fmt: skip
    except api.EvaluationStopped as error:
        evaluations.append(error.evaluation)
        stopped = error
    result = evaluations[0] if len(evaluations) == 1 else api.compare(evaluations)
    figures, text = result.figures(), str(result)
    if out is not None:
        figures["report"] = str(result.save(out))
        text += f"\n\nwrote {out}"
    screen.result(figures, text)
    if stopped is not None:
        raise stopped
