"""Training the noise-aware classifier of a run, as an iterator of reports."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from reverie.base.errors import UserError
from reverie.base.noise import check_seed, mix_seed
from reverie.base.signals import Stopped, stop_requests
from reverie.base.tensors import device_of
from reverie.data.in_memory import DataSource
from reverie.diffusion.classifier import Classifier
from reverie.diffusion.learned import Learned
from reverie.diffusion.loss import draw_times
from reverie.diffusion.pair import Pair
from reverie.runs.classifier_file import ClassifierFacts, classifier_for, write_classifier
from reverie.runs.lock import Lock
from reverie.runs.run import Run
from reverie.runs.source_data import load_source_data
from reverie.runs.step import Step
from reverie.training.learner import Average
from reverie.training.loader import reader
from reverie.training.optimizer import adamw

MINUTES = 2.0  # default length
BATCH, RATE, DECAY, WARMUP, EMA_SHARE = 128, 2e-3, 0.01, 0.02, 0.05
REPORT_SECONDS = 0.5  # minimum seconds between reports
ACCURACY_TIMES = (0.05, 0.25, 0.5, 0.75, 0.95)  # times at which the accuracy is measured
MAX_HELD_OUT = 2000


class ClassifierTraining:
    """A training that is ready to start: iterate over it for its reports; at the end it writes the classifier to the run.

    Ctrl-C ends it early, and keeps the present classifier.
    """

    def __init__(
        self,
        run: Run,
        *,
        minutes: float | None = None,
        steps: int | None = None,
        seed: int = 0,
        data: DataSource | None = None,
        data_dir: str | Path | None = None,
        on_progress: Callable[[str, int, int], None] | None = None,
    ) -> None:
        run.require("train-classifier")
        data_config = run.config.data
        if isinstance(run.diffusion.denoiser.schedule, Learned):
            raise UserError(
                f"{run.path} has a learned schedule, which classifiers do not support; train a run with another --schedule"
            )
        if minutes is not None and steps is not None:
            raise UserError("more than one length; give only one of --steps and --minutes")
        for name, length in (("steps", steps), ("minutes", minutes)):
            if length is not None and not 0 < length < math.inf:
                raise UserError(f"--{name} must be above 0, got {length}")
        if len(data_config.labels) < 2:
            raise UserError(f"the run {run.path} has {len(data_config.labels) or 'no'} labels; a classifier needs at least 2")
        self.run, self.seed, self.steps = run, check_seed(seed), steps
        self.minutes = MINUTES if minutes is None and steps is None else minutes
        dataset = load_source_data(data_config, folder=run.path, data=data, data_dir=data_dir, on_progress=on_progress)
        self.train, self.held_out = dataset.split(data_config.seed)
        self.accuracy: dict[str, float] = {}
        self.path: Path | None = None

    def __iter__(self) -> Iterator[Step]:
        """Yield the reports, then write the classifier; raise Stopped after a request to stop."""
        device = self.run.diffusion.device
        classifier = classifier_for(self.run.config, self.seed).to(device)
        average = Average(classifier, EMA_SHARE)
        with Lock(self.run.path), stop_requests() as stop:
            last = None
            for last in self._fit(classifier, average, stop):
                yield last
            if last is None:
                raise Stopped()
            self.accuracy = self.measure(average.model)
            facts = ClassifierFacts(
                fingerprint=self.run.config.data.fingerprint, steps=last.i, seconds=last.seconds, seed=self.seed,
                held_out=min(len(self.held_out), MAX_HELD_OUT), accuracy=self.accuracy,
            )  # fmt: skip
            self.path = write_classifier(self.run.path, average.model, facts)
        if stop():
            raise Stopped()

    def _fit(self, classifier: Classifier, average: Average[Classifier], stop: Callable[[], bool]) -> Iterator[Step]:
        (optimizer,) = adamw(classifier, RATE, DECAY)
        loader = reader(self.train, BATCH, self.seed)
        device = device_of(classifier)
        start = reported = time.monotonic()
        i = reported_at = 0
        fraction, total, count = 0.0, 0.0, 0
        while fraction < 1 and not stop():
            rate = RATE * min(1.0, max(fraction, 1e-3) / WARMUP) * 0.5 * (1 + math.cos(math.pi * fraction))
            optimizer.param_groups[0]["lr"] = rate
            x, labels = next(loader)
            assert labels is not None
            optimizer.zero_grad(set_to_none=True)
            batch_loss = self.loss(classifier, x.to(device), labels.to(device), mix_seed(self.seed, i))
            batch_loss.backward()
            optimizer.step()
            average.update(i)
            i += 1
            total, count = total + float(batch_loss.detach()), count + 1
            now = time.monotonic()
            fraction = min(1.0, i / self.steps if self.steps else (now - start) / (60 * (self.minutes or 1)))
            if now - reported < REPORT_SECONDS and fraction < 1 and not stop():
                continue
            if not math.isfinite(total):
                raise UserError(f"the loss of the classifier became {total} at step {i}; remove NaN from the data")
            speed = (i - reported_at) / max(now - reported, 1e-9)
            yield Step(i, fraction, now - start, speed, total / count, rate)
            total, count, reported, reported_at = 0.0, 0, time.monotonic(), i

    def loss(self, classifier: Classifier, x: Tensor, labels: Tensor, seed: int) -> Tensor:
        """Return the mean cross entropy, in nats, of noisy data at stratified times in [t_min, 1]."""
        z = self.run.diffusion.codec.encode(x)
        random = torch.Generator().manual_seed(seed)
        t = draw_times("stratified", classifier.schedule, len(x), random)
        eps = torch.randn(z.shape, generator=random, dtype=z.dtype).to(z.device)
        return functional.cross_entropy(classifier(Pair(z, eps).mix(*classifier.schedule(t)), t), labels)

    @torch.no_grad()
    def measure(self, classifier: Classifier) -> dict[str, float]:
        """Return the accuracy on held-out data at each of ACCURACY_TIMES."""
        device, correct = device_of(classifier), dict.fromkeys(map(str, ACCURACY_TIMES), 0)
        indices = torch.arange(min(len(self.held_out), MAX_HELD_OUT))
        random = torch.Generator().manual_seed(mix_seed(self.seed, -(2**40)))
        for part in indices.split(500):
            x, labels = self.held_out.batch(part)
            assert labels is not None
            z = self.run.diffusion.codec.encode(x.to(device))
            eps = torch.randn(z.shape, generator=random).to(device)
            for t in ACCURACY_TIMES:
                scores = classifier(Pair(z, eps).mix(*classifier.schedule(t)), t)
                correct[str(t)] += int((scores.argmax(1).cpu() == labels).sum())
        return {t: count / len(indices) for t, count in correct.items()}
