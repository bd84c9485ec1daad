"""Starting and ending worker processes on this machine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from reverie.base.errors import UserError
from reverie.base.signals import Stopped
from reverie.base.team import RESUME_ADVICE, LostError, Team, world_size

LEADER = "REVERIE_LEADER"  # environment variable: the process id of the leader that started this process
EXIT_TIMEOUT = 20.0  # seconds that followers have to exit before they are killed
_leading: list[Team] = []  # the team of this process, for nested work


def threads_each(processes: int) -> int:
    """Return the threads per process, so that all together use all cores."""
    local_processes = processes if world_size() == 1 else int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, min(torch.get_num_threads(), _cores() // local_processes))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_processes(count: int) -> int:
    """Refuse a number of processes that is invalid or too large for this machine."""
    max_count = max(4, 2 * _cores())
    if not 1 <= count <= max_count:
        raise UserError(f"--processes must be from 1 to {max_count} on this machine, got {count}")
    if count > 1 and world_size() > 1:
        raise UserError("torchrun has already started several processes; leave --processes out")
    return count


@contextmanager
def team_of(processes: int, device: torch.device, advice: str = RESUME_ADVICE) -> Iterator[Team | None]:
    """Lead the processes that torchrun started, or start followers on this machine; None for a single process.

    A nested training uses the same team.  advice: what to do if a process is lost.  An interrupted process does not wait for
    the others: they hold no state, and exit when the connection closes.
    """
    if _leading:
        _leading[0].advice = advice
        yield _leading[0]
        return
    if processes == 1 and world_size() == 1:
        yield None
        return
    if world_size() > 1:
        team = Team(0, world_size(), device)
        followers = list[subprocess.Popen[bytes]]()
    else:
        followers = _start(processes, device)
        team = _join(processes, device, followers)
    _leading.append(team)
    team.advice, responsive = advice, False
    try:
        with _ended_by_two_interrupts(followers):
            yield team
        responsive = True
    except (UserError, Stopped):  # raised between two pieces of work, or by all processes at once
        responsive = True
        raise
    finally:
        _leading.clear()
        team.close(responsive)
        _end(followers, EXIT_TIMEOUT if responsive else 0.0)


@contextmanager
def _ended_by_two_interrupts(followers: list[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Kill the followers at the second Ctrl-C, so that a leader that waits for them can end.

    Python handles signals only between bytecodes, and a process that waits for another executes none; the system writes each
    signal to a pipe, which a thread reads.
    """
    if threading.current_thread() is not threading.main_thread() or not followers:
        yield
        return
    (receiver, sender), interrupts = socket.socketpair(), list[int]()
    sender.setblocking(False)
    previous = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)

    def listen() -> None:
        while numbers := receiver.recv(64):
            interrupts.extend(number for number in numbers if number == signal.SIGINT)
            if len(interrupts) > 1:
                for process in followers:
                    process.kill()

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    try:
        yield
    except LostError:
        if len(interrupts) > 1:
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.set_wakeup_fd(previous)
        sender.close()
        listener.join()
        receiver.close()


def _start(processes: int, device: torch.device) -> list[subprocess.Popen[bytes]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    world = {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), LEADER: str(os.getpid())}
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
    threads = {"OMP_NUM_THREADS": str(threads_each(processes))}
    # The new process becomes a follower because its rank is not 0.
    call = [sys.executable, "-m", "reverie", "train", "--device", device.type]
    environments = [{**os.environ, **world, **threads, "RANK": str(k), "LOCAL_RANK": str(k)} for k in range(1, processes)]
    # A new session: Ctrl-C reaches only the leader, which ends the others after its step.
    return [subprocess.Popen(call, env=env, stdin=subprocess.DEVNULL, start_new_session=True) for env in environments]


def end_with_leader() -> None:
    """Exit soon after the process that started this one, even while waiting for it."""
    leader = os.environ.get(LEADER)
    if leader is None:
        return

    def watch() -> None:
        while str(os.getppid()) == leader:
            time.sleep(2)
        os._exit(3)

    threading.Thread(target=watch, daemon=True).start()


def _join(processes: int, device: torch.device, followers: list[subprocess.Popen[bytes]]) -> Team:
    try:
        return Team(0, processes, device)
    except BaseException:
        _end(followers, 0.0)
        raise


def _end(followers: list[subprocess.Popen[bytes]], timeout: float) -> None:
    for process in followers:
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
