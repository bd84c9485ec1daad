"""A training at work: reports, previews, the doctor, checkpoints, and the end."""

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
from reverie.training.autoguide import EARLY, MOST_TIME, choose_autoguidance, keeps_early
from reverie.training.claim import CODEC_FOLDER, LOSS_PICTURE, sweep
from reverie.training.codec_training import use_codec
from reverie.training.doctor import Doctor
from reverie.training.learner import Learner
from reverie.training.loop import fit
from reverie.training.previews import Previews
from reverie.training.selection import SHARE, samples_for, select_sampling
from reverie.training.step_rate import Expectation
from reverie.training.summary import meaning_of, purpose_of
from reverie.training.tensorboard import recorder
from reverie.training.text_previews import TextPreviews
from reverie.training.workers import lead

SAMPLING, FILM, WRITING = "choosing how samples are drawn", "film and sheet", "writing"  # stages after the last step
FILM_SHARE = 0.1  # of the time, at most, goes into the film and the sheet
CHOICE, FIRST_CHOICE = (
    8.0,
    2.0,
)  # previews, about, that choosing how samples are drawn takes, and its first samples
CURVES = 1.5  # seconds that the curves of a run take to be drawn
SMALL_NETWORK = 100_000  # parameters below which one thread is as quick as several
WRITE_SHARE = 0.02  # of the training time, at most, goes into checkpoints


@dataclass
class Training:
    """A training that is ready to start, or to go on: iterate over it for its reports.

    A checkpoint is written every now and then, at the end, and when the iteration is broken off.  The run folder is locked
    from the start until then, or until the training is closed, forgotten, or prepared again by the same program.
    """

    run: Run
    learner: Learner
    train: Dataset
    held_out: Dataset
    lock: Lock
    about: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    tensorboard: bool = False
    processes: int = 1  # that share the work, on this machine
    shard: bool = False  # whether they share the state of the learner, too
    new: bool = True  # whether it began this run, and does not go on with one
    first: Training | None = None  # that of the autoencoder in whose latent space this one works, if that comes first
    budget: Budget = field(default_factory=Budget)  # the time of the whole command
    begun: bool = field(default=False, init=False)

    def close(self) -> None:
        """Give a training up that was not begun, so that another one can take its place."""
        if self.first is not None:
            self.first.close()
        self.lock.release()

    def discard(self) -> None:
        """Give it up and, if it is a new run that was not begun, leave no folder that looks like one."""
        if self.new and not self.begun and self.lock.held:
            sweep(self.run.path, whole_run=True)
        self.close()

    def introduction(self) -> Iterator[str]:
        """Say what will be trained on what, and why, a line each."""
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
        """Return the command that goes on with the run."""
        return f"reverie train --resume {shlex.quote(str(self.run.path))}"

    def __iter__(self) -> Iterator[Step]:
        if self.begun or not self.lock.held:
            raise UserError(f"the training of {self.run.path} has been run or closed already; prepare a new one")
        self.begun = True
        path = self.run.path
        with ExitStack() as stack:
            stack.enter_context(self.lock)
            if self.first is not None:
                yield from self._coded(self.first)
            learner = self.learner
            stop = stack.enter_context(stop_requests())
            record = stack.enter_context(recorder(path, self.tensorboard))
            if sum(p.numel() for p in learner.model.parameters()) < SMALL_NETWORK:
                stack.callback(torch.set_num_threads, torch.get_num_threads())
                torch.set_num_threads(1)  # two threads gain nothing here, and stall each other when the machine is busy
            keep_freed_memory()
            team = stack.enter_context(team_of(self.processes, learner.device))
            if team is not None or self.run.config.training.exact:
                stack.callback(torch.set_num_threads, torch.get_num_threads())
                torch.set_num_threads(1 if self.run.config.training.exact else threads_each(self.processes))
            mind_threads = stack.enter_context(few_threads_when_busy())
            whole = False  # between steps, when the state can be kept
            try:
                stop.is_interruptible = team is None  # which would be left in the middle of what it does together
                for step in self._work(stop, mind_threads, team):
                    stop.is_interruptible = False
                    record(step)
                    whole = True
                    yield replace(step, stage="diffusion") if self.first is not None else step
                    whole, stop.is_interruptible = False, team is None
                whole, stop.is_interruptible = True, False
            except Stopped:
                if learner.moving:
                    learner.restore(learner.last)
                whole = True
                raise
            except OSError as error:
                raise UserError(f"cannot write to {path}: {reason(error)}; {self.kept()}") from error
            except TeamError as error:
                whole = not (self.shard and isinstance(error, LostError))  # a part of the state is gone with a process
                raise
            except UserError:
                self.learner.restore(self.learner.good)
                whole = True
                raise
            finally:
                stop.is_interruptible = False
                self._leave(whole)
            if stop():
                raise Stopped()

    def _coded(self, first: Training) -> Iterator[Step]:
        """Train the autoencoder, and go on with its latent space."""
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
        """Return the budget of the autoencoder's training: by the minutes that are planned for it and for the rest."""
        theirs, ours = (60 * (t.run.config.training.minutes or 0.0) - t.learner.seconds for t in (first, self))
        budget = self.budget.sub_budget(max(0.0, theirs) / max(theirs + ours, 1e-9))
        budget.reserve(WRITING, CURVES)
        return budget

    @property
    def steps_done(self) -> int:
        """How many steps were made, those of the autoencoder where its training is not over."""
        return self.learner.i or (self.first.learner.i if self.first is not None else 0)

    def kept(self) -> str:
        """Say which checkpoint is there and how to go on from it."""
        found = checkpoints.existing(self.run.path) or checkpoints.existing(self.run.path / CODEC_FOLDER)
        return f"go on from step {int(found[0].stem):,} with: {self.resume_command()}" if found else "nothing was kept"

    def _leave(self, whole: bool) -> None:
        """Keep the state, if it is between two steps, and draw the curves of the loss and of a learned schedule."""
        path, learner = self.run.path, self.learner
        if not self.lock.held or not path.is_dir():
            return
        if not learner.i and self.new and self.first is None:
            sweep(path, whole_run=True)  # nothing was learned: leave no folder that looks like a run
        elif learner.i and whole and self._shown().is_finite():
            with self.budget.stage(WRITING):
                self._write()

    def _write(self) -> None:
        """Write the state and the curves, and last the weights that are kept, which record whether the training is over."""
        path, learner = self.run.path, self.learner
        between = {"last": learner.last} if learner.window else {}
        others = {part: learner.whole(kept) for part, kept in {"good": learner.good, **between}.items()}
        checkpoints.write(path, learner.whole(learner.snapshot()), others)
        self._keep_best()
        save(loss_curve(self.run.metrics()), own_file(path, LOSS_PICTURE))
        draw_schedule(self.run, path)
        write_weights(path, self.run.config, learner.average.model, ended=learner.i if self._is_over() else 0)

    def _shown(self) -> Learner:
        """Return the learner with its models as they are."""
        self.learner.show()
        return self.learner

    def _is_over(self) -> bool:
        """Tell whether the last report is that of the end, and of the state as it is."""
        rows = self.run.metrics()
        return bool(rows) and rows[-1]["fraction"] == 1 and rows[-1]["i"] == self.learner.i

    def _keep_best(self) -> None:
        """Take the weights that were best on held-out data, where they are asked for and the training is over."""
        best = self.run.path / checkpoints.FOLDER / checkpoints.BEST
        if self.run.config.training.keep != "best" or not best.is_file() or not self._is_over():
            return
        kept = checkpoints.read(best, self.learner)["now"].tensors
        average = {name.removeprefix("average."): t for name, t in kept.items() if name.startswith("average.")}
        self.learner.average.model.load_state_dict(average)

    def _work(self, stop: Callable[[], bool], mind_threads: Callable[[], None], team: Team | None) -> Iterator[Step]:
        run, learner, settings = self.run, self.learner, self.run.config.training
        raw = replace(run, model=learner.model)
        sets = self.train, self.held_out
        previews = TextPreviews(run, *sets) if self.train.kind in WRITTEN else Previews(run, raw, *sets)
        doctor = Doctor(self, previews)
        keep_early = keeps_early(run.model)
        best = min((row["held_out"] for row in doctor.rows if "held_out" in row), default=float("inf"))
        writing, budget = WRITE_SHARE * learner.seconds, self.budget
        expected = Expectation(run.config, budget)
        budget.reserve(WRITING, CURVES)
        if team is not None:
            learner = self.learner = lead(team, run.config, run.path, learner, self.shard)
        with own_file(run.path, folder.METRICS).open("a", encoding="utf-8") as file:
            for report in fit(learner, self.train, self.held_out, settings, stop, mind_threads, team, budget):
                if not self.lock.held or not (run.path / folder.CONFIG).exists():
                    raise UserError(f"the run folder {run.path} was removed, so the training stopped at step {learner.i:,}")
                if line := expected.correction(report):
                    budget.notify(line)
                step = doctor.visit(report)
                for row in step.as_rows():
                    file.write(json.dumps(row) + "\n")
                file.flush()
                if step.fraction < 1 and doctor.price is not None:
                    self._reserve(doctor.price, previews.finish_share(), keep_early)
                began = budget.clock()
                early = run.path / folder.EARLY_FILE
                if keep_early and step.loss is not None and step.fraction >= EARLY and not early.exists():
                    write_weights(run.path, run.config, run.model, folder.EARLY_FILE, ended=0)
                if step.held_out is not None and step.held_out < best:
                    best = step.held_out
                    checkpoints.write(run.path, learner.whole(learner.last), name=checkpoints.BEST)
                kept = learner.good if learner.good.facts.i or step.fraction == 1 else learner.last
                if step.loss is not None and kept.facts.i and writing <= WRITE_SHARE * step.seconds:
                    checkpoints.write(run.path, learner.whole(kept))
                    write_weights(run.path, run.config, run.model, ended=0)
                writing += budget.clock() - began
                yield step
        if not stop():
            with budget.stage(SAMPLING) as stage:
                self._choose_sampling(stage, doctor.price or 0.0)
            if budget.has_time_for(FILM, previews.finish_share() * (doctor.price or 0.0)):
                with budget.stage(FILM):
                    previews.finish()

    def _reserve(self, price: float, film: float, choose: bool) -> None:
        """Keep time back for what comes after the last step.  price: seconds of a preview; film: its price, in previews."""
        self.budget.reserve(FILM, film * price, FILM_SHARE)
        if choose:
            selecting = SHARE * self.budget.seconds if self.budget.seconds < math.inf else 0.0
            self.budget.reserve(SAMPLING, min(MOST_TIME * self.budget.seconds, max(CHOICE * price, selecting)))

    def _choose_sampling(self, stage: Deadline, price: float) -> None:
        """Record how samples of the finished run are drawn and guided when nothing is said.  price: seconds of a preview."""
        run = self.run
        if not isinstance(run.config.family, DiffusionSettings):
            return
        found: dict[str, Any] = {"autoguidance": run.autoguidance, "sampling": run.record}
        if stage.left >= FIRST_CHOICE * price:  # otherwise there is no time to look for a better one
            settings, selected = run.config.training, None
            if n := samples_for(run, self.held_out, self.learner.i * settings.batch * settings.accumulate):
                selected = select_sampling(run, self.held_out, n, stage)
            if selected is not None:
                found = {"autoguidance": selected.autoguidance, "sampling": selected.record}
            else:
                found["autoguidance"] = choose_autoguidance(run, self.train, self.learner.i, stage)
        if found["sampling"] is not None:
            found["sampling"] = found["sampling"].model_copy(update={"precision": run.diffusion.default_precision()})
        run.config = run.config.model_copy(update={"family": run.config.family.model_copy(update=found)})
        folder.write_config(run.path, run.config)
