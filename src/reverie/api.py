"""The verbs of Reverie, those of steering among them.  The command line and Python call these and nothing else.

Each loads what it needs when it is called: sampling does not wait for what only training or measuring need.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from reverie.base.errors import UserError, pick
from reverie.base.progress import Tell, silent
from reverie.base.tables import Entry, Table, described

if TYPE_CHECKING:
    from torch import Tensor

    from reverie.evaluation.compare import compare
    from reverie.evaluation.evaluation import Evaluation, Say
    from reverie.evaluation.html import check_report
    from reverie.evaluation.inspection import inspect
    from reverie.gallery import gallery
    from reverie.runs.run import Options, Progress, Run, load
    from reverie.runs.samples import Samples
    from reverie.runs.step import Step
    from reverie.steering.restore import inpaint, restore
    from reverie.steering.results import Restored, check_results
    from reverie.steering.verbs import begin_classifier, edit, illusion, interpolate, invert, train_classifier
    from reverie.training.overview import runs
    from reverie.training.prepare import prepare
    from reverie.training.remedy import settings_again
    from reverie.training.summary import verdict
    from reverie.training.trainer import Training

# Verbs, and the types they speak of, that stand elsewhere as they are.
ELSEWHERE = {
    "evaluation.compare": ("compare",),
    "evaluation.html": ("check_report",),
    "evaluation.inspection": ("inspect",),
    "gallery": ("gallery",),
    "runs.run": ("Run", "load"),
    "runs.step": ("Step",),
    "steering.restore": ("inpaint", "restore"),
    "steering.results": ("Restored", "check_results"),
    "steering.verbs": ("begin_classifier", "edit", "illusion", "interpolate", "invert", "train_classifier"),
    "training.overview": ("runs",),
    "training.prepare": ("prepare",),
    "training.remedy": ("settings_again",),
    "training.summary": ("verdict",),
    "training.trainer": ("Training",),
}

# Every kind of name that the commands take: words that mean something by themselves, and tables.
KINDS: dict[str, tuple[Entry | Table, ...]] = {
    "data": (Table("data.names", "DATASETS"),),
    "families": (Table("families", "FAMILIES"),),
    "schedules": (Table("diffusion.schedule", "SCHEDULES"),),
    "targets": (Table("diffusion.pair", "TARGETS"),),
    "weights": (Table("diffusion.loss", "WEIGHTS"),),
    "times": (Table("diffusion.loss", "TIMES"),),
    "networks": (Table("nets", "NETWORKS"), Table("diffusion.plan", "PRESETS")),
    "samplers": (Table("diffusion.samplers", "SAMPLERS"),),
    "grids": (Table("diffusion.samplers", "GRIDS"),),
    "features": (Entry("auto", "What suits the data."), Table("evaluation.metrics.features", "FEATURES")),
    "augmentations": (
        Entry("auto", "What suits the data."), Entry("none", "No changes."), Table("data.augment", "AUGMENTATIONS"),
    ),
    "views": (Table("diffusion.views", "VIEWS"),),
    "tasks": (Table("diffusion.measurements", "MEASUREMENTS"),),
    "inpainters": (Table("diffusion.known", "INPAINTERS"),),
    "posteriors": (Table("diffusion.known", "POSTERIORS"),),
    "checks": (Table("training.checks", "CHECKS"),),
}  # fmt: skip


def __getattr__(name: str) -> Any:
    for module, names in ELSEWHERE.items():
        if name in names:
            return getattr(import_module(f"reverie.{module}"), name)
    raise AttributeError(f"module 'reverie.api' has no attribute {name!r}")


def _opened(run: str | Path | Run, device: str) -> Run:
    from reverie.runs.run import Run, load

    return run if isinstance(run, Run) else load(run, device)


def train(
    data: str | None = None,
    out: str | Path | None = None,
    *,
    resume: str | Path | None = None,
    on_step: Callable[[Step], None] | None = None,
    **options: Any,
) -> Run:
    """Train a model of a data set and return the run: `reverie.train("spiral", "runs/spiral", steps=2000)`.

    Or go on with one that was interrupted: `reverie.train(resume="runs/spiral")`, and data then says where its data are now; or
    begin with the weights of another: `reverie.train("cats", start_from="runs/animals")`.
    """
    training = begin(data, out, resume=resume, **options)
    for step in training:
        if on_step:
            on_step(step)
    return training.run


def begin(
    data: str | None = None, out: str | Path | None = None, *, resume: str | Path | None = None, **options: Any
) -> Training:
    """Return a training that is ready to start, or to go on."""
    from reverie.training.prepare import check_options, prepare
    from reverie.training.resume import resume as go_on

    check_options(options)
    if resume is not None:
        if out is not None:
            raise UserError("give either --out for a new run or --resume for one that is there")
        if "start_from" in options:
            raise UserError("--from starts a new run and --resume goes on with one; give only one of them")
        if data is not None:
            options["data"] = data
        return go_on(resume, **options)
    if data is None:
        raise UserError("DATA is missing: give a name such as digits, or a path, or go on with a run by --resume RUN")
    if options.pop("extend", False):
        raise UserError("--extend goes with --resume RUN")
    return prepare(data, out, **options)


def sample_to(
    run: str | Path | Run, n: int, out: str | Path, *, device: str = "auto", on_progress: Progress | None = None,
    **options: Unpack[Options],
) -> list[Path]:  # fmt: skip
    """Draw n samples and write them as `out` says, arrays and folders batch by batch; return the files written."""
    from reverie.runs.samples import check_output, check_room, streams, wants_film, write

    run = _opened(run, device)
    check_output(out)
    check_room(out, n, run.config.data.shape)
    if streams(out, run.config.data.shape):
        return write(run.batches(n, on_progress=on_progress, **options), n, out)
    return run.sample(n, film=wants_film(out), on_progress=on_progress, **options).save(out)


def sample(run: str | Path | Run, n: int = 16, *, device: str = "auto", **options: Unpack[Options]) -> Samples:
    """Draw n samples from a run: `reverie.sample("runs/spiral", 2000).save("points.npy")`."""
    return _opened(run, device).sample(n, **options)


def evaluate(
    run: str | Path | Run, n: int | None = None, *, device: str = "auto", quick: bool = False,
    features: str | Callable[[Tensor], Tensor] = "auto", data: str | Path | None = None,
    data_dir: str | Path | None = None, say: Say = lambda text: None, on_progress: Tell = silent, **options: Unpack[Options],
) -> Evaluation:  # fmt: skip
    """Measure n samples of a run against its data: `reverie.evaluate("runs/spiral")["sliced_wasserstein"]`.

    n: 2,048, or 512 if quick.  features: what images are compared by: auto, classifier, general, pixels, or any function from
    images (B, C, H, W) in [0, 1] to (B, D).  data: where the run's data are now, if they were moved.
    The result prints itself, and `.save("report.html")` writes a report.
    """
    from reverie.evaluation.evaluation import evaluate_run

    return evaluate_run(
        _opened(run, device), n, quick=quick, features=features, data=data, data_dir=data_dir, say=say, tell=on_progress,
        options=options,
    )  # fmt: skip


def names() -> dict[str, list[str]]:
    """Return every name that the commands take, by kind; torch is not loaded for it."""
    return {kind: names_of(kind) for kind in KINDS}


def names_of(kind: str) -> list[str]:
    """Return the names of one kind."""
    parts = pick(KINDS, kind, "kind of name")
    return [name for part in parts for name in ([part.name] if isinstance(part, Entry) else part.names())]


def entries(kind: str) -> list[Entry]:
    """Return the names of one kind with what each is, and its options with their defaults."""
    found: list[Entry] = []
    for part in pick(KINDS, kind, "kind of name"):
        if isinstance(part, Entry):
            found.append(part)
        else:
            found += [_entry(kind, name, thing) for name, thing in part.load().items()]
    return found


def _entry(kind: str, name: str, thing: Any) -> Entry:
    from reverie.families.diffusion.family import OF_THE_DATA

    if kind == "families":
        return Entry(name, thing.summary, {key: thing.settings.model_fields[key].get_default() for key in thing.wishes})
    return described(name, thing, OF_THE_DATA if kind == "networks" else ())


__all__ = [
    "Entry", "Restored", "Run", "Step", "Training", "begin", "begin_classifier", "check_report", "check_results", "compare",
    "edit", "entries", "evaluate", "gallery", "illusion", "inpaint", "inspect", "interpolate", "invert", "load", "names",
    "names_of", "prepare", "restore", "runs", "sample", "sample_to", "settings_again", "train", "train_classifier", "verdict",
]  # fmt: skip
