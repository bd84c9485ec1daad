"""The verbs of Reverie, those of steering among them.  The command line and Python call these and nothing else.

Each loads what it needs when it is called: sampling does not wait for what only training or measuring need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from reverie.base.errors import UserError, pick
from reverie.base.progress import Tell
from reverie.base.tables import Entry, Table, described

if TYPE_CHECKING:
    from torch import Tensor

    from reverie.base.team import Team
    from reverie.compression.results import Compressed, Decompressed
    from reverie.data import READERS, Dataset
    from reverie.data.memory import DataSource
    from reverie.data.shards.pack import pack
    from reverie.data.single import read_picture
    from reverie.data.sources import is_image
    from reverie.evaluation.compare import Comparison, compare
    from reverie.evaluation.evaluation import Evaluation, Say
    from reverie.evaluation.html import check_report
    from reverie.evaluation.inspection import inspect
    from reverie.exchange.backend import with_backend
    from reverie.exchange.verbs import export, import_model
    from reverie.families.language.model import TextCost
    from reverie.families.seq2seq.model import Answer
    from reverie.gallery import gallery
    from reverie.lessons import LESSONS, Lesson
    from reverie.runs.adapters import with_adapters
    from reverie.runs.config import Config
    from reverie.runs.folder import read_config, read_findings, read_metrics
    from reverie.runs.lock import holder
    from reverie.runs.options import Options
    from reverie.runs.reread import reread
    from reverie.runs.run import Run, load
    from reverie.runs.samples import Samples
    from reverie.runs.screen import Screen, clock
    from reverie.runs.step import Step
    from reverie.steering.restore import inpaint, restore
    from reverie.steering.results import Restored, check_results
    from reverie.steering.verbs import begin_classifier, edit, illusion, interpolate, invert
    from reverie.training.distil import prepare_distillation
    from reverie.training.options import DistilOptions, TrainingOptions
    from reverie.training.overview import Overview, find_runs, overview, runs
    from reverie.training.prepare import prepare
    from reverie.training.remedy import settings_again
    from reverie.training.summary import verdict
    from reverie.training.trainer import Training

# Verbs, and the types they speak of, that stand elsewhere as they are.
ELSEWHERE = {
    "data": ("READERS", "Dataset"),
    "data.shards.pack": ("pack",),
    "data.single": ("read_picture",),
    "data.sources": ("is_image",),
    "evaluation.compare": ("compare",),
    "evaluation.html": ("check_report",),
    "evaluation.inspection": ("inspect",),
    "exchange.backend": ("with_backend",),
    "exchange.verbs": ("export", "import_model"),
    "gallery": ("gallery",),
    "runs.adapters": ("with_adapters",),
    "lessons": ("LESSONS", "Lesson"),
    "runs.config": ("Config",),
    "runs.folder": ("read_config", "read_findings", "read_metrics"),
    "runs.lock": ("holder",),
    "runs.reread": ("reread",),
    "runs.options": ("Options",),
    "runs.run": ("Run", "load"),
    "runs.samples": ("Samples",),
    "runs.step": ("Step",),
    "steering.restore": ("inpaint", "restore"),
    "steering.results": ("Restored", "check_results"),
    "steering.verbs": ("begin_classifier", "edit", "illusion", "interpolate", "invert"),
    "training.distil": ("prepare_distillation",),
    "training.overview": ("Overview", "find_runs", "overview", "runs"),
    "training.prepare": ("prepare",),
    "training.remedy": ("settings_again",),
    "runs.screen": ("Screen", "clock"),
    "training.summary": ("verdict",),
    "training.trainer": ("Training",),
}

# Every kind of name that the commands take: words that mean something by themselves, and tables.
KINDS: dict[str, tuple[Entry | Table, ...]] = {
    "data": (Table("data.names", "DATASETS"),),
    "families": (Table("families", "FAMILIES"),),
    "schedules": (Table("diffusion.schedules", "SCHEDULES"),),
    "targets": (Table("diffusion.pair", "TARGETS"),),
    "losses": (Table("diffusion.loss", "LOSSES"),),
    "weights": (Table("diffusion.loss", "WEIGHTS"),),
    "times": (Table("diffusion.loss", "TIMES"),),
    "tokenizers": (Table("text.learn", "TOKENIZERS"),),
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


def load_all() -> None:
    """Import all that the verbs stand in, as programs of several threads must before they begin.

    Two threads that import modules which need each other may see one of them half made.
    """
    for module in ELSEWHERE:
        import_module(f"reverie.{module}")


def _opened(run: str | Path | Run, device: str) -> Run:
    from reverie.runs.run import Run, load

    return run if isinstance(run, Run) else load(run, device)


def _watched(progress: bool | None) -> Screen:
    """Return what shows progress: asked for, or else wherever someone is likely to see it."""
    from reverie.runs.screen import Screen, someone_watches

    return Screen(as_json=False, quiet=not (someone_watches() if progress is None else progress))


def _reported(steps: Iterable[Step], on_step: Callable[[Step], None] | None) -> Iterator[Step]:
    """Pass reports on, and tell them to whoever asked for them."""
    for step in steps:
        if on_step:
            on_step(step)
        yield step


def train(
    data: DataSource | None = None,
    out: str | Path | None = None,
    *,
    resume: str | Path | None = None,
    progress: bool | None = None,
    on_step: Callable[[Step], None] | None = None,
    **options: Unpack[TrainingOptions],
) -> Run:
    """Train a model of a data set and return the run: `reverie.train("spiral", "runs/spiral", steps=2000)`.

    data: a name, a path, or data themselves: an array or tensor of points (N, D) or of images, a pair (x, labels), a list of
    PIL images, a table, or a data set of torch or Hugging Face: `reverie.train((images, labels), minutes=10)`.
    Or go on with one that was interrupted: `reverie.train(resume="runs/spiral")`, and data then says where its data are now; or
    begin with the weights of another: `reverie.train("cats", start_from="runs/animals")`.
    progress: show a bar and the verdict; if not given, on a terminal and in notebooks.  on_step: called with each report.
    """
    screen = _watched(progress)
    with screen.reading() as on_progress:
        options["on_progress"] = options.get("on_progress") or on_progress
        training = begin(data, out, resume=resume, **options)
    return _followed(screen, training, on_step)


def _followed(screen: Screen, training: Training, on_step: Callable[[Step], None] | None) -> Run:
    """Train to the end, show how it goes, and return the run."""
    from reverie.training.summary import verdict

    for line in training.introduction():
        screen.say(line)
    try:
        last = screen.follow_training(_reported(training, on_step))
    except KeyboardInterrupt:
        screen.say(f"interrupted; {training.kept()}")
        raise
    run = training.run
    for line in (last.done, *verdict(run).lines, f"run: {run.path}"):
        screen.say(line)
    return run


def begin(
    data: DataSource | None = None,
    out: str | Path | None = None,
    *,
    resume: str | Path | None = None,
    **options: Unpack[TrainingOptions],
) -> Training:
    """Return a training that is ready to start, or to go on: `for step in reverie.api.begin("spiral", steps=2000): ...`."""
    from reverie.training.prepare import check_options, prepare
    from reverie.training.resume import resume as go_on

    check_options(options)
    if resume is not None:
        if out is not None:
            raise UserError("give either --out for a new run or --resume for one that is there")
        if "start_from" in options:
            raise UserError("--from starts a new run and --resume goes on with one; give only one of them")
        if options.pop("keep_data", False):
            raise UserError("keep_data is for a new run; one that is there keeps its data or does not")
        return go_on(resume, data=data, **options)
    if data is None:
        raise UserError("DATA is missing: give a name such as digits, or a path, or go on with a run by --resume RUN")
    if options.pop("extend", False):
        raise UserError("--extend goes with --resume RUN")
    return prepare(data, out, **options)


def follow(device: str = "auto") -> bool:
    """Tell whether this process was started as one that follows, which then works until the leading one leaves."""
    from reverie.base.team import rank

    if not rank():
        return False
    from reverie.runs.device import device_for
    from reverie.training.follower import Duty, serve

    where = device_for(device)

    def train(team: Team) -> Duty:
        from reverie.training.follower import Learning

        return Learning(team, where)

    def draw(team: Team) -> Duty:
        from reverie.runs.shared import Drawing

        return Drawing(team, lambda path, changes: _changed(path, str(where), changes))

    def measure(team: Team) -> Duty:
        from reverie.evaluation.shared import Measuring

        return Measuring(team)

    serve(where, {"train": train, "draw": draw, "measure": measure})
    return True


def _changed(path: Path, device: str, changes: Sequence[str]) -> Run:
    """Open a run, and do to it what was done to one of the leading process."""
    from reverie.runs.run import load

    run = load(path, device)
    for kind, _, what in (change.partition(" ") for change in changes):
        if kind == "adapter":
            from reverie.runs.adapters import with_adapters

            run = with_adapters(run, (what,))
        else:
            from reverie.exchange.backend import with_backend

            run = with_backend(run, what)
    return run


@contextmanager
def together(processes: int = 1, device: str = "auto") -> Iterator[None]:
    """Keep several processes of this machine, or those of torchrun, for all that is done inside: they come and go once."""
    from reverie.base.processes import check_processes, team_of
    from reverie.runs.device import device_for

    check_processes(processes)
    with team_of(processes, device_for(device)):
        yield


def to_go_on_with(out: str | Path) -> bool:
    """Tell whether torchrun started anew what was training in a folder, so that it is to be gone on with."""
    from reverie.base.team import was_restarted

    return was_restarted() and (Path(out) / "config.toml").is_file()


def distil(
    run: str | Path, out: str | Path | None = None, *, minutes: float | None = None, steps: int | None = None,
    guidance: float = 1.0, seed: int = 0, device: str = "auto", overwrite: bool = False, data: DataSource | None = None,
    data_dir: str | Path | None = None, progress: bool | None = None, on_step: Callable[[Step], None] | None = None,
    **options: Unpack[DistilOptions],
) -> Run:  # fmt: skip
    """Teach a student of a run to draw in 1, 2 or 4 evaluations and return it: `reverie.distil("runs/digits", "runs/fast")`.

    The student is a run like others, and goes on after an interruption by `reverie.train(resume=...)`.  minutes: 5 if no
    length is given; guidance: of the run, folded into the student; data, data_dir: where the run's data are now; options:
    further fields of TrainingConfig, such as batch and learning_rate.
    """
    from reverie.training.distil import prepare_distillation

    screen = _watched(progress)
    with screen.reading() as bars:
        training = prepare_distillation(
            run, out, minutes=minutes, steps=steps, guidance=guidance, seed=seed, device=device, overwrite=overwrite, data=data,
            data_dir=data_dir, on_progress=bars, **options,
        )  # fmt: skip
    return _followed(screen, training, on_step)


def train_classifier(
    run: str | Path | Run, *, device: str = "auto", minutes: float | None = None, steps: int | None = None, seed: int = 0,
    data: DataSource | None = None, data_dir: str | Path | None = None, progress: bool | None = None,
    on_progress: Tell | None = None, on_step: Callable[[Step], None] | None = None,
) -> dict[str, float]:  # fmt: skip
    """Train the classifier of a run and return its accuracy by time: `reverie.train_classifier("runs/digits", minutes=1)`.

    It lives in the run, where `classifier_guidance` finds it.  data, data_dir: where the run's data are now, or the data
    themselves; progress, on_step: as in `train`.
    """
    from reverie.steering.verbs import begin_classifier

    screen = _watched(progress)
    with screen.reading() as bars:
        training = begin_classifier(
            run, device=device, minutes=minutes, steps=steps, seed=seed, data=data, data_dir=data_dir,
            on_progress=on_progress or bars,
        )  # fmt: skip
    screen.follow_training(_reported(training, on_step))
    return training.accuracy


def sample_to(
    run: str | Path | Run, n: int, out: str | Path, first: int = 0, *, overwrite: bool = False, device: str = "auto",
    processes: int = 1, on_progress: Tell | None = None, say: Say | None = None, **options: Unpack[Options],
) -> Sequence[Path]:  # fmt: skip
    """Draw n samples and write them as `out` says, arrays and folders batch by batch; return the files written.

    overwrite: replace samples that were put into the folder, or labels beside the array, before; a folder of images that an
    equal call began is gone on with otherwise.  processes: that share the drawing on this machine.
    `reverie.api.sample_to("runs/spiral", 10**6, "points.npy")` holds one batch of each process in memory at a time.
    """
    from reverie.base.files import check_folder
    from reverie.runs.destinations import check_kind, check_output, check_room, is_folder, streams, wants_film
    from reverie.runs.restart import draw_to_folder
    from reverie.runs.shared import shared_run
    from reverie.runs.writing import write

    run = _opened(run, device)
    images = is_folder(out) and run.kind == "images"
    check_folder(Path(out)) if images else check_output(out, overwrite)
    check_kind(out, run.kind)
    if run.kind not in ("text", "pairs"):
        check_room(out, n, run.config.data.shape)
    with shared_run(run, processes) as run:
        if run.kind in ("text", "pairs"):
            return run.sample(n, first, on_progress=on_progress, **options).save(out)
        if images:
            said = say or (lambda text: None)
            return draw_to_folder(run, n, Path(out), first, overwrite=overwrite, tell=on_progress, say=said, options=options)
        if streams(out, run.config.data.shape):
            return write(run.batches(n, first, on_progress=on_progress, **options), n, out, overwrite)
        return run.sample(n, first, film=wants_film(out), on_progress=on_progress, **options).save(out, overwrite)


def sample(
    run: str | Path | Run, n: int = 16, first: int = 0, *, out: str | Path | None = None, overwrite: bool = False,
    film: bool = False, device: str = "auto", processes: int = 1, on_progress: Tell | None = None, **options: Unpack[Options],
) -> Samples:  # fmt: skip
    """Draw n samples from a run: `reverie.sample("runs/spiral", 2000).save("points.npy")`.

    first: the number of the first one: sample k of a seed alone is `reverie.sample(run, 1, first=k)`; out, overwrite: short
    for `.save(out, overwrite)`; film: keep the frames on the way, for .gif and .mp4; processes: that share the drawing on this
    machine.
    """
    from reverie.runs.destinations import check_kind, check_output, check_room, wants_film
    from reverie.runs.shared import shared_run

    run = _opened(run, device)
    if out is not None:
        check_output(out, overwrite)
        check_kind(out, run.kind)
        if run.kind not in ("text", "pairs"):
            check_room(out, n, run.config.data.shape)
        film = film or wants_film(out)
    with shared_run(run, processes) as shared:
        made = shared.sample(n, first, film=film, on_progress=on_progress, **options)
    if out is not None:
        made.save(out, overwrite)
    return made


def write_text(run: str | Path | Run, first: int = 0, *, device: str = "auto", **options: Unpack[Options]) -> Iterator[str]:
    """Yield a text piece by piece as a run writes it: `"".join(reverie.api.write_text("runs/prose", prompt="The "))`."""
    return _opened(run, device).written(first, **options)


def answers(
    run: str | Path | Run, source: str, beams: int = 4, *, length: int | None = None, device: str = "auto"
) -> list[Answer]:
    """Return the likeliest answers to a text, the likeliest first: `reverie.answers("runs/dates", "5 march 1998")[0].text`.

    beams: candidates that the search keeps at a time, 1 is greedy; each answer has its `log_prob` given the source, in nats.
    """
    return _opened(run, device).answers(source, beams, length)


def text_cost(run: str | Path | Run, text: str, *, device: str = "auto") -> TextCost:
    """Return what a text costs under a language model, exactly: `reverie.text_cost("runs/prose", "Hello").nats` is -log p."""
    from reverie.families.language.model import LanguageModel

    run = _opened(run, device)
    if not isinstance(run.model, LanguageModel):
        raise UserError(f"{run.path} is a run of {run.kind}; only runs of text tell what a text costs")
    if not text:
        raise UserError("an empty text costs nothing; give one with at least a character")
    return run.model.cost([text])


def compress(
    run: str | Path | Run, images: DataSource, out: str | Path, *, steps: int | None = None, seed: int = 0,
    data_dir: str | Path | None = None, device: str = "cpu", progress: bool | None = None, on_progress: Tell | None = None,
) -> Compressed:  # fmt: skip
    """Write images into one file without any loss: `reverie.compress("runs/digits", "pictures/", "pictures.rvi")`.

    images: a folder, a file, a name or data in memory, of the run's own size and channels, as nothing is changed; steps: of the
    chain they are coded along, more are shorter and slower; seed: of the noise by which the chain is chosen; device: one that
    computes the same digits every time, and that `decompress` has as well.  The result prints what it came to.
    """
    from reverie.compression.archive import STEPS
    from reverie.compression.archive import compress as write
    from reverie.compression.images import check_file, read_exactly

    run = _opened(run, device)
    check_file(out)
    screen = _watched(progress if on_progress is None else False)
    with screen.reading() as bars:
        tell = on_progress or bars
        x, names = read_exactly(images, tuple(run.diffusion.shape), seed, data_dir, tell)
        return write(run, x, out, names=names, steps=STEPS if steps is None else steps, seed=seed, tell=tell)


def decompress(
    run: str | Path | Run, file: str | Path, out: str | Path | None = None, *, overwrite: bool = False, device: str = "cpu",
    progress: bool | None = None, on_progress: Tell | None = None,
) -> Decompressed:  # fmt: skip
    """Return the images of a file that `compress` wrote, bit for bit, and write them where `out` is given.

    `reverie.decompress("runs/digits", "pictures.rvi", "pictures/")`.  out: a folder for PNG files by their names, or a sheet
    X.png, or X.npy; overwrite: replace labels beside the array.
    """
    from reverie.compression.archive import decompress as read

    run = _opened(run, device)
    screen = _watched(progress if on_progress is None else False)
    with screen.reading() as bars:
        return read(run, file, out=out, overwrite=overwrite, tell=on_progress or bars)


def evaluate(
    run: str | Path | Run, n: int | None = None, *, out: str | Path | None = None, device: str = "auto", quick: bool = False,
    features: str | Callable[[Tensor], Tensor] = "auto", data: DataSource | None = None,
    data_dir: str | Path | None = None, processes: int = 1, progress: bool | None = None, say: Say | None = None,
    on_progress: Tell | None = None, **options: Unpack[Options],
) -> Evaluation:  # fmt: skip
    """Measure n samples of a run against its data: `reverie.evaluate("runs/spiral")["sliced_wasserstein"]`.

    n: 2,048, or 512 if quick.  features: what images are compared by: auto, classifier, general, pixels, or any function from
    images (B, C, H, W) in [0, 1] to (B, D).  data: where the run's data are now, if they were moved, or the data themselves.
    processes: that share drawing and features on this machine.
    The result prints itself, and `.save("report.html")`, or out, writes a report.  progress: show bars; if not given, on a
    terminal and in notebooks, unless on_progress is told instead.
    """
    from reverie.evaluation.evaluation import evaluate_run
    from reverie.runs.shared import shared_run

    if out is not None:
        from reverie.evaluation.html import check_report

        check_report(out)
    run = _opened(run, device)
    screen = _watched(progress if on_progress is None else False)
    with shared_run(run, processes) as run, screen.reading() as bars:
        found = evaluate_run(
            run, n, quick=quick, features=features, data=data, data_dir=data_dir, say=say or screen.say,
            tell=on_progress or bars, options=options,
        )  # fmt: skip
    if out is not None:
        found.save(out)
    return found


def compare_families(
    data: DataSource, families: str | Iterable[str], out: str | Path | None = None, *, runs: str | Path | None = None,
    n: int | None = None, quick: bool = False, features: str | Callable[[Tensor], Tensor] = "auto",
    progress: bool | None = None, screen: Screen | None = None, **options: Unpack[TrainingOptions],
) -> Comparison:  # fmt: skip
    """Train each family on the same data for the same time of the processor and set them side by side.

    `reverie.api.compare_families("digits", "gaussian,mixture,diffusion", "report.html", minutes=5)`.  families: names with
    their options, or folders of runs that are there; out: the report; runs: the folder that the runs go to, runs/compare-DATA
    if not given, where those that are finished are not trained again; n, quick, features: as in `evaluate`; options: as in
    `train`, with 2 minutes for each family, by the processor's clock, and the weights that are best on held-out data.
    """
    from reverie.evaluation.contest import contest

    if out is not None:
        from reverie.evaluation.html import check_report

        check_report(out)
    seed, device = options.pop("seed", 0), options.pop("device", "auto")
    found = contest(
        data, families, runs, n=n, quick=quick, seed=seed, device=device, features=features,
        screen=screen or _watched(progress), options=options,
    )  # fmt: skip
    if out is not None:
        found.save(out)
    return found


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
        fields = {key: thing.settings.model_fields[key] for key in thing.wishes}
        planned = any(field.is_required() for field in fields.values())  # then a plan for the data chooses all of them
        return Entry(name, thing.summary, {key: None if planned else field.default for key, field in fields.items()})
    return described(name, thing, OF_THE_DATA if kind == "networks" else ())


__all__ = [
    "LESSONS", "READERS", "Config", "Dataset", "Entry", "Lesson", "Options", "Overview", "Restored", "Run", "Samples",
    "Screen", "Step", "Training", "begin", "begin_classifier", "check_report", "check_results", "clock", "compare",
    "compare_families", "distil", "edit", "entries", "evaluate", "export", "find_runs", "gallery", "holder", "illusion",
    "import_model", "inpaint", "inspect", "interpolate", "invert", "is_image", "load", "load_all", "names", "names_of",
    "overview", "pack", "prepare", "prepare_distillation", "read_config", "read_findings", "read_metrics", "read_picture",
    "reread", "restore", "runs", "sample", "sample_to", "settings_again", "together", "train", "train_classifier", "verdict",
    "with_adapters", "with_backend",
]  # fmt: skip
