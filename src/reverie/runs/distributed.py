"""Sampling with several processes: process r of W generates the batches with number r modulo W of each round.

A batch depends only on its number, so image k of a seed does not depend on the number of processes.
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

ADVICE = "run the command again; it resumes a folder of images"
Opener = Callable[[Path, Sequence[str]], Run]


def identity(run: Run) -> str:
    """Return a hash of a run's weights, settings and changes, which determine its samples on one type of machine."""
    file_hash = weights_hash(run.path) if run.changes else ""  # the weights of a backend may differ from those of the model
    digest = hashlib.sha256(json.dumps([run.config.family.model_dump(mode="json"), run.changes, file_hash]).encode())
    for name, t in sorted(run.model.state_dict().items()):
        digest.update(f"{name} {t.dtype} {tuple(t.shape)}".encode())
        digest.update(t.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


class DistributedRequest(BaseModel):
    """The request of the leader for samples."""

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
    """Return options as JSON values; refuse arrays."""
    plain: dict[str, Any] = {}
    for key, value in options.items():
        if isinstance(value, np.ndarray):
            raise UserError(f"{key} is an array, which only one process can use; give the path of a file, or processes=1")
        plain[key] = str(value.resolve()) if isinstance(value, Path) else value
    return plain


@dataclass
class DistributedRun(Run):
    """A run that is sampled by several processes."""

    team: Team | None = field(default=None, repr=False, compare=False)

    def numbered(
        self, n: int, first: int, numbers: Sequence[int], on_progress: OnProgress | None, options: Options
    ) -> Iterator[tuple[int, Samples]]:
        """Generate batches in rounds, one per process, and yield them in the order of their numbers."""
        team = self.team
        assert team is not None
        request = DistributedRequest(
            path=str(self.path.resolve()), changes=self.changes, identity=identity(self), n=n, first=first,
            options=serializable(options),
        )  # fmt: skip
        team.broadcast(StepInstruction(Instruction.OPEN_RUN))
        team.broadcast_text(str(request))
        team.raise_any()
        size, finished = self.batch_size(), n - sum(min(self.batch_size(), n - k * self.batch_size()) for k in numbers)
        for k in range(0, len(numbers), team.world):
            shared = numbers[k : k + team.world]
            team.broadcast(StepInstruction(Instruction.SAMPLE))
            team.broadcast_text(json.dumps(list(shared)))
            notify = _round_progress(on_progress, finished, shared[0] * size, len(shared))
            own_batch, problem = _attempt(lambda: self.numbered_batch(n, first, shared[0], notify, options).x)  # noqa: B023  # called here
            for number, x in zip(shared, team.gather_arrays(own_batch, problem), strict=False):
                finished += len(x)
                yield number, self.as_samples(x, first + number * size, options)


def _round_progress(on_progress: OnProgress | None, finished: int, start: int, of: int) -> OnProgress | None:
    """Return a callback for the first batch of a round that reports the progress of all its parallel batches."""
    if on_progress is None:
        return None
    return lambda what, done, n: on_progress(what, min(n, finished + (done - start) * of), n)


def _attempt(sample: Callable[[], np.ndarray]) -> tuple[np.ndarray | None, str]:
    """Return the samples, or None and the error message."""
    try:
        return sample(), ""
    except (UserError, OSError) as error:
        return None, str(error) or type(error).__name__


class SamplingWorker:
    """Executes the sampling instructions of the leader.  opener: loads a run by its path, with changes."""

    def __init__(self, team: Team, opener: Opener) -> None:
        self.team, self.opener = team, opener
        self.request: DistributedRequest | None = None
        self.run: Run | None = None

    def __call__(self, instruction: StepInstruction) -> None:
        """Execute an instruction."""
        text = self.team.broadcast_text()
        if instruction.order == Instruction.OPEN_RUN:
            problem = ""
            try:
                self._open(text)
            except (UserError, OSError) as error:
                problem = str(error)
            self.team.raise_any(problem)
            return
        run, request, numbers = self.run, self.request, json.loads(text)
        assert run is not None and request is not None
        own_batch: np.ndarray | None = None
        problem = ""
        if self.team.rank < len(numbers):
            number = int(numbers[self.team.rank])
            options: Any = {key: tuple(v) if isinstance(v, list) else v for key, v in request.options.items()}  # JSON has lists
            own_batch, problem = _attempt(lambda: run.numbered_batch(request.n, request.first, number, None, options).x)
        self.team.gather_arrays(own_batch, problem)

    def _open(self, text: str) -> None:
        try:
            request = DistributedRequest.model_validate_json(text)
        except ValidationError:
            raise UserError(
                "the request of the leader is not valid; use the same version of Reverie in all processes"
            ) from None
        if (
            self.request is None
            or self.run is None
            or (self.request.identity, self.request.path) != (request.identity, request.path)
        ):
            run = self.opener(Path(request.path), request.changes)
            if identity(run) != request.identity:
                raise UserError(f"the weights of {request.path} differ from those in the leader; save the run first")
            self.run = run
        self.request = request


@contextmanager
def distributed_run(run: Run, processes: int) -> Iterator[Run]:
    """Yield a run that is sampled by several processes, of this machine or started by torchrun."""
    check_processes(processes)
    with team_of(processes, run.model.device, ADVICE) as team:
        if team is None:
            yield run
            return
        threads = torch.get_num_threads()
        torch.set_num_threads(threads_each(processes))
        try:
            team_run = DistributedRun(run.config, run.model, run.path, run.changes, team)
            team_run._early, team_run._mean_error = run._early, run._mean_error
            yield team_run
        finally:
            torch.set_num_threads(threads)
