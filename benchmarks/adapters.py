"""Few new images for a trained run: a low-rank adapter, all weights, and training from scratch, for equal steps.

python -m benchmarks.adapters RUN [METHOD ...]     RUN: of MNIST; data: 500 images of Hoda, measured on 500 others
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
METHODS: dict[str, dict[str, Any]] = {"lora": {"lora": "rank=8"}, "all weights": {}, "from scratch": {}}


def _part(data: Dataset, first: int, count: int) -> Dataset:
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
    return data.take(order[first : first + count])


def measured(run: Path, method: str) -> str:
    """Train with one method and return a row: CPU seconds, held-out loss, size of the new file."""
    data = load_data("hoda", size="28")
    few, others = _part(data, 0, COUNT), _part(data, COUNT, HELD)
    x, labels = few.batch(torch.arange(len(few)))
    assert labels is not None
    images = (255 * x[:, 0]).round().byte().numpy(), [few.label_names[int(k)] for k in labels]
    with TemporaryDirectory() as place:
        begun = time.process_time()
        start: dict[str, Any] = {} if method == "from scratch" else {"start_from": run}
        options: dict[str, Any] = {
            **METHODS[method],
            **start,
            "steps": STEPS,
            "seed": 0,
            "augment": "none",
            "network": "unet-tiny",
        }
        if start:
            options.pop("network")
        made = reverie.train(images, Path(place) / "run", progress=False, **options)
        seconds = time.process_time() - begun
        loss = made.model.held_out_metrics(others, 0)["held_out"]
        file = made.path / (ADAPTER_FILE if method == "lora" else "model.safetensors")
        size = file.stat().st_size
    return f"| {method} | {seconds:.0f} | {loss:.4f} | {size / 1e6:.2f} |"


def main() -> None:
    """Measure the named methods, or all."""
    torch.set_num_threads(1)
    run = Path(sys.argv[1])
    print(f"| method, {STEPS} steps | processor s | held-out loss | new MB |\n|---|---|---|---|")
    if not sys.argv[2:]:
        before = reverie.load(run, "cpu").model.held_out_metrics(_part(load_data("hoda", size="28"), COUNT, HELD), 0)[
            "held_out"
        ]
        print(f"| the base run | 0 | {before:.4f} | |", flush=True)
    for method in sys.argv[2:] or METHODS:
        print(measured(run, method), flush=True)


if __name__ == "__main__":
    main()
