"""Looking: at data, at what is measured of runs, and at formulas."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from reverie import api
from reverie.base.errors import pick
from reverie.studio.drawing import check_kind
from reverie.studio.mathml import mathml
from reverie.studio.opened import Opened
from reverie.studio.wishes import EvaluateWish, InspectWish, LessonWish, command
from reverie.studio.work import Job


def evaluate(opened: Opened, job: Job, wish: EvaluateWish) -> dict[str, Any]:
    """Measure runs, each against its own data, and set them side by side where there are several."""
    found = []
    for key in wish.runs:
        run = opened.run(key)
        job.send("run", {"name": opened.library.run(key).name})
        found.append(api.evaluate(
            run, wish.n, quick=True, on_progress=job.progress, say=lambda _: job.check(),
            seconds=None if len(wish.runs) == 1 else math.inf,
        ))  # fmt: skip
    paths = [opened.library.shown(opened.run(key).path) for key in wish.runs]
    said = command("evaluate", *paths, "--quick", "-n", str(wish.n))
    each = [{"verdict": list(one.verdict), "table": one.table()} for one in found]
    if len(found) == 1:
        return {"runs": each, "command": said}
    compared = api.compare(found)
    return {"runs": each, "names": compared.names, "verdict": compared.verdict(), "rows": compared.table(), "command": said}


def inspect(opened: Opened, job: Job, wish: InspectWish) -> dict[str, Any]:
    """Scan data: what is there, a sheet of some, and which files are broken and why."""
    source = opened.library.source(wish.data)
    with tempfile.TemporaryDirectory() as folder:
        sheet = Path(folder) / "sheet.png"
        found = api.inspect(source, out=sheet, reading={"on_progress": job.progress})
        with Image.open(sheet) as image:
            picture = np.asarray(image.convert("RGB"))
    path = source if source == wish.data else opened.library.shown(Path(source))
    return {"found": found, "sheet": picture, "command": command("inspect", path, "--out", "sheet.png")}


def lesson(opened: Opened, job: Job, wish: LessonWish) -> dict[str, Any]:
    """Work a formula out, on a run and its data where the lesson wants one."""
    chosen = pick(api.DEMOS, wish.lesson, "lesson")
    values = chosen.check(wish.values)
    if chosen.needs_run:
        run = opened.run(wish.run or "")
        check_kind(run)
        picture = opened.picture(wish.picture, run) if wish.picture else None
        values |= {"run": run, "data": opened.data(wish.run or ""), "image": picture}
    found = chosen.compute(**values)
    return {**found, "panels": [_written(panel) for panel in found["panels"]]}


def _written(panel: dict[str, Any]) -> dict[str, Any]:
    """Return a panel with its formula, if it is one, as the page draws it."""
    return {**panel, "formula": mathml(panel["latex"])} if panel["kind"] == "formula" else panel
