"""Training as an iterator of steps."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from reverie.base.busy import Waiting
from reverie.base.errors import UserError
from reverie.base.noise import mix_seed
from reverie.data import Dataset, evaluated_at_once
from reverie.data.kind import Kind
from reverie.diffusion.denoiser import Denoiser
from reverie.diffusion.loss import loss, weight_of
from reverie.diffusion.oracle import DatasetDenoiser
from reverie.diffusion.pair import Pair
from reverie.families.diffusion import Diffusion
from reverie.runs.config import TrainingConfig
from reverie.runs.finding import RESCUE, Finding
from reverie.training.learner import Learner
from reverie.training.loader import batches, reader

LEVELS = 4  # the held-out loss is told for as many ranges of t
REPORTS, CHECKS = 200, 20  # how often, in a whole run, a step is reported and the held-out loss taken
CHECK_SHARE, FREE = 0.05, 0.5  # of the training time, at most, goes into the held-out loss; but so many seconds always may
OLDEST = 0.4  # of a run, at most, goes by between two checks, whatever they cost
CLOCK = 0.5  # the fewest seconds between reports when the length is given in minutes
HELD_OUT_DRAWS: dict[Kind, int] = {"points": 2000, "images": 512}  # noised data of which the held-out loss is the mean
LOOKED_AT = 256  # of these, at a time
LARGE, LARGE_DRAWS = 1024, 256  # numbers in an image above which a check, which must be had often, makes fewer draws
OPTIMUM_MOST = 10**8  # numbers in a training set, above which its optimum is not worked out
STEP_DECAYS = 10  # "step" halves the learning rate as often in a run
END_SHARE = 0.25  # of the time so far, a training until good takes to end
LATEST_END = 1 / (1 + END_SHARE)  # of the longest time allowed, when it begins to end anyway
EXPLODED = 10.0  # times the first loss: then something is wrong
RESCUES = 2  # a third time the training gives up


@dataclass(frozen=True)
class Step:
    """A report: after step i of the run, the mean training loss since the last report, and the held-out loss if taken.

    held_out: of the average weights; held_out_levels: the same in four equal ranges of t, from little noise to much;
    noise_error_levels: the mean squared error of the predicted noise in these ranges; seen_levels: the loss on training
    data; raw_held_out: the held-out loss of the raw weights; preview_score: see `reverie.training.previews`;
    optimum_levels: the least loss on training data that any model can have; linear_levels: that of the best linear filter;
    look: the previews beside the data, see `reverie.data.looks`; waited: the share of time without a processor, see
    `reverie.base.busy`; findings: what is newly wrong; active: the checks that find something.
    """

    i: int
    fraction: float
    seconds: float
    per_second: float
    loss: float | None
    learning_rate: float
    held_out: float | None = None
    held_out_levels: tuple[float, ...] = ()
    noise_error_levels: tuple[float, ...] = ()
    seen_levels: tuple[float, ...] = ()
    raw_held_out: float | None = None
    preview_score: float | None = None
    optimum_levels: tuple[float, ...] = ()
    linear_levels: tuple[float, ...] = ()
    look: Mapping[str, float] | None = None
    waited: float | None = None
    findings: tuple[Finding, ...] = ()
    active: tuple[str, ...] = ()

    @property
    def seconds_left(self) -> float:
        """The estimated time to the end."""
        return self.seconds * (1 - self.fraction) / max(self.fraction, 1e-9)

    def as_rows(self) -> Iterator[dict[str, Any]]:
        """Yield the report, and each finding, as rows of metrics.jsonl."""
        if self.loss is not None:
            yield {key: value for key, value in asdict(self).items() if value not in (None, ()) and key != "findings"}
        for finding in self.findings:
            yield finding.as_row(self.i)


def learning_rate(settings: TrainingConfig, fraction: float, ending: float | None = None) -> float:
    """Return the learning rate at a fraction of the run: linear warm-up, then half a cosine to zero or ten halvings.

    A training until good keeps the rate until it begins to end, then takes it linearly to zero.
    """
    if fraction < settings.warmup:
        return settings.learning_rate * max(fraction, 1e-3) / settings.warmup
    if settings.until == "good":
        begun = LATEST_END if ending is None else ending
        return settings.learning_rate * max(0.0, min(1.0, 1 - (fraction - begun) / (end_of(begun) - begun)))
    if settings.decay == "step":
        return settings.learning_rate * 0.5 ** math.floor(fraction * STEP_DECAYS)
    return settings.learning_rate * 0.5 * (1 + math.cos(math.pi * fraction))


def end_of(ending: float) -> float:
    """Return the fraction at which a training until good ends that began to end at this one."""
    return min(1.0, ending * (1 + END_SHARE))


def _draws(model: Diffusion, data: Dataset, seed: int, draws: int) -> Iterator[tuple[Tensor, Pair, Tensor | None]]:
    """Yield times (b,), data with noise, and labels: the same at every call, with as many times from each range of t."""
    schedule, device = model.denoiser.schedule, next(model.parameters()).device
    random = torch.Generator().manual_seed(mix_seed(seed, -(2**40)))
    t = schedule.t_min + (1 - schedule.t_min) * (torch.randperm(draws, generator=random) + 0.5).double() / draws
    for part in torch.arange(draws).split(evaluated_at_once(data.shape, LOOKED_AT)):
        x, labels = data.batch(part % len(data))
        z = model.codec.encode(x.to(device))
        truth = Pair(z, torch.randn(z.shape, generator=random).to(device))
        yield t[part], truth, labels.to(device) if labels is not None else None


def _levels(model: Diffusion, t: Tensor, loss: Tensor) -> tuple[float, ...]:
    """Return the mean loss in each of the ranges of t.  t, loss: (n,)."""
    place = level_of(model, t, LEVELS)
    return tuple(float(loss[place == level].mean()) for level in range(LEVELS))


def level_of(model: Diffusion, t: Tensor, levels: int) -> Tensor:
    """Return the number of the range that each time lies in, of so many equal ranges of [t_min, 1]: (n,) int64."""
    low = model.denoiser.schedule.t_min
    return ((t - low) / (1 - low) * levels).long()


@torch.no_grad()
def noised_losses(
    model: Diffusion, data: Dataset, seed: int, denoiser: Denoiser | None = None, draws: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return times, spread evenly over [t_min, 1], and the loss of noised data there: (n,) each.

    denoiser: one to be judged in place of the model's own; draws: how many, and always the same ones.
    """
    d = model.denoiser
    times, losses = [], []
    for t, truth, cond in _draws(model, data, seed, draws or HELD_OUT_DRAWS[data.kind]):
        times.append(t)
        losses.append(loss(denoiser or d, truth, t, cond, d.target, model.weight, d.sigma_data).double().cpu())
    return torch.cat(times), torch.cat(losses)


def check_draws(data: Dataset) -> int:
    """Return how many draws a check makes: a function of the data alone, so that checks of all runs on them compare."""
    return LARGE_DRAWS if data.kind == "images" and math.prod(data.shape) > LARGE else HELD_OUT_DRAWS[data.kind]


def held_out_loss(model: Diffusion, data: Dataset, seed: int) -> tuple[float, tuple[float, ...], tuple[float, ...]]:
    """Return the loss on held-out data, whole and in four ranges of t, and the error of the noise in these ranges."""
    t, lost = noised_losses(model, data, seed, draws=check_draws(data))
    d = model.denoiser
    shares = [weight_of(weight, d.schedule, t, d.target, d.sigma_data) for weight in ("snr", model.weight)]
    return float(lost.mean()), _levels(model, t, lost), _levels(model, t, lost * shares[0] / shares[1])


def optimum(model: Diffusion, data: Dataset) -> DatasetDenoiser | None:
    """Return the best possible model of a finite set; None where the set is too large to say."""
    if not isinstance(data.x, Tensor) or data.x.numel() > OPTIMUM_MOST:
        return None
    device = next(model.parameters()).device
    z = model.codec.encode(data.batch(torch.arange(len(data)))[0].to(device))
    return DatasetDenoiser(model.denoiser.schedule, z, data.labels.to(device) if data.labels is not None else None)


def optimum_levels(model: Diffusion, data: Dataset, seed: int) -> tuple[float, ...]:
    """Return the loss, in four ranges of t, of the best possible model of a finite set on the set itself.

    Empty where the set is too large to say.
    """
    best = optimum(model, data)
    return _levels(model, *noised_losses(model, data, seed, best, check_draws(data))) if best is not None else ()


def check_up(learner: Learner, train: Dataset, held_out: Dataset, seed: int) -> dict[str, Any]:
    """Return the figures of a check: held-out loss of average and raw weights, and the average's loss on training data."""
    whole, levels, noise = held_out_loss(learner.average.model, held_out, seed)
    return {
        "held_out": whole,
        "held_out_levels": levels,
        "noise_error_levels": noise,
        "seen_levels": held_out_loss(learner.average.model, train, seed)[1],
        "raw_held_out": held_out_loss(learner.model, held_out, seed)[0],
    }


def _wrong(learner: Learner) -> tuple[int, str] | None:
    """Return the first step since the last report that went wrong, and how, or None."""
    first = learner.i - len(learner.window)
    for k, (lost, norm) in enumerate(learner.window):
        if not math.isfinite(lost):
            return first + k + 1, f"the loss became {float(lost)}"
        if not math.isfinite(norm):
            return first + k + 1, f"a gradient became {float(norm)} while the loss was still {float(lost):.4g}"
    if not learner.is_finite():
        return learner.i, "a weight is no longer finite"
    mean = statistics.fmean(float(lost) for lost, _ in learner.window)
    if learner.first_loss is not None and mean > EXPLODED * learner.first_loss:
        return first + 1, f"the loss grew to {mean:.3g}, from {learner.first_loss:.3g} at the first step"
    return None


def rescue(learner: Learner, wrong: tuple[int, str], train: Dataset, settings: TrainingConfig) -> Finding:
    """Go back to a good state with half the learning rate; a third time, give up and say why."""
    step, what = wrong
    x, _ = next(batches(train, settings.batch, settings.seed, (step - 1) * settings.accumulate))
    lower = f"{settings.learning_rate / 10:.3g}"
    bad_data = not bool(torch.isfinite(x).all())
    cause = "the batch of that step holds values that are not finite" if bad_data else "the learning rate is too high"
    advice = "look for NaN in the data" if bad_data else f"train with --learning-rate {lower}"
    if learner.rescues == RESCUES:
        raise UserError(f"stopped at step {step}: {what}, for the third time; probably {cause}: {advice}")
    rescues, seconds = learner.rescues + 1, learner.seconds
    learner.restore(learner.good)
    learner.rescues, learner.seconds, learner.last = rescues, seconds, learner.good
    what = f"{what}; back to step {learner.i} with the learning rate times {0.5**rescues:g}"
    return Finding(RESCUE, what, step, cause, advice, {} if bad_data else {"learning_rate": lower})


def fit(
    learner: Learner, train: Dataset, held_out: Dataset, settings: TrainingConfig, stop: Callable[[], bool] = lambda: False
) -> Iterator[Step]:
    """Train to the given number of steps or minutes and yield reports; learner.average holds the weights to keep.

    Everything random at step i is a function of the seed, i, and how often the training was rescued, so a learner put
    back to an earlier state goes the same way again.  With a length in steps the result is a function of the settings;
    with a length in minutes it depends on the machine's speed as well.  When stop() is true, it ends after the step.
    """
    device, model = learner.device, learner.model
    parameters = list(model.parameters())
    limit = settings.minutes * 60 if settings.minutes else math.inf
    total = settings.steps or math.inf

    def whole() -> float:
        """Return how much of the longest time allowed will be used."""
        return 1.0 if learner.ending is None else end_of(learner.ending)

    def fraction_now() -> float:
        return min(1.0, max(learner.i / total, learner.seconds / limit) / whole())

    loader = reader(train, settings.batch, settings.seed, learner.i * settings.accumulate)
    begun, reported, reported_at = time.monotonic() - learner.seconds, time.monotonic(), learner.i
    fraction, checking = fraction_now(), CHECK_SHARE * learner.seconds
    waiting = Waiting()
    reports, checks = (math.floor(fraction * REPORTS) + 1, math.ceil(fraction * CHECKS)) if learner.i else (0, 0)
    while fraction < 1 and not stop():
        seed = settings.seed if not learner.rescues else mix_seed(settings.seed, -(2**41) - learner.rescues)
        rate = 0.5**learner.rescues * learning_rate(settings, fraction * whole(), learner.ending)
        for optimizer in learner.optimizers:
            optimizer.param_groups[0]["lr"] = rate
            optimizer.zero_grad(set_to_none=True)
        losses = []
        for part in range(settings.accumulate):
            x, labels = next(loader)
            cond = labels.to(device) if labels is not None else None
            with torch.autocast(device.type, torch.bfloat16, enabled=settings.precision == "bf16"):
                lost = model.loss(x.to(device), cond, mix_seed(seed, learner.i * settings.accumulate + part)).mean()
            (lost / settings.accumulate).backward()
            losses.append(lost.detach())
        norm = nn.utils.clip_grad_norm_(parameters, settings.gradient_limit)
        for optimizer in learner.optimizers:
            optimizer.step()
        learner.average.update(learner.i)
        learner.i += 1
        learner.window.append((torch.stack(losses).mean(), norm.detach()))
        if learner.first_loss is None and math.isfinite(losses[0]):
            learner.first_loss = float(losses[0])
        learner.seconds = time.monotonic() - begun
        fraction = fraction_now()
        now = time.monotonic()
        if not (fraction * REPORTS >= reports and (settings.steps is not None or now - reported >= CLOCK)) and fraction < 1:
            continue
        if wrong := _wrong(learner):
            finding = rescue(learner, wrong, train, settings)
            loader = reader(train, settings.batch, settings.seed, learner.i * settings.accumulate)
            fraction = fraction_now()
            yield Step(learner.i, fraction, learner.seconds, 0.0, None, rate, findings=(finding,))
            reported, reported_at = time.monotonic(), learner.i
            continue
        reports = math.floor(fraction * REPORTS) + 1
        mean = float(torch.stack([lost for lost, _ in learner.window]).mean())
        learner.report()
        affordable = checking <= max(FREE, CHECK_SHARE * learner.seconds)
        old = fraction - checks / CHECKS > OLDEST
        check = fraction == 1 or old or (fraction * CHECKS >= checks and affordable)
        figures = check_up(learner, train, held_out, settings.seed) if check else {}
        if fraction == 1:
            figures["optimum_levels"] = optimum_levels(learner.average.model, train, settings.seed)
        if check:  # what the first of all costs, on the network as it is drawn, is not held against the next ones
            checking += (time.monotonic() - now) * (learner.i > 1)
            checks = math.floor(fraction * CHECKS) + 1
        speed = (learner.i - reported_at) / max(now - reported, 1e-9)
        yield Step(learner.i, fraction, learner.seconds, speed, mean, rate, waited=waiting.share(), **figures)
        reported, reported_at = time.monotonic(), learner.i
