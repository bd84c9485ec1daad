"""Few evaluations on MNIST with several seeds: runs, their students, and the distance of samples by each, with its spread.

    REVERIE_DATA=DIR python -m benchmarks.seeds FOLDER --seeds 0 1 2 --minutes 5 [--labels none] [--no-students]

trains with two threads by the wall, one after another, so nothing else should run beside it; runs that are in FOLDER already are
taken as they are.  Distances are Fréchet distances of 2,000 samples to the 60,000 training images, on features of a LeNet and of a
classifier of another build, neither of which has taught anything.  The table is printed, and written to docs/benchmarks.md.
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
from benchmarks.steps import judge_of
from reverie.api import Run, distil, load, reread, train

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


def found(path: Path, make: Callable[[], Run]) -> Run:
    """Return the run that is there, or else a new one."""
    return load(path, "cpu") if path.exists() else make()


def rows(place: Path, seeds: list[int], minutes: float, labels: str, students: bool) -> dict[str, list[tuple[float, ...]]]:
    """Train what is missing, and measure every way of each seed."""
    table: dict[str, list[tuple[float, ...]]] = {}
    judges: tuple[Judge, ...] = ()
    extra: dict[str, Any] = {} if labels == "auto" else {"labels": labels}
    for seed in seeds:
        path = place / f"seed{seed}-{minutes:g}-{labels}"
        run = found(path, lambda path=path, seed=seed: train("mnist", path, minutes=minutes, seed=seed, progress=False, **extra))
        print(f"seed {seed}: {run.metrics()[-1]['i']:,} steps, led by {run.autoguidance:g}", flush=True)
        if not judges:
            data = reread(load(path).config.data, folder=path)
            x, of = data.batch(torch.arange(len(data)))
            judge = judge_of(str(path))
            judges = (judge.distance, *([second_judge(x, of)] if of is not None else []), lambda x: judge(x)[1])
            part = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[: COUNT * len(seeds)]]
            table["images of the data"] = [tuple(each(some) for each in judges) for some in part.split(COUNT)]
        ways = [(name, run, way) for name, way in RUN.items()]
        if students:
            fast = place / f"{path.name}-fast"
            student = found(fast, lambda: distil(path, fast, minutes=minutes, seed=seed, progress=False))  # noqa: B023
            print(f"seed {seed}: student, {student.metrics()[-1]['i']:,} steps", flush=True)
            ways += [(name, student, way) for name, way in STUDENT.items()]
        for name, model, way in ways:
            table.setdefault(name, []).append(measured(model, way, judges))
            print(f"seed {seed}: {name}: " + ", ".join(f"{value:.2f}" for value in table[name][-1]), flush=True)
    return table


def lines(table: Mapping[str, list[tuple[float, ...]]], seeds: list[int], judges: int) -> list[str]:
    """Return the table: a row for each way, distances of each seed with their mean, detail and speed."""
    heads = ["Fréchet distance, LeNet", "the other classifier"][:judges]
    made = ["| drawn by | " + " | ".join(f"{head}: seeds {', '.join(map(str, seeds))}; mean" for head in heads) + " | detail | images/s |"]
    made += ["|---" * (judges + 3) + "|"]
    for name, values in table.items():
        columns = list(zip(*values, strict=True))
        cells = [f"{', '.join(f'{v:.2f}' for v in column)}; **{statistics.mean(column):.2f}**" for column in columns[:judges]]
        speed = f"{statistics.mean(columns[judges + 1]):,.0f}" if len(columns) > judges + 1 else ""
        made.append(f"| {name} | {' | '.join(cells)} | {statistics.mean(columns[judges]):.0%} | {speed} |")
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
    judges = len(table["images of the data"][0]) - 1
    text = lines(table, given.seeds, judges)
    print("\n".join(text), flush=True)
    told = f"MNIST, {given.minutes:g} minute{'s' * (given.minutes != 1)}{', no labels' * (given.labels == 'none')}, seeds {given.seeds}"
    about = (
        f"`python -m benchmarks.seeds FOLDER --minutes {given.minutes:g}{' --labels none' * (given.labels == 'none')}"
        f"{' --no-students' * (not given.students)}`: {machine()}. {COUNT:,} samples each, seed 0 of drawing"
        f"{'; students are taught for as long again, and their classifiers before that' * given.students}."
    )
    write_section(told, [about, "", *text], PAGE)


if __name__ == "__main__":
    main()
