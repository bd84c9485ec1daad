"""Evaluation of a run against its data, and of model families against each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from reverie.api.progress import open_run, progress_screen
from reverie.base.deprecations import renamed_options
from reverie.base.progress import OnProgress

if TYPE_CHECKING:
    from torch import Tensor

    from reverie.data.in_memory import DataSource
    from reverie.evaluation.compare import Comparison
    from reverie.evaluation.reports import Evaluation, Notify
    from reverie.runs.run import Run
    from reverie.runs.sampling_options import Options
    from reverie.runs.screen import Screen
    from reverie.training.training_options import TrainingOptions


@renamed_options
def evaluate(
    run: str | Path | Run, n: int | None = None, *, out: str | Path | None = None, device: str = "auto", quick: bool = False,
    features: str | Callable[[Tensor], Tensor] = "auto", data: DataSource | None = None,
    data_dir: str | Path | None = None, processes: int = 1, progress: bool | None = None, notify: Notify | None = None,
    on_progress: OnProgress | None = None, seconds: float | None = None, **options: Unpack[Options],
) -> Evaluation:  # fmt: skip
    """Compare n samples of a run with its data: `reverie.evaluate("runs/spiral")["sliced_wasserstein"]`.

    n: 2,048, or 512 if quick.  seconds: time limit, by default 60 if quick and none otherwise; the result names the metrics
    that did not fit.  features: image features for distances: auto, classifier, general, pixels, or a function
    from images (B, C, H, W) in [0, 1] to (B, D).  data: the present path of the run's data, if they were moved, or the data
    themselves.  processes: number of local processes that share the work.  out: write a report, as `.save("report.html")`
    of the result does.  progress: show bars, by default on a terminal and in notebooks if on_progress is not given.

    Interrupted, it raises `EvaluationStopped`, which holds the metrics so far, and writes their report.
    """
    from reverie.base.deadline import Deadline
    from reverie.evaluation.reports import QUICK_SECONDS, EvaluationStopped, evaluate_run
    from reverie.runs.distributed import distributed_run

    if out is not None:
        from reverie.evaluation.html_report import check_report

        check_report(out)
    run = open_run(run, device)
    screen = progress_screen(progress if on_progress is None else False)
    deadline = Deadline(QUICK_SECONDS if quick and seconds is None else math.inf if seconds is None else seconds)
    try:
        with distributed_run(run, processes) as run, screen.reading() as bars:
            evaluation = evaluate_run(
                run, n, quick=quick, features=features, data=data, data_dir=data_dir, notify=notify or screen.notify,
                on_progress=on_progress or bars, options=options, deadline=deadline,
            )  # fmt: skip
    except EvaluationStopped as stopped:
        if out is not None:
            stopped.evaluation.save(out)
        raise
    if out is not None:
        evaluation.save(out)
    return evaluation


@renamed_options
def compare_families(
    data: DataSource, families: str | Iterable[str], out: str | Path | None = None, *, runs: str | Path | None = None,
    n: int | None = None, quick: bool = False, features: str | Callable[[Tensor], Tensor] = "auto",
    progress: bool | None = None, screen: Screen | None = None, **options: Unpack[TrainingOptions],
) -> Comparison:  # fmt: skip
    """Train each family on the same data for the same CPU time and compare their metrics.

    `reverie.api.compare_families("digits", "gaussian,mixture,diffusion", "report.html", minutes=5)`.  families: names with
    options, or folders of existing runs; out: the report; runs: folder of the new runs, by default runs/compare-DATA, where
    finished runs are reused; n, quick, features: as in `evaluate`; options: as in `train`, by default 2 minutes of CPU time for
    each family and the checkpoint with the lowest held-out loss.
    """
    from reverie.evaluation.family_comparison import train_and_compare

    if out is not None:
        from reverie.evaluation.html_report import check_report

        check_report(out)
    seed, device = options.pop("seed", 0), options.pop("device", "auto")
    comparison = train_and_compare(
        data, families, runs, n=n, quick=quick, seed=seed, device=device, features=features,
        screen=screen or progress_screen(progress), options=options,
    )  # fmt: skip
    if out is not None:
        comparison.save(out)
    return comparison
