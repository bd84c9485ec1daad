"""Analysis jobs: evaluation of runs, inspection of datasets, and interactive demos."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from reverie import api
from reverie.base.errors import pick
from reverie.studio.jobs import Job
from reverie.studio.mathml import mathml
from reverie.studio.open_runs import OpenRuns
from reverie.studio.requests import DemoRequest, EvaluateRequest, InspectRequest, format_command
from reverie.studio.sampling_jobs import check_kind


def evaluate(open_runs: OpenRuns, job: Job, request: EvaluateRequest) -> dict[str, Any]:
    """Evaluate runs, each on its own data, and compare several."""
    reports = []
    for key in request.runs:
        run = open_runs.run(key)
        job.send("run", {"name": open_runs.library.run(key).name})
        reports.append(api.evaluate(
            run, request.n, quick=True, on_progress=job.progress, notify=lambda _: job.check(),
            seconds=None if len(request.runs) == 1 else math.inf,
        ))  # fmt: skip
    paths = [open_runs.library.display_path(open_runs.run(key).path) for key in request.runs]
    command = format_command("evaluate", *paths, "--quick", "-n", str(request.n))
    runs = [{"verdict": list(report.verdict), "table": report.table()} for report in reports]
    if len(reports) == 1:
        return {"runs": runs, "command": command}
    comparison = api.compare(reports)
    return {
        "runs": runs,
        "names": comparison.names,
        "verdict": comparison.verdict(),
        "rows": comparison.table(),
        "command": command,
    }


def inspect(open_runs: OpenRuns, job: Job, request: InspectRequest) -> dict[str, Any]:
    """Return the description of a dataset, a sheet of examples, and the unreadable files with reasons."""
    source = open_runs.library.source(request.data)
    with tempfile.TemporaryDirectory() as folder:
        sheet = Path(folder) / "sheet.png"
        report = api.inspect(source, out=sheet, reading={"on_progress": job.progress})
        with Image.open(sheet) as image:
            pixels = np.asarray(image.convert("RGB"))
    path = source if source == request.data else open_runs.library.display_path(Path(source))
    return {"report": report, "sheet": pixels, "command": format_command("inspect", path, "--out", "sheet.png")}


def compute_demo(open_runs: OpenRuns, job: Job, request: DemoRequest) -> dict[str, Any]:
    """Return the panels of an interactive demo, evaluated on a run and its data if it needs one."""
    demo = pick(api.DEMOS, request.demo, "demo")
    values = demo.check(request.values)
    if demo.needs_run:
        run = open_runs.run(request.run or "")
        check_kind(run)
        image = open_runs.image(request.image, run) if request.image else None
        values |= {"run": run, "data": open_runs.data(request.run or ""), "image": image}
    result = demo.compute(**values)
    return {**result, "panels": [_with_mathml(panel) for panel in result["panels"]]}


def _with_mathml(panel: dict[str, Any]) -> dict[str, Any]:
    return {**panel, "formula": mathml(panel["latex"])} if panel["kind"] == "formula" else panel
