"""Language models of Shakespeare: NLL of the held-out tenth after equal CPU time.

    REVERIE_DATA=DIR python -m benchmarks.text --only lstm transformer --seeds 0

DIR/text/shakespeare.txt is the text (1.1 MB); its last tenth is held out and measured as a whole.  330 s of one thread equal
three minutes of two cores.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import reverie
from benchmarks.measure import machine
from reverie.data.text_windows import TextWindows
from reverie.evaluation.reports import find_data
from reverie.evaluation.text_metrics import language_model
from reverie.runs.run import Run

SECONDS = 330.0  # of one thread
GOALS = {"lstm": "<= 2.40", "transformer": "<= 2.42"}
FAMILIES = ("bigram", "mlp-lm", "rnn", "lstm", "transformer")
HEAD = ["| model | tokenizer | seed | parameters | steps | seconds of one thread | bits/character | bits/byte |"
        " share of sgemm | characters/s generated |", "|---|---|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
WRITTEN = 400  # characters, one text after another
SIDE = 1024


def shakespeare() -> Path | None:
    """Return the path of the text, if it is on this machine."""
    place = Path(os.environ.get("REVERIE_DATA", "data")) / "text" / "shakespeare.txt"
    return place if place.is_file() else None


def sgemm() -> float:
    """Return the floating-point operations of one thread per processor second in matrix products."""
    a = torch.randn(SIDE, SIDE)
    for _ in range(3):
        a @ a
    start = time.process_time()
    for _ in range(10):
        a @ a
    return 10 * 2 * SIDE**3 / (time.process_time() - start)


def operations(run: Run) -> float:
    """Return the operations of training one token: 6 for each parameter of a matrix, and 12 T d of attention in a layer."""
    matrices = [m for m in run.model.modules() if isinstance(m, nn.Linear | nn.RNNBase)]
    numbers = sum(p.numel() for m in matrices for name, p in m.named_parameters(recurse=False) if name.startswith("weight"))
    family = run.config.family
    layers = getattr(family, "layers", 0) if family.name == "transformer" else 0
    return 6.0 * numbers + 12.0 * layers * run.config.data.shape[0] * getattr(family, "dim", 0) / 2  # half of it is masked


def row(family: str, seed: int, seconds: float, text: Path, temporary: Path, options: dict[str, Any]) -> str:
    """Train a family for a CPU time and return a row of the table."""
    name = family.partition(":")[0]
    length: dict[str, Any] = {} if name == "bigram" else {"minutes": seconds / 60, "clock": "processor"}
    start = time.process_time()
    run = reverie.train(
        text, temporary / f"{name}-{seed}", family=family, seed=seed, progress=False, overwrite=True, **length, **options
    )
    elapsed = time.process_time() - start
    held = find_data(run, 1)[1]
    assert isinstance(held.x, TextWindows)
    cost = language_model(run).cost(held.x.texts())
    steps = int(run.metrics()[-1]["i"])
    tokens = steps * run.config.training.batch * run.config.data.shape[0] * cost.tokens / cost.characters
    share = f"{operations(run) * tokens / elapsed / sgemm():.0%}" if name != "bigram" else ""
    start = time.process_time()
    for _ in run.written(length=WRITTEN):
        pass
    speed = WRITTEN / (time.process_time() - start)
    numbers = run.model.facts()["parameters"]
    return (
        f"| {family} | {options.get('tokenizer', 'characters')} | {seed} | {numbers:,} | {steps:,} | {elapsed:.0f} |"
        f" {cost.bits:.3f} ± {cost.error:.3f} | {cost.bits_per_byte:.3f} | {share} | {speed:,.0f} |"
    )


def language(
    families: tuple[str, ...] = FAMILIES, seeds: tuple[int, ...] = (0,), seconds: float = SECONDS, place: Path | None = None,
    **options: Any,
) -> list[str]:  # fmt: skip
    """Train each variant and return the table, or a note if the text is missing."""
    text = shakespeare()
    if text is None:
        return ["Not measured: there is no text/shakespeare.txt in $REVERIE_DATA."]
    threads, lines = torch.get_num_threads(), list(HEAD)
    torch.set_num_threads(1)
    try:
        print(*HEAD, sep="\n", flush=True)
        with tempfile.TemporaryDirectory() as temporary:
            for family in families:
                for seed in seeds:
                    lines.append(row(family, seed, seconds, text, place or Path(temporary), options))
                    print(lines[-1], flush=True)
    finally:
        torch.set_num_threads(threads)
    about = [
        "Shakespeare's plays, 1.1 million characters, default settings: the last tenth is held out and measured as a"
        " whole, exactly. ± is the standard error over pieces of 512 characters; seconds are CPU time of one thread,"
        " with checks and previews; the share refers to matrix products of 1024 x 1024. The CPU recipe of nanoGPT gives"
        " 2.71 bits in about three minutes.",
        "",
    ]
    return [*about, *lines]


def main() -> None:
    """Measure and print the selected cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="*", default=list(FAMILIES), help="as for --family")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--cpu-seconds", type=float, default=SECONDS)
    parser.add_argument("--tokenizer", default=None)
    parser.add_argument("--runs", type=Path, default=None, help="folder of the runs")
    args = parser.parse_args()
    print(machine(), flush=True)
    more = {"tokenizer": args.tokenizer} if args.tokenizer else {}
    language(tuple(args.only), tuple(int(s) for s in args.seeds.split(",")), args.cpu_seconds, args.runs, **more)


if __name__ == "__main__":
    main()
