"""Every reader of data, run file, command-line option and route of the studio meets damaged files and unreasonable values.

None may end in a traceback, take more than 20 s or 1.5 GB, print what steers a terminal, or change a byte of what it was
given, and no cell of a table may be lost or changed without a word.  A case is made from its number alone:
`python -m tests.fuzz.worker 17 18` runs the one of that number.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.worker import SECONDS

ROOT = Path(__file__).parents[2]
FEW, MANY = 350, 20_000
SILENT = 12 * SECONDS  # after so long without a word a process is stuck where not even its alarm is heard


def survive(first: int, end: int) -> list[dict[str, object]]:
    """Return the cases that went wrong; a process that dies or is stuck loses the case it was at."""
    wrong: list[dict[str, object]] = []
    while first < end:
        words = [sys.executable, "-m", "tests.fuzz.worker", str(first), str(end)]
        paths = os.pathsep.join(filter(None, [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
        environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
            assert process.stdout is not None and process.stderr is not None
            heard = selectors.DefaultSelector()
            heard.register(process.stdout, selectors.EVENT_READ)
            at, why = first, ""
            while True:
                if not heard.select(SILENT):
                    process.kill()
                    why = f"stuck for {SILENT:.0f} s"
                line = process.stdout.readline()
                if not line:
                    break
                news = json.loads(line)
                at = news.get("begins", at)
                wrong += [news] if "wrong" in news else []
            if at < end:
                why = why or f"the process ended: {process.stderr.read()[-2000:].decode(errors='replace')}"
                wrong.append({"case": at, "wrong": why})
        first = at + 1
    return wrong


def test_some_damaged_files_and_fuzzed_options_are_read_or_refused() -> None:
    found = survive(0, FEW)
    assert not found, json.dumps(found[:5], indent=1)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_many_damaged_files_and_fuzzed_options_are_read_or_refused(part: int) -> None:
    found = survive(FEW + part * MANY // 4, FEW + (part + 1) * MANY // 4)
    assert not found, json.dumps(found[:20], indent=1)
