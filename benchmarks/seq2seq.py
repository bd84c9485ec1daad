"""Sequence to sequence: exact match on held-out sources after equal CPU time.

    python -m benchmarks.seq2seq --only reversal:dot dates --seeds 0 --cpu-seconds 110

110 s of one thread equal about one minute of two cores.  Reversal is tested on held-out strings of exactly 20 letters.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import reverie
from benchmarks.measure import machine
from reverie.data.pair_sets import DEFAULT_COUNTS, LONGEST_STRING, reversal
from reverie.data.text_pairs import TextPair, TextPairs
from reverie.evaluation.pair_metrics import answer_pairs, pair_model, share_right
from reverie.evaluation.reports import find_data
from reverie.evaluation.scores import format_score
from reverie.runs.run import Run

SECONDS = 110.0  # of one thread
VARIANTS = {
    "reversal:none": ("reversal", "seq2seq:attention=none", "< 0.05"),
    "reversal:dot": ("reversal", "seq2seq:attention=dot", ">= 0.99"),
    "reversal:bilinear": ("reversal", "seq2seq:attention=bilinear", ">= 0.99"),
    "reversal:mlp": ("reversal", "seq2seq:attention=mlp", ">= 0.99"),
    "reversal:transformer": ("reversal", "transformer-seq2seq", ">= 0.99"),
    "reversal20:none": ("reversal20", "seq2seq:attention=none", "< 0.05"),
    "reversal20:dot": ("reversal20", "seq2seq:attention=dot", ">= 0.99"),
    "dates": ("dates", "seq2seq", ">= 0.995"),
    "dates:none": ("dates", "seq2seq:attention=none", ""),
    "dates:transformer": ("dates", "transformer-seq2seq", ">= 0.995"),
    "numbers-en": ("numbers-en", "seq2seq", ""),
    "numbers-fa": ("numbers-fa", "seq2seq", ""),
    "numbers-fa:transformer": ("numbers-fa", "transformer-seq2seq", ""),
}
HEAD = ["| task | model | seed | parameters | steps | seconds of one thread | exact match | all held out | nats/token |"
        " longer sources | answers/s |", "|---|---|---|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
STRINGS = 1000  # of 20 letters


def strings(run: Run) -> list[TextPair]:
    """Return held-out strings of exactly 20 letters."""
    train = find_data(run, 1)[0].x
    assert isinstance(train, TextPairs)
    known = {source for source, _ in train.pairs()}
    made = reversal(STRINGS, np.random.default_rng([run.config.training.seed, 20]), (LONGEST_STRING, LONGEST_STRING))
    return [pair for pair in made if pair[0] not in known]


def source_of(data: str, place: Path) -> str:
    """Return the name of a data set, or a file of strings of 20 letters, as many as `reversal` has."""
    if data != "reversal20":
        return data
    made = reversal(DEFAULT_COUNTS["reversal"], np.random.default_rng(0), (LONGEST_STRING, LONGEST_STRING))
    place.mkdir(parents=True, exist_ok=True)
    path = place / "reversal20.csv"
    path.write_text("source,target\n" + "".join(f"{source},{target}\n" for source, target in made))
    return str(path)


def row(name: str, seed: int, seconds: float, place: Path) -> str:
    """Train a variant for a time of the processor and return a line of figures."""
    data, family, _ = VARIANTS[name]
    start = time.process_time()
    run = reverie.train(
        source_of(data, place), place / f"{name.replace(':', '-')}-{seed}",
        family=family, seed=seed, progress=False, overwrite=True,
        minutes=seconds / 60, clock="processor",
    )  # fmt: skip
    taken = time.process_time() - start
    found = reverie.evaluate(run, progress=False)
    figures = found["sections"]["answers"]
    exact_match = figures["exact_match"]
    if data.startswith("reversal"):
        pairs = strings(run)
        answers = answer_pairs(pair_model(run), pairs, {}, lambda what, i, of: None)
        exact_match = share_right([answer == target for answer, (_, target) in zip(answers, pairs, strict=True)])
    longer = format_score(figures["exact_match_longer"], ".3f") if "exact_match_longer" in figures else ""
    print(f"{name} seed {seed} by characters:", {r["characters"]: (r["exact"], r["pairs"]) for r in figures["by_length"]})
    cost = found["sections"]["likelihood"]["exact"]
    exact = f"{format_score(figures['exact_match'], '.4f')} of {figures['exact_match']['n']:,}"
    return (
        f"| {data} | {family} | {seed} | {run.model.facts()['parameters']:,} | {int(run.metrics()[-1]['i']):,} | {taken:.0f} |"
        f" {format_score(exact_match, '.4f')} | {exact} |"
        f" {cost['value']:.5f} | {longer} | {1e3 / found['processor_milliseconds_per_sample']:,.0f} |"
    )


def seq2seq(
    names: tuple[str, ...] = tuple(VARIANTS), seeds: tuple[int, ...] = (0,), seconds: float = SECONDS, place: Path | None = None
) -> list[str]:
    """Train each variant and return the table."""
    threads, lines = torch.get_num_threads(), list(HEAD)
    torch.set_num_threads(1)
    try:
        print(*HEAD, sep="\n", flush=True)
        with tempfile.TemporaryDirectory() as temporary:
            for name in names:
                for seed in seeds:
                    lines.append(row(name, seed, seconds, place or Path(temporary)))
                    print(lines[-1], flush=True)
    finally:
        torch.set_num_threads(threads)
    about = [
        "Pairs of texts made by a rule, characters as tokens, default settings; seconds are CPU time of one thread."
        " Greedy answers; ± is the standard error of a share. Reversal is tested on 1,000 held-out strings of exactly 20"
        " letters (training: 1 to 20 letters, reversal20: only 20), the other tasks on held-out sources. Longer sources:"
        " strings of 21 to 40 letters, numbers of 7 to 9 digits.",
        "",
    ]
    return [*about, *lines]


def main() -> None:
    """Measure and print the selected cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="*", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--cpu-seconds", type=float, default=SECONDS)
    parser.add_argument("--runs", type=Path, default=None, help="folder of the runs")
    args = parser.parse_args()
    print(machine(), flush=True)
    seq2seq(tuple(args.only), tuple(int(s) for s in args.seeds.split(",")), args.cpu_seconds, args.runs)


if __name__ == "__main__":
    main()
