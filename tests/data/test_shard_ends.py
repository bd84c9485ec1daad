"""A program that waits for a silent server ends on request."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.data.served import serving


@pytest.mark.slow
def test_ctrl_c_ends_a_training_that_waits_for_a_server(shards: Path, tmp_path: Path) -> None:
    with serving(shards.parent) as server:
        server.stalled.update(path.name for path in shards.glob("*.tar"))
        words = [sys.executable, "-m", "reverie", "inspect", f"{server.address}/shards", "--out", str(tmp_path / "sheet.png")]
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as child:
            for _ in range(600):
                if sum(server.requests[path.name] for path in shards.glob("*.tar")) > 10:
                    break
                time.sleep(0.1)
            begun = time.monotonic()
            child.send_signal(signal.SIGINT)
            child.communicate(timeout=20)
            assert child.returncode == 130 and time.monotonic() - begun < 10
