"""A run: a trained model and the folder it lives in, which is all that sampling needs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor

from reverie.base.errors import UserError, pick, unknown
from reverie.base.noise import Noise, image_seeds
from reverie.base.progress import Tell
from reverie.base.spec import build
from reverie.data.kind import Kind, counted
from reverie.diffusion.classifier import Classifier
from reverie.diffusion.denoiser import Denoiser, LowPrecision, Steer
from reverie.diffusion.guidance import ClassifierFree, ClassifierGuided
from reverie.diffusion.samplers import GRIDS, SAMPLERS, Frame, Sampler
from reverie.draw.picture import FILM_FRAMES
from reverie.families.diffusion import Diffusion
from reverie.runs import folder
from reverie.runs.classifier import read_classifier
from reverie.runs.config import Config
from reverie.runs.labels import check_scale, read_interval, read_label
from reverie.runs.samples import Samples, check_film

MOST_STEPS, MOST_SAMPLES, MOST_FIRST = 100_000, 10_000_000, 10**12
BATCH_VALUES = 2**17  # pixels or coordinates that are sampled at once; beyond 64 images of 28 x 28 the speed is the same
PRECISIONS = {"fp32": False, "bf16": True}  # whether numbers are rounded within the network
# Sampler, steps and grid when nothing is said, for points and for images.  docs/benchmarks.md has the measurement for
# images: DDPM of 40 steps is the best, because fresh noise lets the model correct what it did wrong before; with 2,000
# samples dpm++sde of 10 steps is nearly as good (Fréchet distances 2.72 and 2.74 against 2.69 and 2.48, two seeds).
DEFAULT_SAMPLING: dict[Kind, tuple[str, int, str]] = {"points": ("ddim", 50, "uniform"), "images": ("ddpm", 40, "uniform")}
LABEL_DRAW = 2**30  # the number of the draw, of each image's own stream, that decides its label


def choose_device(name: str = "auto") -> torch.device:
    """Return the device asked for; "auto" is CUDA, else MPS, else the CPU."""
    usable = ["cpu"]
    if torch.backends.mps.is_available():
        usable.insert(0, "mps")
    if torch.cuda.is_available():
        usable.insert(0, "cuda")
    if name == "auto":
        return torch.device(usable[0])
    if name.partition(":")[0] not in usable:
        raise UserError(f"the device {name!r} is not usable on this machine; choose from: auto, {', '.join(usable)}")
    try:
        return torch.device(name)
    except RuntimeError:
        raise UserError(f"cannot read the device {name!r}; write it like cpu, cuda or cuda:0") from None


class Options(TypedDict, total=False):
    """How to sample.

    label: a name, "all" for each in turn, or weighted names such as "6:1.5,8:-1"; guidance: 1 is none;
    guidance_interval: the times it is limited to, "LOW,HIGH"; guidance_rescale, classifier_guidance: see
    `reverie.diffusion.guidance`, 0 is none; precision: "fp32", or "bf16" for faster and slightly other images; seed: image k
    of a seed is always the same image.
    """

    label: str | None
    guidance: float
    guidance_interval: str | tuple[float, float] | None
    guidance_rescale: float
    classifier_guidance: float
    precision: str
    seed: int
    sampler: str | None
    steps: int | None
    grid: str | None


def check_count(n: int) -> None:
    """Refuse a number of samples that cannot be drawn."""
    if not isinstance(n, int) or not 1 <= n <= MOST_SAMPLES:
        raise UserError(f"the number of samples must be a whole number, at least 1 and at most {MOST_SAMPLES:,}, got {n}")


def check_first(first: int) -> None:
    """Refuse a number of the first sample that a seed does not have."""
    if not isinstance(first, int) or not 0 <= first < MOST_FIRST:
        raise UserError(f"the number of the first sample must be a whole number from 0 up to {MOST_FIRST:,}, got {first}")


@dataclass
class Run:
    """A trained model and where it lives."""

    config: Config
    model: Diffusion
    path: Path

    def __repr__(self) -> str:
        data = self.config.data
        return f"Run({str(self.path)!r}, {data.name}: {counted(data.count, data.shape)})"

    @property
    def kind(self) -> Kind:
        """What one datum is."""
        return self.config.data.kind

    @property
    def fit(self) -> str:
        """How the data were brought to their size, and so how a picture is that is given to the run."""
        return str(self.config.data.reading.get("fit", "crop"))

    def metrics(self) -> list[dict[str, Any]]:
        """Return the rows of metrics.jsonl."""
        return folder.read_metrics(self.path)

    def labels(self, label: str | None, n: int, seed: int, first: int = 0) -> Tensor | None:
        """Return the labels of n images from number `first` on: one name, "all" in turn, or as often as in the data.

        Returns (n,), or (n, K) where K labels are composed.
        """
        names = self.config.data.labels
        if not names:
            if label is not None:
                raise UserError(f"the run {self.path} was trained without labels, so it cannot draw {label!r}")
            return None
        if self.in_turn(label):
            return torch.arange(first, first + n) % len(names)
        if label is not None:
            labels = torch.tensor(read_label(label, names).labels).expand(n, -1)
            return labels[:, 0] if labels.shape[1] == 1 else labels
        shares = torch.tensor(self.config.data.label_counts, dtype=torch.float64).cumsum(0)
        u = Noise(image_seeds(seed, n, first), draws=LABEL_DRAW).uniform(1)[0][:, 0]
        return torch.bucketize(u * shares[-1], shares, right=True)

    def usual(self, options: Options) -> tuple[str, int, str]:
        """Return sampler, steps and grid: those asked for, and the usual ones where nothing is said."""
        sampler, steps, grid = DEFAULT_SAMPLING[self.kind]
        named, counted, spaced = options.get("sampler"), options.get("steps"), options.get("grid")
        return (
            sampler if named is None else named,
            steps if counted is None else counted,
            grid if spaced is None else spaced,
        )

    def sampling(self, options: Options) -> tuple[Sampler, Tensor]:
        """Build the sampler and the times that the options ask for, and refuse what does not go together."""
        if wrong := sorted(set(options) - set(Options.__annotations__)):
            raise unknown(wrong[0], Options.__annotations__, "option of sampling")
        named, steps, spaced = self.usual(options)
        if not 1 <= steps <= MOST_STEPS:
            raise UserError(f"the number of sampling steps must lie between 1 and {MOST_STEPS:,}, got {steps}")
        schedule = self.model.denoiser.schedule
        sampler, grid = build(SAMPLERS, named, "sampler"), build(GRIDS, spaced, "grid")(schedule, steps)
        sampler.check(schedule, grid)
        return sampler, grid

    def frames(
        self,
        n: int = 16,
        first: int = 0,
        *,
        steer: Steer | None = None,
        origin: Tensor | None = None,
        times: Tensor | None = None,
        **options: Unpack[Options],
    ) -> Iterator[Frame]:
        """Draw images first .. first + n - 1 of the seed at once and yield every frame, in model units.

        steer and origin: as in `Diffusion.sample`; times: a grid to be used instead of the one that the options ask for.
        """
        check_count(n)
        sampler, grid = self.sampling(options)
        grid = grid if times is None else times
        seed, guidance = options.get("seed", 0), self.guidance(options)
        seeds, cond = image_seeds(seed, n, first), self.labels(options.get("label"), n, seed, first)
        if first == 0:  # once for all batches
            self.model.denoiser.schedule.warn_if_signal_remains()
        device = next(self.model.parameters()).device
        cond = cond.to(device) if cond is not None else None
        return self.model.sample(seeds, cond, sampler, grid, guidance, steer, origin)

    def guidance(self, options: Options) -> Steer:
        """Return the wrapper that guides the model's denoiser as the options ask, and refuse what has no meaning."""
        scale = check_scale(options.get("guidance", 1.0), "the guidance scale")
        gamma = check_scale(options.get("classifier_guidance", 0.0), "the classifier guidance scale")
        limits, rescale = options.get("guidance_interval"), options.get("guidance_rescale", 0.0)
        label, names = options.get("label"), self.config.data.labels
        if not names and (scale != 1 or gamma or limits is not None or rescale):
            raise UserError(f"the run {self.path} was trained without labels, so guidance has nothing to steer by")
        interval = read_interval(limits)
        if scale == 1 and (limits is not None or rescale):
            raise UserError("an interval and a rescaling of guidance mean something only with --guidance other than 1")
        if rescale and self.kind == "points":
            raise UserError(f"{self.path} is a run of points, whose coordinates have no common spread to rescale to")
        weights = (1.0,) if label is None or self.in_turn(label) or not names else read_label(label, names).weights
        judge = self.classifier() if gamma else None
        lowered = pick(PRECISIONS, options.get("precision", "fp32"), "precision")

        def guide(denoiser: Denoiser) -> Denoiser:
            denoiser = LowPrecision(denoiser) if lowered else denoiser
            guided = ClassifierFree(denoiser, scale, interval, rescale, weights)
            return guided if judge is None else ClassifierGuided(guided, judge.log_prob, gamma, weights)

        return guide

    def of_no_label(self, options: Options) -> Options:
        """Return a copy of options that goes by no condition where no label is given, instead of by one drawn by chance."""
        chosen = Options(**options)
        if self.config.data.labels and options.get("label") is None:
            limits = [options.get(key) for key in ("classifier_guidance", "guidance_interval", "guidance_rescale")]
            if options.get("guidance", 1.0) != 1 or any(limits):
                raise UserError("guidance needs a label to steer by; give one with --label")
            chosen["guidance"] = 0.0
        return chosen

    def classifier(self) -> Classifier:
        """Return the classifier of noised data that `train-classifier` left in the run."""
        return read_classifier(self.path, self.config).to(next(self.model.parameters()).device)

    def batch_size(self) -> int:
        """Return how many data are sampled at once."""
        return max(1, BATCH_VALUES // math.prod(self.config.data.shape))

    def batches(
        self, n: int = 16, first: int = 0, *, on_progress: Tell | None = None, **options: Unpack[Options]
    ) -> Iterator[Samples]:
        """Draw data first .. first + n - 1 of the seed in batches of a size that suits the machine, and yield each."""
        check_count(n)
        check_first(first)
        size = self.batch_size()
        for done in range(0, n, size):
            yield self._draw(min(size, n - done), first, done, n, on_progress, options)

    def sample(
        self, n: int = 16, first: int = 0, *, film: bool = False, on_progress: Tell | None = None, **options: Unpack[Options]
    ) -> Samples:
        """Draw data first .. first + n - 1 of the seed in user units: `run.sample(1, first=7)` is the eighth alone.

        film: draw all at once and keep the frames; on_progress is told ("sampling", drawn, n).
        """
        if film:
            check_first(first)
            check_film(n, self.config.data.shape)
            kept: list[tuple[float, np.ndarray, np.ndarray]] = []
            return replace(self._draw(n, first, 0, n, on_progress, options, kept), film=tuple(kept))
        parts = list(self.batches(n, first, on_progress=on_progress, **options))
        labels = [name for part in parts for name in part.labels or ()] or None
        titles = labels if parts[0].titles is not None else None
        return Samples(np.concatenate([part.x for part in parts]), labels, titles=titles)

    def _draw(
        self, n: int, first: int, done: int, of: int, on_progress: Tell | None, options: Options,
        kept: list[tuple[float, np.ndarray, np.ndarray]] | None = None,
    ) -> Samples:  # fmt: skip
        """Draw n data at once, after those `done` before `of` all from number `first` on; what is on the way goes into `kept`.

        Data that are drawn at once are all finished at once, so progress between is that share of them.
        """
        first += done
        for frame in self.frames(n, first, **options):
            if kept is not None and (frame.i * FILM_FRAMES >= len(kept) * frame.of or frame.i == frame.of - 1):
                kept.append((float(frame.t), self.decode(frame.x), self.decode(frame.x0)))
            if on_progress:
                on_progress("sampling", done + n * (frame.i + 1) // frame.of, of)
            last = frame
        x0 = self.finished(last)
        label = options.get("label")
        names = self.names(self.labels(label, n, options.get("seed", 0), first), options)
        return Samples(x0, names, titles=names if self.in_turn(label) else None)

    def in_turn(self, label: str | None) -> bool:
        """Tell whether a label asks for each one in turn."""
        return label == "all" and "all" not in self.config.data.labels

    def names(self, cond: Tensor | None, options: Options) -> list[str] | None:
        """Return what each datum of a batch was asked to be; a composition as it was written.  cond: (n,) or (n, K)."""
        if cond is None:
            return None
        if cond.ndim > 1:
            return [str(options.get("label"))] * len(cond)
        return [self.config.data.labels[int(c)] for c in cond]

    def finished(self, last: Frame) -> np.ndarray:
        """Return what the last frame of a trajectory drew, in user units, and refuse what is not finite."""
        x0 = self.decode(last.x0)
        if not np.isfinite(x0).all():
            raise UserError(f"the model of {self.path} drew values that are not finite; steer it less, or train it again")
        return x0

    def decode(self, z: Tensor) -> np.ndarray:
        """Return model units as an array in user units: (N, D), (N, H, W) or (N, H, W, C)."""
        x = np.asarray(self.model.codec.decode(z).float().cpu().numpy())
        if x.ndim == 2:
            return x
        return x[:, 0] if x.shape[1] == 1 else np.moveaxis(x, 1, -1)


def load(path: str | Path, device: str = "auto") -> Run:
    """Open a run folder: `reverie.load("runs/spiral").sample(2000)`."""
    path = Path(path)
    config = folder.read_config(path)
    where = choose_device(device)
    model = folder.build_model(config)
    folder.read_weights(path, model)
    return Run(config, model.to(where).eval(), path)
