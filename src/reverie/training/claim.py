"""Claiming a folder for a run: only files that Reverie wrote are ever removed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from reverie.base.errors import UserError
from reverie.base.files import check_folder, intended_name, own_file, reason, remove_empty
from reverie.runs import folder
from reverie.runs.adapters import ADAPTER_FILE
from reverie.runs.classifier_file import CLASSIFIER_FILE
from reverie.runs.data_copy import DATA_COPY
from reverie.runs.error_curve_file import ERROR_CURVE_FILE
from reverie.runs.learned_schedule import SCHEDULE_PICTURE
from reverie.runs.lock import LOCK, Lock, Occupied
from reverie.training import checkpoints, previews, tensorboard

LOSS_PICTURE = "loss.png"
FILES = (
    folder.CONFIG, folder.WEIGHTS_FILE, folder.EARLY_FILE, ADAPTER_FILE, folder.METRICS, LOSS_PICTURE, SCHEDULE_PICTURE,
    CLASSIFIER_FILE, DATA_COPY, ERROR_CURVE_FILE, f"{previews.FOLDER}/{previews.FILM}",
    f"{previews.FOLDER}/{previews.LABELS}", f"{checkpoints.FOLDER}/{checkpoints.BEST}",
)  # fmt: skip
NUMBERED = re.compile(
    rf"{previews.FOLDER}/step-[0-9]+\.(?:png|txt)|{checkpoints.FOLDER}/[0-9]+\.safetensors|{tensorboard.FOLDER}/events\.out\.tfevents\..+"
)
CODEC_FOLDER = "codec"  # the run of the autoencoder of latent diffusion
FOLDERS = (previews.FOLDER, checkpoints.FOLDER, tensorboard.FOLDER)


def _inner(name: str) -> str:
    """Return a path in a run folder, relative to the folder of its autoencoder if it is in that."""
    return name.removeprefix(f"{CODEC_FOLDER}/")


def is_own(name: str) -> bool:
    """Return whether a path in a run folder is one that a run writes."""
    name = _inner(name)
    return name in FILES or NUMBERED.fullmatch(name) is not None


def is_left(name: str) -> bool:
    """Return whether a path is a leftover of a killed training: the lock or a temporary file."""
    name = _inner(name)
    return name == LOCK or is_own(intended_name(name) or "")


def _names(run: Path) -> Iterator[str]:
    """Yield the paths of the files in a run folder and its subfolders."""
    for entry in sorted(run.iterdir()):
        if entry.name in FOLDERS and entry.is_dir() and not entry.is_symlink():
            yield from (f"{entry.name}/{inner.name}" for inner in sorted(entry.iterdir()))
        elif entry.name == CODEC_FOLDER and entry.is_dir() and not entry.is_symlink():
            yield from (f"{CODEC_FOLDER}/{name}" for name in _names(entry))
        else:
            yield entry.name


def check_free(path: Path, overwrite: bool) -> None:
    """Refuse a folder with another run, unless `overwrite` is set, or with other files."""
    check_folder(path)
    if not path.is_dir():
        return
    is_run = os.path.lexists(path / folder.CONFIG)
    if is_run and not overwrite:
        raise Occupied(f"{path} already contains a run; choose another --out, or add --overwrite to replace it")
    others = [name for name in _names(path) if not (is_left(name) or (is_run and is_own(name)))]
    if (path / LOCK).is_file() and (path / LOCK).stat().st_size:
        others.append(LOCK)  # the lock of a run is empty
    if others:
        raise UserError(f"{path} contains other files ({others[0]} ...); choose a new or empty folder with --out")
    check_own(path)


def check_own(path: Path) -> None:
    """Refuse links and special files in place of the files of a run."""
    for inner in (*FOLDERS, CODEC_FOLDER):
        own_file(path, f"{inner}/any")
    for name in _names(path):
        if is_own(name) or is_left(name):
            own_file(path, name)


def sweep(path: Path, whole_run: bool = False) -> None:
    """Remove the leftovers of a killed training, or all files of a run, and nothing else; requires the lock."""
    try:
        for name in sorted(_names(path), key=lambda name: name == folder.CONFIG):  # the configuration last, as it marks a run
            if _inner(name) != LOCK and (is_left(name) or (whole_run and is_own(name))):
                own_file(path, name).unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"cannot remove the old files in {path}: {reason(error)}; choose another --out") from None
    if whole_run:
        inner = path / CODEC_FOLDER
        if inner.is_dir() and not inner.is_symlink():
            (inner / LOCK).unlink(missing_ok=True)
            remove_empty([*(inner / name for name in FOLDERS), inner])
        remove_empty([path / name for name in FOLDERS])


def claim(out: str | Path | None, name: str, overwrite: bool) -> Lock:
    """Return the lock of the new, empty folder of a run; with `overwrite`, remove another run in it."""
    if out is not None:
        return _claim_path(Path(out), overwrite)
    for k in range(1, 10_000):
        path = Path("runs") / (name if k == 1 else f"{name}-{k}")
        if not os.path.lexists(path):
            with suppress(Occupied):  # by a process that chose it at the same time
                return _claim_path(path, False)
    raise UserError(f"runs/ contains 10,000 runs with the name {name}; choose a folder with --out")


def _claim_path(path: Path, overwrite: bool) -> Lock:
    check_free(path, overwrite)
    lock = Lock(path)
    try:
        check_free(path, overwrite)  # again, as another training may have used the folder since
        sweep(path, whole_run=True)
    except BaseException:
        lock.release()
        raise
    return lock
