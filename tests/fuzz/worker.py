"""Runs cases one after another in this process, and writes a line of JSON about each that went wrong.

python -m tests.fuzz.worker FIRST END: prints the number of each case on standard output when it starts.
"""

from __future__ import annotations

import faulthandler
import hashlib
import io
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from types import FrameType

import matplotlib
import torch
import typer

from reverie.base.errors import UserError
from reverie.cli import main as command_line
from tests.files import forget, peak
from tests.fuzz.cases import Case, make

SECONDS, BYTES = 20.0, 1.5e9
LIMIT = 6 * 2**30  # bytes of addresses beyond those at the start, for the machine's sake
UNSEEN = {chr(k) for k in (*range(32), *range(127, 160)) if chr(k) not in "\n\t"}


class Hangs(BaseException):
    """A case takes too long."""


def content(root: Path) -> dict[str, str]:
    """Return what is in a folder: a hash of each file."""
    found = {}
    for folder, inside, files in os.walk(root):
        for name in (*inside, *files):
            path = Path(folder, name)
            whole = path.read_bytes() if path.is_file() and not path.is_symlink() else b"folder"
            found[str(path.relative_to(root))] = hashlib.sha256(whole).hexdigest()
    return found


def attempt(case: Case, root: Path, encoding: str) -> str:
    """Run a case and return what was wrong with it, or nothing."""
    before = content(root)
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True) for _ in range(2))
    begun = time.process_time()

    def late(signal_number: int, frame: FrameType | None) -> None:
        if time.process_time() - begun > SECONDS or time.monotonic() - started > 6 * SECONDS:
            raise Hangs
        signal.setitimer(signal.ITIMER_REAL, 2.0)

    started = time.monotonic()
    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    forget()
    kept = sys.stdout, sys.stderr, sys.argv
    code, wrong = 2, ""
    try:
        sys.stdout, sys.stderr, sys.argv = out, err, ["reverie", *case.words]
        if case.call is not None:
            case.call()
        else:
            command_line.main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except UserError:
        pass
    except Hangs:
        wrong = "hangs: " + "".join(traceback.format_exc().splitlines(keepends=True)[-12:])
    except BaseException:
        wrong = traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.stdout, sys.stderr, sys.argv = kept
    printed = out.buffer.getvalue() + err.buffer.getvalue()  # type: ignore[attr-defined]
    text = printed.decode(encoding, "replace")
    after = content(root)
    lost = [name for name in before if after.get(name) != before[name] and not name.startswith(case.owned or ("\0",))]
    left = [name for name in after if name not in before and not name.startswith(case.owned or ("\0",))]
    if wrong:
        return wrong
    if peak() > BYTES:
        return f"takes {peak() / 1e9:.2f} GB"
    if lost:
        return f"changed {lost}"
    if code not in (0, 2) or "Traceback" in text:
        return f"ends with {code}: {text[-300:]}"
    if code == 2 and case.words and not any(word in text for word in ("error: ", "Usage")):
        return f"does not say why: {text[-300:]}"
    if code == 2 and left and "interrupted" not in text:
        return f"refused, and left {left}"
    if UNSEEN & set(text):
        return f"prints {sorted(UNSEEN & set(text))}: {text[-300:]!r}"
    return ""


def run(first: int, end: int) -> None:
    """Run the cases from one number up to another."""
    torch.set_num_threads(1)
    command_line.app = typer.main.get_command(command_line.app)  # type: ignore[assignment]  # made once, not for every case
    faulthandler.enable()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + LIMIT, used + LIMIT))
    speak = sys.stdout
    with tempfile.TemporaryDirectory() as scratch:
        os.environ.update(MPLCONFIGDIR=matplotlib.get_configdir())  # which knows the fonts
        os.environ.update(HOME=f"{scratch}/home", XDG_CACHE_HOME=f"{scratch}/home/cache", MPLBACKEND="agg", COLUMNS="120")
        os.environ.pop("REVERIE_DATA", None)
        for number in range(first, end):
            print(json.dumps({"begins": number}), file=speak, flush=True)
            root = Path(scratch, "case")
            root.mkdir()
            os.chdir(root)
            with warnings.catch_warnings():
                case = make(number, root)
                wrong = attempt(case, root, "ascii" if number % 2 else "utf-8")
            if wrong:
                report = {"case": number, "words": list(case.words), "wrong": wrong}
                print(json.dumps(report), file=speak, flush=True)
            os.chdir(scratch)
            shutil.rmtree(root)
    print(json.dumps({"begins": end}), file=speak, flush=True)


if __name__ == "__main__":
    run(int(sys.argv[1]), int(sys.argv[2]))
