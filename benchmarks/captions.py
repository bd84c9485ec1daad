"""Pictures from words: how often samples show the digit, slant and thickness that captions ask for, seen and never seen.

    REVERIE_DATA=DIR python -m benchmarks.captions --seeds 0 --networks unet-tiny unet-tiny:attends=yes

550 seconds of one thread are five minutes of two cores; a training ends by the time of its own process, so a busy machine gives
nearly the same figures.  Judges are LeNets that learned from real digits, those of the combinations left out among them.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch

import reverie
from benchmarks.measure import machine
from reverie.base.errors import UserError
from reverie.data import load_data
from reverie.evaluation.faithfulness import AttributeClassifier, caption_accuracy, sample_captions, train_attribute_classifiers
from reverie.runs.run import Run

SECONDS = 550.0
GOALS = {"seen": "0.97 / 0.90 / 0.85", "never seen": "0.88 / 0.90 / 0.90"}
HEAD = ["| data | network | seconds of one thread | steps | guidance | seed | captions | digit | slant | thickness | goal |",
        "|---|---|---|---|---|---|---|---|---|---|---|"]  # fmt: skip


def rows(run: Run, classifiers: list[AttributeClassifier], network: str, guidance: float, count: int, seed: int) -> list[str]:
    """Draw captions of held-out data and of combinations left out, and return a line of figures for each."""
    data = load_data(run.config.data.source)
    held, told = data.split(run.config.data.seed)[1].conditions, data.conditions
    assert held is not None and told is not None
    order = torch.randperm(len(told.unseen), generator=torch.Generator().manual_seed(0))[:count]
    asked = {"seen": list(held.captions[:count]), "never seen": [told.unseen[int(k)] for k in order]}
    sets = {name: (sample_captions(run, captions, seed, {"guidance": guidance}), captions) for name, captions in asked.items()}
    found = caption_accuracy(classifiers, sets)
    last = run.metrics()[-1]
    lines = []
    for name, captions in asked.items():
        shares = [found[f"{attribute}, {name}"] for attribute in ("digit", "slant", "thickness")]
        said = " | ".join(f"{f['value']:.3f} ± {f['error']:.3f} (shuffled {f['shuffled']:.2f})" for f in shares)
        lines.append(
            f"| {run.config.data.name} | {network} | {last['seconds']:.0f} | {last['i']:,} | {guidance:g} | {seed} |"
            f" {len(captions)} {name} | {said} | {GOALS[name]} |"
        )
    return lines


def captions(seconds: float = SECONDS, seeds: tuple[int, ...] = (0, 1, 2), **options: Any) -> list[str]:
    """Train and measure, and return the table; by the embedded digits where MNIST is not on this machine."""
    data, networks = options.get("data", "captioned-mnist"), options.get("networks", ["unet-tiny"])
    guidance = options.get("guidance", [2.0])
    try:
        found = load_data(data)
    except UserError:
        found = load_data(data := "captioned-digits")
    classifiers = train_attribute_classifiers(*found.split(0))
    told = ", ".join(f"{classifier.attribute.name} {classifier.accuracy:.3f}" for classifier in classifiers)
    lines = [f"Accuracy of the classifiers on unseen real digits: {told} (of {classifiers[0].test_count:,}).", "", *HEAD]
    print(*lines, sep="\n", flush=True)
    for network in networks:
        for seed in seeds:
            with tempfile.TemporaryDirectory() as aside:
                run = options.get("run") or reverie.train(
                    data,
                    Path(aside) / "run",
                    minutes=seconds / 60,
                    clock="processor",
                    network=network,
                    seed=seed,
                    progress=False,
                )
                for scale in guidance:
                    made = rows(run, classifiers, network, scale, options.get("count", 512), seed)
                    print(*made, sep="\n", flush=True)
                    lines += made
    return lines


def main() -> None:
    """Measure what is asked for and print it as it comes."""
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    asked.add_argument("--data", default="captioned-mnist", help="or captioned-digits, which needs no files")
    asked.add_argument("--networks", nargs="+", default=["unet-tiny"])
    asked.add_argument("--cpu-seconds", type=float, default=SECONDS)
    asked.add_argument("--guidance", type=float, nargs="+", default=[2.0])
    asked.add_argument("--count", type=int, default=512, help="samples of each kind")
    asked.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    asked.add_argument("--run", type=Path, help="measure this run instead of training")
    given = asked.parse_args()
    torch.set_num_threads(1)
    print(machine(), flush=True)
    run = reverie.load(given.run) if given.run else None
    options = {"data": given.data, "networks": given.networks, "guidance": given.guidance, "count": given.count, "run": run}
    captions(given.cpu_seconds, tuple(given.seeds[:1] if run else given.seeds), **options)


if __name__ == "__main__":
    main()
