"""Training as an iterator of steps."""

from __future__ import annotations

import copy
import math
import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from reverie.config import TrainingConfig
from reverie.data import Dataset
from reverie.errors import UserError
from reverie.families.diffusion import Diffusion
from reverie.loss import weight_of
from reverie.noise import mix_seed
from reverie.pair import Pair

LEVELS = 4  # the held-out loss is told for as many ranges of t
REPORTS, CHECKS = 200, 20  # how often, in a whole run, a step is reported and the held-out loss taken
CHECK_SHARE = 0.03  # of the training time, at most, goes into the held-out loss
CLOCK = 0.5  # the fewest seconds between reports when the length is given in minutes
HELD_OUT_DRAWS = {False: 2000, True: 512}  # noised points, noised images of which the held-out loss is the mean
STEP_DECAYS = 10  # "step" halves the learning rate as often in a run

Batch = tuple[Tensor, Tensor | None]


@dataclass(frozen=True)
class Step:
    """A report: after step i of the run, the mean training loss since the last report, and the held-out loss if taken.

    held_out_levels: the held-out loss in four equal ranges of t, from little noise to much; noise_error_levels: the
    mean squared error of the predicted noise in the same ranges.
    """

    i: int
    fraction: float
    seconds: float
    per_second: float
    loss: float
    learning_rate: float
    held_out: float | None = None
    held_out_levels: tuple[float, ...] = ()
    noise_error_levels: tuple[float, ...] = ()

    @property
    def seconds_left(self) -> float:
        """The estimated time to the end."""
        return self.seconds * (1 - self.fraction) / max(self.fraction, 1e-9)

    def as_row(self) -> dict[str, Any]:
        """Return the report as a row of metrics.jsonl."""
        return {key: value for key, value in asdict(self).items() if value not in (None, ())}


def batches(data: Dataset, batch: int, seed: int) -> Iterator[Batch]:
    """Yield batches for ever, each epoch in an order of its own that is a function of the seed."""
    batch = min(batch, len(data))
    epoch = 0
    while True:
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(mix_seed(seed, -1 - epoch)))
        for start in range(0, len(data) - batch + 1, batch):
            yield data.batch(order[start : start + batch])
        epoch += 1


def ahead(source: Iterator[Batch], depth: int = 4) -> Iterator[Batch]:
    """Yield from a source that a thread of its own reads a few batches ahead of us."""
    ready: queue.Queue[Batch | BaseException] = queue.Queue(depth)
    stop = threading.Event()

    def put(item: Batch | BaseException) -> None:
        while not stop.is_set():
            try:
                ready.put(item, timeout=0.1)
                return
            except queue.Full:
                continue

    def work() -> None:
        try:
            for item in source:
                put(item)
                if stop.is_set():
                    return
        except BaseException as error:  # carried over to the thread that waits
            put(error)

    threading.Thread(target=work, daemon=True).start()
    try:
        while True:
            item = ready.get()
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stop.set()


def learning_rate(settings: TrainingConfig, fraction: float) -> float:
    """Return the learning rate at a fraction of the run: linear warm-up, then half a cosine to zero or ten halvings."""
    if fraction < settings.warmup:
        return settings.learning_rate * max(fraction, 1e-3) / settings.warmup
    if settings.decay == "step":
        return settings.learning_rate * 0.5 ** math.floor(fraction * STEP_DECAYS)
    return settings.learning_rate * 0.5 * (1 + math.cos(math.pi * fraction))


class Average:
    """The exponential average of a model's parameters, over the last `share` of the steps so far (arXiv:2312.02696).

    Because the horizon grows with the run, the average is never stuck at the first weights.
    """

    def __init__(self, model: Diffusion, share: float) -> None:
        self.model = copy.deepcopy(model).requires_grad_(False).eval()
        self.share = share
        self.updates = 0
        self._mine: list[Tensor] = list(self.model.parameters())
        self._theirs = [p.detach() for p in model.parameters()]  # views: they follow the model

    def update(self) -> None:
        """Move towards the model's parameters after one more step."""
        torch._foreach_lerp_(self._mine, self._theirs, 1 / (1 + self.share * self.updates))
        self.updates += 1


def held_out_loss(model: Diffusion, data: Dataset, seed: int) -> tuple[float, tuple[float, ...], tuple[float, ...]]:
    """Return the loss on held-out data, whole and in four ranges of t, and the error of the noise in these ranges.

    The same times and noise are used at every call.
    """
    device = next(model.parameters()).device
    schedule = model.denoiser.schedule
    draws = HELD_OUT_DRAWS[data.is_images]
    random = torch.Generator().manual_seed(mix_seed(seed, -(2**40)))
    u = (torch.randperm(draws, generator=random) + 0.5).double() / draws
    t = schedule.t_min + (1 - schedule.t_min) * u
    losses = []
    with torch.no_grad():
        for part in torch.arange(draws).split(256):
            x, labels = data.batch(part % len(data))
            z = model.codec.encode(x.to(device))
            truth = Pair(z, torch.randn(z.shape, generator=random).to(device))
            cond = labels.to(device) if labels is not None else None
            losses.append(model.loss_at(truth, t[part], cond).double().cpu())
    loss, place = torch.cat(losses), (u * LEVELS).long()
    target, k = model.denoiser.target, model.denoiser.sigma_data
    noise = loss * weight_of("snr", schedule, t, target, k) / weight_of(model.weight, schedule, t, target, k)
    levels = [place == level for level in range(LEVELS)]
    return float(loss.mean()), tuple(float(loss[k].mean()) for k in levels), tuple(float(noise[k].mean()) for k in levels)


def fit(model: Diffusion, average: Average, train: Dataset, held_out: Dataset, settings: TrainingConfig) -> Iterator[Step]:
    """Train for the given steps or minutes and yield reports; `average` holds the weights to keep.

    Everything random at step i is a function of the seed and i.  With a length in steps the result is a function of
    the settings; with a length in minutes it depends on the machine's speed as well.
    """
    device = next(model.parameters()).device
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(
        parameters, lr=settings.learning_rate, betas=(0.9, 0.99), weight_decay=settings.weight_decay,
        fused=device.type in ("cpu", "cuda"),
    )  # fmt: skip
    limit = settings.minutes * 60 if settings.minutes else math.inf
    total = settings.steps or math.inf
    loader = batches(train, settings.batch, settings.seed)
    loader = loader if isinstance(train.x, Tensor) else ahead(loader)
    begun = reported = time.monotonic()
    window: list[Tensor] = []
    fraction, i, reported_at, reports, checks, checking = 0.0, 0, 0, 0, 0, 0.0
    while fraction < 1:
        rate = learning_rate(settings, fraction)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad(set_to_none=True)
        for part in range(settings.accumulate):
            x, labels = next(loader)
            cond = labels.to(device) if labels is not None else None
            with torch.autocast(device.type, torch.bfloat16, enabled=settings.precision == "bf16"):
                loss = model.loss(x.to(device), cond, mix_seed(settings.seed, i * settings.accumulate + part)).mean()
            (loss / settings.accumulate).backward()
            window.append(loss.detach())
        nn.utils.clip_grad_norm_(parameters, settings.gradient_limit)
        optimizer.step()
        average.update()
        i += 1
        now = time.monotonic()
        fraction = min(1.0, max(i / total, (now - begun) / limit))
        due = fraction * REPORTS >= reports and (settings.steps is not None or now - reported >= CLOCK)
        if due or fraction == 1:
            reports = math.floor(fraction * REPORTS) + 1
            mean = float(torch.stack(window).mean())
            if not math.isfinite(mean):
                raise UserError(
                    f"the loss became {mean} by step {i}; the learning rate {settings.learning_rate} is probably too high:"
                    " try a tenth of it with --learning-rate"
                )
            check = fraction == 1 or (fraction * CHECKS >= checks and checking <= CHECK_SHARE * (now - begun))
            held, levels, noise = held_out_loss(average.model, held_out, settings.seed) if check else (None, (), ())
            checks += check
            checking += time.monotonic() - now
            speed = (i - reported_at) / max(now - reported, 1e-9)
            yield Step(i, fraction, now - begun, speed, mean, rate, held, levels, noise)
            window, reported, reported_at = [], time.monotonic(), i
