"""Estimates of training on GPUs for work of three sizes: the tables of docs/developers/experiments/gpus.md.

python -m tools.scale            print them
python -m tools.scale --write    write them to docs/developers/experiments/gpus.md, between its two marks

Counted: parameters, floating-point operations and kernels of the networks. Measured: the share of the sgemm rate that they
reach on two cores, from docs/benchmarks.md. Assumed: everything about GPUs, interconnects and prices (`Hardware`).
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from reverie.base.spec import Spec, build
from reverie.diffusion.plan import network_for
from reverie.nets import NETWORKS

DOCS = Path(__file__).parent.parent / "docs"
PAGE, MEASURED = DOCS / "developers" / "experiments" / "gpus.md", DOCS / "benchmarks.md"
BEGIN, END = "<!-- made by python -m tools.scale -->", "<!-- end of the tables -->"
GPUS = (1, 8, 64)
IN_A_NODE = 8


@dataclass(frozen=True)
class Hardware:
    """A GPU and its interconnect, by data sheets; not measured.

    peak: dense bfloat16 operations a second; share: of the efficiency measured on the CPU that the GPU reaches; launch: minimal
    seconds of a kernel; inside, between: bytes a second of each GPU within a node, and of a node to others; price: dollars an
    hour of a GPU.
    """

    name: str = "A100 (SXM, 80 GB)"
    peak: float = 312e12
    share: float = 0.5
    launch: float = 8e-6
    inside: float = 300e9
    between: float = 25e9
    price: float = 2.0


@dataclass(frozen=True)
class Work:
    """A training. efficiency: share of the sgemm rate on two cores; images: seen in total; batch: of a step, on all GPUs."""

    name: str
    shape: tuple[int, int, int]
    network: str | Spec
    efficiency: float
    batch: int
    images: float


def efficiency(network: str) -> float:
    """Return the share of the sgemm rate that a network reached in float32, from the benchmark's table of training speed."""
    found = re.search(rf"^\| {network}, [^,|]* \|(?:[^|]*\|){{2}} (\d+)% \|", MEASURED.read_text(), re.MULTILINE)
    if found is None:
        raise SystemExit(
            f"{MEASURED.name} has no training speed of {network}; run: python -m benchmarks.run --only 'Training speed'"
        )
    return int(found[1]) / 100


LARGE = {"name": "unet", "widths": (192, 384, 576), "blocks": 3, "stem": 1}
WORKS = (  # 200 and 2,500 million images: arXiv:2206.00364
    Work("MNIST, 28 x 28", (1, 28, 28), "unet-small", efficiency("unet-small"), 512, 20e6),
    Work("CIFAR-10, 32 x 32", (3, 32, 32), "unet-base", efficiency("unet-base"), 512, 200e6),
    Work("ImageNet-64", (3, 64, 64), LARGE, efficiency("unet-base"), 4096, 2.5e9),
)


class Kernels(TorchDispatchMode):
    """Counts the operations that torch sends to a device, without views."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch gives it no types
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count an operation and run it."""
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class Counted:
    """Size and cost of a network: parameters, operations of training on one image, kernels of a step."""

    parameters: int
    flops: float
    kernels: int


def count(work: Work) -> Counted:
    """Count forward and backward of one image, on tensors without memory."""
    with torch.device("meta"):
        net: Any = build(NETWORKS, network_for(work.shape, 10, work.network), "network")
        x, level = torch.empty(1, *work.shape), torch.empty(1)
        label = torch.empty(1, dtype=torch.int64)
        with FlopCounterMode(display=False) as flops, Kernels() as kernels:
            (net(x, level, label) - x).square().mean().backward()
    return Counted(sum(p.numel() for p in net.parameters()), float(flops.get_total_flops()), kernels.count)


def all_reduce(parameters: int, gpus: int, hardware: Hardware) -> tuple[float, float]:
    """Return the bytes that each GPU sends a step, 4 P 2 (n - 1) / n, and the seconds that this takes.

    Within a node at its rate; beyond, the link of a node carries what one GPU sends, because the ring passes each node once.
    """
    sent = 4 * parameters * 2 * (gpus - 1) / gpus
    rate = hardware.inside if gpus <= IN_A_NODE else min(hardware.inside, hardware.between)
    return sent, sent / rate


@dataclass(frozen=True)
class Estimate:
    """Estimate for a number of GPUs: images a second, share of linear scaling, traffic, hours and dollars for all images."""

    gpus: int
    images: float
    scaling: float
    sent: float
    hours: float
    dollars: float
    read: float
    by: str


def estimates(work: Work, counted: Counted, hardware: Hardware) -> list[Estimate]:
    """Return an estimate for each number of GPUs; the gradient is sent after the backward pass, not during it."""
    found = list[Estimate]()
    for gpus in GPUS:
        computing = work.batch / gpus * counted.flops / (hardware.peak * work.efficiency * hardware.share)
        launching = counted.kernels * hardware.launch
        sent, sending = all_reduce(counted.parameters, gpus, hardware)
        parts = {"computing": computing, "launching kernels": launching, "sending gradients": sending}
        rate = work.batch / (max(computing, launching) + sending)
        hours = work.images / rate / 3600
        one = found[0].images if found else rate
        found.append(
            Estimate(
                gpus, rate, rate / one / gpus, sent, hours, hours * gpus * hardware.price,
                rate * work.shape[0] * work.shape[1] * work.shape[2], max(parts, key=lambda part: parts[part]),
            )
        )  # fmt: skip
    return found


def short(number: float) -> str:
    """Return a number with at most three digits."""
    for size, unit in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}" if number >= 0.1 else f"{number:.1g}"


def tables(hardware: Hardware | None = None) -> list[str]:
    """Return the lines of the tables."""
    hardware = hardware or Hardware()
    counts = {work.name: count(work) for work in WORKS}
    rows = [
        "| work | network | parameters | operations per image | kernels per step | batch | images seen |",
        "|---|---|---|---|---|---|---|",
    ]
    for work in WORKS:
        c = counts[work.name]
        name = work.network if isinstance(work.network, str) else f"unet {tuple(work.network['widths'])}"
        cells = (work.name, name, short(c.parameters), short(c.flops), f"{c.kernels:,}", f"{work.batch:,}", short(work.images))
        rows.append(f"| {' | '.join(cells)} |")
    rows += [
        "",
        "| work | GPUs | images/s | of linear scaling | sent per GPU and step | data read | hours | dollars | limited by |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for work in WORKS:
        for e in estimates(work, counts[work.name], hardware):
            row = (
                work.name, str(e.gpus), short(e.images), f"{e.scaling:.0%}", f"{short(e.sent)}B", f"{short(e.read)}B/s",
                short(e.hours), short(e.dollars), e.by,
            )  # fmt: skip
            rows.append(f"| {' | '.join(row)} |")
    return rows


def written(page: str, rows: list[str]) -> str:
    """Return the page with the tables between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return "\n".join([before + BEGIN, "", *rows, "", END + after])


def main() -> None:
    """Print or write the tables."""
    rows = tables()
    if "--write" in sys.argv:
        PAGE.write_text(written(PAGE.read_text(), rows))
    else:
        print("\n".join(rows))


if __name__ == "__main__":
    main()
