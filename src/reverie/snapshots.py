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

from reverie.errors import UserError
from reverie.files import atomic, reason
from reverie.learner import Facts, Learner, Snapshot
from reverie.spec import one_line

FOLDER, BEST, LOCK = "checkpoints", "best.safetensors", ".lock"
KEPT = 2  # the newest of them, besides the best
GOOD = "good."  # the prefix of the state to roll back to, where that is another one


def _checksum(tensors: Mapping[str, Tensor], facts: str) -> str:
    digest = hashlib.blake2b(facts.encode(), digest_size=16)
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()


def _path(run: Path, i: int) -> Path:
    return run / FOLDER / f"{i:09d}.safetensors"


def existing(run: Path) -> list[Path]:
    """Return the checkpoints of a run, newest first, without the best one."""
    return sorted((p for p in (run / FOLDER).glob("*.safetensors") if p.stem.isdigit()), reverse=True)


def write(run: Path, now: Snapshot, good: Snapshot | None = None, best: bool = False) -> None:
    """Write a checkpoint and remove those that are no longer wanted; best: keep it under that name as well."""
    if not run.is_dir():
        raise UserError(f"the run folder {run} has been removed, so the training stopped at step {now.facts.i:,}")
    tensors = {name: t.cpu().contiguous() for name, t in now.tensors.items()}
    facts = {"now": now.facts.model_dump(), "good": None}
    if good is not None:
        tensors |= {GOOD + name: t.cpu().contiguous() for name, t in good.tensors.items()}
        facts["good"] = good.facts.model_dump()
    said = json.dumps(facts)
    metadata = {"facts": said, "checksum": _checksum(tensors, said)}
    names = [_path(run, now.facts.i), *([run / FOLDER / BEST] if best else [])]
    for name in names:
        try:
            with atomic(name) as aside:
                save_file(tensors, aside, metadata)
        except SafetensorError as error:
            raise UserError(f"cannot write {name}: {error}; the disk may be full; earlier checkpoints are kept") from None
    for old in existing(run)[KEPT:]:
        old.unlink(missing_ok=True)


def read(path: Path, learner: Learner) -> tuple[Snapshot, Snapshot | None]:
    """Read a checkpoint of a learner like this one: the state, and the one to roll back to where that is another.

    Names and shapes are checked before anything is loaded, values before anything is used.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            names = list(file.keys())
            for prefix in ("", GOOD):
                part = [n for n in names if n.startswith(GOOD) == bool(prefix)]
                if part or not prefix:
                    learner.check({n.removeprefix(prefix): file.get_slice(n) for n in part}, path)
            tensors = {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is truncated or damaged: {error}") from None
    said = metadata.get("facts", "")
    if metadata.get("checksum") != _checksum(tensors, said):
        raise UserError(f"{path} is torn: its checksum is wrong")
    try:
        facts = json.loads(said)
        now = Facts.model_validate(facts["now"])
        good = Facts.model_validate(facts["good"]) if facts["good"] is not None else None
    except (ValueError, KeyError, TypeError) as error:
        why = one_line(error) if isinstance(error, ValidationError) else error
        raise UserError(f"{path} does not say how far the training was: {why}") from None
    if bad := [name for name, t in tensors.items() if not t.isfinite().all()]:
        raise UserError(f"{path} holds values that are not finite, first in {bad[0]}")
    state = Snapshot({n: t for n, t in tensors.items() if not n.startswith(GOOD)}, now)
    if good is None:
        return state, None
    return state, Snapshot({n.removeprefix(GOOD): t for n, t in tensors.items() if n.startswith(GOOD)}, good)


def restore(run: Path, learner: Learner) -> list[str]:
    """Put a learner where the newest whole checkpoint left it, and return what there is to say about torn ones."""
    complaints: list[str] = []
    for path in existing(run):
        try:
            now, good = read(path, learner)
        except UserError as error:
            complaints.append(str(error))
            continue
        learner.restore(now)
        learner.good = good or now
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
