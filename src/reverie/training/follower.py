"""The processes of a team that follow, and how the leader starts and instructs them.

`python -m reverie.training.follower` is one of them, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its environment, as
torchrun sets them too.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tomli_w
import torch
from pydantic import ValidationError

from reverie.base.errors import UserError
from reverie.base.parse import read_toml
from reverie.families.model import TrainedModel
from reverie.runs.config import Config, build_model
from reverie.runs.reread import reread
from reverie.runs.run import choose_device
from reverie.training.gradient import Gradients, make_step, share_state
from reverie.training.learner import Learner
from reverie.training.team import LostError, Order, Team, Told, rank, world_size

LEAVING = 20.0  # seconds that followers have to end before they are ended
_leading: list[Team] = []  # the team of this process, for the trainings within a training


def threads_each(processes: int) -> int:
    """Return the threads of each of several processes on this machine: all cores together."""
    here = processes if world_size() == 1 else int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, min(torch.get_num_threads(), _cores() // here))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_processes(count: int) -> int:
    """Refuse a number of processes that cannot be, or that this machine has no cores for."""
    most = max(4, 2 * _cores())
    if not 1 <= count <= most:
        raise UserError(f"the number of processes must be from 1 to {most} on this machine, got {count}")
    if count > 1 and world_size() > 1:
        raise UserError("torchrun has started several processes already; leave --processes out")
    return count


def device_for(device: str) -> torch.device:
    """Return where this process works: each has a GPU of its own where there are several."""
    where = choose_device(device)
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if where.type == "cuda" and world_size() > 1 else where


@contextmanager
def team_of(processes: int, device: torch.device) -> Iterator[Team | None]:
    """Lead the processes that torchrun started, or start so many on this machine; None where there is just this one.

    A training within a training has the same team.
    """
    if _leading or (processes == 1 and world_size() == 1):
        yield _leading[0] if _leading else None
        return
    if world_size() > 1:
        team = Team(0, world_size(), device)
        started = list[subprocess.Popen[bytes]]()
    else:
        started = _start(processes, device)
        team = _join(processes, device, started)
    _leading.append(team)
    try:
        yield team
    finally:
        _leading.clear()
        team.close()
        _end(started)


def _start(processes: int, device: torch.device) -> list[subprocess.Popen[bytes]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    world = {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
    threads = {"OMP_NUM_THREADS": str(threads_each(processes))}
    call = [sys.executable, "-m", "reverie.training.follower", device.type]
    environments = [{**os.environ, **world, **threads, "RANK": str(k), "LOCAL_RANK": str(k)} for k in range(1, processes)]
    # A session of its own: Ctrl-C is for the leader, which ends the others when its step is done.
    return [subprocess.Popen(call, env=env, stdin=subprocess.DEVNULL, start_new_session=True) for env in environments]


def _join(processes: int, device: torch.device, started: list[subprocess.Popen[bytes]]) -> Team:
    try:
        return Team(0, processes, device)
    except BaseException:
        _end(started)
        raise


def _end(started: list[subprocess.Popen[bytes]]) -> None:
    for process in started:
        try:
            process.wait(LEAVING)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def lead(team: Team, config: Config, path: Path, learner: Learner) -> None:
    """Let the others get ready for a training, with the state of this learner; what goes wrong with one is told here."""
    if not isinstance(learner.model, TrainedModel):
        return
    team.tell(Told(Order.TRAIN, learner.i))
    team.text(tomli_w.dumps(config.as_table()))
    team.text(str(path.resolve()))
    team.agree()
    share_state(team, learner)


def _ready(team: Team, device: torch.device, config: str, path: str) -> tuple[Learner, Gradients]:
    try:
        read = Config.model_validate(read_toml(config))
    except ValidationError:
        raise UserError("the configuration that the leading process tells is not valid; are all of one version?") from None
    train, _ = reread(read.data, folder=Path(path)).split(read.data.seed)
    model = build_model(read).to(device)
    assert isinstance(model, TrainedModel)
    if read.training.exact:
        torch.set_num_threads(1)
    learner = Learner(model, read.training)
    return learner, Gradients(model, train, read.training, team)


def serve(device: torch.device) -> None:
    """Follow the leader until it leaves."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the leader decides when the step is done
        signal.signal(number, signal.SIG_IGN)
    team = Team(rank(), world_size(), device)
    learner: Learner | None = None
    gradients: Gradients | None = None
    try:
        while (told := team.tell()).order != Order.LEAVE:
            try:
                if told.order == Order.TRAIN:
                    config, path, fault = team.text(), team.text(), ""
                    try:
                        learner, gradients = _ready(team, device, config, path)
                    except (UserError, OSError) as error:
                        fault = str(error)
                    team.agree(fault)
                assert learner is not None and gradients is not None
                if told.order == Order.STEP:
                    make_step(learner, gradients, told)
                else:
                    share_state(team, learner)
                    gradients.go_to(told.i)
            except LostError:
                raise
            except UserError:
                continue  # all know of it, and the leader says what follows
    finally:
        team.close()


def main() -> None:
    """Follow."""
    try:
        serve(device_for(sys.argv[1] if len(sys.argv) > 1 else "cpu"))
    except LostError:
        sys.exit(3)  # the leader, if it is there, says the same


if __name__ == "__main__":
    main()
