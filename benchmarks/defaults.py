"""Is the sampling that a training selects the best of its candidates? `python -m benchmarks.defaults RUN... -n 200`.

Each run repeats the selection at the end of its training: on its held-out data, with its own noise.  Then n samples of every
candidate, of another seed, are compared with training data, which the selection has not used: kernel distance of
EfficientNet-Lite0 features with the standard error of its difference from the least.  Prints a row for each run.
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

DATA = 2000  # largest number of training data to compare with


def selected(run: Run, data_dir: Path | None) -> tuple[Selection, Reference, float]:
    """Return the selection of a run, training data as the reference, and the share of the training time that it took."""
    train, held = load_source_data(run.config.data, folder=run.path, data_dir=data_dir).split(run.config.data.seed)
    training, steps = run.config.training, run.metrics()[-1]["i"]
    n = selection.samples_for(run, held, steps * training.batch * training.accumulate)
    if not n:
        raise SystemExit(f"{run.path} was trained for too few steps for a selection")
    start = time.process_time()
    found = selection.select_sampling(run, held, n)
    assert found is not None
    share = (time.process_time() - start) / (60 * training.minutes) if training.minutes else math.nan
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(1))[:DATA]
    return found, Reference(train.take(order), DATA), share


def compared(run: Run, candidates: tuple[Candidate, ...], reference: Reference, n: int, seed: int) -> list[Candidate]:
    """Return the figures of n samples of every candidate on data that the selection has not used."""
    made: list[Measured] = []
    for one in candidates:
        made.append(selection.measure(run, reference, n, (one.sampler, one.steps, one.grid), one.autoguidance, seed))
    return selection.compare(reference, made)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("-n", type=int, default=200, help="samples of each candidate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data-dir", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("| run | selected | its distance | least distance | of | default | share of the time |")
    print("|---|---|---|---|---|---|---|")
    for path in args.runs:
        run = load(path, "cpu")
        found, reference, share = selected(run, args.data_dir)
        rows = compared(run, found.record.candidates, reference, args.n, args.seed)
        best = min(rows, key=lambda row: row.distance)
        usual = default_sampling(run.config.data.shape, run.profile)
        default = selection.compare(reference, [selection.measure(run, reference, args.n, usual, 1.0, args.seed)])[0]

        def name(row: Candidate) -> str:
            return f"{format_choice((row.sampler, row.steps, row.grid))}, autoguidance {row.autoguidance:g}"

        for row in (rows[0], *sorted(rows, key=lambda row: row.distance)):
            difference = f"{row.distance:.2f} (+ {row.distance - best.distance:.2f} ± {row.error:.2f})"
            if row is rows[0]:
                cells = (
                    path.name,
                    name(row),
                    difference,
                    f"{best.distance:.2f}",
                    name(best),
                    f"{default.distance:.2f}",
                    f"{share:.1%}",
                )
                print(f"| {' | '.join(cells)} |", flush=True)
            print(
                f"<!-- {name(row)}: {difference}; octaves {' '.join(f'{ratio:.2f}' for ratio in row.octaves)} -->", flush=True
            )


if __name__ == "__main__":
    main()
