"""Trainings started from the page: each is a `reverie train` process that outlives the page and the server."""

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
from reverie.studio.library import Library, LibraryItem

LOGS = ".studio"  # folder of the output of trainings
LOG_TAIL = 4000  # bytes of output that the page shows
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=-]{0,63}")
MAX_TEXT = 200
MAX_RUNNING, MAX_QUEUED = 2, 16
SUCCESS = (None, 0, 128 + signal.SIGINT, 128 + signal.SIGTERM)  # exit codes: running, done, interrupted, terminated


@dataclass(frozen=True)
class FormField:
    """An option of `reverie train` on the form.

    name: the flag without its dashes; kind: number, integer, text or switch; table: the kind of names it accepts, if any.
    """

    name: str
    help: str
    kind: str
    table: str | None = None


@dataclass
class StartedTraining:
    """A training that this server started or queued; a queued one has no process."""

    run: LibraryItem
    arguments: list[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def is_active(self) -> bool:
        """Whether the training is queued or running."""
        return self.process is None or self.process.poll() is None


@dataclass
class Trainings:
    """Starts, stops and resumes trainings below the opened folder, at most one per run; queues those beyond MAX_RUNNING."""

    library: Library
    form: Sequence[FormField]
    started: dict[str, StartedTraining] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)  # requests come from several threads
    _closed: bool = False

    @property
    def runs_folder(self) -> Path:
        """The folder of new runs."""
        root = self.library.root
        return root if root.name == "runs" else root / "runs"

    def start(self, data: str, name: str, options: Mapping[str, Any]) -> LibraryItem:
        """Start a training on data, by name or id, and return its new run."""
        if not NAME.fullmatch(name):
            raise UserError(f"invalid run name: {name!r}; use at most 64 letters, digits and . _ = -")
        path = self.runs_folder / name
        arguments = [self.library.source(data), f"--out={path}", *self._arguments(options)]
        run = self.library.item(path)
        with self._lock:
            if os.path.lexists(path) or self._is_active(run):
                raise UserError(f"the run exists already: {name}; choose another name")
            return self._enqueue(run, arguments)

    def resume(self, run: LibraryItem, options: Mapping[str, Any]) -> LibraryItem:
        """Resume a run, or extend a finished one by minutes or steps."""
        with api.confined(self.library.root):
            api.check_resumable(run.path)
        allowed = {key: value for key, value in options.items() if key in ("minutes", "steps")}
        arguments = [f"--resume={run.path}", *(["--extend"] if allowed else []), *self._arguments(allowed)]
        with self._lock:
            if api.holder(run.path) is not None or self._is_active(run):
                raise UserError(f"the run is being trained already: {run.name}; stop it first")
            return self._enqueue(run, arguments)

    def stop(self, run: LibraryItem) -> None:
        """Interrupt the training of a run, as Ctrl-C does, or remove it from the queue."""
        with self._lock:
            training = self.started.get(run.id)
            if training is not None and training.process is None:
                del self.started[run.id]
            elif training is not None and training.process is not None and training.process.poll() is None:
                training.process.send_signal(signal.SIGINT)
            else:
                api.interrupt(run.path)

    def state(self, run: LibraryItem) -> dict[str, Any]:
        """Return whether a run is training, its position in the queue, its last output, and its error."""
        training = self.started.get(run.id)
        process = training.process if training is not None else None
        code = process.poll() if process is not None else None
        is_training = api.holder(run.path) is not None or (process is not None and code is None)
        log = _tail(training.log) if training is not None and process is not None else ""
        failed = _error_message(log) if code not in SUCCESS else None
        return {"training": is_training, "queued": self.queued(run), "log": log, "failed": failed}

    def queued(self, run: LibraryItem) -> int | None:
        """Return the number of trainings queued before that of a run, None if it is not queued."""
        with self._lock:
            queue = [training.run.id for training in self._queue()]
        return queue.index(run.id) if run.id in queue else None

    def preparing(self) -> list[LibraryItem]:
        """Return the runs that are queued or started and have no config file yet."""
        with self._lock:
            started = list(self.started.values())
        return [training.run for training in started if not (training.run.path / "config.toml").exists()]

    def close(self) -> list[str]:
        """Stop starting trainings; return the names of the queued ones.  Running trainings continue."""
        with self._lock:
            self._closed = True
            return [training.run.name for training in self._queue()]

    def command(self, data: str, name: str, options: Mapping[str, Any]) -> str:
        """Return the equivalent command."""
        path = self.library.display_path(self.runs_folder / name)
        source = self.library.source(data)
        source = source if source == data else self.library.display_path(Path(source))
        return shlex.join(["reverie", "train", source, "--out", path, *self._arguments(options)])

    def _arguments(self, options: Mapping[str, Any]) -> list[str]:
        fields, arguments = {field.name: field for field in self.form}, []
        for key, value in options.items():
            if key not in fields:
                raise UserError(f"unknown option: {key!r}; use the fields of the form")
            arguments += _argument(fields[key], value)
        return arguments

    def _is_active(self, run: LibraryItem) -> bool:
        return run.id in self.started and self.started[run.id].is_active

    def _queue(self) -> list[StartedTraining]:
        return [training for training in self.started.values() if training.process is None]

    def _enqueue(self, run: LibraryItem, arguments: list[str]) -> LibraryItem:
        """Append a training to the queue, and start it if fewer than MAX_RUNNING are running."""
        if len(self._queue()) >= MAX_QUEUED:
            raise UserError(f"the queue is full: {MAX_QUEUED} trainings; wait until some have ended, or cancel some")
        logs = self.library.root / LOGS
        if logs.is_symlink():
            raise UserError(f"the log folder is a link: {logs}; remove it")
        make_folder(logs)
        self.started.pop(run.id, None)  # so that it is inserted last
        self.started[run.id] = StartedTraining(run, arguments, logs / f"{run.id}.log")
        self._start_next()
        return run

    def _start_next(self) -> None:
        """Start queued trainings while fewer than MAX_RUNNING are running."""
        with self._lock:
            running = sum(training.process is not None and training.is_active for training in self.started.values())
            for training in self._queue()[: 0 if self._closed else max(0, MAX_RUNNING - running)]:
                self._launch(training)

    def _launch(self, training: StartedTraining) -> None:
        try:
            training.log.unlink(missing_ok=True)
            with training.log.open("xb") as file:
                training.process = process = subprocess.Popen(
                    [sys.executable, "-m", "reverie", "train", *training.arguments], stdin=subprocess.DEVNULL, stdout=file,
                    stderr=file, cwd=self.library.root, start_new_session=True,
                )  # fmt: skip
        except OSError as error:
            del self.started[training.run.id]
            raise UserError(f"cannot start the training of {training.run.name}: {reason(error)}") from None
        threading.Thread(target=self._wait_for, args=(process,), daemon=True).start()

    def _wait_for(self, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        self._start_next()


def _argument(option: FormField, value: Any) -> list[str]:
    """Return an option as an argument of the command line; none if its field is empty."""
    if value in (None, "", False):
        return []
    if option.kind == "switch":
        return [f"--{option.name}"]
    if option.kind in ("number", "integer"):
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise UserError(f"--{option.name} must be a number, got {value!r}") from None
        return [f"--{option.name}={number:.12g}"]
    text = str(value)
    if len(text) > MAX_TEXT or re.search(r"[/\\~\x00-\x1f]", text) or ".." in text:
        raise UserError(f"--{option.name} takes a name with options, not a path, got {text[:MAX_TEXT]!r}")
    return [f"--{option.name}={text}"]


def _error_message(log: str) -> str:
    """Return the last error message of a training, or its last line of output."""
    lines = log.strip().splitlines() or ["the training process ended without output"]
    return next((line.removeprefix("error:").strip() for line in reversed(lines) if line.startswith("error:")), lines[-1])


def _tail(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LOG_TAIL))
            return visible(file.read().decode("utf-8", "replace"), lines=True)
    except OSError:
        return ""
