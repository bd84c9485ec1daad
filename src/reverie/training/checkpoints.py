"""Checkpoints: all that a training needs to go on, in one safetensors file each, told whole from torn by a checksum."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from reverie.base.errors import UserError
from reverie.base.files import atomic, reason
from reverie.base.spec import one_line
from reverie.runs.folder import WEIGHTS_FILE
from reverie.training.learner import Facts, Learner, Snapshot

FOLDER, BEST, LOCK = "checkpoints", "best.safetensors", ".lock"
KEPT = 2  # the newest of them, besides the best
PARTS = ("good", "last")  # states a rescue may go back to, kept beside the newest where they are others; see Learner


def _checksum(tensors: Mapping[str, Tensor], facts: str) -> str:
    digest = hashlib.blake2b(facts.encode(), digest_size=16)
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()


def existing(run: Path) -> list[Path]:
    """Return the checkpoints of a run, newest first, without the best one."""
    return sorted((p for p in (run / FOLDER).glob("*.safetensors") if p.stem.isdigit()), reverse=True)


def write(run: Path, now: Snapshot, others: Mapping[str, Snapshot] | None = None, name: str | None = None) -> None:
    """Write a checkpoint, named by its step if not otherwise, and remove those that are no longer wanted."""
    if not run.is_dir():
        raise UserError(f"the run folder {run} has been removed, so the training stopped at step {now.facts.i:,}")
    states = {"now": now, **(others or {})}
    said = json.dumps({part: state.facts.model_dump() for part, state in states.items()})
    tensors = {f"{part}.{n}": t.cpu().clone() for part, state in states.items() for n, t in state.tensors.items()}
    path = run / FOLDER / (name or f"{now.facts.i:09d}.safetensors")
    try:
        with atomic(path) as aside:
            save_file(tensors, aside, {"facts": said, "checksum": _checksum(tensors, said)})
    except SafetensorError as error:
        raise UserError(f"cannot write {path}: {error}; the disk may be full; earlier checkpoints are kept") from None
    for old in existing(run)[KEPT:]:
        old.unlink(missing_ok=True)


def read(path: Path, learner: Learner) -> dict[str, Snapshot]:
    """Read a checkpoint of a learner like this one: the state "now", and those of PARTS that are there.

    Names and shapes are checked before anything is loaded, values before anything is used.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            names: dict[str, list[str]] = {"now": []}
            for name in file.keys():  # noqa: SIM118, not a dict
                part, _, rest = name.partition(".")
                names.setdefault(part, []).append(rest)
            if unknown := sorted(names.keys() - {"now", *PARTS}):
                raise UserError(f"{path} holds tensors of no known kind, first {unknown[0]}")
            for part, found in names.items():
                learner.check({name: file.get_slice(f"{part}.{name}") for name in found}, path)
            tensors = {f"{part}.{name}": file.get_tensor(f"{part}.{name}") for part, found in names.items() for name in found}
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is truncated or damaged: {error}") from None
    said = metadata.get("facts", "")
    if metadata.get("checksum") != _checksum(tensors, said):
        raise UserError(f"{path} is torn: its checksum is wrong")
    try:
        told = json.loads(said)
        facts = {part: Facts.model_validate(told[part]) for part in names}
    except (ValueError, KeyError, TypeError) as error:
        why = one_line(error) if isinstance(error, ValidationError) else error
        raise UserError(f"{path} does not say how far the training was: {why}") from None
    if bad := [name for name, t in tensors.items() if not t.isfinite().all()]:
        raise UserError(f"{path} holds values that are not finite, first in {bad[0]}")
    return {part: Snapshot({n: tensors[f"{part}.{n}"] for n in found}, facts[part]) for part, found in names.items()}


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


@contextmanager
def locked(run: Path) -> Iterator[None]:
    """Keep every other trainer out of a run; the lock goes with the process, however that ends."""
    try:
        file = (run / LOCK).open("w")
    except OSError as error:
        raise UserError(f"cannot write to {run}: {reason(error)}") from error
    with file:
        try:
            import fcntl
        except ImportError:  # no such locks on this system
            yield
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another training is at work in {run}; wait for it or stop it") from None
        except OSError:  # a file system without locks
            pass
        yield
