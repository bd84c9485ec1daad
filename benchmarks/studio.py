"""The studio: time of the first image against `run.sample`, load of an idle server, and size of the page.

python -m benchmarks.studio
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import reverie
from reverie.studio.app import STATIC
from reverie.studio.library import path_id

ROUNDS, IDLE = 7, 20.0  # samplings of each kind; seconds of watching an idle server
TICK = os.sysconf("SC_CLK_TCK")
NOT_OF_THE_PAGE = ("LICENSE",)


def processor_seconds(pid: int) -> float:
    """Return the CPU time of a process (proc_pid_stat(5))."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / TICK


@contextmanager
def served(folder: Path) -> Iterator[tuple[int, str, str]]:
    """Start a studio and yield its process, address and token."""
    words = [sys.executable, "-m", "reverie", "studio", str(folder), "--no-browser"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found is not None
        parts = urlsplit(found[0])
        yield process.pid, parts.netloc, parts.query.removeprefix("token=")
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)


def ask(place: str, token: str, path: str, body: object = None) -> bytes:
    """Send a request to the studio and return the whole response."""
    connection = http.client.HTTPConnection(place, timeout=600)
    port = place.rpartition(":")[2]
    headers = {"Origin": f"http://{place}", "Cookie": f"reverie-{port}={token}", "Content-Type": "application/json"}
    connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body).encode(), headers)
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    return answer.read()


def page_weight() -> int:
    """Return the bytes of all files of the page."""
    return sum(p.stat().st_size for p in STATIC.rglob("*") if p.is_file() and not p.name.startswith(NOT_OF_THE_PAGE))


def studio() -> list[str]:
    """Measure all three and return the table."""
    with TemporaryDirectory() as folder:
        root = Path(folder)
        run = reverie.train("digits", root / "runs" / "digits", steps=3, network="unet-tiny", progress=False)
        request = {"run": path_id("runs/digits"), "n": 1, "seed": 0, "autoguidance": 1.0}
        page, plain, busy, own = [], [], [], []
        with served(root) as (pid, place, token):
            ask(place, token, "/api/studio")
            for k in range(ROUNDS + 1):  # the first is a warm-up
                began, before = time.perf_counter(), processor_seconds(pid)
                assert b"event: done" in ask(place, token, "/api/jobs/sample", request)
                middle, after = time.perf_counter(), processor_seconds(pid)
                mine = time.process_time()
                run.sample(1, seed=0, autoguidance=1.0)
                if k:
                    page.append(middle - began)
                    plain.append(time.perf_counter() - middle)
                    busy.append(after - before)
                    own.append(time.process_time() - mine)
            time.sleep(2)
            before = processor_seconds(pid)
            time.sleep(IDLE)
            idle = (processor_seconds(pid) - before) / IDLE
    first, peer = statistics.median(page), statistics.median(plain)
    work, mine = statistics.median(busy), statistics.median(own)
    lines = [
        "| what | figure | limit |",
        "|---|---|---|",
        f"| first image of 28 x 28 on the page, with its film | {first:.2f} s, {first / peer:.2f} x `run.sample(1)` | 1.5 x |",
        f"| the same in CPU time | {work:.2f} s, {work / mine:.2f} x | 1.5 x |",
        f"| idle server | {100 * idle:.2f} % of a core over {IDLE:.0f} s | 1 % |",
        f"| page, without images | {page_weight() / 1000:.0f} kB | 300 kB |",
    ]
    print("\n".join(lines), flush=True)
    return lines


if __name__ == "__main__":
    studio()
