"""The lock of a run folder: whoever trains in it holds the lock from the claim to the end."""

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
FLAGS = os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # and not truncated


class Occupied(UserError):
    """A folder that is another training's."""


class Lock:
    """Keeps every other trainer out of a folder, which is made if need be, until it is released or its holder is gone.

    The lock is the system's, on an open file, so it ends with the process however that ends; a file that a killed process
    left locks nothing.  Used as a context it is at work; until then a later one of the same program takes its place, so that
    a training can be prepared again in a notebook.  folder: which one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self._file, made = _taken(folder)
        except Occupied:
            if not (idle := [lock for lock in IDLE if lock.held and lock.folder.samefile(folder)]):
                raise
            idle[0].release()
            self._file, made = _taken(folder)
        self._release = weakref.finalize(self, _free, self._file, folder / LOCK, made, os.getpid())
        IDLE.add(self)

    def release(self) -> None:
        """Let others in, and remove the folders that were made for nothing."""
        self._release()

    @property
    def held(self) -> bool:
        """Whether the folder is ours: the lock was not released, and nobody has put another folder or lock in its place."""
        return self._release.alive and _is_at(self._file, self.folder / LOCK, missing=True)

    def __enter__(self) -> Lock:
        IDLE.discard(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


IDLE: weakref.WeakSet[Lock] = weakref.WeakSet()  # those of this program that are not at work


def holder(folder: Path) -> int | None:
    """Return the process that trains in a folder, None if there is none, and 0 where it is not known which one.

    Linux tells who holds which lock (proc_locks(5)); where it does not, it is only tried whether the lock is free.  A file with
    several names may be locked under another one by any program.
    """
    try:
        there = own_file(folder, LOCK).stat()
    except (OSError, UserError):
        return None
    try:
        lines = _LOCKS.read_text().splitlines()
    except OSError:
        return _held_by_someone(folder / LOCK)
    name = f"{os.major(there.st_dev):02x}:{os.minor(there.st_dev):02x}:{there.st_ino}"
    found = [words for line in lines if len(words := line.split()) > 5 and words[1] == "FLOCK" and words[5] == name]
    if not found:
        return _held_by_someone(folder / LOCK)
    return max(int(found[0][4]), 0) if there.st_nlink == 1 else 0


def interrupt(folder: Path) -> None:
    """Send SIGINT to the training in a folder; refuse unless it is certain which process that is.

    Anyone may have made the folder, so the process must be a command of ours that opened the lock by this very path.  A pidfd
    keeps the number from being another process's by the time the signal is sent.
    """
    process = holder(folder)
    if process is None:
        raise UserError(f"nothing is being trained in {folder}")
    try:
        handle = os.pidfd_open(process)
    except (OSError, AttributeError):  # it has ended, is not known, or the system has no such handles
        raise UserError(f"cannot tell which process trains in {folder}; stop it where it was started") from None
    try:
        if holder(folder) != process or not _opened_by(process, (folder / LOCK).resolve()) or not _is_ours(process):
            raise UserError(f"process {process} locks {folder / LOCK} and is no `reverie train`; stop it where it was started")
        signal.pidfd_send_signal(handle, signal.SIGINT)
    except OSError as error:
        raise UserError(f"cannot stop the training in {folder}: {reason(error)}") from None
    finally:
        os.close(handle)


def _opened_by(process: int, path: Path) -> bool:
    """Tell whether a process has a file open by this path, which differs for other names of the same file."""
    return any(link.is_symlink() and link.readlink() == path for link in (_PROCESSES / str(process) / "fd").iterdir())


def _is_ours(process: int) -> bool:
    """Tell whether a process is a command of Reverie: `reverie ...` or `python -m reverie ...`."""
    words = os.fsdecode((_PROCESSES / str(process) / "cmdline").read_bytes()).split("\0")
    program, script = (Path(word).name for word in (words[0], next((w for w in words[1:] if w[:1] != "-"), "")))
    return program == "reverie" or (program.startswith("python") and script == "reverie")


def _held_by_someone(path: Path) -> int | None:
    try:
        import fcntl

        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0
    except (ImportError, OSError):
        pass
    return None


def _taken(folder: Path) -> tuple[BinaryIO, list[Path]]:
    """Return the lock file, open and locked, and the folders that were made for it."""
    made = make_folder(folder)
    try:
        return _locked(folder), made
    except BaseException:
        remove_empty(made)
        raise


def _is_at(file: BinaryIO, path: Path, missing: bool = False) -> bool:
    """Tell whether a path leads to an open file.  missing: what to tell where there is none."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.lstat())
    except OSError:
        return missing


def _locked(folder: Path) -> BinaryIO:
    """Return the lock file, open and locked; what it holds is not touched."""
    while True:
        path = own_file(folder, LOCK)
        try:
            file = os.fdopen(os.open(path, FLAGS, 0o666), "ab")
        except OSError as error:
            raise UserError(f"cannot write to the folder {folder}: {reason(error)}; choose another one with --out") from error
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # no such locks on this system
            pass
        except BlockingIOError:
            file.close()
            raise Occupied(f"another training is at work in {folder}; wait for it or stop it") from None
        except OSError:  # a file system without locks
            pass
        if _is_at(file, path):
            return file
        file.close()  # the one who held it has removed it meanwhile, so it keeps nobody out


def _free(file: BinaryIO, path: Path, made: list[Path], process: int) -> None:
    if os.getpid() == process:  # and not a copy of it, made by a fork
        if _is_at(file, path) and not os.fstat(file.fileno()).st_size:  # one that holds something was not made by us
            with suppress(OSError):
                path.unlink()
        remove_empty(made)
    file.close()
