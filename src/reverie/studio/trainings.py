"""Trainings that the page starts: each a process of its own, which survives the page and the server."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reverie import api
from reverie.base.errors import UserError
from reverie.base.files import make_folder, reason
from reverie.base.visible import visible
from reverie.studio.library import Found, Library

LOGS = ".studio"  # the folder that holds what trainings print
LOG_SHOWN = 4000  # bytes of it, the last ones
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=-]{0,63}")
MOST_TEXT = 200
AT_ONCE, WAITING = 2, 16  # trainings that are at work, and that wait for their turn
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
    """A training that this server has started, or will start when those before it have ended: then there is no process yet."""

    found: Found
    words: list[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def active(self) -> bool:
        """Whether it waits or is at work."""
        return self.process is None or self.process.poll() is None


@dataclass
class Trainings:
    """Starts, stops and resumes trainings below the opened folder: a few at a time, one of each run, others queue."""

    library: Library
    form: Sequence[Field]
    started: dict[str, Started] = field(default_factory=dict)
    _changing: threading.RLock = field(default_factory=threading.RLock)  # requests come from several threads
    _closed: bool = False

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
        words = [self.library.source(data), f"--out={path}", *self._words(options)]
        found = self.library.found(path)
        with self._changing:
            if os.path.lexists(path) or self._is_active(found):
                raise UserError(f"there is a run {name} already; choose another name")
            return self._queue(found, words)

    def resume(self, run: Found, more: Mapping[str, Any]) -> Found:
        """Go on with a run, for as much longer as is asked for where it is finished."""
        with api.confined(self.library.root):
            api.check_resumable(run.path)
        allowed = {key: value for key, value in more.items() if key in ("minutes", "steps")}
        words = [f"--resume={run.path}", *(["--extend"] if allowed else []), *self._words(allowed)]
        with self._changing:
            if api.holder(run.path) is not None or self._is_active(run):
                raise UserError(f"{run.name} is being trained already")
            return self._queue(run, words)

    def stop(self, run: Found) -> None:
        """Ask the training of a run to stop, as Ctrl-C does: it keeps everything.  One that waits is taken out of the queue."""
        with self._changing:
            ours = self.started.get(run.id)
            if ours is not None and ours.process is None:
                del self.started[run.id]
            elif ours is not None and ours.process is not None and ours.process.poll() is None:
                ours.process.send_signal(signal.SIGINT)
            else:
                api.interrupt(run.path)

    def state(self, run: Found) -> dict[str, Any]:
        """Return whether a run is trained now, how many are before it where it waits, and what its training printed last."""
        ours = self.started.get(run.id)
        process = ours.process if ours is not None else None
        code = process.poll() if process is not None else None
        alive = api.holder(run.path) is not None or (process is not None and code is None)
        said = _tail(ours.log) if ours is not None and process is not None else ""
        failed = _failure(said) if code not in STOPPED else None
        return {"training": alive, "queued": self.queued(run), "said": said, "failed": failed}

    def queued(self, run: Found) -> int | None:
        """Return how many trainings are before that of a run, None where it does not wait."""
        with self._changing:
            waiting = [one.found.id for one in self._waiting()]
        return waiting.index(run.id) if run.id in waiting else None

    def preparing(self) -> list[Found]:
        """Return the trainings that wait or have begun and whose run is not there yet, or never came."""
        with self._changing:
            started = list(self.started.values())
        return [one.found for one in started if not (one.found.path / "config.toml").exists()]

    def close(self) -> list[str]:
        """Start no more trainings; return the names of those that waited.  Those at work go on."""
        with self._changing:
            self._closed = True
            return [one.found.name for one in self._waiting()]

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

    def _is_active(self, run: Found) -> bool:
        return run.id in self.started and self.started[run.id].active

    def _waiting(self) -> list[Started]:
        return [one for one in self.started.values() if one.process is None]

    def _queue(self, run: Found, words: list[str]) -> Found:
        """Put a training last, and begin it where few are at work."""
        if len(self._waiting()) >= WAITING:
            raise UserError(f"{WAITING} trainings wait already; start this one when some have ended, or cancel some")
        logs = self.library.root / LOGS
        if logs.is_symlink():
            raise UserError(f"{logs} is a link; remove it, so that the studio can write there")
        make_folder(logs)
        self.started.pop(run.id, None)  # so that it stands last
        self.started[run.id] = Started(run, words, logs / f"{run.id}.log")
        self._advance()
        return run

    def _advance(self) -> None:
        """Begin the trainings that are next."""
        with self._changing:
            at_work = sum(one.process is not None and one.active for one in self.started.values())
            for one in self._waiting()[: 0 if self._closed else max(0, AT_ONCE - at_work)]:
                self._begin(one)

    def _begin(self, one: Started) -> None:
        try:
            one.log.unlink(missing_ok=True)
            with one.log.open("xb") as file:
                one.process = process = subprocess.Popen(
                    [sys.executable, "-m", "reverie", "train", *one.words], stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                    cwd=self.library.root, start_new_session=True,
                )  # fmt: skip
        except OSError as error:
            del self.started[one.found.id]
            raise UserError(f"cannot start the training of {one.found.name}: {reason(error)}") from None
        threading.Thread(target=self._follow, args=(process,), daemon=True).start()

    def _follow(self, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        self._advance()


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
