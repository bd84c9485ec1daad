"""Inpainting and inverse problems on held-out digits: PSNR, residual and time."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from benchmarks.images import mnist, mnist_folder
from reverie.base.spec import build
from reverie.data.idx import read_pair
from reverie.diffusion.known import INPAINTERS
from reverie.diffusion.measurements import Blur, Keep, Measurement, Pool
from reverie.runs.run import Run
from reverie.runs.sampling_options import Options

COUNT = 32
MISSING = ["MNIST was not found; set REVERIE_DATA."]
COMMON = ("moment", "moment:products=3", "dps", "dps:scale=1", "dps:scale=6")
REPLACING = ("replace", "repaint:repeats=2", "repaint", "repaint:jump=1,repeats=5")


def left_half() -> Tensor:
    """Return which pixels of a digit are known: all but the left half."""
    known = torch.ones(1, 28, 28, dtype=torch.bool)
    known[..., :14] = False
    return known


TASKS: dict[str, tuple[Measurement, tuple[str, ...]]] = {
    "inpaint left half": (Keep(left_half()), (*COMMON, *REPLACING)),
    "upscale 4x": (Pool(4), COMMON),
    "deblur": (Blur(2.0), COMMON),
}


def held_out() -> Tensor | None:
    """Return the first test digits in model units: (COUNT, 1, 28, 28)."""
    folder = mnist_folder()
    if folder is None:
        return None
    pixels = read_pair(folder / "t10k-images-idx3-ubyte.gz", None)[0]
    return torch.from_numpy(pixels[:COUNT].copy()).float().div(127.5).sub(1)[:, None]


def line(run: Run, z: Tensor, task: str, method: str) -> str:
    """Sample one result for each digit and measure it."""
    measure, inpainter = TASKS[task][0], build(INPAINTERS, method, "method")
    y = measure(z)
    options: Options = {"guidance": 0.0, "grid": inpainter.grid(None)}
    start = time.perf_counter()
    *_, last = run.frames(len(z), steer=inpainter.steer(measure, y, 0.0, lambda solved: None), **options)
    spent = time.perf_counter() - start
    x = last.x0.clamp(-1, 1)
    free = ~measure.known if isinstance(measure, Keep) else torch.ones_like(z[0], dtype=torch.bool)
    error = ((x - z)[:, free] / 2).square().mean(1)
    gap = ((measure(x) - y) / 2).flatten(1).square().mean(1).sqrt()
    return f"| {task} | {method} | {(-10 * error.log10()).mean():.1f} | {gap.mean():.4f} | {1e3 * spent / len(z):.0f} |"


def restoration(run: Run | None = None) -> list[str]:
    """Measure every task and method; run: a run to use instead of the benchmark's own."""
    known, z = (None, held_out()) if run is not None else (mnist(), held_out())
    run = run if run is not None else known.run if known is not None else None
    if run is None or z is None:
        return MISSING
    return [
        f"The first {COUNT} test digits, one result each, DDPM of 40 steps, no label.  PSNR in dB, over the filled half for"
        " inpainting; residual: root mean square of A(x) - y, of values from 0 to 1.",
        "",
        "| task | method | PSNR | residual | ms each |",
        "|---|---|---|---|---|",
        *(line(run, z, task, method) for task, (_, methods) in TASKS.items() for method in methods),
    ]
