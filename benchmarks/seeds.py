"""Few evaluations on MNIST with several seeds: runs, their students, and the distances of their samples.

    REVERIE_DATA=DIR python -m benchmarks.seeds FOLDER --seeds 0 1 2 --minutes 5 [--labels none] [--no-students]

trains with two threads by wall time, one run after another, so nothing else should run; existing runs are reused.  Distances
are Fréchet distances of 2,000 samples to the 60,000 training images, on features of a LeNet and of a second classifier of
another architecture that no training uses.  The table is printed and written to docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.distillation import second_metric
from benchmarks.measure import machine, write_section
from benchmarks.run import PAGE
from benchmarks.steps import mnist_metric
from reverie.api import Run, distil, load, train
from reverie.data import load_data

COUNT = 2000
# Sampling options of a run and of its student.
RUN: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "dpm++sde, 12 evaluations": {"autoguidance": 1.0},
    "DDPM, 40 evaluations": {"sampler": "ddpm", "steps": 40, "autoguidance": 1.0},
    "DDIM, 20 evaluations": {"sampler": "ddim", "steps": 20, "autoguidance": 1.0},
    "UniPC, 10 steps, autoguidance 1.4, 20 evaluations": {"sampler": "unipc", "steps": 10, "autoguidance": 1.4},
}
STUDENT: Mapping[str, Mapping[str, Any]] = {f"student, {n} evaluation{'s' * (n > 1)}": {"steps": n} for n in (1, 2, 4)}
Metric = Callable[[torch.Tensor], float]


def measured(run: Run, options: Mapping[str, Any], metrics: tuple[Metric, ...]) -> tuple[float, ...]:
    """Return the distances of samples by each metric, the detail relative to the data, and images a second."""
    label = "all" if run.config.data.labels else None
    start = time.perf_counter()
    x = torch.from_numpy(run.sample(COUNT, label=label, **options).x)[:, None]
    rate = COUNT / (time.perf_counter() - start)
    return (*(metric(x) for metric in metrics), rate)


def rows(place: Path, seeds: list[int], minutes: float, labels: str, students: bool) -> dict[str, list[tuple[float, ...]]]:
    """Train missing runs, and measure every sampling of each seed."""
    table: dict[str, list[tuple[float, ...]]] = {}
    data = load_data("mnist")
    x, of = data.batch(torch.arange(len(data)))
    assert of is not None
    metric = mnist_metric()
    metrics: tuple[Metric, ...] = (metric.distance, second_metric(x, of), lambda images: metric(images)[1])
    some = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[: COUNT * len(seeds)]]
    table["real images"] = [tuple(each(part) for each in metrics) for part in some.split(COUNT)]
    extra: dict[str, Any] = {} if labels == "auto" else {"labels": labels}
    for seed in seeds:
        path = place / f"seed{seed}-{minutes:g}-{labels}"
        if not path.exists():
            train("mnist", path, minutes=minutes, seed=seed, progress=False, **extra)
        run = load(path, "cpu")
        print(f"seed {seed}: {run.metrics()[-1]['i']:,} steps, autoguidance {run.autoguidance:g}", flush=True)
        cases = [(name, run, options) for name, options in RUN.items()]
        if students:
            fast = place / f"{path.name}-fast"
            if not fast.exists():
                distil(path, fast, minutes=minutes, seed=seed, progress=False)
            student = load(fast, "cpu")
            print(f"seed {seed}: student, {student.metrics()[-1]['i']:,} steps", flush=True)
            cases += [(name, student, options) for name, options in STUDENT.items()]
        for name, model, options in cases:
            table.setdefault(name, []).append(measured(model, options, metrics))
            print(f"seed {seed}: {name}: " + ", ".join(f"{value:.2f}" for value in table[name][-1]), flush=True)
    return table


def lines(table: Mapping[str, list[tuple[float, ...]]], seeds: list[int]) -> list[str]:
    """Return the table: a row for each sampling, distances of each seed with their mean, detail and speed."""
    of = f"seeds {', '.join(map(str, seeds))}; mean"
    made = [
        f"| sampled with | Fréchet distance, LeNet: {of} | second classifier: {of} | detail | images/s |",
        "|---|---|---|---|---|",
    ]
    for name, values in table.items():
        first, second, detail, *rate = zip(*values, strict=True)
        cells = [f"{', '.join(f'{v:.2f}' for v in each)}; **{statistics.mean(each):.2f}**" for each in (first, second)]
        speed = f"{statistics.mean(rate[0]):,.0f}" if rate else ""
        made.append(f"| {name} | {' | '.join(cells)} | {statistics.mean(detail):.0%} | {speed} |")
    return made


def main() -> None:
    """Measure, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--labels", default="auto", choices=["auto", "none"])
    parser.add_argument("--students", action=argparse.BooleanOptionalAction, default=True)
    args = parser.parse_args()
    torch.set_num_threads(2)
    table = rows(args.folder, args.seeds, args.minutes, args.labels, args.students)
    text = lines(table, args.seeds)
    print("\n".join(text), flush=True)
    plain = args.labels == "none"
    title = f"MNIST with several seeds, {args.minutes:g} minutes{', no labels' * plain}"
    options = f"--minutes {args.minutes:g}{' --labels none' * plain}{' --no-students' * (not args.students)}"
    about = f"`python -m benchmarks.seeds FOLDER {options}`: {machine()}. {COUNT:,} samples each, sampling seed 0"
    about += "; students are distilled for the same time, after the training of their classifiers." if args.students else "."
    write_section(title, [about, "", *text], PAGE)


if __name__ == "__main__":
    main()
