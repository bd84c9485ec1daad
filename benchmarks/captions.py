"""Text to image: how often samples match digit, slant and thickness of captions in training and of held-out combinations.

    REVERIE_DATA=DIR python -m benchmarks.captions --seeds 0 --networks unet-tiny unet-tiny:attends=yes

550 seconds of one thread equal five minutes of two cores; trainings are limited by CPU time.  The classifiers are
LeNets trained on real digits of all combinations.
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
GOALS = {"in training": "0.97 / 0.90 / 0.85", "held out": "0.88 / 0.90 / 0.90"}
HEAD = ["| data | network | seconds of one thread | steps | guidance | seed | captions | digit | slant | thickness |",
        "|---|---|---|---|---|---|---|---|---|---|---|"]  # fmt: skip


def rows(run: Run, classifiers: list[AttributeClassifier], network: str, guidance: float, count: int, seed: int) -> list[str]:
    """Sample with captions of held-out data and of held-out combinations, and return a row of the table for each."""
    data = load_data(run.config.data.source)
    held, conditions = data.split(run.config.data.seed)[1].conditions, data.conditions
    assert held is not None and conditions is not None
    order = torch.randperm(len(conditions.unseen), generator=torch.Generator().manual_seed(0))[:count]
    sets_of = {"in training": list(held.captions[:count]), "held out": [conditions.unseen[int(k)] for k in order]}
    sets = {
        name: (sample_captions(run, captions, seed, {"guidance": guidance}), captions) for name, captions in sets_of.items()
    }
    found = caption_accuracy(classifiers, sets)
    last = run.metrics()[-1]
    lines = []
    for name, captions in sets_of.items():
        shares = [found[f"{attribute}, {name}"] for attribute in ("digit", "slant", "thickness")]
        cells = " | ".join(f"{f['value']:.3f} ± {f['error']:.3f} (shuffled {f['shuffled']:.2f})" for f in shares)
        lines.append(
            f"| {run.config.data.name} | {network} | {last['seconds']:.0f} | {last['i']:,} | {guidance:g} | {seed} |"
            f" {len(captions)} {name} | {cells} |"
        )
    return lines


def captions(seconds: float = SECONDS, seeds: tuple[int, ...] = (0, 1, 2), **options: Any) -> list[str]:
    """Train and measure, and return the table; with the embedded digits if MNIST is not on this machine."""
    data, networks = options.get("data", "captioned-mnist"), options.get("networks", ["unet-tiny"])
    guidance = options.get("guidance", [2.0])
    try:
        found = load_data(data)
    except UserError:
        found = load_data(data := "captioned-digits")
    classifiers = train_attribute_classifiers(*found.split(0))
    accuracies = ", ".join(f"{classifier.attribute.name} {classifier.accuracy:.3f}" for classifier in classifiers)
    lines = [
        f"Accuracy of the classifiers on held-out real digits: {accuracies} (of {classifiers[0].test_count:,}).",
        "",
        *HEAD,
    ]
    print(*lines, sep="\n", flush=True)
    for network in networks:
        for seed in seeds:
            with tempfile.TemporaryDirectory() as temporary:
                run = options.get("run") or reverie.train(
                    data,
                    Path(temporary) / "run",
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
    """Measure and print the selected cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", default="captioned-mnist", help="or captioned-digits, which needs no files")
    parser.add_argument("--networks", nargs="+", default=["unet-tiny"])
    parser.add_argument("--cpu-seconds", type=float, default=SECONDS)
    parser.add_argument("--guidance", type=float, nargs="+", default=[2.0])
    parser.add_argument("--count", type=int, default=512, help="samples of each type")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--run", type=Path, help="measure this run instead of training")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(machine(), flush=True)
    run = reverie.load(args.run) if args.run else None
    options = {"data": args.data, "networks": args.networks, "guidance": args.guidance, "count": args.count, "run": run}
    captions(args.cpu_seconds, tuple(args.seeds[:1] if run else args.seeds), **options)


if __name__ == "__main__":
    main()
