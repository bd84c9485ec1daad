"""Timing of two implementations in turn, on the same machine."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True)
class Row:
    """One comparison: seconds of Reverie and of the peer, and their ratio."""

    what: str
    ours: float
    peer: float
    note: str

    @property
    def ratio(self) -> float:
        """How many times faster Reverie is."""
        return self.peer / self.ours


def side_by_side(what: str, ours: Callable[[], object], peer: Callable[[], object], note: str, rounds: int = 7) -> Row:
    """Run both in turn after one warm-up each and compare the medians."""
    times: tuple[list[float], list[float]] = ([], [])
    for k in range(rounds + 1):
        for run, durations in zip((ours, peer), times, strict=True):
            start = time.perf_counter()
            run()
            if k:
                durations.append(time.perf_counter() - start)
    row = Row(what, statistics.median(times[0]), statistics.median(times[1]), note)
    print(f"{row.what:<58} {row.ours * 1e3:9.2f} ms {row.peer * 1e3:9.2f} ms   x{row.ratio:.2f}", flush=True)
    return row


def machine() -> str:
    """Describe this machine in one line."""
    processor = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        processor = models[0] if models else processor
    return (
        f"{processor}, {os.cpu_count()} cores, {torch.get_num_threads()} threads, {platform.system()},"
        f" Python {platform.python_version()}, torch {torch.__version__}"
    )


def write_rows(rows: list[Row], path: Path) -> None:
    """Write the table at the head of a page; its sections are kept."""
    there = path.read_text() if path.exists() else ""
    head = [
        "# Benchmarks",
        "",
        "How fast and how good is Reverie, next to other libraries and published results? Written by `make bench` (long",
        "sections by `make bench-all`); one section by",
        "`python -m benchmarks.run --only TITLE`. Each row runs both sides in turn in one process; medians of seven rounds",
        "(three for Sinkhorn, one in the log domain).",
        "",
        f"Machine: {machine()}.",
        "",
        "| what | Reverie | peer | ratio | peer and setting |",
        "|---|---|---|---|---|",
        *(f"| {r.what} | {r.ours * 1e3:.2f} ms | {r.peer * 1e3:.2f} ms | {r.ratio:.2f} x | {r.note} |" for r in rows),
        "",
        "",
    ]
    path.write_text("\n".join(head) + there[there.find("## ") :] if "## " in there else "\n".join(head))


def write_section(title: str, text: list[str], path: Path) -> None:
    """Replace the section of a page with this title, or add it at the end."""
    head, *sections = path.read_text().split("\n## ") if path.exists() else [""]
    titles = [section.partition("\n")[0] for section in sections]
    new = "\n".join([title, "", *text, ""])
    if title in titles:
        sections[titles.index(title)] = new
    else:
        sections.append(new)
    path.write_text("\n## ".join([head, *(f"{section.rstrip()}\n" for section in sections)]))
