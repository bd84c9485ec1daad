"""Few steps: sources of error of deterministic samplers, cheap corrections, and quality and time of defaults.

`REVERIE_DATA=DIR python -m benchmarks.steps why RUN` replaces the network by the optimal denoiser of the training data over
parts of the noise levels; `corrections RUN` makes one change at a time at ten evaluations; `settings RUN` compares samplers,
grids and steps; `student RUN` measures a distilled run in 1, 2 and 4 evaluations; `recipes FOLDER --steps 2000` trains MNIST
with one change each time; `points FOLDER --steps 10000 -n 5000` compares samplers on points.  Each prints a table;
times are CPU time of one thread.  Distances are Fréchet distances of LeNet features on MNIST, of the features that
`reverie evaluate` selects for other images, and sliced Wasserstein distances of points.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reverie.api import Run, load, load_source_data, train
from reverie.base.scalar import Time
from reverie.data import load_data
from reverie.data.appearance import detail
from reverie.data.classifiers import label_classifier
from reverie.diffusion.denoiser import Denoiser, Steer
from reverie.diffusion.oracle import DatasetDenoiser
from reverie.diffusion.pair import Pair
from reverie.evaluation.metrics.features import choose_features
from reverie.evaluation.metrics.frechet import frechet_to
from reverie.nets.lenet import features_and_classes
from reverie.transport import sliced_wasserstein

REFERENCE = 10_000  # largest number of data for features other than LeNet's


class ByLabel(Denoiser):
    """The optimal denoiser of the training data of each label, evaluated by label, in a tenth of the time for ten labels."""

    def __init__(self, like: Denoiser, z: Tensor, labels: Tensor) -> None:
        super().__init__()
        self.schedule = like.schedule
        self.members = {int(k): DatasetDenoiser(like.schedule, z[labels == k]) for k in labels.unique()}

    def forward(self, x: Tensor, t: Time, cond: Tensor | None = None) -> Pair:
        """Return the estimate.  x: (B, ...); t: float; cond: (B,)."""
        assert cond is not None
        x0, eps = torch.empty_like(x), torch.empty_like(x)
        for k in cond.unique().tolist():
            found = self.members[k](x[cond == k], t)
            x0[cond == k], eps[cond == k] = found.x0, found.eps
        return Pair(x0, eps)


class Spliced(Denoiser):
    """One denoiser within an interval of times, and another outside."""

    def __init__(self, inside: Denoiser, outside: Denoiser, low: float, high: float) -> None:
        super().__init__()
        self.inside, self.outside, self.low, self.high, self.schedule = inside, outside, low, high, outside.schedule

    def forward(self, x: Tensor, t: Time, cond: Tensor | None = None) -> Pair:
        """Return the estimate of the denoiser for this time."""
        return (self.inside if self.low < float(t) <= self.high else self.outside)(x, t, cond)


class Louder(Denoiser):
    """A denoiser with scaled noise, so that a deterministic step keeps more of it (after arXiv:2308.15321)."""

    def __init__(self, inner: Denoiser, by: float) -> None:
        super().__init__()
        self.inner, self.by, self.schedule = inner, by, inner.schedule

    def forward(self, x: Tensor, t: Time, cond: Tensor | None = None) -> Pair:
        """Return the estimate with scaled noise."""
        found = self.inner(x, t, cond)
        return replace(found, eps=self.by * found.eps)


@dataclass(frozen=True)
class SampleMetric:
    """Distances of samples of a run from its data."""

    distance: Callable[[Tensor], float]
    detail: float

    def __call__(self, x: Tensor) -> tuple[float, float]:
        """Return the Fréchet distance of images and their detail relative to the data.  x: (N, C, H, W) in [0, 1]."""
        return self.distance(x), float(detail(x).mean()) / self.detail


@cache
def metric_for(path: str) -> SampleMetric:
    """Return the metric for the data of a run; its classifier is cached."""
    run = load(path, "cpu")
    data = load_source_data(run.config.data, folder=run.path)
    x = data.batch(torch.arange(len(data)))[0]
    fine = float(detail(x[:2048]).mean())
    if run.config.data.name != "mnist":
        features = choose_features("auto", *data.split(0))
        to = frechet_to(features.of(x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:REFERENCE]]))
        return SampleMetric(lambda images: to(features.of(images)), fine)
    return mnist_metric()


@cache
def mnist_metric() -> SampleMetric:
    """Return the metric of MNIST: its 60,000 images and a cached LeNet."""
    data = load_data("mnist")
    x = data.batch(torch.arange(len(data)))[0]
    net = label_classifier(data, data).net
    to = frechet_to(features_and_classes(net, x)[0])
    return SampleMetric(lambda images: to(features_and_classes(net, images)[0]), float(detail(x[:2048]).mean()))


def sample_all_labels(run: Run, count: int, seed: int, steer: Steer | None = None, **options: Any) -> tuple[Tensor, float]:
    """Return samples with all labels in turn, (count, C, H, W) in [0, 1], and the processor milliseconds of each."""
    label = "all" if run.config.data.labels else None
    start, parts = time.process_time(), []
    for first in range(0, count, run.batch_size()):
        n = min(run.batch_size(), count - first)
        *_, last = run.frames(n, first, steer=steer, label=label, seed=seed, **options)
        parts.append(run.model.decode(last.x0).clamp(0, 1))
    return torch.cat(parts), 1e3 * (time.process_time() - start) / count


def oracle(run: Run) -> Denoiser:
    """Return the optimal denoiser of the training data of a run with labels."""
    data = load_source_data(run.config.data, folder=run.path)
    x, labels = data.batch(torch.arange(len(data)))
    assert labels is not None
    return ByLabel(run.diffusion.denoiser, run.model.encode(x), labels)


def why(run: Run) -> Iterator[tuple[str, Steer | None, Mapping[str, Any]]]:
    """Yield the cases: DDIM, other ends of its grid, and the optimal denoiser in place of the network at part of the times."""
    plain = {"sampler": "ddim", "steps": 20, "autoguidance": 1.0}
    best = oracle(run)

    def spliced(low: float, high: float) -> Steer:
        # the steered denoiser is a `WithCondition` of its labels, so its replacement needs them as well
        return lambda inner: Spliced(_Same(best, inner), inner, low, high)

    yield "ddim, 20 steps", None, plain
    yield "optimal denoiser for t <= 0.3", spliced(0.0, 0.3), plain
    yield "optimal denoiser for 0.3 < t <= 0.7", spliced(0.3, 0.7), plain
    yield "optimal denoiser for t > 0.7", spliced(0.7, 1.0), plain
    yield "ddpm, 20 steps", None, plain | {"sampler": "ddpm"}
    yield "ddim, 20 steps, last at t = 0.05", None, plain | {"grid": "uniform:end=0.05"}
    yield "ddim, 20 steps, quadratic", None, plain | {"grid": "quadratic"}


class _Same(Denoiser):
    """Another denoiser under the condition that a `WithCondition` has."""

    def __init__(self, other: Denoiser, given: Denoiser) -> None:
        super().__init__()
        self.other, self.cond, self.schedule = other, getattr(given, "cond", None), other.schedule

    def forward(self, x: Tensor, t: Time, cond: Tensor | None = None) -> Pair:
        """Return the estimate of the other denoiser."""
        return self.other(x, t, self.cond if cond is None else cond)


def corrections(run: Run) -> Iterator[tuple[str, Steer | None, Mapping[str, Any]]]:
    """Yield the cases: corrections without training, one at a time, in ten steps."""
    plain = {"sampler": "dpm++2m", "steps": 10, "autoguidance": 1.0}
    yield "dpm++2m, 10 steps", None, plain
    yield (
        f"autoguidance {run.autoguidance or 2:g}, twice the evaluations",
        None,
        plain | {"autoguidance": max(run.autoguidance, 1.4)},
    )
    yield "dpm++sde, eta 0.5", None, plain | {"sampler": "dpm++sde:eta=0.5"}
    yield "dpm++sde", None, plain | {"sampler": "dpm++sde"}
    yield "ddim, 10 steps", None, plain | {"sampler": "ddim"}
    for by in (0.99, 1.01, 1.02):
        yield f"ddim, 10 steps, noise times {by}", partial(Louder, by=by), plain | {"sampler": "ddim"}


def settings(run: Run) -> Iterator[tuple[str, Steer | None, Mapping[str, Any]]]:
    """Yield the cases: candidates for defaults."""
    for sampler, steps, grid in (
        ("ddpm", 40, "uniform"), ("dpm++sde", 10, "uniform"), ("dpm++sde", 12, "uniform"), ("dpm++2m", 10, "uniform"),
        ("unipc", 6, "uniform"), ("ddpm", 12, "trailing"), ("dpm++sde", 8, "uniform"), ("dpm++sde", 20, "uniform"),
        ("ddpm", 20, "uniform"),
    ):  # fmt: skip
        yield f"{sampler}, {steps}, {grid}", None, {"sampler": sampler, "steps": steps, "grid": grid, "autoguidance": 1.0}


def student(run: Run) -> Iterator[tuple[str, Steer | None, Mapping[str, Any]]]:
    """Yield the cases: a distilled run in few evaluations."""
    for steps in (1, 2, 4, 8):
        yield f"{steps} evaluation{'s' * (steps > 1)}", None, {"steps": steps}


# One change of the training each.
RECIPES: Mapping[str, Mapping[str, Any]] = {
    "default: flow, logit-normal times, uniform weight, EMA over 5 %, label dropout 10 %": {},
    "times stratified": {"times": "stratified"},
    "weight min-snr": {"weight": "min-snr"},
    "target v": {"target": "v"},
    "target edm": {"target": "edm"},
    "EMA over 2 %": {"ema_share": 0.02},
    "EMA over 15 %": {"ema_share": 0.15},
    "no label dropout": {"label_dropout": 0.0},
}
SAMPLINGS = (("ddim", 20), ("dpm++2m", 10), ("dpm++sde", 10), ("ddpm", 40))


def recipes(place: Path, steps: int, count: int, only: str) -> None:
    """Train MNIST by each recipe, and print the distances of samples by four samplers, seed 0."""
    names = " | ".join(f"{name}, {evaluations}" for name, evaluations in SAMPLINGS)
    print(f"| recipe | {names} |\n|---{'|---' * len(SAMPLINGS)}|", flush=True)
    for number, (name, changed) in enumerate(RECIPES.items()):
        if only not in name:
            continue
        path = place / f"{number}-{steps}"
        run = load(path, "cpu") if path.exists() else train("mnist", path, steps=steps, device="cpu", progress=False, **changed)
        metric, found = metric_for(str(path)), []
        for sampler, evaluations in SAMPLINGS:
            with torch.no_grad():
                x, _ = sample_all_labels(run, count, 0, sampler=sampler, steps=evaluations, autoguidance=1.0)
            found.append(f"{metric(x)[0]:.2f}")
        print(f"| {name} | " + " | ".join(found) + " |", flush=True)


POINTS = ("spiral", "moons", "circles")
POINT_CASES = (
    ("ddim", 50), ("ddim", 20), ("dpm++2m", 10), ("dpm++2m", 20), ("unipc", 10), ("heun", 20), ("dpm++sde", 20), ("ddpm", 50),
)  # fmt: skip


def _fresh(data: str, count: int, seed: int) -> Tensor:
    found = load_data(data, seed=seed, points=count)
    return found.batch(torch.arange(count))[0].float()


def points(place: Path, steps: int, count: int, seeds: Sequence[int]) -> None:
    """Print the sliced Wasserstein distance of sampled points from as many new data, and that of data from data."""
    rows: dict[str, list[str]] = {"new data": [], **{f"{name}, {n} evaluations": [] for name, n in POINT_CASES}}
    for data in POINTS:
        path = place / f"{data}-{steps}"
        run = load(path, "cpu") if path.exists() else train(data, path, steps=steps, device="cpu", progress=False)
        fresh, other = (_fresh(data, count, seed) for seed in (1001, 1002))
        rows["new data"].append(f"{float(sliced_wasserstein(other, fresh, p=1)):.4f}")
        for name, n in POINT_CASES:
            each = "heun" in name  # two evaluations per step
            found = [
                float(sliced_wasserstein(torch.from_numpy(x), fresh, p=1))
                for x in (run.sample(count, sampler=name, steps=n // 2 if each else n, seed=seed).x for seed in seeds)
            ]
            rows[f"{name}, {n} evaluations"].append(" / ".join(f"{value:.4f}" for value in found))
    print(f"| sampled with | {' | '.join(POINTS)} |\n|---{'|---' * len(POINTS)}|")
    print("\n".join(f"| {name} | {' | '.join(values)} |" for name, values in rows.items()), flush=True)


CASES = {"why": why, "corrections": corrections, "settings": settings, "student": student}


def main() -> None:
    """Measure the selected cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=[*CASES, "recipes", "points"])
    parser.add_argument("run", help="a run; for recipes and points the folder of their runs")
    parser.add_argument("--steps", type=int, default=2000, help="steps of each training")
    parser.add_argument("-n", type=int, default=1000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--autoguidance", action="store_true", help="use the autoguidance scale that each run selected")
    args = parser.parse_args()
    if args.what == "points":
        points(Path(args.run), args.steps, args.n, args.seeds)
        return
    if args.what == "recipes":
        recipes(Path(args.run), args.steps, args.n, args.only)
        return
    run, metric = load(args.run, "cpu"), metric_for(args.run)
    print("| case | Fréchet distance | detail | ms per image, one thread |\n|---|---|---|---|", flush=True)
    with torch.no_grad():
        for name, steer, options in CASES[args.what](run):
            if args.only not in name:
                continue
            rows, options = [], {key: value for key, value in options.items() if key != "autoguidance" or not args.autoguidance}
            for seed in args.seeds:
                x, cost = sample_all_labels(run, args.n, seed, steer, **options)
                rows.append((*metric(x), cost))
            mean = torch.tensor(rows).mean(0).tolist()
            distances = " / ".join(f"{row[0]:.2f}" for row in rows)
            print(f"| {name} | {distances} | {mean[1]:.0%} | {mean[2]:.1f} |", flush=True)


if __name__ == "__main__":
    main()
