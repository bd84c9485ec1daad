"""What is said at the start, on the way and at the end of a training: true, in round numbers, and within a line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import reverie
from reverie import api
from reverie.base.busy import WaitMeter, few_threads_when_busy
from reverie.base.errors import UserError
from reverie.base.spec import complete
from reverie.base.units import format_speed
from reverie.data.appearance import AppearanceStats
from reverie.diffusion.plan import PRESETS, network_for
from reverie.nets import NETWORKS
from reverie.runs.config import TrainingConfig
from reverie.runs.finding import Finding
from reverie.runs.folder import METRICS
from reverie.runs.run import Run
from reverie.runs.screen import Screen, progress_note
from reverie.runs.step import Step
from reverie.runs.weights import write_weights
from reverie.training.checks import copies, empty_previews
from reverie.training.diagnosis import Diagnosis, NetworkInfo, NetworkSizes, held_out_decrease
from reverie.training.suggestions import format_number, retrain_command, sizes
from reverie.training.summary import short_verdict, verdict

LIKE = {"detail": 1.0, "std": 1.0, "nearest_neighbor": 1.0, "noise": 0.0}
SHAPE = (3, 32, 32)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of images whose reports the tests write themselves."""
    return api.prepare("digits8", tmp_path_factory.mktemp("runs") / "run", steps=1000).run


def told(run: Run, *rows: dict[str, Any]) -> Run:
    usual = {"loss": 0.5, "seconds": 60.0, "held_out_levels": [0.3] * 4, "train_levels": [0.3] * 4, "learning_rate": 0.01}
    text = "".join(json.dumps({**usual, "fraction": row["i"] / rows[-1]["i"], **row}) + "\n" for row in rows)
    (run.path / METRICS).write_text(text)
    return run


def test_an_extended_run_is_compared_by_its_steps(images: Run) -> None:
    """Fractions from before the extension are those of a shorter run, and the first check is of an untrained network."""
    before = [{"i": i, "fraction": i / 1000, "held_out": loss} for i, loss in ((1, 1.7), (500, 0.5), (1000, 0.4))]
    run = told(images, *before, {"i": 1500, "held_out": 0.39}, {"i": 2000, "held_out": 0.372, "appearance": LIKE})
    assert "fell by 7% since step 1,000, so more time will help" in verdict(run).lines[2]
    short = told(images, *before, {"i": 1250, "held_out": 0.4, "appearance": LIKE})
    assert "since step 1,000 the held-out loss has not fallen" in verdict(short).lines[2]
    assert held_out_decrease([{"i": 1, "held_out": 1.7, "fraction": 0.01}, {"i": 60, "held_out": 0.4, "fraction": 1}]) is None
    first = told(images, {"i": 1, "held_out": 1.7}, {"i": 60, "held_out": 0.4})
    assert "too few checks" in verdict(first).lines[2] and "fell" not in verdict(first).lines[2]


FLAT = ({"i": 1, "held_out": 1.7}, {"i": 500, "held_out": 0.401, "train_loss": 0.39}, {"i": 1000, "held_out": 0.4})


@pytest.mark.parametrize(
    ("last", "said"),
    [
        ({"appearance": LIKE}, "and the previews have the detail and spread of held-out data: more time will give little"),
        (
            {"appearance": {**LIKE, "detail": 0.6}},
            "blurred, with 60% of the data's fine detail: a larger network may give more",
        ),
        (
            {"appearance": {**LIKE, "std": 0.5}},
            "alike, with 50% of the data's spread: a larger network may give more: --network",
        ),
        (
            {"appearance": LIKE, "linear_levels": [0.2] * 4},
            "worse than that of a linear filter: a larger network may give more",
        ),
        ({}, "only: a larger network may give more"),
        ({"appearance": {**LIKE, "detail": 0.6}, "train_loss": 0.2}, "of the data's fine detail: more data may give more"),
    ],
)
def test_a_flat_loss_is_called_enough_only_where_the_level_is_good(images: Run, last: dict[str, Any], said: str) -> None:
    line = verdict(told(images, *FLAT[:2], {**FLAT[2], **last})).lines[2]
    assert said in line and "since step 500 the held-out loss fell by 0.2% only" in line
    assert ("more time will give little" in line) == (last == {"appearance": LIKE})


def test_no_datum_is_seen_twice_in_a_step(images: Run) -> None:
    """Of three images two are trained on, each once a step, however large a batch was asked for."""
    run = told(images, *FLAT)
    few = replace(run, config=run.config.model_copy(update={"data": run.config.data.model_copy(update={"count": 3})}))
    assert run.config.training.batch > 2 and "on 3 8x8 images for pictures, each seen 1,000 times:" in verdict(few).lines[1]


def test_what_a_linear_filter_does_better_is_not_healthy(images: Run) -> None:
    """Seen: forty steps on 250 sprites gave blobs, a loss of 0.51 beside 0.44 of a linear filter, and were called healthy."""
    rows = ({"i": 1, "held_out": 1.7}, {"i": 40, "held_out": 0.505, "fraction": 1.0})
    levels = {"train_levels": [0.5] * 4, "linear_levels": [0.44] * 4, "appearance": LIKE}
    first = verdict(told(images, *rows, {"i": 50, "held_out": 0.5, **levels}))
    assert first.lines[0] == "learned little: after 50 steps even the loss on training data is above that of a linear filter"
    assert "fell by 1% since step 40, so more time will help" in first.lines[2], "1 % in a quarter more steps is no standstill"
    levels["train_levels"] = [0.4] * 4
    assert verdict(told(images, *rows, {"i": 50, "held_out": 0.5, **levels})).lines[0] == "no fault found in training"


def test_noise_is_never_healthy(images: Run) -> None:
    found = verdict(told(images, *FLAT[:2], {**FLAT[2], "appearance": {**LIKE, "noise": 0.5}}))
    assert found.lines[0] == "too short to judge: after 1,000 steps the previews are still noise"
    assert verdict(told(images, *FLAT[:2], {**FLAT[2], "appearance": LIKE})).lines[0] == "no fault found in training"


def test_training_quality_and_what_is_missing_are_three_statements(images: Run) -> None:
    """Seen: 454 steps on 352 pictures gave speckled blobs, and the last word was that nothing was wrong."""
    rows = [{"i": 1, "held_out": 1.7, "waited": 0.5}, {"i": 227, "held_out": 0.6, "waited": 0.5}]
    last = {"i": 454, "held_out": 0.5, "waited": 0.6, "appearance": {**LIKE, "detail": 0.28}}
    training, quality, missing = verdict(told(images, *rows, last)).lines
    assert training == "no fault found in training" and "28%" in quality and "blurred" in quality
    assert "454" in missing and "1,000" in missing and "busy" in missing and "more time will help" in missing
    said = short_verdict(images.config, images.metrics(), ())
    assert all(word in said for word in ("no fault", "blurred", "too few steps"))
    idle = verdict(told(images, *({**row, "waited": 0.0} for row in (*rows, last)))).lines[2]
    assert "454" in idle and "busy" not in idle
    colour = images.config.model_copy(update={"data": images.config.data.model_copy(update={"shape": (3, 8, 8)})})
    assert "3,000" in verdict(replace(told(images, *rows, last), config=colour)).lines[2]
    assert "too few steps" not in verdict(told(images, *FLAT[:2], {**FLAT[2], "appearance": LIKE})).lines[2]


def test_text_has_a_line_on_its_quality(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the cat sat on the mat and the dog ran to the cat on the mat. " * 60)
    run = reverie.train(str(tmp_path / "text.txt"), tmp_path / "run", family="rnn", steps=40, window=32)
    training, quality, _ = verdict(run).lines
    assert "strings of 8 characters" in quality
    look = {"novel": 0.9, "held_out_novel": 0.2}
    bad = verdict(told(run, *FLAT[:2], {**FLAT[2], "appearance": look})).lines
    assert bad[0] == training == "no fault found in training" and "unlike the text: 10%" in bad[1] and "80%" in bad[1]
    assert "unlike" not in verdict(told(run, *FLAT[:2], {**FLAT[2], "appearance": {**look, "novel": 0.3}})).lines[1]


def test_the_second_line_is_plain_words(images: Run) -> None:
    line = verdict(told(images, *FLAT[:2], {**FLAT[2], "seconds": 301.7, "appearance": {**LIKE, "detail": 0.6}})).lines[1]
    assert line == (
        "5.03 minutes on 1,797 8x8 images for pictures, each seen 37 times: held-out loss 0.4000, at first 1.7000;"
        " the previews are blurred, with 60% of the data's fine detail"
    )
    family = images.config.family.model_copy(update={"autoguidance": 2.5})
    led = replace(images, config=images.config.model_copy(update={"family": family}))
    line = verdict(told(led, *FLAT[:2], {**FLAT[2], "appearance": {**LIKE, "detail": 0.2}})).lines[1]
    assert line.endswith("autoguidance 2.5; the previews, which are not led, have 20% of the data's fine detail")
    linear = told(images, *FLAT[:2], {**FLAT[2], "appearance": LIKE, "linear_levels": [0.4, 0.5, 0.6, 0.7]})
    assert (
        verdict(linear)
        .lines[1]
        .endswith(
            "held-out loss 0.4000, at first 1.7000, that of a linear filter 0.5500;"
            " the previews have 100% of the data's fine detail and 100% of its spread"
        )
    )


def test_samples_off_the_data_are_told_of_points(spiral_run: Run, tmp_path: Path) -> None:
    run = replace(spiral_run, path=tmp_path)
    off = told(run, *FLAT[:2], {**FLAT[2], "appearance": {**LIKE, "nearest_neighbor": 3.2}})
    assert "but samples lie 3.2 times as far from the closest training datum as held-out data do" in verdict(off).lines[2]
    assert "more time will give little" in verdict(told(run, *FLAT[:2], {**FLAT[2], "appearance": LIKE})).lines[2]


def test_numbers_in_commands_are_round(images: Run) -> None:
    assert [format_number(x) for x in (10.0087, 0.49987, 12.5, 1234.5, 123456.0)] == ["10", "0.5", "12.5", "1230", "123000"]
    longer = images.config.model_copy(update={"training": TrainingConfig(minutes=10.0087)})
    run = replace(told(images, *FLAT), config=longer)
    assert verdict(run).commands["go on"].endswith(f"--resume {images.path}")  # its weights do not record the end yet
    write_weights(images.path, images.config, images.model, ended=FLAT[-1]["i"])
    assert verdict(run).commands["go on"].endswith("--extend --minutes 10")


def test_networks_to_advise_are_of_the_same_design_and_another_size() -> None:
    networks = {name: network_for(SHAPE, 0, name) for name in PRESETS}
    assert sizes(networks["unet-tiny"]).smaller is None and sizes(networks["unet-base"]).larger is None
    for name in ("unet-tiny", "unet-small"):
        larger = sizes(networks[name]).larger
        assert larger in PRESETS and larger not in (name, "unet-teaching")
        assert sizes(networks[larger]).smaller in PRESETS
    points = complete(NETWORKS, {"name": "mlp", "hidden": 64}, "network")
    assert sizes(points).smaller == "mlp:hidden=32" and sizes(points).larger == "mlp:hidden=128"
    assert sizes(network_for(SHAPE, 0, "unet:widths=[64,64],stem=8")).unfolded == "unet:widths=[64,64],stem=4"


def test_what_mends_changes_something(images: Run) -> None:
    def command(change: dict[str, str | None], requested: dict[str, Any]) -> str | None:
        config = images.config.model_copy(update={"requested": requested})
        found = retrain_command(replace(images, config=config), [Finding("x", "", 1, "", "", change)])
        return found and found.replace(" --fit crop", "")  # how the data were read is kept

    assert command({}, {}) is None and command({"learning_rate": None}, {}) is None and command({"target": "flow"}, {}) is None
    assert command({"learning_rate": "0.001"}, {}).endswith("--steps 1000 --learning-rate 0.001")
    kept = command({"learning_rate": None}, {"learning_rate": 5.0, "batch": 32, "ema_share": 0.5})
    assert kept.endswith("--steps 1000 --batch 32 --ema-share 0.5")
    assert command({"length": "0.25"}, {}).endswith("--steps 250")


def test_the_smallest_network_is_not_told_to_be_smaller() -> None:
    row, truth = {"i": 100, "fraction": 1.0, "loss": 1.0}, AppearanceStats(0.0, 1.0, 1.0, 0.0, 1.0)
    patient = Diagnosis([row], None, torch.zeros(1), "images", {}, replace(truth, nearest=0.1), truth)  # type: ignore[arg-type]
    found = copies(patient)
    assert found is not None and "--network" not in found.advice and found.change == {"length": "0.5"}
    patient.network = NetworkInfo(others=lambda: NetworkSizes(smaller="unet-tiny"))
    found = copies(patient)
    assert found is not None and "--network unet-tiny" in found.advice and found.change == {"network": "unet-tiny"}


def test_an_old_preview_is_not_judged() -> None:
    """Where previews are dear, the newest may be from the beginning, when all is noise."""
    look, truth = AppearanceStats(0.0, 0.01, 1.0, 0.0, 1.0), AppearanceStats(0.0, 1.0, 1.0, 0.0, 1.0)
    row = {"i": 100, "fraction": 0.5, "loss": 1.0, "learning_rate": 0.01}
    patient = Diagnosis([row], None, torch.zeros(1), "images", {}, look, truth, previewed=1)  # type: ignore[arg-type]
    assert empty_previews(patient) is None
    patient.previewed = 60
    assert empty_previews(patient) is not None


def test_three_images_are_too_few_to_learn_from(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (3, 8, 8), dtype=np.uint8)
    np.save(tmp_path / "three.npy", x)
    run = reverie.train(str(tmp_path / "three.npy"), tmp_path / "run", steps=40, batch=4)
    lines = verdict(run).lines
    assert lines[0].startswith("1 found wrong: only 2 images to train on, too few to learn from: the model can only copy them")
    assert "learning" not in lines[0] + lines[2] and "mend" not in verdict(run).commands


def test_a_run_of_a_few_steps_is_too_short_to_judge(tmp_path: Path) -> None:
    run = reverie.train("spiral", tmp_path / "run", steps=5, points=200)
    assert verdict(run).lines[0] == "too short to judge: 5 steps" and verdict(run).findings == ()


STEP = Step(1, 0.001, 1.0, 5.0, 1.5, 0.01, held_out=1.7)


@pytest.mark.parametrize("held", [None, 1.0, 0.1234567])
def test_the_longest_progress_fits_eighty_columns(held: float | None) -> None:
    step = Step(1_234_567, 0.5, 99 * 3600.0, 1234.0, 12.3456789, 0.01)
    check = None if held is None else replace(step, held_out=held, train_loss=held / 3)
    assert len(f"{step.fraction:4.0%} {progress_note(step, check)}") <= 80


def test_the_losses_that_stand_side_by_side_are_over_the_same_noise_levels() -> None:
    check = replace(STEP, held_out=0.25, train_loss=0.22)
    assert progress_note(replace(STEP, i=2), None).startswith("step 2, loss 1.5, 5 steps/s")
    assert progress_note(replace(STEP, i=2), check).startswith("step 2, train 0.22, held out 0.25, 5 steps/s")


def test_speeds_are_told_however_low() -> None:
    assert [format_speed(x) for x in (1234.4, 9.96, 2.54, 0.2, 0.04)] == [
        "1,234 steps/s", "10 steps/s", "2.5 steps/s", "0.2 steps/s", "0.04 steps/s",
    ]  # fmt: skip


def test_an_old_held_out_loss_is_left_out(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reverie.runs.screen.EVERY", -1.0)
    steps = [STEP] + [
        replace(STEP, i=i, seconds=i / 10, fraction=i / 200, held_out=0.5 if i == 100 else None, waited=0.4)
        for i in (10, 100, 120, 200)
    ]
    Screen(False, False).follow_training(steps)
    lines = capsys.readouterr().err.splitlines()
    shown = {line.split()[2]: "held out" in line for line in lines if "step" in line}
    assert shown == {"1,": True, "10,": False, "100,": True, "120,": True, "200,": False}


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this system does not count waiting")
def test_waiting_is_a_share() -> None:
    waiting = WaitMeter()
    sum(range(2_000_000))
    share = waiting.share()
    assert share is not None and 0 <= share <= 1


def test_one_thread_while_another_program_holds_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    share, now, threads = 0.0, 0.0, []
    monkeypatch.setattr(WaitMeter, "share", lambda self: share)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with few_threads_when_busy(lambda: now) as mind:
            times = ((0.5, 0.9), (2, 0.9), (3, 0.0), (4, 0.4), (6, 0.4), (8, 0.0), (35, 0.0), (37, 0.0), (38, 0.4), (39, 0.4),
                     (90, 0.0), (101, 0.0))  # fmt: skip
            for now, share in times:  # noqa: B007, both are looked up by name
                mind()
                threads.append(torch.get_num_threads())
            # it looks once a second, minds what it sees twice in a row, tries again after 30 s, then after 60
            assert threads == [2, 2, 2, 2, 1, 1, 1, 2, 2, 1, 1, 2]
            for now, share in ((103.0, 0.5), (105.0, 0.5)):  # noqa: B007
                mind()
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_misspelt_option_of_training_is_answered(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown option of training 'minuts'; did you mean 'minutes'"):
        reverie.train("spiral", tmp_path / "run", minuts=1)
    with pytest.raises(UserError, match="did you mean 'minutes'"):
        reverie.train(resume=tmp_path / "run", minuts=1)
    assert not (tmp_path / "run").exists()


def test_the_folder_of_a_second_run_is_told_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = (list(api.prepare("spiral", steps=1, points=50).introduction()) for _ in range(2))
    assert not any("runs" in line for line in first)
    assert f"this run goes to {Path('runs/spiral-2')}, because {Path('runs/spiral')} is there already" in second
