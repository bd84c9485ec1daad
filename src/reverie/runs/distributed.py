"""Samples drawn by several processes: batches are numbered, and process r of W draws those that are r modulo W of a round.

A batch is the same whoever draws it, so image k of a seed is the same image on any number of processes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from reverie.base.errors import UserError
from reverie.base.progress import OnProgress
from reverie.base.team import Instruction, StepInstruction, Team
from reverie.base.worker_processes import check_processes, team_of, threads_each
from reverie.runs.adapters import weights_hash
from reverie.runs.run import Run
from reverie.runs.samples import Samples
from reverie.runs.sampling_options import Options

ADVICE = "call it again; of a folder of images what is finished is kept, and gone on with"
Opener = Callable[[Path, Sequence[str]], Run]


def identity(run: Run) -> str:
    """Return a hash of a run's weights, settings and changes: equal ones draw equal samples on one kind of machine."""
    file = weights_hash(run.path) if run.changes else ""  # a backend may hold weights that the model no longer shows
    found = hashlib.sha256(json.dumps([run.config.family.model_dump(mode="json"), run.changes, file]).encode())
    for name, t in sorted(run.model.state_dict().items()):
        found.update(f"{name} {t.dtype} {tuple(t.shape)}".encode())
        found.update(t.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


class DistributedRequest(BaseModel):
    """What the leader tells of samples that are to be drawn."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str
    changes: tuple[str, ...]
    identity: str
    n: int = Field(ge=1)
    first: int = Field(ge=0)
    options: dict[str, Any]

    def __str__(self) -> str:
        return self.model_dump_json()


def serializable(options: Options) -> dict[str, Any]:
    """Return options as plain values; refuse those that cannot be told to another process."""
    plain: dict[str, Any] = {}
    for key, value in options.items():
        if isinstance(value, np.ndarray):
            raise UserError(f"{key} was given as an array, which one process takes; give the path of a file, or processes=1")
        plain[key] = str(value.resolve()) if isinstance(value, Path) else value
    return plain


@dataclass
class SharedRun(Run):
    """A run whose samples a team draws."""

    team: Team | None = field(default=None, repr=False, compare=False)

    def numbered(
        self, n: int, first: int, numbers: Sequence[int], tell: OnProgress | None, options: Options
    ) -> Iterator[tuple[int, Samples]]:
        """Draw batches in rounds, one of each process, and yield them in the order of their numbers."""
        team = self.team
        assert team is not None
        wish = DistributedRequest(
            path=str(self.path.resolve()), changes=self.changes, identity=identity(self), n=n, first=first,
            options=serializable(options),
        )  # fmt: skip
        team.broadcast(StepInstruction(Instruction.OPEN_RUN))
        team.broadcast_text(str(wish))
        team.raise_any()
        size, finished = self.batch_size(), n - sum(min(self.batch_size(), n - k * self.batch_size()) for k in numbers)
        for k in range(0, len(numbers), team.world):
            shared = numbers[k : k + team.world]
            team.broadcast(StepInstruction(Instruction.SAMPLE))
            team.broadcast_text(json.dumps(list(shared)))
            heard = _of_round(tell, finished, shared[0] * size, len(shared))
            mine, fault = drawn(lambda: self.numbered_batch(n, first, shared[0], heard, options).x)  # noqa: B023  # called here
            for number, x in zip(shared, team.gather_arrays(mine, fault), strict=False):
                finished += len(x)
                yield number, self.as_samples(x, first + number * size, options)


def _of_round(tell: OnProgress | None, finished: int, start: int, of: int) -> OnProgress | None:
    """Return what hears of the first batch of a round and tells of all of them, which are equally far."""
    if tell is None:
        return None
    return lambda what, done, n: tell(what, min(n, finished + (done - start) * of), n)


def drawn(draw: Callable[[], np.ndarray]) -> tuple[np.ndarray | None, str]:
    """Return what was drawn, or what was wrong."""
    try:
        return draw(), ""
    except (UserError, OSError) as error:
        return None, str(error) or type(error).__name__


class SamplingWorker:
    """What a process that follows does of sampling.  opener: loads a run by its path, with changes."""

    def __init__(self, team: Team, opener: Opener) -> None:
        self.team, self.opener = team, opener
        self.wish: DistributedRequest | None = None
        self.run: Run | None = None

    def __call__(self, told: StepInstruction) -> None:
        """Do what the leader tells."""
        said = self.team.broadcast_text()
        if told.order == Instruction.OPEN_RUN:
            fault = ""
            try:
                self._open(said)
            except (UserError, OSError) as error:
                fault = str(error)
            self.team.raise_any(fault)
            return
        run, wish, numbers = self.run, self.wish, json.loads(said)
        assert run is not None and wish is not None
        mine: np.ndarray | None = None
        fault = ""
        if self.team.rank < len(numbers):
            number = int(numbers[self.team.rank])
            options: Any = {key: tuple(v) if isinstance(v, list) else v for key, v in wish.options.items()}  # as JSON has them
            mine, fault = drawn(lambda: run.numbered_batch(wish.n, wish.first, number, None, options).x)
        self.team.gather_arrays(mine, fault)

    def _open(self, said: str) -> None:
        try:
            wish = DistributedRequest.model_validate_json(said)
        except ValidationError:
            raise UserError("what the leading process wishes to be drawn is not valid; are all of one version?") from None
        if self.wish is None or self.run is None or (self.wish.identity, self.wish.path) != (wish.identity, wish.path):
            run = self.opener(Path(wish.path), wish.changes)
            if identity(run) != wish.identity:
                raise UserError(f"the run {wish.path} has other weights here than in the leading process; save it first")
            self.run = run
        self.wish = wish


@contextmanager
def shared_run(run: Run, processes: int) -> Iterator[Run]:
    """Yield a run whose samples so many processes of this machine draw, or those that torchrun started."""
    check_processes(processes)
    with team_of(processes, run.model.device, ADVICE) as team:
        if team is None:
            yield run
            return
        threads = torch.get_num_threads()
        torch.set_num_threads(threads_each(processes))
        try:
            made = SharedRun(run.config, run.model, run.path, run.changes, team)
            made._early, made._mean_error = run._early, run._mean_error
            yield made
        finally:
            torch.set_num_threads(threads)
