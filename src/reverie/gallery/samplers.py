"""The same seeds with every sampler at equal numbers of function evaluations."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reverie.base.errors import UserError
from reverie.base.spec import build
from reverie.data.kind import Kind
from reverie.diffusion.samplers import GRIDS, SAMPLERS, affordable
from reverie.draw.picture import (
    INK,
    SOFT,
    axis_limits,
    check_picture,
    contact_sheet,
    dots,
    figure,
    matplotlib_text,
    save,
    to_bytes,
)
from reverie.runs.run import Run, load
from reverie.runs.sampling_options import Options

BUDGETS = (5, 10, 20, 50)  # function evaluations
TOLERANCES = (1e-1, 3e-2, 1e-2, 1e-3)  # of rk45, whose number of evaluations is adaptive
SHOWN: dict[Kind, int] = {"points": 400, "images": 6}  # number of samples in a cell


@dataclass(frozen=True)
class Cell:
    """Samples of one sampler with one budget.  x: (N, ...) in user units; seconds: for all of them."""

    sampler: str
    evaluations: int
    x: np.ndarray
    seconds: float


def draw_cell(run: Run, name: str, column: int, n: int, **options: Unpack[Options]) -> Cell:
    """Sample n times within a budget; count evaluations and measure the time."""
    sampler, calls = name, 0
    spacing = build(GRIDS, run.chosen_sampling(options)[2], "grid")
    steps = affordable(build(SAMPLERS, name, "sampler"), spacing, run.diffusion.denoiser.schedule, BUDGETS[column])
    if steps is None:
        sampler, steps = f"{name}:tolerance={TOLERANCES[column]}", 2

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    hook = run.diffusion.denoiser.register_forward_hook(count)
    start = time.perf_counter()
    try:
        label = options.get("label") or ("all" if run.config.data.labels else None)
        sampling: Options = {**options, "label": label, "sampler": sampler, "steps": steps}
        samples = run.sample(n, **sampling)
    finally:
        hook.remove()
    return Cell(sampler, calls, samples.x, time.perf_counter() - start)


def _show(axes: Axes, cell: Cell, budget: int, limits: tuple[float, float] | None) -> None:
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    if limits is None:
        axes.imshow(contact_sheet(to_bytes(cell.x), columns=len(cell.x)), interpolation="nearest", aspect="equal")
    else:
        dots(axes, cell.x)
        axes.set(xlim=limits, ylim=limits, aspect="equal")
    count_label = "" if cell.evaluations == budget else f"{cell.evaluations} evaluations, "
    axes.set_xlabel(f"{count_label}{1e3 * cell.seconds / len(cell.x):.3g} ms each", fontsize=7, color=SOFT, labelpad=2)


def sheet(run: Run, cells: dict[str, list[Cell]], grid: str) -> Figure:
    """Arrange the cells: a row per sampler, a column per budget."""
    images = run.kind == "images"
    limits = None if images else axis_limits(np.concatenate([row[-1].x[:, :2] for row in cells.values()]))
    height = 0.62 if images else 1.9
    fig = figure(3.0 * len(BUDGETS) + 1.6 if images else 2.0 * len(BUDGETS) + 1.6, height * len(cells) + 0.7)
    for k, (name, row) in enumerate(cells.items()):
        for column, cell in enumerate(row):
            axes = fig.add_subplot(len(cells), len(BUDGETS), k * len(BUDGETS) + column + 1)
            _show(axes, cell, BUDGETS[column], limits)
            if column == 0:
                axes.set_ylabel(name, rotation=0, ha="right", va="center", fontsize=9, color=INK, labelpad=8)
            if k == 0:
                axes.set_title(f"{BUDGETS[column]} evaluations", fontsize=10, color=INK)
    fig.suptitle(
        f"{matplotlib_text(run.config.data.name)}: the same seeds with every sampler, grid {grid}", fontsize=10, color=INK
    )
    return fig


def draw(run: str | Path | Run, out: Path, *, device: str = "auto", **options: Unpack[Options]) -> list[Path]:
    """Sample a run with every sampler and budget, draw the sheet, and return its file."""
    if options.get("sampler") is not None or options.get("steps") is not None:
        raise UserError("this gallery shows all samplers at fixed numbers of evaluations; leave sampler and steps out")
    check_picture(out)
    run = run if isinstance(run, Run) else load(run, device)
    n = SHOWN[run.kind]
    draw_cell(run, "ddim", 0, n, **options)  # warm-up: the first call of a network is slower
    cells = {name: [draw_cell(run, name, k, n, **options) for k in range(len(BUDGETS))] for name in SAMPLERS}
    save(sheet(run, cells, run.chosen_sampling(options)[2]), out)
    return [out]
