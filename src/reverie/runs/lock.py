"""The lock of a run folder, which a training holds until it ends."""

from __future__ import annotations

import os
import signal
import weakref
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from reverie.base.errors import UserError
from reverie.base.files import make_folder, own_file, reason, remove_empty

LOCK = ".lock"
_LOCKS, _PROCESSES = Path("/proc/locks"), Path("/proc")
FLAGS = os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # without truncation


class Occupied(UserError):
    """The folder belongs to another training."""


class Lock:
    """An exclusive lock of a folder, which is created if needed, until its release or the end of the process.

    It is a lock of the operating system on an open file, so it ends with the process, even if that is killed.  Until it is
    entered as a context, another lock of the same program replaces it, so that a notebook can prepare a training again.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self._file, created = _acquire(folder)
        except Occupied:
            if not (idle := [lock for lock in IDLE if lock.held and lock.folder.samefile(folder)]):
                raise
            idle[0].release()
            self._file, created = _acquire(folder)
        self._release = weakref.finalize(self, _free, self._file, folder / LOCK, created, os.getpid())
        IDLE.add(self)

    def release(self) -> None:
        """Release the lock and remove created folders that are empty."""
        self._release()

    @property
    def held(self) -> bool:
        """Whether the lock is held: it was not released, and folder and file were not replaced."""
        return self._release.alive and _is_at(self._file, self.folder / LOCK, missing=True)

    def __enter__(self) -> Lock:
        IDLE.discard(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


IDLE: weakref.WeakSet[Lock] = weakref.WeakSet()  # locks of this program that were not entered


def holder(folder: Path) -> int | None:
    """Return the id of the process that trains in a folder, None if there is none, 0 if the process is unknown.

    Linux reports the holders of locks (proc_locks(5)); elsewhere the function only tries whether the lock is free.  A file with
    several names may be locked by any program under another name.
    """
    try:
        status = own_file(folder, LOCK).stat()
    except (OSError, UserError):
        return None
    try:
        lines = _LOCKS.read_text().splitlines()
    except OSError:
        return _unknown_holder(folder / LOCK)
    name = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    holders = [words for line in lines if len(words := line.split()) > 5 and words[1] == "FLOCK" and words[5] == name]
    if not holders:
        return _unknown_holder(folder / LOCK)
    return max(int(holders[0][4]), 0) if status.st_nlink == 1 else 0


def interrupt(folder: Path) -> None:
    """Send SIGINT to the training in a folder; refuse if its process is not certain.

    Anyone may have created the folder, so the process must be a command of Reverie that opened the lock under this path.  A
    pidfd prevents the signal from reaching another process with the same id.
    """
    process = holder(folder)
    if process is None:
        raise UserError(f"no training runs in {folder}")
    try:
        handle = os.pidfd_open(process)
    except (OSError, AttributeError):  # the process ended or is unknown, or the system has no pidfd
        raise UserError(f"the process that trains in {folder} is unknown; stop it where it was started") from None
    try:
        if holder(folder) != process or not _opened_by(process, (folder / LOCK).resolve()) or not _is_reverie(process):
            raise UserError(f"process {process} holds {folder / LOCK} and is not `reverie train`; stop it where it was started")
        signal.pidfd_send_signal(handle, signal.SIGINT)
    except OSError as error:
        raise UserError(f"cannot stop the training in {folder}: {reason(error)}") from None
    finally:
        os.close(handle)


def _opened_by(process: int, path: Path) -> bool:
    """Return whether a process opened a file by this path, not by another name of the file."""
    return any(link.is_symlink() and link.readlink() == path for link in (_PROCESSES / str(process) / "fd").iterdir())


def _is_reverie(process: int) -> bool:
    """Return whether a process is a command of Reverie: `reverie ...` or `python -m reverie ...`."""
    words = os.fsdecode((_PROCESSES / str(process) / "cmdline").read_bytes()).split("\0")
    program, script = (Path(word).name for word in (words[0], next((w for w in words[1:] if w[:1] != "-"), "")))
    return program == "reverie" or (program.startswith("python") and script == "reverie")


def _unknown_holder(path: Path) -> int | None:
    try:
        import fcntl

        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0
    except (ImportError, OSError):
        pass
    return None


def _acquire(folder: Path) -> tuple[BinaryIO, list[Path]]:
    """Return the lock file, open and locked, and the folders created for it."""
    created = make_folder(folder)
    try:
        return _open_locked(folder), created
    except BaseException:
        remove_empty(created)
        raise


def _is_at(file: BinaryIO, path: Path, missing: bool = False) -> bool:
    """Return whether a path leads to an open file.  missing: the result for a missing path."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.lstat())
    except OSError:
        return missing


def _open_locked(folder: Path) -> BinaryIO:
    """Return the lock file, open and locked, with its content unchanged."""
    while True:
        path = own_file(folder, LOCK)
        try:
            file = os.fdopen(os.open(path, FLAGS, 0o666), "ab")
        except OSError as error:
            raise UserError(f"cannot write to the folder {folder}: {reason(error)}; choose another with --out") from error
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # no such locks on this system
            pass
        except BlockingIOError:
            file.close()
            raise Occupied(f"another training runs in {folder}; wait for it or stop it") from None
        except OSError:  # a file system without locks
            pass
        if _is_at(file, path):
            return file
        file.close()  # the previous holder removed the file, so this lock is void


def _free(file: BinaryIO, path: Path, created: list[Path], process: int) -> None:
    if os.getpid() == process:  # not in a forked child
        if _is_at(file, path) and not os.fstat(file.fileno()).st_size:  # Reverie writes nothing into the file
            with suppress(OSError):
                path.unlink()
        remove_empty(created)
    file.close()
