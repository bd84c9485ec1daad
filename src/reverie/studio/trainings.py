"""Trainings that the page starts: each a process of its own, which survives the page and the server."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reverie import api
from reverie.base.errors import UserError
from reverie.base.files import make_folder
from reverie.base.visible import visible
from reverie.studio.library import Found, Library

LOGS = ".studio"  # the folder that holds what trainings print
LOG_SHOWN = 4000  # bytes of it, the last ones
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=-]{0,63}")
MOST_TEXT = 200
STOPPED = (None, 0, 128 + signal.SIGINT, 128 + signal.SIGTERM)  # exit codes of what goes on, is done, or was asked to end


@dataclass(frozen=True)
class Field:
    """An option of `reverie train` on the form.

    name: the flag without its dashes; kind: number, whole, text or switch; table: the kind of names it takes, if any.
    """

    name: str
    help: str
    kind: str
    table: str | None = None


@dataclass
class Started:
    """A training that this server has started."""

    found: Found
    process: subprocess.Popen[bytes]
    log: Path


@dataclass
class Trainings:
    """Starts, stops and resumes trainings below the opened folder."""

    library: Library
    form: Sequence[Field]
    started: dict[str, Started] = field(default_factory=dict)

    @property
    def place(self) -> Path:
        """The folder that new runs go to."""
        root = self.library.root
        return root if root.name == "runs" else root / "runs"

    def start(self, data: str, name: str, options: Mapping[str, Any]) -> Found:
        """Start a training of data, by name or id, in a new run of that name; return where it will be."""
        if not NAME.fullmatch(name):
            raise UserError(f"a run's name is of letters, digits and . _ = -, at most 64 of them, got {name!r}")
        path = self.place / name
        if os.path.lexists(path):
            raise UserError(f"there is a run {name} already; choose another name")
        words = [self.library.source(data), f"--out={path}", *self._words(options)]
        return self._begin(self.library.found(path), words)

    def resume(self, run: Found, more: Mapping[str, Any]) -> Found:
        """Go on with a run, for as much longer as is asked for where it is finished."""
        if api.holder(run.path) is not None:
            raise UserError(f"{run.name} is being trained already")
        allowed = {key: value for key, value in more.items() if key in ("minutes", "steps")}
        return self._begin(run, [f"--resume={run.path}", *(["--extend"] if allowed else []), *self._words(allowed)])

    def stop(self, run: Found) -> None:
        """Ask the training of a run to stop, as Ctrl-C does: it keeps everything."""
        ours = self.started.get(run.id)
        if ours is not None and ours.process.poll() is None:
            ours.process.send_signal(signal.SIGINT)
        else:
            api.interrupt(run.path)

    def state(self, run: Found) -> dict[str, Any]:
        """Return whether a run is trained now, and what its training printed last."""
        ours = self.started.get(run.id)
        code = ours.process.poll() if ours is not None else None
        alive = api.holder(run.path) is not None or (ours is not None and code is None)
        said = _tail(ours.log) if ours is not None else ""
        return {"training": alive, "said": said, "failed": _failure(said) if code not in STOPPED else None}

    def preparing(self) -> list[Found]:
        """Return the trainings that have begun and whose run is not there yet, or never came."""
        return [one.found for one in self.started.values() if not (one.found.path / "config.toml").exists()]

    def command(self, data: str, name: str, options: Mapping[str, Any]) -> str:
        """Return the command that does the same."""
        path = self.library.shown(self.place / name)
        source = self.library.source(data)
        source = source if source == data else self.library.shown(Path(source))
        return shlex.join(["reverie", "train", source, "--out", path, *self._words(options)])

    def _words(self, options: Mapping[str, Any]) -> list[str]:
        known, words = {one.name: one for one in self.form}, []
        for key, value in options.items():
            if key not in known:
                raise UserError(f"the form has no field {key!r}")
            words += _word(known[key], value)
        return words

    def _begin(self, run: Found, words: list[str]) -> Found:
        logs = self.library.root / LOGS
        if logs.is_symlink():
            raise UserError(f"{logs} is a link; remove it, so that the studio can write there")
        make_folder(logs)
        log = logs / f"{run.id}.log"
        log.unlink(missing_ok=True)
        with log.open("xb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "reverie", "train", *words], stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                cwd=self.library.root, start_new_session=True,
            )  # fmt: skip
        self.started[run.id] = Started(run, process, log)
        return run


def _word(known: Field, value: Any) -> list[str]:
    """Return a field as a word of the command line; what is left empty is none."""
    if value in (None, "", False):
        return []
    if known.kind == "switch":
        return [f"--{known.name}"]
    if known.kind in ("number", "whole"):
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise UserError(f"{known.name} must be a number, got {value!r}") from None
        return [f"--{known.name}={number:.12g}"]
    text = str(value)
    if len(text) > MOST_TEXT or re.search(r"[/\\~\x00-\x1f]", text) or ".." in text:
        raise UserError(f"{known.name} takes a name with its options, and no path, got {text[:MOST_TEXT]!r}")
    return [f"--{known.name}={text}"]


def _failure(said: str) -> str:
    """Return the sentence by which a training told why it failed, or the last thing that it said."""
    lines = said.strip().splitlines() or ["it ended without a word"]
    return next((line.removeprefix("error:").strip() for line in reversed(lines) if line.startswith("error:")), lines[-1])


def _tail(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LOG_SHOWN))
            return visible(file.read().decode("utf-8", "replace"), lines=True)
    except OSError:
        return ""
