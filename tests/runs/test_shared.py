"""Sampling with several processes: the same images in order, and resumed after an interruption."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import reverie
from reverie import api
from reverie.base.errors import UserError
from reverie.base.progress import silent
from reverie.evaluation.quality import quality_section
from reverie.evaluation.reports import find_data
from reverie.evaluation.sample_metrics import collect_data
from reverie.evaluation.shared_features import share_features
from reverie.runs import run as run_module
from reverie.runs.distributed import DistributedRun, distributed_run
from reverie.runs.outputs import MANIFEST
from reverie.runs.run import Run
from reverie.runs.writing import Interrupted
from tests.files import full_disk

OPTIONS = {"steps": 2, "seed": 5, "sampler": "ddpm"}


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "BATCH_VALUES", 64 * 8)


def test_two_processes_draw_what_one_draws_and_measure_the_same(digits_run: Run) -> None:
    run, n = digits_run, 2048 * 2 + 300  # three batches, in two rounds
    alone = run.sample(n, **OPTIONS)
    reported = list[tuple[str, int, int]]()
    train, held = find_data(run, n)
    with distributed_run(run, 2) as shared:
        together = shared.sample(n, on_progress=lambda *now: reported.append(now), **OPTIONS)
        np.testing.assert_array_equal(together.x, alone.x)
        assert together.labels == alone.labels
        assert reported == sorted(reported) and reported[-1] == ("sampling", n, n)
        with pytest.raises(UserError, match="nonsense"):
            shared.sample(3, label="nonsense", steps=2)
        assert isinstance(shared, DistributedRun) and shared.team is not None
        by = share_features("classifier", train, held, silent, shared.team)
        one, two = (
            quality_section(collect_data(samples.x, train, held, samples.labels, features, 0, True, silent, "digits8")).figures
            for features, samples in (("classifier", alone), (by, together))
        )
    assert one["kid"] == two["kid"] and one["frechet"] == two["frechet"] and one["frechet_all"] == two["frechet_all"]


def test_a_folder_is_resumed(digits_run: Run, small_batches: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run, draw, drawn = digits_run, Run.decode_final, list[int]()
    whole = api.sample_to(run, 30, tmp_path / "whole", **OPTIONS)
    assert len(whole) == 31 and whole[-1].name == "labels.csv" and whole[29].name == "29.png"

    def stopping(self: Run, last: object) -> np.ndarray:
        drawn.append(1)
        if len(drawn) == 3:
            raise KeyboardInterrupt
        return draw(self, last)  # type: ignore[arg-type]  # a frame

    monkeypatch.setattr(Run, "decode_final", stopping)
    with pytest.raises(Interrupted, match=r"16 of 30 images are in .* same command"):
        api.sample_to(run, 30, tmp_path / "cut", **OPTIONS)
    assert (tmp_path / "cut" / "labels.csv").read_text().count("\n") == 17
    whole_image = (tmp_path / "cut" / "03.png").read_bytes()
    (tmp_path / "cut" / "03.png").write_bytes(whole_image[:-20])  # as a failing power might leave it
    (tmp_path / "cut" / ".04-a_cdefg8.png").write_bytes(whole_image[:-20])
    Image.new("L", (3, 3)).save(tmp_path / "cut" / "05.png")
    message = list[str]()
    with pytest.raises(UserError, match="contains samples"):  # others are not
        api.sample_to(run, 30, tmp_path / "cut", **{**OPTIONS, "seed": 6})
    drawn[:] = [0] * 3
    api.sample_to(run, 30, tmp_path / "cut", notify=message.append, **OPTIONS)
    assert len(drawn) == 3 + 3 and len(message) == 1 and f"14 of 30 images are in {tmp_path / 'cut'}" in message[0]
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")
    api.sample_to(run, 30, tmp_path / "cut", **OPTIONS)
    assert len(drawn) == 6  # nothing was left to draw
    api.sample_to(run, 3, tmp_path / "cut", overwrite=True, **OPTIONS)
    assert sorted(contents(tmp_path / "cut")) == [MANIFEST, "0.png", "1.png", "2.png", "labels.csv"]


@pytest.mark.usefixtures("small_batches")
def test_a_full_disk_keeps_what_is_finished(digits_run: Run, tmp_path: Path) -> None:
    api.sample_to(digits_run, 20, tmp_path / "whole", **OPTIONS)
    with ExitStack() as stack:

        def fill(what: str, done: int, of: int) -> None:
            if done == 16:
                stack.enter_context(full_disk(40))

        with pytest.raises(UserError, match=r"cannot write .*; 8 of 20 images are in .* same command"):
            api.sample_to(digits_run, 20, tmp_path / "cut", on_progress=fill, **OPTIONS)
    api.sample_to(digits_run, 20, tmp_path / "cut", **OPTIONS)
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")
    with full_disk(40), pytest.raises(UserError, match="cannot write"):
        api.sample_to(digits_run, 20, tmp_path / "nothing", **OPTIONS)
    assert not (tmp_path / "nothing").exists()


def call(*words: object, torchrun: int = 0) -> list[str]:
    by = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={torchrun}") if torchrun else ()
    return [sys.executable, *by, "-m", "reverie", *map(str, words)]


@pytest.mark.slow
def test_the_command_line_and_torchrun_draw_and_measure_the_same(digits_run: Run, tmp_path: Path) -> None:
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}  # as torchrun sets it: sums by two threads end in other last digits
    words = ("sample", digits_run.path, "-n", 5000, "--steps", 3, "--out")
    for name, command in {
        "one": call(*words, tmp_path / "one"),
        "two": call(*words, tmp_path / "two", "--processes", 2),
        "torchrun": call(*words, tmp_path / "torchrun", torchrun=3),
    }.items():
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=alone)
        assert done.returncode == 0 and "5,001 files" in done.stdout, (name, done.stderr)
    assert contents(tmp_path / "one") == contents(tmp_path / "two") == contents(tmp_path / "torchrun")
    found = []
    for command in (call("evaluate", digits_run.path, "-n", 2500, "--quick", "--json"),
                    call("evaluate", digits_run.path, "-n", 2500, "--quick", "--json", torchrun=2)):  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=alone)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout))
    timed = [key for key in found[0] if "milliseconds" in key]
    one, two = ({key: value for key, value in each.items() if key not in (*timed, "sections")} for each in found)
    assert one == two and one["samples"] == 2500
    assert found[0]["sections"]["quality"] == found[1]["sections"]["quality"]


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["follower", "leader"])
def test_after_a_kill_the_same_command_resumes(digits_run: Run, victim: str, tmp_path: Path) -> None:
    words = ("sample", digits_run.path, "-n", 12_000, "--steps", 8, "--out")
    api.sample_to(digits_run, 12_000, tmp_path / "whole", steps=8)
    leader = subprocess.Popen(call(*words, tmp_path / "cut", "--processes", 2), stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 120
    while not (tmp_path / "cut" / "04100.png").exists() and time.monotonic() < end:
        time.sleep(0.02)
    others = subprocess.run(["pgrep", "-P", str(leader.pid)], capture_output=True, text=True, check=True).stdout.split()
    os.kill(leader.pid if victim == "leader" else int(others[0]), signal.SIGKILL)
    message = leader.communicate(timeout=120)[1]
    assert victim == "leader" or ("another of the 2 processes was lost" in message and "resume" in message)
    assert 4100 < len(contents(tmp_path / "cut")) < 12_000
    done = subprocess.run(call(*words, tmp_path / "cut", "--processes", 2), capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "images are in" in done.stderr and "are kept" in done.stderr
    cut, whole = contents(tmp_path / "cut"), contents(tmp_path / "whole")
    assert cut.keys() == whole.keys()  # and nothing that was half written
    assert all(v == whole[k] for k, v in cut.items() if k != MANIFEST)
    time.sleep(1)
    assert not any(Path(f"/proc/{k}").exists() for k in others)


def test_a_number_of_processes_that_cannot_be_is_refused(digits_run: Run) -> None:
    with pytest.raises(UserError, match="from 1 to"):
        reverie.sample(digits_run, 4, processes=0)
