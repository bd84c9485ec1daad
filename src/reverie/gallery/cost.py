"""Cost of a transformer: 2 N (d_k + d_v) n² + 4 N (d_k + d_v + d_ff) d n operations by formula, counted, and timed."""

from __future__ import annotations

import csv
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from reverie.base.files import atomic, check_folder
from reverie.draw.curves import label_axes
from reverie.draw.picture import CYCLE, INK, SOFT, figure, save
from reverie.nets.sequence import Decoder

LAYERS, HEADS = 2, 4
LENGTHS, WIDTHS = (64, 128, 256, 512, 1024, 2048), (32, 64, 128, 256, 512)
LENGTH, WIDTH = 256, 128  # fixed length and width while the other varies
REPEATS = 3


@dataclass(frozen=True)
class Cost:
    """Cost of one pass over n tokens: operations by formula and counted, and seconds of CPU time."""

    n: int
    d: int
    formula: float
    counted: float
    seconds: float


def formula(layers: int, n: int, d: int, d_k: int | None = None, d_v: int | None = None, d_ff: int | None = None) -> float:
    """Return the operations of a pass, two per multiply-add, in `layers` layers over n tokens of width d.

    Scores and weighted sums take (d_k + d_v) n² products; queries, keys, values and the output 2 (d_k + d_v) d n; the dense
    part 2 d_ff d n.  Defaults: d_k = d_v = d, all heads together, and d_ff = 4 d.
    """
    d_k, d_v, d_ff = d_k or d, d_v or d, d_ff or 4 * d
    return 2.0 * layers * (d_k + d_v) * n**2 + 4.0 * layers * (d_k + d_v + d_ff) * d * n


@torch.no_grad()
def measured(n: int, d: int, layers: int = LAYERS) -> Cost:
    """Count and time a pass of a transformer."""
    net, x = Decoder(d, layers, HEADS, "none", n).eval(), torch.randn(1, n, d)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:  # this backend uses plain matrix products
        net(x)
    net(x)
    times = []
    for _ in range(REPEATS):
        start = time.process_time()
        net(x)
        times.append(time.process_time() - start)
    return Cost(n, d, formula(layers, n, d), float(counter.get_total_flops()), min(times))


def draw(out: Path) -> list[Path]:
    """Draw cost by length and width, and write a table, into a folder."""
    check_folder(out)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        over_n, over_d = [measured(n, WIDTH) for n in LENGTHS], [measured(LENGTH, d) for d in WIDTHS]
    finally:
        torch.set_num_threads(threads)
    fig = figure(10, 4)
    for axes, rows, name in zip(fig.subplots(1, 2), (over_n, over_d), ("n", "d"), strict=True):
        xs = [getattr(row, name) for row in rows]
        axes.loglog(xs, [row.formula for row in rows], "-", color=SOFT, lw=4, alpha=0.5, label="formula")
        axes.loglog(xs, [row.counted for row in rows], "o", color=CYCLE[0], ms=5, label="counted")
        fixed = f"d = {WIDTH}" if name == "n" else f"n = {LENGTH}"
        xlabel = "tokens n" if name == "n" else "width d"
        label_axes(axes, f"{LAYERS} layers, {fixed}", xlabel, "operations")
        seconds = axes.twinx()
        seconds.loglog(xs, [1e3 * row.seconds for row in rows], "s--", color=CYCLE[1], ms=4, lw=1, label="time")
        seconds.set_ylabel("milliseconds on one thread", fontsize=9, color=CYCLE[1])
        seconds.spines[["top"]].set_visible(False)
        for twin in (axes, seconds):
            twin.set_xticks(xs, [str(p) for p in xs])
            twin.minorticks_off()
        lines = [*axes.lines, *seconds.lines]
        axes.legend(lines, [str(line.get_label()) for line in lines], fontsize=8, frameon=False, loc="upper left")
    fig.suptitle("Cost of a transformer: attention is quadratic in n, the rest quadratic in d", fontsize=10, color=INK)
    files = [out / "cost.png", out / "cost.csv"]
    save(fig, files[0])
    with atomic(files[1]) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(("n", "d", "formula", "counted", "milliseconds"))
        table.writerows((r.n, r.d, r.formula, r.counted, round(1e3 * r.seconds, 3)) for r in (*over_n, *over_d))
    return files
