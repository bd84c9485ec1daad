"""Checkpoints: all that a training needs to go on, in one safetensors file each, told whole from torn by a checksum."""

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
KEPT = 2  # the newest of them, besides the best
PARTS = ("good", "last")  # states a rescue may go back to, kept beside the newest where they are others; see Learner


class States(BaseModel):
    """The facts of each state that a checkpoint holds: the newest, and those of PARTS where they are others."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    now: TrainingState
    good: TrainingState | None = None
    last: TrainingState | None = None

    def present(self) -> dict[str, TrainingState]:
        """Return the facts of the states that are there."""
        return {part: facts for part in ("now", *PARTS) if (facts := getattr(self, part)) is not None}


def existing(run: Path) -> list[Path]:
    """Return the checkpoints of a run, newest first, without the best one."""
    return sorted((p for p in (run / FOLDER).glob("*.safetensors") if NAME.fullmatch(p.stem)), reverse=True)


def write(run: Path, now: Snapshot, others: Mapping[str, Snapshot] | None = None, name: str | None = None) -> None:
    """Write a checkpoint, named by its step if not otherwise, and remove those that are no longer wanted."""
    if not run.is_dir():
        raise UserError(f"the run folder {run} has been removed, so the training stopped at step {now.facts.i:,}")
    states = {"now": now, **(others or {})}
    path = own_file(run, f"{FOLDER}/{name or f'{now.facts.i:09d}.safetensors'}")
    tensors = {f"{part}.{n}": t for part, state in states.items() for n, t in state.tensors.items()}
    facts = json.dumps({part: state.facts.model_dump() for part, state in states.items()})
    write_tensors(path, tensors, facts, "; earlier checkpoints are kept")
    for old in existing(run)[KEPT:]:
        old.unlink(missing_ok=True)


def read(path: Path, learner: Learner) -> dict[str, Snapshot]:
    """Read a checkpoint of a learner like this one: the state "now", and those of PARTS that are there."""
    forms = learner.forms()
    tensors, states = read_tensors(
        own_file(path.parents[1], f"{FOLDER}/{path.name}"),
        lambda states: {f"{part}.{name}": form for part in states.present() for name, form in forms.items()},
        TypeAdapter(States),
        fits=CONFIG,
        optional=lambda name: name.partition(".")[2].startswith("optimizer."),
    )
    kept = {
        part: Snapshot({n.removeprefix(f"{part}."): t for n, t in tensors.items() if n.startswith(f"{part}.")}, facts)
        for part, facts in states.present().items()
    }
    for part, snapshot in kept.items():
        if fault := learner.fault(snapshot):
            raise UserError(f"{path} is not whole: in the state {part!r} {fault}")
    return kept


def check_fit(run: Path, config: Config) -> None:
    """Refuse a run of whose checkpoints none holds a model like that of its configuration; only headers are read."""
    prefix, complaints = "now.model.", list[str]()
    wanted = {f"{prefix}{name}": form for name, form in model_forms(config).items()}
    for path in existing(run):
        try:
            found = {name: form for name, form in read_tensor_specs(path).items() if name.startswith(prefix)}
            check_tensor_specs(path, wanted, without_adapters(found), CONFIG)
        except UserError as error:
            complaints.append(str(error))
        else:
            return
    if complaints:
        raise UserError(f"no checkpoint of {run} can be used: {complaints[0]}")


def is_untrained(run: Path) -> bool:
    """Tell whether a run was stopped before its first checkpoint, so that its training has yet to begin."""
    return not existing(run) and not (run / WEIGHTS_FILE).exists()


def restore(run: Path, learner: Learner) -> list[str]:
    """Put a learner where the newest whole checkpoint left it, and return what there is to say about torn ones."""
    complaints: list[str] = []
    for path in existing(run):
        try:
            states = read(path, learner)
        except UserError as error:
            complaints.append(str(error))
            continue
        learner.restore(states["now"])
        learner.good, learner.last = (states.get(part, states["now"]) for part in PARTS)
        return [f"{complaint}; the checkpoint before it is used" for complaint in complaints]
    if complaints:
        raise UserError(f"no checkpoint of {run} can be used: {complaints[0]}")
    raise UserError(f"{run} has no checkpoint to go on from; train it anew with --out {shlex.quote(str(run))} --overwrite")
