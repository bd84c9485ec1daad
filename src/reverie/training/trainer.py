"""A training at work: reports, previews, the doctor, checkpoints, and the end."""

from __future__ import annotations

import json
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reverie.base.allocator import keep_freed_memory
from reverie.base.errors import UserError
from reverie.base.files import reason
from reverie.base.signals import Stopped, stop_requests
from reverie.data import Dataset
from reverie.data.looks import Look
from reverie.draw.picture import loss_curve, save
from reverie.runs import folder
from reverie.runs.classifier import CLASSIFIER_FILE
from reverie.runs.finding import Finding
from reverie.runs.kept import KEPT_DATA
from reverie.runs.run import Run
from reverie.training import checkpoints
from reverie.training.checks import PATIENCE, examine, has_stopped_improving
from reverie.training.footprint import flops
from reverie.training.learner import Learner
from reverie.training.linear import first_map, linear_filter
from reverie.training.loop import FREE, Step, fit
from reverie.training.patient import Patient
from reverie.training.previews import FOLDER as PREVIEWS
from reverie.training.previews import Previews
from reverie.training.remedy import sizes
from reverie.training.tensorboard import FOLDER as EVENTS
from reverie.training.tensorboard import recorder

LOSS_PICTURE = "loss.png"
RUN_FILES = (
    folder.CONFIG, folder.WEIGHTS_FILE, folder.METRICS, LOSS_PICTURE, checkpoints.LOCK, CLASSIFIER_FILE, KEPT_DATA,
)  # fmt: skip
RUN_FOLDERS = (PREVIEWS, checkpoints.FOLDER, EVENTS)
SMALL_NETWORK = 100_000  # parameters below which one thread is as quick as several
PREVIEW_SHARE = 0.03  # of the training time, at most
WRITE_SHARE = 0.02  # of the training time, at most, goes into checkpoints
DATA_LOOKED_AT = 512
LEAST_SIZE = 0.01  # the size that a weight which begins at zero is taken to have


def clear(path: Path) -> None:
    """Remove the files of a run, and nothing else, from a folder."""
    for file in RUN_FILES:
        (path / file).unlink(missing_ok=True)
    for name in RUN_FOLDERS:
        shutil.rmtree(path / name, ignore_errors=True)


@dataclass
class Training:
    """A training that is ready to start, or to go on: iterate over it for its reports.

    A checkpoint is written every now and then, at the end, and when the iteration is broken off.
    """

    run: Run
    learner: Learner
    train: Dataset
    held_out: Dataset
    about: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    tensorboard: bool = False
    begun: bool = field(default=False, init=False)

    def introduction(self) -> Iterator[str]:
        """Say what will be trained on what, and why, a line each."""
        yield from self.about
        config = self.run.config
        yield f"{config.data.name}: {len(self.train):,} to train, {len(self.held_out):,} held out"
        yield from self.reasons
        model = self.run.model
        parameters = sum(p.numel() for p in model.parameters())
        yield f"network: {config.network['name']}, {parameters:,} parameters, {flops(model) / 1e6:,.1f} million operations"

    def sample_command(self) -> str:
        """Return the command that samples from the run."""
        count = 64 if self.train.kind == "images" else 2000
        return f"reverie sample {shlex.quote(str(self.run.path))} -n {count} --out {shlex.quote(self.run.path.name + '.png')}"

    def resume_command(self) -> str:
        """Return the command that goes on with the run."""
        return f"reverie train --resume {shlex.quote(str(self.run.path))}"

    def __iter__(self) -> Iterator[Step]:
        if self.begun:
            raise UserError(f"the training of {self.run.path} has been run already; prepare a new one")
        self.begun = True
        path, learner = self.run.path, self.learner
        with ExitStack() as stack:
            stack.enter_context(checkpoints.locked(path))
            stop = stack.enter_context(stop_requests())
            record = stack.enter_context(recorder(path, self.tensorboard))
            if sum(p.numel() for p in learner.model.parameters()) < SMALL_NETWORK:
                stack.callback(torch.set_num_threads, torch.get_num_threads())
                torch.set_num_threads(1)  # two threads gain nothing here, and stall each other when the machine is busy
            keep_freed_memory()
            whole = False  # between steps, when the state can be kept
            try:
                for step in self._work(stop):
                    record(step)
                    whole = True
                    yield step
                    whole = False
                whole = True
            except OSError as error:
                raise UserError(f"cannot write to {path}: {reason(error)}; {self.kept()}") from error
            except UserError:
                learner.restore(learner.good)
                whole = True
                raise
            finally:
                self._leave(whole)
            if stop():
                raise Stopped(stop.by)

    def kept(self) -> str:
        """Say which checkpoint is there and how to go on from it."""
        found = checkpoints.existing(self.run.path)
        return f"go on from step {int(found[0].stem):,} with: {self.resume_command()}" if found else "nothing was kept"

    def _leave(self, whole: bool) -> None:
        """Keep the state, if it is between two steps, and draw the curves."""
        path, learner = self.run.path, self.learner
        if not learner.i:
            clear(path)  # nothing was learned: leave no folder that looks like a run
            with suppress(OSError):
                path.rmdir()
        elif whole and path.is_dir() and learner.is_finite():
            between = {"last": learner.last} if learner.window else {}
            checkpoints.write(path, learner.snapshot(), {"good": learner.good, **between})
            folder.write_weights(path, learner.average.model)
            save(loss_curve(self.run.metrics()), path / LOSS_PICTURE)

    def _work(self, stop: Callable[[], bool]) -> Iterator[Step]:
        run, learner, settings = self.run, self.learner, self.run.config.training
        previews = Previews(run, replace(run, model=learner.model), self.train, self.held_out)
        doctor = Doctor(self, previews)
        best = min((row["held_out"] for row in doctor.rows if "held_out" in row), default=float("inf"))
        writing = WRITE_SHARE * learner.seconds
        with (run.path / folder.METRICS).open("a") as file:
            for report in fit(learner, self.train, self.held_out, settings, stop):
                if not (run.path / folder.CONFIG).exists():
                    raise UserError(f"the run folder {run.path} was removed, so the training stopped at step {learner.i:,}")
                step = doctor.visit(report)
                for row in step.as_rows():
                    file.write(json.dumps(row) + "\n")
                file.flush()
                began = time.monotonic()
                if step.held_out is not None and step.held_out < best:
                    best = step.held_out
                    checkpoints.write(run.path, learner.last, name=checkpoints.BEST)
                if step.loss is not None and writing <= WRITE_SHARE * step.seconds:
                    checkpoints.write(run.path, learner.good if learner.good.facts.i else learner.last)
                    folder.write_weights(run.path, run.model)
                writing += time.monotonic() - began
                yield step
        if not stop():
            previews.finish()


class Doctor:
    """Keeps the history of a training, takes previews within their share of the time, and has the checks look at it all."""

    def __init__(self, training: Training, previews: Previews) -> None:
        self.training, self.previews = training, previews
        self.rows: list[dict[str, Any]] = list(training.run.metrics())
        self.active: dict[str, Finding] = {f.check: f for f in folder.read_findings(training.run.path)}
        fresh = training.run.config.start is None  # else the first weights were those of another run
        model = folder.build_model(training.run.config)
        self.first = {name: p.detach().clone() for name, p in model.named_parameters()} if fresh else {}
        self.data = training.train.some(DATA_LOOKED_AT)
        model = training.run.model
        self.linear = linear_filter(model, model.codec.encode(self.data.to(training.learner.device)))
        self.entry = first_map(model) if training.train.kind == "images" else None
        self.sizes = sizes(training.run.config.network)
        self.look: Look | None = None
        self.looked_at = 0
        self.previewing = PREVIEW_SHARE * training.learner.seconds

    def _movement(self) -> dict[str, float]:
        """Return how far each parameter is from where it began, relative to its size there."""

        def moved(p: Tensor, first: Tensor) -> float:
            root = p.numel() ** 0.5
            return float((p.detach().cpu() - first).norm() / first.norm().clamp_min(LEAST_SIZE * root))

        now = dict(self.training.learner.model.named_parameters())
        return {name: moved(now[name], first) for name, first in self.first.items()}

    def visit(self, step: Step) -> Step:
        """Return the report with the preview's score and with what is newly wrong."""
        learner = self.training.learner
        if step.loss is None or step.held_out is None:
            if step.loss is not None:
                self.rows.extend(step.as_rows())
            return step
        began = time.monotonic()
        if self.previewing <= max(FREE, PREVIEW_SHARE * step.seconds) or step.fraction == 1:
            self.look, score = self.previews.take(step.i)
            step = replace(step, preview_score=score, look=self.look.beside(self.previews.truth))
            self.previewing += (time.monotonic() - began) * (step.i > 1)  # as with checks, the first is not held against others
            self.looked_at = step.i
        if step.fraction == 1 and self.linear is not None:
            step = replace(step, linear_levels=self.linear.loss_levels)
        self.rows.extend(step.as_rows())
        model = self.training.run.model
        patient = Patient(
            self.rows, model.denoiser.schedule, model.codec, self.data, self.training.train.kind,
            self._movement(), self.look, self.previews.truth, len(self.training.train), self.training.run.config.asked,
            self.linear, self.entry, self.sizes, self.looked_at,
        )  # fmt: skip
        found = {finding.check: finding for finding in examine(patient)}
        new = tuple(finding for name, finding in found.items() if name not in self.active)
        self.active = found
        if self.training.run.config.training.until == "good" and learner.ending is None and self._is_good():
            learner.ending = step.fraction
        return replace(step, findings=new, active=tuple(found))

    def _is_good(self) -> bool:
        """Tell whether held-out loss and, where there are enough of them, previews have stopped improving."""
        scored = [row for row in self.rows if "preview_score" in row]
        seen = len(scored) <= 2 * PATIENCE or has_stopped_improving(scored, "preview_score")
        return seen and has_stopped_improving(self.rows)
