"""Training speed of image networks against a peer and the matrix product of the machine, and quality on MNIST."""

from __future__ import annotations

import atexit
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

import reverie
from reverie.base.spec import build
from reverie.data import load_data
from reverie.data.idx import read_pair
from reverie.diffusion.plan import PRESETS
from reverie.evaluation.metrics.frechet import frechet_distance
from reverie.nets import NETWORKS
from reverie.nets.lenet import LeNet, accuracy, features_and_classes, train_classifier
from reverie.runs.run import Run
from reverie.training.optimizer import muon

BATCH = 64


def seconds(run: Callable[[], object], rounds: int = 12) -> float:
    """Return the median time of a call, after three warm-up calls."""
    times = []
    for k in range(rounds + 3):
        start = time.perf_counter()
        run()
        if k >= 3:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def sgemm() -> float:
    """Return the machine's rate of float32 2048 x 2048 products, in operations a second."""
    a = torch.randn(2048, 2048)
    return 2 * 2048**3 / seconds(lambda: a @ a, 9)


def trainer(net: Callable[[Tensor, Tensor], Tensor], optimizers: list[Any], x: Tensor, low: bool = False) -> Callable[[], None]:
    """Return a function for one training step: forward (low: in bfloat16), backward, optimizers."""
    level = torch.randn(len(x))

    def step() -> None:
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            y = net(x, level)
        (y.float() - x).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()

    return step


def operations(call: Callable[[], object]) -> int:
    """Return the multiplications and additions of a call."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        call()
    return int(counter.get_total_flops())


def network(name: str) -> tuple[nn.Module, int]:
    """Return one of our networks for 28 x 28 grey images with labels, and its operations for one image."""
    net = build(NETWORKS, {**PRESETS[name], "labels": 10}, "network")
    return net, operations(lambda: net(torch.zeros(1, 1, 28, 28), torch.zeros(1), None))


def throughput() -> list[str]:
    """Compare images a second of a training step, and the share of the machine's arithmetic, side by side."""
    import diffusers

    make: Any = diffusers.UNet2DModel
    peer = make(
        sample_size=32, in_channels=1, out_channels=1, layers_per_block=1, block_out_channels=(32, 64, 128),
        down_block_types=("DownBlock2D", "DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    adamw = torch.optim.AdamW(peer.parameters(), fused=True)
    step = trainer(lambda x, level: peer(x, level).sample, [adamw], torch.randn(BATCH, 1, 32, 32))
    theirs, rate = BATCH / seconds(step, 4), sgemm()
    work = operations(lambda: peer(torch.zeros(1, 1, 32, 32), torch.zeros(1)))
    share = 3 * work * theirs / rate
    lines = [
        "| network | images/s in training | against the peer | share of the sgemm rate | relative to the peer's share |",
        "|---|---|---|---|---|",
        f"| diffusers UNet2DModel (32, 64, 128), 32 x 32 | {theirs:.0f} | 1 | {share:.0%} | 1 |",
    ]
    for name in ("unet-tiny", "unet-small", "unet-base"):
        net, count = network(name)
        for low in (False, True):
            step = trainer(partial(net, cond=None), muon(net, 1e-4, 0.0), torch.randn(BATCH, 1, 28, 28), low)
            ours = BATCH / seconds(step)
            mine = 3 * count * ours / rate
            called = f"{name}, 28 x 28{', bfloat16' * low}"
            lines.append(f"| {called} | {ours:.0f} | {ours / theirs:.1f} x | {mine:.0%} | {mine / share:.1f} x |")
    print("\n".join(lines), flush=True)
    about = (
        f"Batch {BATCH}; Reverie with Muon, the peer with fused AdamW; sgemm {rate / 1e9:.0f} GFLOP/s. The last column:"
        " the ratio of speeds for equal numbers of operations."
    )
    return [about, "", *lines]


PARTS = {
    "convolutions": "conv", "attention": "scaled_dot_product", "SiLU": "silu", "normalisation": "group_norm",
    "dense layers": "mm",
}  # fmt: skip


def parts() -> list[str]:
    """Return the shares of forward and backward time, by the profiler of torch."""
    from torch.profiler import ProfilerActivity, profile

    lines = ["| part of forward and backward | " + " | ".join(names := ("unet-tiny", "unet-small")) + " |", "|---|---|---|"]
    shares: dict[str, list[float]] = {part: [] for part in (*PARTS, "all else")}
    for name in names:
        step = trainer(partial(network(name)[0], cond=None), [], torch.randn(BATCH, 1, 28, 28))
        step()
        with profile(activities=[ProfilerActivity.CPU]) as found:
            for _ in range(5):
                step()
        rows = {row.key: float(row.self_cpu_time_total) for row in found.key_averages()}
        whole, named = sum(rows.values()), 0.0
        for part, key in PARTS.items():
            taken = sum(time for what, time in rows.items() if key in what.casefold())
            shares[part].append(taken / whole)
            named += taken / whole
        shares["all else"].append(1 - named)
    lines += [f"| {part} | " + " | ".join(f"{share:.0%}" for share in each) + " |" for part, each in shares.items()]
    print("\n".join(lines), flush=True)
    about = "Shares of the time; a fused normalisation with SiLU could save at most the share of both, less one pass:"
    return ["", about, "", *lines]


def costs() -> list[str]:
    """Measure the speed of the default training step with one change at a time."""

    def speed(batch: int = BATCH, optimizer: str = "muon", change: Callable[[nn.Module], None] = lambda net: None) -> float:
        net, _ = network("unet-tiny")
        change(net)
        kinds: dict[str, Callable[[], list[Any]]] = {
            "muon": lambda: muon(net, 1e-4, 0.0),
            "fused": lambda: [torch.optim.AdamW(net.parameters(), fused=True)],
            "plain": lambda: [torch.optim.AdamW(net.parameters(), foreach=False)],
            "foreach": lambda: [torch.optim.AdamW(net.parameters(), foreach=True)],
        }
        return batch / seconds(trainer(partial(net, cond=None), kinds[optimizer](), torch.randn(batch, 1, 28, 28)), 20)

    def without_norms(net: nn.Module) -> None:
        for module in list(net.modules()):
            for name, child in module.named_children():
                if isinstance(child, nn.GroupNorm):
                    setattr(module, name, nn.Identity())

    usual = speed()
    rows = [("default: batch 64, GroupNorm, SiLU, Muon", usual)]
    rows += [(f"batch {size}", speed(size)) for size in (16, 32, 128, 256)]
    rows += [(f"AdamW, {kind}", speed(optimizer=kind)) for kind in ("fused", "foreach", "plain")]
    rows += [("no normalisation", speed(change=without_norms))]
    with patch("torch.nn.functional.silu", nn.functional.relu):
        rows += [("ReLU instead of SiLU", speed())]
    lines = ["| unet-tiny, one change | images/s | ratio |", "|---|---|---|"]
    lines += [f"| {what} | {rate:.0f} | {rate / usual:.2f} |" for what, rate in rows]
    print("\n".join(lines), flush=True)
    return ["", "Cost of each part of a training step:", "", *lines]


def mnist_folder() -> Path | None:
    """Return the folder of the MNIST files, if there is one."""
    places = (os.environ.get("REVERIE_DATA", ""), str(Path(__file__).parents[2] / "shared" / "data"))
    return next((Path(p) / "mnist" for p in places if p and (Path(p) / "mnist").is_dir()), None)


@dataclass(frozen=True)
class Mnist:
    """A run trained on MNIST for some minutes, with the classifier and images to measure its samples."""

    run: Run
    net: LeNet
    images: Tensor
    real: Tensor
    accuracy: float

    def distance(self, images: np.ndarray) -> float:
        """Return the Fréchet distance of images, (N, 28, 28) in [0, 1], to the 60,000 training images."""
        return frechet_distance(features_and_classes(self.net, torch.from_numpy(images)[:, None])[0], self.real)


@cache
def mnist(minutes: float = 5.0) -> Mnist | None:
    """Train LeNet and a model with labels on MNIST, once for all benchmarks; None without the files."""
    folder = mnist_folder()
    if folder is None:
        return None
    data = load_data(str(folder))
    images, labels = data.batch(torch.arange(len(data)))
    assert labels is not None
    net = train_classifier(lambda index: (images[index], labels[index]), len(images), (1, 28, 28), 10)
    pixels, digits = read_pair(folder / "t10k-images-idx3-ubyte.gz", folder / "t10k-labels-idx1-ubyte.gz")
    test, truth = torch.from_numpy(pixels)[:, None].float() / 255, torch.from_numpy(digits).long()
    place = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, place)
    run = reverie.train(str(folder), Path(place) / "run", minutes=minutes)
    return Mnist(run, net, images, features_and_classes(net, images)[0], accuracy(net, test, truth))


def quality(minutes: float = 5.0, count: int = 2000) -> list[str]:
    """Measure the Fréchet distance of 2,000 samples on LeNet's features, after five minutes of training on MNIST."""
    known = mnist(minutes)
    if known is None:
        return ["MNIST was not found, set REVERIE_DATA."]
    start = time.perf_counter()
    samples = known.run.sample(count, label="all").x
    per_image = (time.perf_counter() - start) / count
    steps = known.run.metrics()[-1]["i"]
    noise = torch.rand(count, 28, 28, generator=torch.Generator().manual_seed(0)).numpy()
    lines = [
        f"`reverie train mnist --minutes {minutes:g}` with labels: {steps:,} steps; {count:,} samples with the default sampler"
        f" ({', '.join(map(str, known.run.chosen_sampling({})))}; {per_image * 1e3:.1f} ms per image, seed 0).",
        f"Fréchet distance on 84 LeNet features (test accuracy {known.accuracy:.2%}) to the 60,000 training images:"
        f" **{known.distance(samples):.2f}**; {count:,} training images:"
        f" {known.distance(known.images[:count, 0].numpy()):.2f}; noise: {known.distance(noise):.0f}.",
    ]
    print("\n".join(lines), flush=True)
    return lines
