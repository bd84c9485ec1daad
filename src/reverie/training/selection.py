"""Selection of the default sampling of images when a training ends, by the distance of samples to held-out data."""

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
from reverie.families.diffusion.sampling import SamplerChoice, default_sampling
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
# Scales of autoguidance for all candidates, and further scales for the best.
FIRST_SCALES, MORE_SCALES, FINALISTS = (1.0, 1.5), (1.25, 2.0), 3
ROUND, BEST = 0.5, 4  # share of the evaluations for the first round, and number of candidates in the second
SHARE, PASSES = 0.045, 3  # maximum evaluations, relative to those of the training; evaluations per datum of a step
MIN_MEAN, MAX_MEAN, MAX_OF_BEST = 16, 128, 512  # limits of the mean number of samples per candidate, and of the best
MAX_HELD_OUT = 512  # maximum number of held-out data for the comparison
SEED = 1_000_000_007  # of the samples; unlikely to be a seed of users
FEATURES = 2.4e8  # operations of a network that take as long as the features of a 96 x 96 image


@dataclass(frozen=True)
class Selection:
    """The selected sampling: its record and the scale of autoguidance."""

    record: SamplingRecord
    autoguidance: float


@dataclass(frozen=True, eq=False)
class Measured:
    """A candidate with the features (n, D) and octave powers (n, O) of its samples."""

    choice: SamplerChoice
    scale: float
    features: Tensor
    power: Tensor

    def extended(self, run: Run, reference: Reference, n: int) -> Measured:
        """Return the candidate with n more samples."""
        more = measure(run, reference, n, self.choice, self.scale, start=len(self.features))
        return Measured(self.choice, self.scale, torch.cat([self.features, more.features]), torch.cat([self.power, more.power]))


class Reference:
    """Features and spectra of held-out images, with which candidates are compared."""

    def __init__(self, held_out: Dataset, most: int = MAX_HELD_OUT) -> None:
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
        among_held_out = self.kernel(self.features, self.features).fill_diagonal_(0).sum() / (m * (m - 1))
        return float((among - 2 * across).mean() + among_held_out), 2 * (among - across)

    def ratios(self, power: Tensor) -> Tensor:
        """Return the power of samples over that of held-out data in each octave: (O,)."""
        return power.mean(0) / self.power.mean(0).clamp_min(1e-12)


def samples_for(run: Run, held_out: Dataset, seen: int) -> int:
    """Return the affordable mean number of samples per candidate; 0 if too few.  seen: number of data in all training steps.

    It depends on the number of steps and not on time, so that an interrupted run selects the same.
    """
    settings = run.config.family
    is_supported = isinstance(settings, DiffusionSettings) and settings.purpose == "samples" and settings.distilled is None
    if not is_supported or run.kind != "images" or len(held_out) < 2 or not efficientnet.available():
        return 0
    side = min(max(efficientnet.MIN_SIDE, *run.config.data.shape[1:]), efficientnet.MAX_SIDE)
    features = FEATURES * (side / 96) ** 2 / max(1, run.diffusion.operations())  # of an image, in evaluations
    guided, choices = _can_guide(run), candidates_of(run)
    mean = sum(steps for _, steps, _ in choices) / len(choices)
    scales = [
        *product(range(len(choices)), FIRST_SCALES if guided else FIRST_SCALES[:1]),
        *product(range(FINALISTS), MORE_SCALES if guided else ()),
    ]
    evaluations = sum((1 if scale == 1 else 2) * mean + features for _, scale in scales)
    n = int((SHARE * PASSES * seen - features * min(MAX_HELD_OUT, len(held_out))) / evaluations)
    return min(n, MAX_MEAN) if n >= MIN_MEAN else 0


def candidates_of(run: Run) -> tuple[SamplerChoice, ...]:
    """Return the candidates of a run: the default of its data, and CANDIDATES."""
    return tuple(dict.fromkeys((default_sampling(run.config.data.shape, run.profile), *CANDIDATES)))


def _can_guide(run: Run) -> bool:
    return (run.path / folder.EARLY_FILE).is_file()


def select_sampling(run: Run, held_out: Dataset, n: int, stage: Deadline | None = None) -> Selection | None:
    """Compare samples of the candidates with held-out data; return the best candidate and the record of all.

    Sequential halving (Karnin et al. 2013) in two rounds: a share of the evaluations is spent on all candidates, the rest on
    the default and the others of the BEST of them.  The best has the smallest kernel distance of features; among those within
    one standard error of it, the default is selected, else the one whose spectrum is nearest to that of the data.  n: mean
    number of samples per candidate.  stage: ends the comparison when its time is over; None is returned if fewer than two
    candidates were compared by then.
    """
    stage, reference = stage or Deadline(), Reference(held_out)
    first_scales, more_scales = (FIRST_SCALES, MORE_SCALES) if _can_guide(run) else (FIRST_SCALES[:1], ())
    first_count = max(2, round(ROUND * n))

    def measure_all(choices: Iterable[SamplerChoice], scales: Iterable[float]) -> list[Measured]:
        """Return the candidates whose samples are finite: all choices with each scale in turn."""
        compared = [
            measure(run, reference, first_count, choice, scale) for scale, choice in product(scales, choices) if stage.left > 0
        ]
        return [candidate for candidate in compared if bool(candidate.features.isfinite().all())]

    def by_distance(compared: Sequence[Measured]) -> list[Measured]:
        return sorted(compared, key=lambda candidate: reference.distance(candidate.features)[0])

    choices = candidates_of(run)
    default = (choices[0], 1.0)
    compared = measure_all(choices, first_scales)
    if more_scales:
        compared += measure_all(
            list(dict.fromkeys(candidate.choice for candidate in by_distance(compared)))[:FINALISTS], more_scales
        )
    if len(compared) < 2:
        return None
    best = sorted(by_distance(compared), key=lambda candidate: (candidate.choice, candidate.scale) != default)[:BEST]
    more_samples = min(int((n - first_count) * _cost(compared) / _cost(best)), MAX_OF_BEST - first_count)
    extended_best = [
        candidate.extended(run, reference, more_samples) for candidate in best if more_samples > 0 and stage.left > 0
    ]
    if len(extended_best) == len(best) and all(bool(candidate.features.isfinite().all()) for candidate in extended_best):
        compared = [*extended_best, *(candidate for candidate in compared if candidate not in best)]
    rows = compare(reference, compared)
    final = rows[: len(best)] if compared[: len(best)] == extended_best else rows
    smallest = min(row.distance for row in final)
    near = [row for row in final if row.distance - smallest <= row.error]
    near = [row for row in near if ((row.sampler, row.steps, row.grid), row.autoguidance) == default] or near
    chosen = min(near, key=lambda row: math.hypot(*(math.log(max(ratio, 1e-6)) for ratio in row.octaves)))
    others = sorted((row for row in rows if row is not chosen), key=lambda row: row.distance)
    record = SamplingRecord(
        sampler=chosen.sampler, steps=chosen.steps, grid=chosen.grid, source="selected",
        samples=max(len(candidate.features) for candidate in compared), candidates=(chosen, *others),
    )  # fmt: skip
    return Selection(record, chosen.autoguidance)


def _cost(candidates: Iterable[Measured]) -> float:
    """Return the number of evaluations for one sample of each candidate."""
    return sum((1 if candidate.scale == 1 else 2) * candidate.choice[1] for candidate in candidates)


def measure(
    run: Run, reference: Reference, n: int, choice: SamplerChoice, scale: float, seed: int = SEED, start: int = 0
) -> Measured:
    """Return the features of n samples of a candidate from sample `start` on, with the same noise for all candidates."""
    sampler, steps, grid = choice
    parts = []
    for first in range(start, start + n, run.batch_size()):
        count = min(run.batch_size(), start + n - first)
        *_, last = run.frames(count, first, seed=seed, sampler=sampler, steps=steps, grid=grid, autoguidance=scale)
        parts.append(run.model.decode(last.x0))
    return Measured(choice, scale, *reference.of(torch.cat(parts)))


def compare(reference: Reference, candidates: Sequence[Measured]) -> list[Candidate]:
    """Return the metrics of all candidates, with the standard error of the difference from the smallest distance.

    That is the smallest among the candidates with the most samples.
    """
    distances = [reference.distance(candidate.features) for candidate in candidates]
    most = max(len(influence) for _, influence in distances)
    influence_of_best = min((pair for pair in distances if len(pair[1]) == most), key=lambda pair: pair[0])[1]

    def error(influence: Tensor) -> float:
        difference = influence - influence_of_best[: len(influence)]
        return float(difference.std()) / math.sqrt(len(difference))

    return [
        Candidate(
            sampler=candidate.choice[0], steps=candidate.choice[1], grid=candidate.choice[2], autoguidance=candidate.scale,
            distance=round(value, 4), error=round(error(influence), 4),
            octaves=tuple(round(float(ratio), 4) for ratio in reference.ratios(candidate.power)),
        )
        for candidate, (value, influence) in zip(candidates, distances, strict=True)
    ]  # fmt: skip
