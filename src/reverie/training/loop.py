"""The training loop, as an iterator of reports."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch

from reverie.base.budget import Budget
from reverie.base.busy import WaitMeter
from reverie.base.errors import UserError
from reverie.base.noise import mix_seed
from reverie.base.team import Instruction, StepInstruction, Team
from reverie.data import Dataset
from reverie.families.model import FittedModel, TrainedModel
from reverie.runs.config import TrainingConfig
from reverie.runs.finding import RESCUE, Finding
from reverie.runs.step import Step, report
from reverie.training.gradient import broadcast_state, make_step
from reverie.training.learner import RESCUES, Learner
from reverie.training.loader import batches
from reverie.training.sharding import ShardedLearner, gradients_of

REPORTS, CHECKS = 200, 20  # number of reports, and of checks on held-out data, in a run
CHECK_SHARE, FREE = 0.05, 0.5  # upper limits for checks: share of the training time, or seconds if that is more
MAX_INTERVAL, MAX_CHECK_SHARE = 0.4, 0.1  # a check is due after this fraction of a run, if it costs at most this share
FIRST_PRICE, FIRST_FREE = 4.0, 2.0  # estimated duration of the first check in steps, and seconds that are always allowed for it
REPORT_SECONDS = 0.5  # minimum seconds between reports of a training whose length is in minutes
STEP_DECAYS = 10  # number of halvings of the learning rate with the decay "step"
END_SHARE = 0.25  # duration of the final decay of a training until convergence, relative to the time before
LATEST_END = 1 / (1 + END_SHARE)  # fraction of the maximum time at which the final decay starts at the latest
MIN_STEP_SHARE = 0.2  # minimum share of the time for training steps
CHECK, OPTIMUM = "last check", "least possible loss"  # stages after the last step
OPTIMUM_SHARE = 0.05  # upper limit of the time for the least possible loss
OPTIMUM_NUMBERS = 7e6  # size of training data for which the least possible loss takes as long as a check
EXPLODED = 10.0  # ratio of the loss to the first loss from which training has diverged


def learning_rate(settings: TrainingConfig, fraction: float, ending: float | None = None) -> float:
    """Return the learning rate at a fraction of the run: linear warm-up, then a cosine decay to zero or ten halvings.

    A training until convergence keeps the rate constant and ends with a linear decay to zero, from the fraction `ending` on.
    """
    if fraction < settings.warmup:
        return settings.learning_rate * max(fraction, 1e-3) / settings.warmup
    if settings.until == "converged":
        start = LATEST_END if ending is None else ending
        return settings.learning_rate * max(0.0, min(1.0, 1 - (fraction - start) / (end_of(start) - start)))
    if settings.decay == "step":
        return settings.learning_rate * 0.5 ** math.floor(fraction * STEP_DECAYS)
    return settings.learning_rate * 0.5 * (1 + math.cos(math.pi * fraction))


def limit_budget(
    budget: Budget, settings: TrainingConfig, device: torch.device, minutes: float | None = None, done: float = 0.0
) -> None:
    """Limit a budget to the minutes of a training, in wall time or in CPU time of all threads of this process.

    minutes: of the whole command, if it has other parts; done: seconds of them already used.
    """
    minutes = settings.minutes if minutes is None else minutes
    seconds = math.inf if minutes is None else max(0.0, 60 * minutes - done)
    budget.limit(seconds, settings.clock if device.type == "cpu" else "wall")


class StepClock:
    """The completed fraction of a training; steps use the time that other stages of the command do not need."""

    def __init__(self, budget: Budget, seconds: float) -> None:
        self.budget, self.clock = budget, budget.clock
        self.start = self.clock() - seconds
        self.least = seconds + MIN_STEP_SHARE * budget.seconds if math.isfinite(budget.seconds) else math.inf
        self.done = 0.0

    @property
    def seconds(self) -> float:
        """Seconds of training so far."""
        return self.clock() - self.start

    @property
    def limit(self) -> float:
        """Seconds of training at its end, by the current estimate."""
        return max(self.least, self.seconds + self.budget.free)

    def fraction(self, seconds: float) -> float:
        """Return the fraction done after a number of seconds; it never decreases, though the limit may rise."""
        if math.isfinite(self.least):
            self.done = max(self.done, min(1.0, seconds / self.limit))
        return self.done


def end_of(ending: float) -> float:
    """Return the fraction at which a training until convergence ends if its final decay starts at `ending`."""
    return min(1.0, ending * (1 + END_SHARE))


class CheckSchedule:
    """The schedule of checks: CHECKS times, within a share of the training time.

    limit: seconds of the whole training, infinite if its length is in steps.
    """

    def __init__(self, limit: float, fraction: float, seconds: float) -> None:
        self.limit, self.next = limit, math.ceil(fraction * CHECKS)
        self.spent = CHECK_SHARE * seconds  # by all checks
        self.price: float | None = None  # in seconds, of the last one

    def due(self, fraction: float, seconds: float, step: float) -> bool:
        """Return whether a check is due.  step: seconds of a step, for estimating the first check."""
        has_time = self.spent <= max(FREE, CHECK_SHARE * seconds)
        if self.price is None:
            has_time = has_time and FIRST_PRICE * step <= max(FIRST_FREE, CHECK_SHARE * self.limit)
        price = FIRST_PRICE * step if self.price is None else self.price
        overdue = fraction - self.next / CHECKS > MAX_INTERVAL and price <= max(FIRST_FREE, MAX_CHECK_SHARE * self.limit)
        return fraction == 1 or overdue or (fraction * CHECKS >= self.next and has_time)

    def record(self, fraction: float, duration: float, first: bool) -> None:
        """Record a check.  The first does not count, because the first calls of a network are slow."""
        self.price = duration
        self.spent += duration * (not first)
        self.next = math.floor(fraction * CHECKS) + 1


def evaluate_check(learner: Learner, train: Dataset, held_out: Dataset, seed: int, brief: bool = False) -> dict[str, Any]:
    """Return the metrics of a check: on held-out data with EMA and raw weights, and on training data with EMA weights.

    brief: only on held-out data with EMA weights, a third of the work.
    """
    average = learner.average.model
    if isinstance(average, TrainedModel):
        average.finalize(train)
    if brief:
        return average.held_out_metrics(held_out, seed)
    on_train = average.held_out_metrics(train, seed)
    return {
        **average.held_out_metrics(held_out, seed),
        "train_loss": on_train["held_out"],
        "train_levels": on_train.get("held_out_levels", ()),
        "raw_held_out": learner.model.held_out_metrics(held_out, seed)["held_out"],
    }


def optimum_share(train: Dataset) -> float:
    """Return the duration of computing the least possible loss, in checks; 0 (omitted) for data that are not in memory."""
    return train.x.numel() / OPTIMUM_NUMBERS if isinstance(train.x, torch.Tensor) else 0.0


def _failure(learner: Learner) -> tuple[int, str] | None:
    """Return the first failed step since the last report and what failed, or None."""
    first = learner.i - len(learner.window)
    for k, (loss, norm) in enumerate(learner.window):
        if not math.isfinite(loss):
            return first + k + 1, f"the loss became {float(loss)}"
        if not math.isfinite(norm):
            return first + k + 1, f"a gradient became {float(norm)} while the loss was still {float(loss):.4g}"
    if not learner.is_finite():
        return learner.i, "a weight is no longer finite"
    mean = statistics.fmean(float(loss) for loss, _ in learner.window)
    if learner.first_loss is not None and mean > EXPLODED * learner.first_loss:
        return first + 1, f"the loss grew to {mean:.3g}, from {learner.first_loss:.3g} at the first step"
    return None


def rescue(learner: Learner, failure: tuple[int, str], train: Dataset, settings: TrainingConfig) -> Finding:
    """Roll back to a good state with half the learning rate; after RESCUES times raise a UserError."""
    step, what = failure
    x, _ = next(batches(train, settings.batch, settings.seed, (step - 1) * settings.accumulate))
    lower = f"{settings.learning_rate / 10:.3g}"
    bad_data = not bool(torch.isfinite(x).all())
    cause = "the batch of that step contains values that are not finite" if bad_data else "the learning rate is too high"
    advice = "remove NaN and infinite values from the data" if bad_data else f"train with --learning-rate {lower}"
    if learner.rescues == RESCUES:
        raise UserError(f"training stopped at step {step}: {what}, for the third time, probably because {cause}; {advice}")
    rescues, seconds = learner.rescues + 1, learner.seconds
    learner.restore(learner.good)
    learner.rescues, learner.seconds, learner.last = rescues, seconds, learner.good
    what = f"{what}; rolled back to step {learner.i} with the learning rate times {0.5**rescues:g}"
    return Finding(RESCUE, what, step, cause, advice, {} if bad_data else {"learning_rate": lower})


def fit(
    learner: Learner, train: Dataset, held_out: Dataset, settings: TrainingConfig, stop: Callable[[], bool] = lambda: False,
    adapt_threads: Callable[[], None] = lambda: None, team: Team | None = None, budget: Budget | None = None,
) -> Iterator[Step]:  # fmt: skip
    """Train for the steps or minutes of the settings and yield reports; learner.average holds the final weights.

    All randomness at step i is a function of the seed, i and the number of rollbacks, so a restored learner repeats the same
    steps.  With a length in steps the result is a function of the settings; with a length in minutes it also depends on the
    speed of the machine.  stop: if true, the loop ends after the step; adapt_threads: called after each step, see
    `reverie.base.busy`; team: processes that share the work; budget: the time of the command.
    """
    model = learner.model
    if budget is None:
        limit_budget(budget := Budget(), settings, learner.device, done=learner.seconds)
    if not isinstance(model, TrainedModel):
        yield from fit_at_once(learner, train, held_out, settings, stop, budget)
        return
    total = settings.steps or math.inf

    def used_fraction() -> float:
        """Return the fraction of the maximum time that will be used."""
        return 1.0 if learner.ending is None else end_of(learner.ending)

    def fraction_now() -> float:
        return min(1.0, max(learner.i / total, step_clock.fraction(learner.seconds)) / used_fraction())

    gradients = gradients_of(learner, train, settings, team)
    gradients.go_to(learner.i)
    step_clock = StepClock(budget, learner.seconds)
    reported, reported_at = time.monotonic(), learner.i
    fraction = fraction_now()
    checks = CheckSchedule(step_clock.limit, fraction, learner.seconds)
    waiting = WaitMeter()
    reports = math.floor(fraction * REPORTS) + 1 if learner.i else 0
    while fraction < 1 and not stop():
        seed = settings.seed if not learner.rescues else mix_seed(settings.seed, -(2**41) - learner.rescues)
        rate = 0.5**learner.rescues * learning_rate(settings, fraction * used_fraction(), learner.ending)
        instruction = StepInstruction(Instruction.STEP, learner.i, seed, fraction, rate)
        if team is not None:
            team.broadcast(instruction)
        loss, norm = make_step(learner, gradients, instruction)
        learner.average.update(learner.i)
        learner.i += 1
        learner.window.append((loss, norm))
        learner.updating = False
        if learner.first_loss is None and math.isfinite(loss):
            learner.first_loss = float(loss)
        adapt_threads()
        learner.seconds = step_clock.seconds
        fraction = fraction_now()
        now = time.monotonic()
        if (
            not (fraction * REPORTS >= reports and (settings.steps is not None or now - reported >= REPORT_SECONDS))
            and fraction < 1
        ):
            continue
        learner.gather_models()
        if failure := _failure(learner):
            finding = rescue(learner, failure, train, settings)
            if team is not None and not isinstance(learner, ShardedLearner):
                team.broadcast(StepInstruction(Instruction.RESTORE, learner.i))
                broadcast_state(team, learner)
            gradients.go_to(learner.i)
            fraction = fraction_now()
            yield Step(learner.i, fraction, learner.seconds, 0.0, None, rate, findings=(finding,))
            reported, reported_at = time.monotonic(), learner.i
            continue
        reports = math.floor(fraction * REPORTS) + 1
        mean = float(torch.stack([loss for loss, _ in learner.window]).mean())
        learner.report()
        speed = (learner.i - reported_at) / max(now - reported, 1e-9)
        check = checks.due(fraction, learner.seconds, 1 / max(speed, 1e-9))
        if checks.price is None and fraction < 1:
            budget.reserve(CHECK, FIRST_PRICE / max(speed, 1e-9))
        metrics: dict[str, Any] = {}
        if check:
            check_start = budget.clock()
            brief = fraction == 1 and checks.price is not None and budget.left < checks.price
            with budget.stage(CHECK) if fraction == 1 else nullcontext():
                metrics = evaluate_check(learner, train, held_out, settings.seed, brief)
            duration = budget.clock() - check_start
            checks.record(fraction, duration, first=learner.i == 1)
            optimum_seconds = duration * optimum_share(train)
            if fraction < 1:
                budget.reserve(CHECK, duration)
                budget.reserve(OPTIMUM, optimum_seconds, OPTIMUM_SHARE)
            elif budget.has_time_for(OPTIMUM, optimum_seconds):
                with budget.stage(OPTIMUM):
                    metrics |= learner.average.model.final_metrics(train, settings.seed)
        yield report(
            learner.i, fraction, learner.seconds, speed, mean, rate, metrics, waiting.share(), finishing=budget.reserved
        )  # fmt: skip
        reported, reported_at = time.monotonic(), learner.i


def fit_at_once(
    learner: Learner, train: Dataset, held_out: Dataset, settings: TrainingConfig, stop: Callable[[], bool], budget: Budget
) -> Iterator[Step]:
    """Fit a model in closed form or in rounds, and yield a report of each round.

    The number of rounds is not known in advance, so the fraction of round k is k / (k + 1), and 1 for the last.  An interrupted
    fit starts again.
    """
    model = learner.model
    assert isinstance(model, FittedModel)
    clock = budget.clock
    start, learner.i = clock(), 0
    rounds = model.fit(train, settings.seed)
    loss = next(rounds, None)
    while loss is not None and not stop():
        next_loss = next(rounds, None)  # updates the model; None if this round was the last
        learner.i += 1
        learner.seconds = clock() - start
        is_last = next_loss is None
        metrics: dict[str, Any] = {}
        if is_last:
            learner.average.model.load_state_dict(model.state_dict())
            metrics = evaluate_check(learner, train, held_out, settings.seed)
        learner.window, learner.first_loss = [], loss if learner.first_loss is None else learner.first_loss
        learner.report()
        fraction = 1.0 if is_last else learner.i / (learner.i + 1)
        speed = learner.i / max(learner.seconds, 1e-9)
        yield report(learner.i, fraction, learner.seconds, speed, loss, 0.0, metrics)
        loss = next_loss
