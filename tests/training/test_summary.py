"""Lines at the start, during and at the end of a training: correct, with round numbers, and of limited width."""

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
from reverie.training.summary import FAULTLESS, GOOD, SHORT, short_verdict, verdict

LIKE = {"detail": 1.0, "std": 1.0, "nearest_neighbor": 1.0, "noise": 0.0}
SHAPE = (3, 32, 32)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of images whose reports the tests write themselves."""
    return api.prepare("digits8", tmp_path_factory.mktemp("runs") / "run", steps=1000).run


def with_rows(run: Run, *rows: dict[str, Any]) -> Run:
    usual = {"loss": 0.5, "seconds": 60.0, "held_out_levels": [0.3] * 4, "train_levels": [0.3] * 4, "learning_rate": 0.01}
    text = "".join(json.dumps({**usual, "fraction": row["i"] / rows[-1]["i"], **row}) + "\n" for row in rows)
    (run.path / METRICS).write_text(text)
    return run


def test_an_extended_run_is_compared_by_its_steps(images: Run) -> None:
    """Fractions from before the extension are those of a shorter run, and the first check is of an untrained network."""
    before = [{"i": i, "fraction": i / 1000, "held_out": loss} for i, loss in ((1, 1.7), (500, 0.5), (1000, 0.4))]
    run = with_rows(images, *before, {"i": 1500, "held_out": 0.39}, {"i": 2000, "held_out": 0.372, "appearance": LIKE})
    line = verdict(run).lines[2]
    assert "7%" in line and "step 1,000" in line and "longer" in line
    short = with_rows(images, *before, {"i": 1250, "held_out": 0.4, "appearance": LIKE})
    assert "step 1,000" in verdict(short).lines[2] and "%" not in verdict(short).lines[2].partition(",")[0]
    assert held_out_decrease([{"i": 1, "held_out": 1.7, "fraction": 0.01}, {"i": 60, "held_out": 0.4, "fraction": 1}]) is None
    first = with_rows(images, {"i": 1, "held_out": 1.7}, {"i": 60, "held_out": 0.4})
    assert "too few checks" in verdict(first).lines[2] and "fell" not in verdict(first).lines[2]


FLAT = ({"i": 1, "held_out": 1.7}, {"i": 500, "held_out": 0.401, "train_loss": 0.39}, {"i": 1000, "held_out": 0.4})


@pytest.mark.parametrize(
    ("last", "named", "advice"),
    [
        ({"appearance": LIKE}, "held-out", ""),
        ({"appearance": {**LIKE, "detail": 0.6}}, "60%", "--network"),
        ({"appearance": {**LIKE, "std": 0.5}}, "50%", "--network"),
        ({"appearance": LIKE, "linear_levels": [0.2] * 4}, "linear filter", "--network"),
        ({}, "0.2%", "--network"),
        ({"appearance": {**LIKE, "detail": 0.6}, "train_loss": 0.2}, "60%", "data"),
    ],
)
def test_a_flat_loss_suffices_only_with_good_previews(images: Run, last: dict[str, Any], named: str, advice: str) -> None:
    line = verdict(with_rows(images, *FLAT[:2], {**FLAT[2], **last})).lines[2]
    assert named in line and "step 500 " in line and "0.2%" in line
    assert advice in line.rpartition(": ")[2]
    assert ("--network" in line) == (advice == "--network")
    assert (GOOD["images"] in line) == (last == {"appearance": LIKE})


def test_no_datum_occurs_twice_in_a_step(images: Run) -> None:
    """Two of three images are for training, each once in a step, however large the batch."""
    run = with_rows(images, *FLAT)
    few = replace(run, config=run.config.model_copy(update={"data": run.config.data.model_copy(update={"count": 3})}))
    assert run.config.training.batch > 2 and "3 8x8 images" in verdict(few).lines[1] and "1,000 epochs" in verdict(few).lines[1]


def test_a_loss_above_a_linear_filters_is_a_problem(images: Run) -> None:
    """Regression: forty steps on 250 sprites gave blobs at a loss of 0.51, against 0.44 of a linear filter."""
    rows = ({"i": 1, "held_out": 1.7}, {"i": 40, "held_out": 0.505, "fraction": 1.0})
    levels = {"train_levels": [0.5] * 4, "linear_levels": [0.44] * 4, "appearance": LIKE}
    first = verdict(with_rows(images, *rows, {"i": 50, "held_out": 0.5, **levels}))
    assert first.lines[0] != FAULTLESS and "50 steps" in first.lines[0] and "linear filter" in first.lines[0]
    assert "1% since step 40" in first.lines[2] and "longer" in first.lines[2]  # 1 % in a quarter more steps is not flat
    levels["train_levels"] = [0.4] * 4
    assert verdict(with_rows(images, *rows, {"i": 50, "held_out": 0.5, **levels})).lines[0] == FAULTLESS


def test_noise_is_a_problem(images: Run) -> None:
    found = verdict(with_rows(images, *FLAT[:2], {**FLAT[2], "appearance": {**LIKE, "noise": 0.5}}))
    assert found.lines[0].startswith(SHORT) and "1,000 steps" in found.lines[0] and "noise" in found.lines[0]
    assert verdict(with_rows(images, *FLAT[:2], {**FLAT[2], "appearance": LIKE})).lines[0] == FAULTLESS


def test_training_quality_and_what_is_missing_are_three_statements(images: Run) -> None:
    """Regression: 454 steps on 352 images gave speckled blobs, and the verdict found nothing wrong."""
    rows = [{"i": 1, "held_out": 1.7, "waited": 0.5}, {"i": 227, "held_out": 0.6, "waited": 0.5}]
    last = {"i": 454, "held_out": 0.5, "waited": 0.6, "appearance": {**LIKE, "detail": 0.28}}
    training, quality, missing = verdict(with_rows(images, *rows, last)).lines
    assert training == FAULTLESS and "28%" in quality and "blurred" in quality
    assert "454" in missing and "1,000" in missing and "busy" in missing and "longer" in missing
    short = short_verdict(images.config, images.metrics(), ())
    assert short.startswith(FAULTLESS) and "blurred" in short and "too few steps" in short
    idle = verdict(with_rows(images, *({**row, "waited": 0.0} for row in (*rows, last)))).lines[2]
    assert "454" in idle and "busy" not in idle
    colour = images.config.model_copy(update={"data": images.config.data.model_copy(update={"shape": (3, 8, 8)})})
    assert "3,000" in verdict(replace(with_rows(images, *rows, last), config=colour)).lines[2]
    assert "too few steps" not in verdict(with_rows(images, *FLAT[:2], {**FLAT[2], "appearance": LIKE})).lines[2]


def test_text_has_a_line_on_its_quality(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the cat sat on the mat and the dog ran to the cat on the mat. " * 60)
    run = reverie.train(str(tmp_path / "text.txt"), tmp_path / "run", family="rnn", steps=40, window=32)
    training, quality, _ = verdict(run).lines
    assert "8-character strings" in quality
    look = {"novel": 0.9, "held_out_novel": 0.2}
    bad = verdict(with_rows(run, *FLAT[:2], {**FLAT[2], "appearance": look})).lines
    assert bad[0] == training == FAULTLESS and "10%" in bad[1] and "80%" in bad[1] and GOOD["text"] not in bad[1]
    assert GOOD["text"] in verdict(with_rows(run, *FLAT[:2], {**FLAT[2], "appearance": {**look, "novel": 0.3}})).lines[1]


def test_the_second_line_holds_the_results(images: Run) -> None:
    line = verdict(with_rows(images, *FLAT[:2], {**FLAT[2], "seconds": 301.7, "appearance": {**LIKE, "detail": 0.6}})).lines[1]
    named = ("5.03 minutes", "1,797 8x8 images", "37 epochs", "held-out loss 0.4000", "1.7000", "blurred", "60%")
    assert all(part in line for part in named), line
    family = images.config.family.model_copy(update={"autoguidance": 2.5})
    guided = replace(images, config=images.config.model_copy(update={"family": family}))
    line = verdict(with_rows(guided, *FLAT[:2], {**FLAT[2], "appearance": {**LIKE, "detail": 0.2}})).lines[1]
    assert "with autoguidance 2.5" in line and "without autoguidance" in line and "20%" in line
    linear = with_rows(images, *FLAT[:2], {**FLAT[2], "appearance": LIKE, "linear_levels": [0.4, 0.5, 0.6, 0.7]})
    line = verdict(linear).lines[1]
    assert "linear filter 0.5500" in line and line.count("100%") == 2


def test_samples_far_from_the_data_are_reported_for_points(spiral_run: Run, tmp_path: Path) -> None:
    run = replace(spiral_run, path=tmp_path)
    off = with_rows(run, *FLAT[:2], {**FLAT[2], "appearance": {**LIKE, "nearest_neighbor": 3.2}})
    assert "3.2 times" in verdict(off).lines[2]
    good = with_rows(run, *FLAT[:2], {**FLAT[2], "appearance": LIKE})
    assert "3.2 times" not in verdict(good).lines[2] and "little" in verdict(good).lines[2]


def test_numbers_in_commands_are_round(images: Run) -> None:
    assert [format_number(x) for x in (10.0087, 0.49987, 12.5, 1234.5, 123456.0)] == ["10", "0.5", "12.5", "1230", "123000"]
    longer = images.config.model_copy(update={"training": TrainingConfig(minutes=10.0087)})
    run = replace(with_rows(images, *FLAT), config=longer)
    assert verdict(run).commands["resume"].endswith(f"--resume {images.path}")  # its weights do not record the end yet
    write_weights(images.path, images.config, images.model, ended=FLAT[-1]["i"])
    assert verdict(run).commands["resume"].endswith("--extend --minutes 10")


def test_suggested_networks_have_the_same_design_and_another_size() -> None:
    networks = {name: network_for(SHAPE, 0, name) for name in PRESETS}
    assert sizes(networks["unet-tiny"]).smaller is None and sizes(networks["unet-base"]).larger is None
    for name in ("unet-tiny", "unet-small"):
        larger = sizes(networks[name]).larger
        assert larger in PRESETS and larger not in (name, "unet-teaching")
        assert sizes(networks[larger]).smaller in PRESETS
    points = complete(NETWORKS, {"name": "mlp", "hidden": 64}, "network")
    assert sizes(points).smaller == "mlp:hidden=32" and sizes(points).larger == "mlp:hidden=128"
    assert sizes(network_for(SHAPE, 0, "unet:widths=[64,64],stem=8")).unfolded == "unet:widths=[64,64],stem=4"


def test_the_retraining_command_changes_something(images: Run) -> None:
    def command(change: dict[str, str | None], requested: dict[str, Any]) -> str | None:
        config = images.config.model_copy(update={"requested": requested})
        found = retrain_command(replace(images, config=config), [Finding("x", "", 1, "", "", change)])
        return found and found.replace(" --fit crop", "")  # how the data were read

    assert command({}, {}) is None and command({"learning_rate": None}, {}) is None and command({"target": "flow"}, {}) is None
    assert command({"learning_rate": "0.001"}, {}).endswith("--steps 1000 --learning-rate 0.001")
    kept = command({"learning_rate": None}, {"learning_rate": 5.0, "batch": 32, "ema_share": 0.5})
    assert kept.endswith("--steps 1000 --batch 32 --ema-share 0.5")
    assert command({"length": "0.25"}, {}).endswith("--steps 250")


def test_no_network_is_suggested_below_the_smallest() -> None:
    row, truth = {"i": 100, "fraction": 1.0, "loss": 1.0}, AppearanceStats(0.0, 1.0, 1.0, 0.0, 1.0)
    diagnosis = Diagnosis([row], None, torch.zeros(1), "images", {}, replace(truth, nearest=0.1), truth)  # type: ignore[arg-type]
    found = copies(diagnosis)
    assert found is not None and "--network" not in found.advice and found.change == {"length": "0.5"}
    diagnosis.network = NetworkInfo(others=lambda: NetworkSizes(smaller="unet-tiny"))
    found = copies(diagnosis)
    assert found is not None and "--network unet-tiny" in found.advice and found.change == {"network": "unet-tiny"}


def test_an_old_preview_is_ignored() -> None:
    """With expensive previews, the newest may be from the beginning, when all is noise."""
    look, truth = AppearanceStats(0.0, 0.01, 1.0, 0.0, 1.0), AppearanceStats(0.0, 1.0, 1.0, 0.0, 1.0)
    row = {"i": 100, "fraction": 0.5, "loss": 1.0, "learning_rate": 0.01}
    diagnosis = Diagnosis([row], None, torch.zeros(1), "images", {}, look, truth, previewed=1)  # type: ignore[arg-type]
    assert empty_previews(diagnosis) is None
    diagnosis.previewed = 60
    assert empty_previews(diagnosis) is not None


def test_three_images_are_too_few(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (3, 8, 8), dtype=np.uint8)
    np.save(tmp_path / "three.npy", x)
    run = reverie.train(str(tmp_path / "three.npy"), tmp_path / "run", steps=40, batch=4)
    lines = verdict(run).lines
    assert verdict(run).findings[0].check == "few_data" and "2 images" in lines[0]
    assert "learning rate" not in lines[0] + lines[2] and "retrain" not in verdict(run).commands


def test_a_run_of_a_few_steps_is_too_short_to_assess(tmp_path: Path) -> None:
    run = reverie.train("spiral", tmp_path / "run", steps=5, points=200)
    assert verdict(run).lines[0] == f"{SHORT}: 5 steps" and verdict(run).findings == ()


STEP = Step(1, 0.001, 1.0, 5.0, 1.5, 0.01, held_out=1.7)


@pytest.mark.parametrize("held", [None, 1.0, 0.1234567])
def test_the_longest_progress_fits_eighty_columns(held: float | None) -> None:
    step = Step(1_234_567, 0.5, 99 * 3600.0, 1234.0, 12.3456789, 0.01)
    check = None if held is None else replace(step, held_out=held, train_loss=held / 3)
    assert len(f"{step.fraction:4.0%} {progress_note(step, check)}") <= 80


def test_losses_shown_together_are_over_the_same_noise_levels() -> None:
    check = replace(STEP, held_out=0.25, train_loss=0.22)
    assert progress_note(replace(STEP, i=2), None).startswith("step 2, loss 1.5, 5 steps/s")
    assert progress_note(replace(STEP, i=2), check).startswith("step 2, train 0.22, held out 0.25, 5 steps/s")


def test_low_speeds_have_digits() -> None:
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
            # one look a second, two in a row count, another try after 30 s, then after 60 s
            assert threads == [2, 2, 2, 2, 1, 1, 1, 2, 2, 1, 1, 2]
            for now, share in ((103.0, 0.5), (105.0, 0.5)):  # noqa: B007
                mind()
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_misspelled_option_has_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"minuts.*minutes"):
        reverie.train("spiral", tmp_path / "run", minuts=1)
    with pytest.raises(UserError, match="minutes"):
        reverie.train(resume=tmp_path / "run", minuts=1)
    assert not (tmp_path / "run").exists()


def test_the_introduction_names_the_folder_of_a_second_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = (list(api.prepare("spiral", steps=1, points=50).introduction()) for _ in range(2))
    assert not any("runs" in line for line in first)
    assert any(str(Path("runs/spiral-2")) in line and f"{Path('runs/spiral')} " in line for line in second)
