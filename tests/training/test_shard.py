"""State shared out among processes: the same losses and files as whole, in half the memory."""

from __future__ import annotations

import gc
import os
import signal
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import reverie
from reverie.base.errors import UserError
from reverie.base.tensors import read_tensor_specs
from reverie.runs.finding import RESCUE
from reverie.runs.folder import read_findings
from reverie.runs.run import Run
from reverie.training import checkpoints, loop
from reverie.training.gradient import make_step
from reverie.training.prepare import prepare
from reverie.training.resume import resume
from tests.training.test_team import LONG, begun, followers, wait_for_checkpoint

WIDE = "mlp:hidden=160"


def trained(out: Path, data: str = "spiral", **options: Any) -> Run:
    points = {"points": 400} if data == "spiral" else {}
    return reverie.train(data, out, progress=False, **{"steps": 4, "micro_batches": 2, **points, **options})


def assert_alike(one: Run, two: Run) -> None:
    """Refuse losses that differ by more than 1e-5, and checkpoints of other tensors."""
    first, second = ([row["loss"] for row in run.metrics() if row.get("loss") is not None] for run in (one, two))
    assert len(first) == len(second) and first == pytest.approx(second, rel=1e-5)
    forms = [read_tensor_specs(checkpoints.existing(run.path)[0]) for run in (one, two)]
    assert forms[0] == forms[1]
    weights = two.model.state_dict()
    for name, t in one.model.state_dict().items():
        torch.testing.assert_close(weights[name], t, rtol=1e-4, atol=1e-5)


def held_bytes() -> int:
    """Return the bytes of all tensors that this process holds."""
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [t for t in gc.get_objects() if issubclass(type(t), Tensor)]
    storages = {}
    for t in found:
        if type(t).__name__ == "FakeTensor":
            continue
        try:
            storages[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        except (NotImplementedError, RuntimeError):  # one that wraps others
            continue
    return sum(storages.values())


@pytest.mark.slow  # ten seconds of a processor, half of them for starting
def test_losses_and_files_are_those_of_whole_state_in_half_the_memory(tmp_path: Path, monkeypatch) -> None:
    most: dict[str, int] = {}

    def measured(learner: Any, *reported: Any) -> Any:
        made = make_step(learner, *reported)
        if learner.i == 3:
            most["now"] = held_bytes()
        return made

    monkeypatch.setattr(loop, "make_step", measured)
    before = held_bytes()
    whole = trained(tmp_path / "whole", network=WIDE)
    alone = most["now"] - before
    del whole
    before = held_bytes()
    trained(tmp_path / "shared", network=WIDE, processes=2, shard=True)
    shared = most["now"] - before
    numbers = sum(p.numel() for p in reverie.load(tmp_path / "whole").model.parameters())
    first = 4 * numbers  # the doctor of the leader knows the first weights
    assert alone - first > 4 * numbers * 12  # weights, gradient, two moments, average, and two states to go back to
    assert shared - first < 0.57 * (alone - first), (alone, shared, numbers)
    assert_alike(reverie.load(tmp_path / "whole"), reverie.load(tmp_path / "shared"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "options"),
    [
        ("digits8", {"network": "unet:widths=[8,12],groups=4,embedding_dim=16", "batch": 32, "optimizer": "muon"}),
        ("digits8", {"network": "unet:widths=[8,12],groups=4,embedding_dim=16", "batch": 32, "accumulate": 2}),
        ("digits8", {"network": "transformer:dim=16,layers=2,heads=2,patch=2", "batch": 32}),
        ("spiral", {"family": "vae"}),
        ("spiral", {"family": "flow"}),
        ("spiral", {"schedule": "learned"}),
    ],
)
def test_any_model_is_distributed_updates(data: str, options: dict[str, Any], tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", data, **options)
    assert_alike(whole, trained(tmp_path / "shared", data, processes=2, shard=True, **options))


@pytest.mark.slow
def test_a_run_resumes_shared_out_whole_and_shared_out_again(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", steps=12)
    training = prepare("spiral", tmp_path / "run", points=400, steps=12, micro_batches=2, processes=2, shard=True)
    for shard in (False, True, True):
        for step in training:
            if step.i in (4, 8) and step.fraction < 1:
                break
        else:
            break
        training = resume(tmp_path / "run", processes=2 if shard else 1, shard=shard)
    found = reverie.load(tmp_path / "run")
    assert found.metrics()[-1]["fraction"] == 1
    for name, t in found.model.state_dict().items():
        torch.testing.assert_close(t, whole.model.state_dict()[name], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_training_that_explodes_is_rescued(tmp_path: Path) -> None:
    options = {"learning_rate": 9.0, "steps": 200, "gradient_clip": 1e9}
    rows = []
    for name, more in (("whole", {}), ("shared", {"processes": 2, "shard": True})):
        try:
            run = trained(tmp_path / name, **options, **more)
        except UserError as error:
            assert "for the third time" in str(error)
            run = reverie.load(tmp_path / name)
        rows.append([finding.since for finding in read_findings(run.path) if finding.check == RESCUE])
    assert rows[0] == rows[1] and rows[0]


@pytest.mark.slow
def test_a_lost_process_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    leader = begun(tmp_path / "run", "--processes", "2", "--shard", exact=False)
    wait_for_checkpoint(leader, tmp_path / "run")
    os.kill(followers(leader.pid)[0], signal.SIGKILL)
    message, _ = leader.communicate(timeout=120)
    assert leader.returncode == 2 and "another of the 2 processes was lost" in message and "Traceback" not in message
    run = trained_on(tmp_path / "run")
    assert run.metrics()[-1]["i"] == LONG


def trained_on(path: Path) -> Run:
    return reverie.train(resume=path, progress=False)


@pytest.mark.slow
def test_ctrl_c_keeps_the_whole_state(tmp_path: Path) -> None:
    leader = begun(tmp_path / "run", "--processes", "2", "--shard", exact=False)
    wait_for_checkpoint(leader, tmp_path / "run")
    leader.send_signal(signal.SIGINT)
    message, _ = leader.communicate(timeout=60)
    assert leader.returncode == 130 and "stopped at step" in message, message
    assert trained_on(tmp_path / "run").metrics()[-1]["i"] == LONG


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "--processes 2"),
        ({"processes": 2, "exact": True}, "--exact .*--shard"),
        ({"processes": 2, "micro_batches": 3}, "2 processes"),
    ],
)
def test_what_cannot_be_shared_out_is_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        prepare("spiral", tmp_path / "run", points=100, steps=2, shard=True, **options)
    assert not (tmp_path / "run").exists()
