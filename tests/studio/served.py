"""The studio as a process, with its address."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Served:
    """A running studio.  address: with the token; origin: without."""

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self.process, self.address = process, address
        parts = urlsplit(address)
        self.origin, self.port, self.token = f"http://{parts.netloc}", int(parts.port or 0), parts.query.removeprefix("token=")

    @property
    def headers(self) -> dict[str, str]:
        return {"Origin": self.origin, "Cookie": f"reverie-{self.port}={self.token}", "Content-Type": "application/json"}

    def resident(self) -> int:
        """Return the resident memory of the server in bytes."""
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text())
        return int(found[1]) * 1024 if found else 0

    def stop(self) -> int:
        """Stop it as Ctrl-C does and return its exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(120)


@contextmanager
def served(folder: Path) -> Iterator[Served]:
    """Start a studio on a folder, and stop it at the end."""
    words = [sys.executable, "-m", "reverie", "studio", str(folder), "--no-browser"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found, line + (process.stderr.read() if process.stderr else "")
        yield Served(process, found[0])
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(120)
            except subprocess.TimeoutExpired:
                process.kill()
