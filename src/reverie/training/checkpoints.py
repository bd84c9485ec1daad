"""Checkpoints: the complete state of a training in one safetensors file, with a checksum."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter

from reverie.base.errors import UserError
from reverie.base.files import own_file
from reverie.base.tensors import check_tensor_specs, read_tensor_specs, read_tensors, write_tensors
from reverie.nets.lora import without_adapters
from reverie.runs.config import Config, model_forms
from reverie.runs.folder import CONFIG, WEIGHTS_FILE
from reverie.training.learner import Learner, Snapshot, TrainingState

FOLDER, BEST = "checkpoints", "best.safetensors"
NAME = re.compile("[0-9]{9,13}")  # the step
KEEP = 2  # number of newest checkpoints that are kept, besides the best
PARTS = ("good", "last")  # further states in a checkpoint, for rollbacks; see Learner


class States(BaseModel):
    """The counters of each state in a checkpoint: the newest, and those of PARTS that differ."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    now: TrainingState
    good: TrainingState | None = None
    last: TrainingState | None = None

    def present(self) -> dict[str, TrainingState]:
        """Return the counters of the states that are present."""
        return {part: state for part in ("now", *PARTS) if (state := getattr(self, part)) is not None}


def existing(run: Path) -> list[Path]:
    """Return the checkpoints of a run, newest first, without the best."""
    return sorted((p for p in (run / FOLDER).glob("*.safetensors") if NAME.fullmatch(p.stem)), reverse=True)


def write(run: Path, now: Snapshot, others: Mapping[str, Snapshot] | None = None, name: str | None = None) -> None:
    """Write a checkpoint, named by its step unless `name` is given, and remove old ones."""
    if not run.is_dir():
        raise UserError(f"the run folder {run} was removed; the training stopped at step {now.state.i:,}")
    states = {"now": now, **(others or {})}
    path = own_file(run, f"{FOLDER}/{name or f'{now.state.i:09d}.safetensors'}")
    tensors = {f"{part}.{n}": t for part, state in states.items() for n, t in state.tensors.items()}
    counters = json.dumps({part: state.state.model_dump() for part, state in states.items()})
    write_tensors(path, tensors, counters, "; earlier checkpoints are kept")
    for old in existing(run)[KEEP:]:
        old.unlink(missing_ok=True)


def read(path: Path, learner: Learner) -> dict[str, Snapshot]:
    """Read a checkpoint for a learner: the state "now", and those of PARTS that are present."""
    forms = learner.forms()
    tensors, states = read_tensors(
        own_file(path.parents[1], f"{FOLDER}/{path.name}"),
        lambda states: {f"{part}.{name}": form for part in states.present() for name, form in forms.items()},
        TypeAdapter(States),
        fits=CONFIG,
        optional=lambda name: name.partition(".")[2].startswith("optimizer."),
    )
    snapshots = {
        part: Snapshot({n.removeprefix(f"{part}."): t for n, t in tensors.items() if n.startswith(f"{part}.")}, state)
        for part, state in states.present().items()
    }
    for part, snapshot in snapshots.items():
        if problem := learner.problem(snapshot):
            raise UserError(f"{path} is incomplete: in the state {part!r} {problem}")
    return snapshots


def check_fit(run: Path, config: Config) -> None:
    """Refuse a run none of whose checkpoints fits the model of its configuration; reads only headers."""
    prefix, complaints = "now.model.", list[str]()
    expected = {f"{prefix}{name}": form for name, form in model_forms(config).items()}
    for path in existing(run):
        try:
            specs = {name: form for name, form in read_tensor_specs(path).items() if name.startswith(prefix)}
            check_tensor_specs(path, expected, without_adapters(specs), CONFIG)
        except UserError as error:
            complaints.append(str(error))
        else:
            return
    if complaints:
        raise UserError(f"no checkpoint of {run} can be used: {complaints[0]}")


def is_untrained(run: Path) -> bool:
    """Return whether a run was stopped before its first checkpoint."""
    return not existing(run) and not (run / WEIGHTS_FILE).exists()


def restore(run: Path, learner: Learner) -> list[str]:
    """Restore a learner from the newest complete checkpoint, and return complaints about damaged ones."""
    complaints: list[str] = []
    for path in existing(run):
        try:
            states = read(path, learner)
        except UserError as error:
            complaints.append(str(error))
            continue
        learner.restore(states["now"])
        learner.good, learner.last = (states.get(part, states["now"]) for part in PARTS)
        return [f"{complaint}; using the checkpoint before it" for complaint in complaints]
    if complaints:
        raise UserError(f"no checkpoint of {run} can be used: {complaints[0]}")
    raise UserError(f"{run} has no checkpoint to resume from; train it again with --out {shlex.quote(str(run))} --overwrite")
