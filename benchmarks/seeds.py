"""Few evaluations on MNIST with several seeds: runs, their students, and the distance of samples by each, with its spread.

    REVERIE_DATA=DIR python -m benchmarks.seeds FOLDER --seeds 0 1 2 --minutes 5 [--labels none] [--no-students]

trains with two threads by the wall, one after another, so nothing else should run beside it; runs that are there already are
taken as they are.  Distances are Fréchet distances of 2,000 samples to the 60,000 training images, on features of a LeNet and
of a classifier of another build, neither of which has taught anything.  The table is printed and written to docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.distillation import second_judge
from benchmarks.measure import machine, write_section
from benchmarks.run import PAGE
from benchmarks.steps import mnist_judge
from reverie.api import Run, distil, load, train
from reverie.data import load_data

COUNT = 2000
# How a run is drawn from, and how its student is.
RUN: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "dpm++sde, 12 evaluations": {"autoguidance": 1.0},
    "DDPM, 40 evaluations": {"sampler": "ddpm", "steps": 40, "autoguidance": 1.0},
    "DDIM, 20 evaluations": {"sampler": "ddim", "steps": 20, "autoguidance": 1.0},
    "UniPC, 10 steps led by 1.4, 20 evaluations": {"sampler": "unipc", "steps": 10, "autoguidance": 1.4},
}
STUDENT: Mapping[str, Mapping[str, Any]] = {f"student, {n} evaluation{'s' * (n > 1)}": {"steps": n} for n in (1, 2, 4)}
Judge = Callable[[torch.Tensor], float]


def measured(run: Run, way: Mapping[str, Any], judges: tuple[Judge, ...]) -> tuple[float, ...]:
    """Return the distances of samples by each judge, the detail as a share of the data's, and images a second."""
    label = "all" if run.config.data.labels else None
    begun = time.perf_counter()
    x = torch.from_numpy(run.sample(COUNT, label=label, **way).x)[:, None]
    rate = COUNT / (time.perf_counter() - begun)
    return (*(judge(x) for judge in judges), rate)


def rows(place: Path, seeds: list[int], minutes: float, labels: str, students: bool) -> dict[str, list[tuple[float, ...]]]:
    """Train what is missing, and measure every way of each seed."""
    table: dict[str, list[tuple[float, ...]]] = {}
    data = load_data("mnist")
    x, of = data.batch(torch.arange(len(data)))
    assert of is not None
    judge = mnist_judge()
    judges: tuple[Judge, ...] = (judge.distance, second_judge(x, of), lambda images: judge(images)[1])
    some = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[: COUNT * len(seeds)]]
    table["images of the data"] = [tuple(each(part) for each in judges) for part in some.split(COUNT)]
    extra: dict[str, Any] = {} if labels == "auto" else {"labels": labels}
    for seed in seeds:
        path = place / f"seed{seed}-{minutes:g}-{labels}"
        if not path.exists():
            train("mnist", path, minutes=minutes, seed=seed, progress=False, **extra)
        run = load(path, "cpu")
        print(f"seed {seed}: {run.metrics()[-1]['i']:,} steps, led by {run.autoguidance:g}", flush=True)
        ways = [(name, run, way) for name, way in RUN.items()]
        if students:
            fast = place / f"{path.name}-fast"
            if not fast.exists():
                distil(path, fast, minutes=minutes, seed=seed, progress=False)
            student = load(fast, "cpu")
            print(f"seed {seed}: student, {student.metrics()[-1]['i']:,} steps", flush=True)
            ways += [(name, student, way) for name, way in STUDENT.items()]
        for name, model, way in ways:
            table.setdefault(name, []).append(measured(model, way, judges))
            print(f"seed {seed}: {name}: " + ", ".join(f"{value:.2f}" for value in table[name][-1]), flush=True)
    return table


def lines(table: Mapping[str, list[tuple[float, ...]]], seeds: list[int]) -> list[str]:
    """Return the table: a row for each way, distances of each seed with their mean, detail and speed."""
    of = f"seeds {', '.join(map(str, seeds))}; mean"
    made = [
        f"| drawn by | Fréchet distance, LeNet: {of} | the other classifier: {of} | detail | images/s |",
        "|---|---|---|---|---|",
    ]
    for name, values in table.items():
        first, second, detail, *rate = zip(*values, strict=True)
        cells = [f"{', '.join(f'{v:.2f}' for v in each)}; **{statistics.mean(each):.2f}**" for each in (first, second)]
        speed = f"{statistics.mean(rate[0]):,.0f}" if rate else ""
        made.append(f"| {name} | {' | '.join(cells)} | {statistics.mean(detail):.0%} | {speed} |")
    return made


def main() -> None:
    """Measure, print and write what is asked for."""
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    asked.add_argument("folder", type=Path)
    asked.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    asked.add_argument("--minutes", type=float, default=5.0)
    asked.add_argument("--labels", default="auto", choices=["auto", "none"])
    asked.add_argument("--students", action=argparse.BooleanOptionalAction, default=True)
    given = asked.parse_args()
    torch.set_num_threads(2)
    table = rows(given.folder, given.seeds, given.minutes, given.labels, given.students)
    text = lines(table, given.seeds)
    print("\n".join(text), flush=True)
    plain = given.labels == "none"
    title = f"MNIST with several seeds, minutes {given.minutes:g}{', no labels' * plain}"
    options = f"--minutes {given.minutes:g}{' --labels none' * plain}{' --no-students' * (not given.students)}"
    about = f"`python -m benchmarks.seeds FOLDER {options}`: {machine()}. {COUNT:,} samples each, seed 0 of drawing"
    about += "; students are taught for as long again, and their classifiers before that." if given.students else "."
    write_section(title, [about, "", *text], PAGE)


if __name__ == "__main__":
    main()
