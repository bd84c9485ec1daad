"""Several processes that train one model: the same bits, the same errors, and nothing lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import reverie
from reverie.base.errors import UserError
from reverie.data import load_data
from reverie.runs.config import TrainingConfig
from reverie.training.loader import Share, batches
from reverie.training.prepare import prepare
from reverie.training.resume import resume

STEPS, LONG = 12, 700
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}


def trained(out: Path, processes: int, **options: object) -> dict[str, Tensor]:
    run = reverie.train("spiral", out, processes=processes, progress=False, **{"steps": STEPS, "points": 400, **options})  # type: ignore[arg-type]  # options are many kinds
    return {name: t.clone() for name, t in run.model.state_dict().items()}


def test_shares_of_all_processes_are_the_batches() -> None:
    data = load_data("spiral", points=100)
    whole = batches(data, 30, seed=1, first=2)
    for world in (1, 2, 3):
        parts = [batches(data, 30, 1, 2, Share(micro=6, parts=6, rank=k, world=world)) for k in range(world)]
        whole = batches(data, 30, seed=1, first=2)
        for _ in range(4):  # over the end of an epoch, which has three batches
            found = [next(parts[k % world])[0] for k in range(6)]
            assert torch.equal(torch.cat(found), next(whole)[0])


def test_two_processes_give_the_bits_of_one(tmp_path: Path) -> None:
    alone = trained(tmp_path / "1", 1, exact=True)
    together = trained(tmp_path / "2", 2, exact=True)
    assert all(torch.equal(alone[name], together[name]) for name in alone)
    assert any(not torch.equal(alone[name], t) for name, t in trained(tmp_path / "0", 1).items())  # other micro-batches


@pytest.mark.slow
@pytest.mark.parametrize("family", ["diffusion", "vae", "flow"])
def test_any_number_of_processes_gives_the_same_bits(family: str, tmp_path: Path) -> None:
    data = {"family": family, "exact": True}
    alone = trained(tmp_path / "1", 1, **data)
    for processes in (2, 3, 4):
        together = trained(tmp_path / str(processes), processes, **data)
        assert all(torch.equal(alone[name], together[name]) for name in alone)


@pytest.mark.slow
def test_gradients_that_are_added_at_once_differ_by_rounding(tmp_path: Path) -> None:
    alone, together = trained(tmp_path / "1", 1, micro_batches=2), trained(tmp_path / "2", 2)
    for name in alone:
        torch.testing.assert_close(together[name], alone[name], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_a_run_resumes_with_another_number_of_processes(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", 1, exact=True)
    training = prepare("spiral", tmp_path / "run", points=400, steps=STEPS, exact=True)
    for processes in (1, 2, 1):
        training.processes = processes
        for step in training:
            if step.i in (4, 8) and step.fraction < 1:
                break
        else:
            break
        training = resume(tmp_path / "run")
    found = reverie.load(tmp_path / "run").model.state_dict()
    assert all(torch.equal(whole[name], found[name]) for name in whole)


def test_a_process_that_cannot_read_the_data_is_reported(tmp_path: Path) -> None:
    np.save(tmp_path / "points.npy", np.random.default_rng(0).normal(size=(300, 2)).astype(np.float32))
    training = prepare(tmp_path / "points.npy", tmp_path / "run", steps=4, processes=2)
    (tmp_path / "points.npy").unlink()
    with pytest.raises(UserError, match=r"process 1 of 2: the data of the run are not at"):
        list(training)
    assert not (tmp_path / "run" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"processes": 0}, "from 1 to"),
        ({"processes": 1000}, "on this machine"),
        ({"processes": 3, "batch": 2}, "cannot be split into 3"),
        ({"micro_batches": 0}, "micro_batches"),
    ],
)
def test_bad_numbers_are_one_sentence(options: dict[str, int], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        prepare("spiral", tmp_path / "run", points=100, steps=2, **options)
    assert not (tmp_path / "run").exists()


def test_a_batch_has_no_more_parts_than_data() -> None:
    with pytest.raises(ValueError, match="cannot be split into 9"):
        TrainingConfig(steps=1, batch=8, micro_batches=9)


def begun(out: Path, *options: str, by: tuple[str, ...] = (), exact: bool = True) -> subprocess.Popen[str]:
    """Start a training of some seconds.  by: the program that starts it, torchrun for one."""
    call = [sys.executable, *by, "-m", "reverie", "train", "spiral", "--points", "400", "--steps", str(LONG)]
    full = [*call, *(("--exact",) if exact else ()), "--out", str(out), *options]
    return subprocess.Popen(full, env=ONE_THREAD, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for_checkpoint(training: subprocess.Popen[str], out: Path, seconds: float = 600) -> None:
    """Wait for the first checkpoint of a training; end one that has none.

    The limit is only for a training that hangs: on a busy machine three processes may take minutes to begin.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end and training.poll() is None:
        if list((out / "checkpoints").glob("0*.safetensors")):
            return
        time.sleep(0.1)
    training.terminate()
    message, _ = training.communicate(timeout=60)
    raise AssertionError(f"no checkpoint in {out}: {message}")


def followers(parent: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(parent)], capture_output=True, text=True, check=False)
    return [int(line) for line in found.stdout.split()]


@pytest.mark.slow
def test_a_lost_process_ends_the_training_with_its_state_kept(tmp_path: Path) -> None:
    leader = begun(tmp_path / "two", "--processes", "2")
    wait_for_checkpoint(leader, tmp_path / "two")
    for process in followers(leader.pid):
        os.kill(process, signal.SIGKILL)
    message, _ = leader.communicate(timeout=300)
    assert leader.returncode == 2 and "another of the 2 processes was lost" in message and "Traceback" not in message
    assert reverie.load(tmp_path / "two").metrics()


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["follower", "leader"])
def test_torchrun_starts_again_after_a_loss_and_the_bits_are_the_same(victim: str, tmp_path: Path) -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=2")
    agent = begun(tmp_path / "run", by=torchrun)
    wait_for_checkpoint(agent, tmp_path / "run")
    workers = sorted(followers(agent.pid))
    os.kill(workers[0] if victim == "leader" else workers[1], signal.SIGKILL)
    message, _ = agent.communicate(timeout=300)
    assert agent.returncode == 0, message
    alone = trained(tmp_path / "alone", 1, exact=True, steps=LONG)
    found = reverie.load(tmp_path / "run").model.state_dict()
    assert all(torch.equal(alone[name], found[name]) for name in alone)


@pytest.mark.slow
def test_ctrl_c_ends_all_processes_after_the_step(tmp_path: Path) -> None:
    leader = begun(tmp_path / "run", "--processes", "2")
    wait_for_checkpoint(leader, tmp_path / "run")
    others = followers(leader.pid)
    leader.send_signal(signal.SIGINT)
    message, _ = leader.communicate(timeout=300)
    assert leader.returncode == 130 and "stopped at step" in message
    assert others and not any(Path(f"/proc/{k}").exists() for k in others)
