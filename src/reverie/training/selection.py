"""The default sampling of a run of images, selected when its training ends: that whose samples are nearest to held-out data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from reverie.base.deadline import Deadline
from reverie.data import Dataset
from reverie.data.appearance import octave_powers
from reverie.families.diffusion.sampling import SamplerChoice
from reverie.families.diffusion.sampling_record import Candidate, SamplingRecord
from reverie.families.diffusion.settings import DiffusionSettings
from reverie.kernels import Polynomial
from reverie.nets import efficientnet
from reverie.runs import folder
from reverie.runs.run import Run

CANDIDATES: tuple[SamplerChoice, ...] = (
    ("dpm++sde", 20, "uniform"),
    ("dpm++sde", 20, "refined"),
    ("dpm++2m", 20, "uniform"),
    ("dpm++2m", 20, "log-snr"),
    ("dpm++2m", 20, "karras"),
    ("ddpm", 20, "uniform"),
)
# Scales of autoguidance: each candidate is sampled with the first ones, and the best candidates with the others as well.
FIRST, MORE, FINALISTS = (1.0, 1.5), (1.25, 2.0), 3
SHARE, PASSES = 0.045, 3  # of the evaluations that the training took, at most; those that a step takes for a datum
FEWEST, MOST, HELD = 16, 128, 512  # samples of a candidate, and held-out data that they are compared with, at most
SEED = 1_000_000_007  # of the samples, so that no user's samples are those that were compared
FEATURES = 2.4e8  # operations of a network that take as long as the features of an image of 96 x 96


@dataclass(frozen=True)
class Selection:
    """The sampling that was selected: its record, and the scale of autoguidance."""

    record: SamplingRecord
    autoguidance: float


@dataclass(frozen=True)
class Measured:
    """A sampling and its samples' features (n, D), and the power of their octaves (n, O)."""

    choice: SamplerChoice
    scale: float
    features: Tensor
    power: Tensor


class Reference:
    """Held-out images as candidates are compared with them."""

    def __init__(self, held_out: Dataset, most: int = HELD) -> None:
        order = torch.randperm(len(held_out), generator=torch.Generator().manual_seed(SEED))[:most]
        self.net = efficientnet.load_general()
        self.features, self.power = self.of(held_out.batch(order)[0])
        self.kernel = Polynomial(3, 1.0, 1 / self.features.shape[1])

    @torch.no_grad()
    def of(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features of images, (N, D), and the power of their octaves, (N, O).  images: (N, C, H, W) in [0, 1]."""
        images = images.float().cpu().clamp(0, 1)
        return torch.cat([self.net(part) for part in images.split(64)]).double(), octave_powers(images)

    def distance(self, features: Tensor) -> tuple[float, Tensor]:
        """Return the unbiased MMD² of samples from held-out data (arXiv:1801.01401), and the influence of each sample on it.

        features: (n, D).
        """
        n, m = len(features), len(self.features)
        among = self.kernel(features, features).fill_diagonal_(0).sum(1) / (n - 1)
        across = self.kernel(features, self.features).mean(1)
        held = self.kernel(self.features, self.features).fill_diagonal_(0).sum() / (m * (m - 1))
        return float((among - 2 * across).mean() + held), 2 * (among - across)

    def ratios(self, power: Tensor) -> Tensor:
        """Return the power of samples over that of held-out data in each octave: (O,)."""
        return power.mean(0) / self.power.mean(0).clamp_min(1e-12)


def samples_for(run: Run, held_out: Dataset, seen: int) -> int:
    """Return how many samples of each candidate a training of so many data, seen in all its steps, pays for; 0 is too few.

    It is a function of the number of steps and not of time, so that a run that was interrupted selects the same.
    """
    settings = run.config.family
    able = isinstance(settings, DiffusionSettings) and settings.purpose == "samples" and settings.distilled is None
    if not able or run.kind != "images" or len(held_out) < 2 or not efficientnet.available():
        return 0
    side = min(max(efficientnet.MIN_SIDE, *run.config.data.shape[1:]), efficientnet.MAX_SIDE)
    features = FEATURES * (side / 96) ** 2 / max(1, run.diffusion.operations())  # of an image, in evaluations
    guided = _can_guide(run)
    mean = sum(steps for _, steps, _ in CANDIDATES) / len(CANDIDATES)
    scales = [
        *product(range(len(CANDIDATES)), FIRST if guided else FIRST[:1]),
        *product(range(FINALISTS), MORE if guided else ()),
    ]
    each = sum((1 if scale == 1 else 2) * mean + features for _, scale in scales)
    n = int((SHARE * PASSES * seen - features * min(HELD, len(held_out))) / each)
    return min(n, MOST) if n >= FEWEST else 0


def _can_guide(run: Run) -> bool:
    return (run.path / folder.EARLY_FILE).is_file()


def select_sampling(run: Run, held_out: Dataset, n: int, stage: Deadline | None = None) -> Selection | None:
    """Compare n samples of each candidate with held-out data and return the best, and what is to be recorded of all.

    The best is that with the least kernel distance of features; among those that differ from it by no more than a standard
    error, the one whose spectrum is nearest to the data's.  stage: whose time, where it is over before all were compared, ends
    the comparison; None where only one was left.
    """
    stage, reference = stage or Deadline(), Reference(held_out)
    first, more = (FIRST, MORE) if _can_guide(run) else (FIRST[:1], ())

    def measured(choices: Iterable[SamplerChoice], scales: Iterable[float]) -> list[Measured]:
        """Return what is finite; scales in turn, each for all choices."""
        found = [measure(run, reference, n, choice, scale) for scale, choice in product(scales, choices) if stage.left > 0]
        return [one for one in found if bool(one.features.isfinite().all())]

    found = measured(CANDIDATES, first)
    if more:
        order = sorted(found, key=lambda one: reference.distance(one.features)[0])
        found += measured(list(dict.fromkeys(one.choice for one in order))[:FINALISTS], more)
    if len(found) < 2:
        return None
    rows = compare(reference, found)
    least = min(row.distance for row in rows)
    near = [row for row in rows if row.distance - least <= row.error]
    chosen = min(near, key=lambda row: math.hypot(*(math.log(max(ratio, 1e-6)) for ratio in row.octaves)))
    rest = sorted((row for row in rows if row is not chosen), key=lambda row: row.distance)
    record = SamplingRecord(
        sampler=chosen.sampler, steps=chosen.steps, grid=chosen.grid, source="selected", samples=n, candidates=(chosen, *rest)
    )
    return Selection(record, chosen.autoguidance)


def measure(run: Run, reference: Reference, n: int, choice: SamplerChoice, scale: float, seed: int = SEED) -> Measured:
    """Sample with a candidate, from the same noise as all, and measure."""
    sampler, steps, grid = choice
    parts = []
    for done in range(0, n, run.batch_size()):
        many = min(run.batch_size(), n - done)
        *_, last = run.frames(many, done, seed=seed, sampler=sampler, steps=steps, grid=grid, autoguidance=scale)
        parts.append(run.model.decode(last.x0))
    return Measured(choice, scale, *reference.of(torch.cat(parts)))


def compare(reference: Reference, found: Sequence[Measured]) -> list[Candidate]:
    """Return the figures of all, each with the standard error of its distance's difference from the least one's."""
    distances = [reference.distance(one.features) for one in found]
    least = min(distances, key=lambda each: each[0])[1]
    return [
        Candidate(
            sampler=one.choice[0], steps=one.choice[1], grid=one.choice[2], autoguidance=one.scale,
            distance=round(value, 4), error=round(float((influence - least).std()) / math.sqrt(len(influence)), 4),
            octaves=tuple(round(float(ratio), 4) for ratio in reference.ratios(one.power)),
        )
        for one, (value, influence) in zip(found, distances, strict=True)
    ]  # fmt: skip
