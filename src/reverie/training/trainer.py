"""A training: reports, previews, the doctor, checkpoints, and the stages after the last step."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from reverie.base.allocator import keep_freed_memory
from reverie.base.budget import Budget
from reverie.base.busy import few_threads_when_busy
from reverie.base.deadline import Deadline
from reverie.base.errors import UserError
from reverie.base.files import own_file, reason
from reverie.base.signals import Stopped, stop_requests
from reverie.base.team import LostError, Team, TeamError
from reverie.base.visible import visible
from reverie.base.worker_processes import team_of, threads_each
from reverie.data import Dataset
from reverie.data.kind import WRITTEN
from reverie.data.text_pairs import TextPairs
from reverie.draw.curves import loss_curve
from reverie.draw.picture import save
from reverie.families.diffusion.settings import DiffusionSettings
from reverie.runs import folder
from reverie.runs.learned_schedule import draw_schedule
from reverie.runs.lock import Lock
from reverie.runs.run import Run
from reverie.runs.step import Step
from reverie.runs.weights import write_weights
from reverie.training import checkpoints
from reverie.training.autoguide import EARLY, MAX_TIME, choose_autoguidance, keeps_early
from reverie.training.claim import CODEC_FOLDER, LOSS_PICTURE, sweep
from reverie.training.codec_training import use_codec
from reverie.training.doctor import Doctor
from reverie.training.learner import Learner
from reverie.training.loop import fit
from reverie.training.previews import Previews
from reverie.training.selection import SHARE, samples_for, select_sampling
from reverie.training.step_rate import Forecast
from reverie.training.summary import meaning_of, purpose_of
from reverie.training.tensorboard import recorder
from reverie.training.text_previews import TextPreviews
from reverie.training.workers import start_workers

SAMPLING, FILM, WRITING = "selecting the default sampling", "film and sheet", "writing"  # stages after the last step
FILM_SHARE = 0.1  # upper limit of the time for the film and the sheet
CHOICE, FIRST_CHOICE = 8.0, 2.0  # duration of selecting the default sampling, and of its first samples, in previews
CURVES = 1.5  # seconds for plotting the curves of a run
SMALL_NETWORK = 100_000  # parameters below which one thread is as fast as several
WRITE_SHARE = 0.02  # upper limit of the training time for checkpoints


@dataclass
class Training:
    """A training that is ready to start or resume: iterate over it for its reports.

    It writes checkpoints regularly, at the end, and when the iteration stops early.  It holds the lock of the run folder until
    then, or until it is closed, garbage-collected, or prepared again by the same program.
    """

    run: Run
    learner: Learner
    train: Dataset
    held_out: Dataset
    lock: Lock
    about: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    tensorboard: bool = False
    processes: int = 1  # number of processes on this machine
    shard: bool = False  # whether the processes also share the state of the learner
    new: bool = True  # whether the run is new, not resumed
    first: Training | None = None  # the training of the autoencoder of latent diffusion, if it comes first
    budget: Budget = field(default_factory=Budget)  # time of the whole command
    begun: bool = field(default=False, init=False)

    def close(self) -> None:
        """Release the folder of a training that did not start, so that another can use it."""
        if self.first is not None:
            self.first.close()
        self.lock.release()

    def discard(self) -> None:
        """Close the training; remove the folder of a new run that did not start."""
        if self.new and not self.begun and self.lock.held:
            sweep(self.run.path, whole_run=True)
        self.close()

    def introduction(self) -> Iterator[str]:
        """Yield lines about the data, the plan and its reasons."""
        yield from self.about
        config = self.run.config
        yield f"{config.data.name}: {len(self.train):,} to train, {len(self.held_out):,} held out"
        yield from self.reasons
        if meaning := meaning_of(config):
            yield f"trained {purpose_of(config)}: {meaning}"
        yield self.run.model.summary_line()

    def sample_command(self) -> str:
        """Return the command that samples from the run."""
        if self.train.kind == "text":
            return f"reverie sample {shlex.quote(str(self.run.path))} -n 1 --length 500"
        if isinstance(self.train.x, TextPairs):
            prompt = shlex.quote(visible(self.held_out.x.text(0, 0))) if isinstance(self.held_out.x, TextPairs) else "..."
            return f"reverie sample {shlex.quote(str(self.run.path))} --prompt {prompt}"
        count = 64 if self.train.kind == "images" else 2000
        return f"reverie sample {shlex.quote(str(self.run.path))} -n {count} --out {shlex.quote(self.run.path.name + '.png')}"

    def resume_command(self) -> str:
        """Return the command that resumes the run."""
        return f"reverie train --resume {shlex.quote(str(self.run.path))}"

    def __iter__(self) -> Iterator[Step]:
        if self.begun or not self.lock.held:
            raise UserError(f"the training of {self.run.path} has already been run or closed; prepare a new one")
        self.begun = True
        path = self.run.path
        with ExitStack() as stack:
            stack.enter_context(self.lock)
            if self.first is not None:
                yield from self._train_codec(self.first)
            learner = self.learner
            stop = stack.enter_context(stop_requests())
            record = stack.enter_context(recorder(path, self.tensorboard))
            if sum(p.numel() for p in learner.model.parameters()) < SMALL_NETWORK:
                stack.callback(torch.set_num_threads, torch.get_num_threads())
                torch.set_num_threads(1)  # a second thread gains nothing here, and stalls on a busy machine
            keep_freed_memory()
            team = stack.enter_context(team_of(self.processes, learner.device))
            if team is not None or self.run.config.training.exact:
                stack.callback(torch.set_num_threads, torch.get_num_threads())
                torch.set_num_threads(1 if self.run.config.training.exact else threads_each(self.processes))
            adapt_threads = stack.enter_context(few_threads_when_busy())
            is_consistent = False  # between steps, when the state is consistent
            try:
                stop.is_interruptible = team is None  # not within collective operations
                for step in self._work(stop, adapt_threads, team):
                    stop.is_interruptible = False
                    record(step)
                    is_consistent = True
                    yield replace(step, stage="diffusion") if self.first is not None else step
                    is_consistent, stop.is_interruptible = False, team is None
                is_consistent, stop.is_interruptible = True, False
            except Stopped:
                if learner.updating:
                    learner.restore(learner.last)
                is_consistent = True
                raise
            except OSError as error:
                raise UserError(f"cannot write to {path}: {reason(error)}; {self.checkpoint_note()}") from error
            except TeamError as error:
                is_consistent = not (self.shard and isinstance(error, LostError))  # the part of a lost process is missing
                raise
            except UserError:
                self.learner.restore(self.learner.good)
                is_consistent = True
                raise
            finally:
                stop.is_interruptible = False
                self._finish(is_consistent)
            if stop():
                raise Stopped()

    def _train_codec(self, first: Training) -> Iterator[Step]:
        """Train the autoencoder, then use it as codec."""
        first.budget = self._budget_of(first)
        try:
            for step in first:
                yield replace(step, stage="autoencoder")
        finally:
            if self.new and not first.learner.i:
                sweep(self.run.path, whole_run=True)
        use_codec(self.learner.model, first.run, self.train)
        self.learner = Learner(self.learner.model, self.run.config.training)
        self.run.model = self.learner.average.model

    def _budget_of(self, first: Training) -> Budget:
        """Return the budget of the autoencoder's training, by the planned minutes of both trainings."""
        codec_seconds, own_seconds = (60 * (t.run.config.training.minutes or 0.0) - t.learner.seconds for t in (first, self))
        budget = self.budget.sub_budget(max(0.0, codec_seconds) / max(codec_seconds + own_seconds, 1e-9))
        budget.reserve(WRITING, CURVES)
        return budget

    @property
    def steps_done(self) -> int:
        """Number of steps done; those of the autoencoder before the diffusion starts."""
        return self.learner.i or (self.first.learner.i if self.first is not None else 0)

    def checkpoint_note(self) -> str:
        """Return the step of the newest checkpoint and the command that resumes from it."""
        files = checkpoints.existing(self.run.path) or checkpoints.existing(self.run.path / CODEC_FOLDER)
        return (
            f"resume from step {int(files[0].stem):,} with: {self.resume_command()}" if files else "no checkpoint was written"
        )

    def _finish(self, is_consistent: bool) -> None:
        """Write the state, if it is consistent, and the plots of the loss and of a learned schedule."""
        path, learner = self.run.path, self.learner
        if not self.lock.held or not path.is_dir():
            return
        if not learner.i and self.new and self.first is None:
            sweep(path, whole_run=True)  # no step was made: leave no run folder
        elif learner.i and is_consistent and self._gathered().is_finite():
            with self.budget.stage(WRITING):
                self._write()

    def _write(self) -> None:
        """Write the state and the curves, and last the final weights, which record whether the training is over."""
        path, learner = self.run.path, self.learner
        newest = {"last": learner.last} if learner.window else {}
        others = {part: learner.gather_snapshot(state) for part, state in {"good": learner.good, **newest}.items()}
        checkpoints.write(path, learner.gather_snapshot(learner.snapshot()), others)
        self._use_best()
        save(loss_curve(self.run.metrics()), own_file(path, LOSS_PICTURE))
        draw_schedule(self.run, path)
        write_weights(path, self.run.config, learner.average.model, ended=learner.i if self._is_over() else 0)

    def _gathered(self) -> Learner:
        """Return the learner with complete models."""
        self.learner.gather_models()
        return self.learner

    def _is_over(self) -> bool:
        """Return whether the last report is of the end of the training and of the present state."""
        rows = self.run.metrics()
        return bool(rows) and rows[-1]["fraction"] == 1 and rows[-1]["i"] == self.learner.i

    def _use_best(self) -> None:
        """Use the weights that were best on held-out data, with --keep best, when the training is over."""
        best = self.run.path / checkpoints.FOLDER / checkpoints.BEST
        if self.run.config.training.keep != "best" or not best.is_file() or not self._is_over():
            return
        state = checkpoints.read(best, self.learner)["now"].tensors
        average = {name.removeprefix("average."): t for name, t in state.items() if name.startswith("average.")}
        self.learner.average.model.load_state_dict(average)

    def _work(self, stop: Callable[[], bool], adapt_threads: Callable[[], None], team: Team | None) -> Iterator[Step]:
        run, learner, settings = self.run, self.learner, self.run.config.training
        raw = replace(run, model=learner.model)
        sets = self.train, self.held_out
        previews = TextPreviews(run, *sets) if self.train.kind in WRITTEN else Previews(run, raw, *sets)
        doctor = Doctor(self, previews)
        keep_early = keeps_early(run.model)
        best = min((row["held_out"] for row in doctor.rows if "held_out" in row), default=float("inf"))
        write_seconds, budget = WRITE_SHARE * learner.seconds, self.budget
        forecast = Forecast(run.config, budget)
        budget.reserve(WRITING, CURVES)
        if team is not None:
            learner = self.learner = start_workers(team, run.config, run.path, learner, self.shard)
        with own_file(run.path, folder.METRICS).open("a", encoding="utf-8") as file:
            for report in fit(learner, self.train, self.held_out, settings, stop, adapt_threads, team, budget):
                if not self.lock.held or not (run.path / folder.CONFIG).exists():
                    raise UserError(f"the run folder {run.path} was removed; the training stopped at step {learner.i:,}")
                if line := forecast.correction(report):
                    budget.notify(line)
                step = doctor.visit(report)
                for row in step.as_rows():
                    file.write(json.dumps(row) + "\n")
                file.flush()
                if step.fraction < 1 and doctor.price is not None:
                    self._reserve(doctor.price, previews.finish_share(), keep_early)
                start = budget.clock()
                early_path = run.path / folder.EARLY_FILE
                if keep_early and step.loss is not None and step.fraction >= EARLY and not early_path.exists():
                    write_weights(run.path, run.config, run.model, folder.EARLY_FILE, ended=0)
                if step.held_out is not None and step.held_out < best:
                    best = step.held_out
                    checkpoints.write(run.path, learner.gather_snapshot(learner.last), name=checkpoints.BEST)
                snapshot = learner.good if learner.good.state.i or step.fraction == 1 else learner.last
                if step.loss is not None and snapshot.state.i and write_seconds <= WRITE_SHARE * step.seconds:
                    checkpoints.write(run.path, learner.gather_snapshot(snapshot))
                    write_weights(run.path, run.config, run.model, ended=0)
                write_seconds += budget.clock() - start
                yield step
        if not stop():
            with budget.stage(SAMPLING) as stage:
                self._choose_sampling(stage, doctor.price or 0.0)
            if budget.has_time_for(FILM, previews.finish_share() * (doctor.price or 0.0)):
                with budget.stage(FILM):
                    previews.finish()

    def _reserve(self, price: float, film: float, choose: bool) -> None:
        """Reserve time for the stages after the last step.  price: seconds of a preview; film: its duration in previews."""
        self.budget.reserve(FILM, film * price, FILM_SHARE)
        if choose:
            selecting = SHARE * self.budget.seconds if self.budget.seconds < math.inf else 0.0
            self.budget.reserve(SAMPLING, min(MAX_TIME * self.budget.seconds, max(CHOICE * price, selecting)))

    def _choose_sampling(self, stage: Deadline, price: float) -> None:
        """Record the default sampling and guidance of the finished run.  price: seconds of a preview."""
        run = self.run
        if not isinstance(run.config.family, DiffusionSettings):
            return
        choice: dict[str, Any] = {"autoguidance": run.autoguidance, "sampling": run.record}
        if stage.left >= FIRST_CHOICE * price:  # otherwise there is no time for a comparison
            settings, selected = run.config.training, None
            if n := samples_for(run, self.held_out, self.learner.i * settings.batch * settings.accumulate):
                selected = select_sampling(run, self.held_out, n, stage)
            if selected is not None:
                choice = {"autoguidance": selected.autoguidance, "sampling": selected.record}
            else:
                choice["autoguidance"] = choose_autoguidance(run, self.train, self.learner.i, stage)
        if choice["sampling"] is not None:
            choice["sampling"] = choice["sampling"].model_copy(update={"precision": run.diffusion.default_precision()})
        run.config = run.config.model_copy(update={"family": run.config.family.model_copy(update=choice)})
        folder.write_config(run.path, run.config)
