"""Whether the sampling that a training selects is the best of its candidates: `python -m benchmarks.defaults RUN... -n 200`.

Each run selects anew, as at the end of its training: on its held-out data, with its own noise.  Then n samples of every
candidate, of another seed, are compared with training data, which the selection has not seen: kernel distance of
EfficientNet-Lite0 features with the standard error of its difference from the least.  Prints a row of a table for each run.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import torch

from reverie.api import Run, load, load_source_data
from reverie.families.diffusion.sampling import default_sampling
from reverie.families.diffusion.sampling_record import Candidate, format_choice
from reverie.training import selection
from reverie.training.selection import Measured, Reference, Selection

DATA = 2000  # training data, at most, that samples are compared with


def selected(run: Run, data_dir: Path | None) -> tuple[Selection, Reference, float]:
    """Return what a run selects, the training data that judge it, and the share of the training's time that this took."""
    train, held = load_source_data(run.config.data, folder=run.path, data_dir=data_dir).split(run.config.data.seed)
    training, steps = run.config.training, run.metrics()[-1]["i"]
    n = selection.samples_for(run, held, steps * training.batch * training.accumulate)
    if not n:
        raise SystemExit(f"{run.path} was trained for too few steps to select anything")
    begun = time.process_time()
    found = selection.select_sampling(run, held, n)
    assert found is not None
    share = (time.process_time() - begun) / (60 * training.minutes) if training.minutes else math.nan
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(1))[:DATA]
    return found, Reference(train.take(order), DATA), share


def judged(run: Run, candidates: tuple[Candidate, ...], judge: Reference, n: int, seed: int) -> list[Candidate]:
    """Return the figures of n samples of every candidate beside data that the selection has not seen."""
    made: list[Measured] = []
    for one in candidates:
        made.append(selection.measure(run, judge, n, (one.sampler, one.steps, one.grid), one.autoguidance, seed))
    return selection.compare(judge, made)


def main() -> None:
    """Print the table."""
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    asked.add_argument("runs", nargs="+", type=Path)
    asked.add_argument("-n", type=int, default=200, help="samples of each candidate")
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--data-dir", type=Path)
    given = asked.parse_args()
    torch.set_num_threads(1)
    print("| run | selected | its distance | the least | of | the table's default | share of the time |")
    print("|---|---|---|---|---|---|---|")
    for path in given.runs:
        run = load(path, "cpu")
        found, judge, share = selected(run, given.data_dir)
        rows = judged(run, found.record.candidates, judge, given.n, given.seed)
        best = min(rows, key=lambda row: row.distance)
        usual = default_sampling(run.config.data.shape, run.profile)
        default = selection.compare(judge, [selection.measure(run, judge, given.n, usual, 1.0, given.seed)])[0]

        def name(row: Candidate) -> str:
            return f"{format_choice((row.sampler, row.steps, row.grid))}, autoguidance {row.autoguidance:g}"

        for row in (rows[0], *sorted(rows, key=lambda row: row.distance)):
            farther = f"{row.distance:.2f} (+ {row.distance - best.distance:.2f} ± {row.error:.2f})"
            if row is rows[0]:
                cells = (
                    path.name,
                    name(row),
                    farther,
                    f"{best.distance:.2f}",
                    name(best),
                    f"{default.distance:.2f}",
                    f"{share:.1%}",
                )
                print(f"| {' | '.join(cells)} |", flush=True)
            print(f"<!-- {name(row)}: {farther}; octaves {' '.join(f'{ratio:.2f}' for ratio in row.octaves)} -->", flush=True)


if __name__ == "__main__":
    main()
