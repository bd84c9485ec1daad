"""Few new images on top of a trained run: an adapter of low rank, all weights, and a start from nothing, for as many steps.

python -m benchmarks.adapters RUN [WAY ...]     RUN: of MNIST; data: 500 images of Hoda, measured on 500 others
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

import reverie
from reverie.data import load_data
from reverie.data.dataset import Dataset
from reverie.runs.adapters import ADAPTER_FILE

COUNT, HELD, STEPS = 500, 500, 100
WAYS: dict[str, dict[str, Any]] = {"lora": {"lora": "rank=8"}, "all weights": {}, "from nothing": {}}


def _part(data: Dataset, first: int, count: int) -> Dataset:
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
    return data.take(order[first : first + count])


def measured(run: Path, way: str) -> str:
    """Train one way and return a row: processor seconds, held-out loss, size of what is kept."""
    data = load_data("hoda", size="28")
    few, others = _part(data, 0, COUNT), _part(data, COUNT, HELD)
    x, labels = few.batch(torch.arange(len(few)))
    assert labels is not None
    images = (255 * x[:, 0]).round().byte().numpy(), [few.label_names[int(k)] for k in labels]
    with TemporaryDirectory() as place:
        begun = time.process_time()
        start: dict[str, Any] = {} if way == "from nothing" else {"start_from": run}
        options: dict[str, Any] = {**WAYS[way], **start, "steps": STEPS, "seed": 0, "augment": "none", "network": "unet-tiny"}
        if start:
            options.pop("network")
        made = reverie.train(images, Path(place) / "run", progress=False, **options)
        seconds = time.process_time() - begun
        loss = made.model.held_out_metrics(others, 0)["held_out"]
        file = made.path / (ADAPTER_FILE if way == "lora" else "model.safetensors")
        size = file.stat().st_size
    return f"| {way} | {seconds:.0f} | {loss:.4f} | {size / 1e6:.2f} |"


def main() -> None:
    """Measure the ways that were asked for, or all."""
    torch.set_num_threads(1)
    run = Path(sys.argv[1])
    print(f"| way, {STEPS} steps | processor s | held-out loss | MB kept |\n|---|---|---|---|")
    if not sys.argv[2:]:
        before = reverie.load(run, "cpu").model.held_out_metrics(_part(load_data("hoda", size="28"), COUNT, HELD), 0)[
            "held_out"
        ]
        print(f"| the base as it is | 0 | {before:.4f} | |", flush=True)
    for way in sys.argv[2:] or WAYS:
        print(measured(run, way), flush=True)


if __name__ == "__main__":
    main()
