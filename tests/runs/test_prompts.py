from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import reverie
from reverie import api
from reverie.base.errors import ReverieWarning, UserError
from reverie.base.scalar import Time
from reverie.diffusion.condition import drop_conditions, null_condition, split_conditions
from reverie.diffusion.denoiser import Denoiser
from reverie.diffusion.guidance import ClassifierFree
from reverie.diffusion.pair import Pair
from reverie.diffusion.schedules import SCHEDULES
from reverie.runs.prompts import (
    composition_weights,
    condition_vectors,
    negative_prompt,
    read_conditions,
    read_prompt,
    with_guidance,
)
from reverie.runs.run import Run
from tests.conftest import TINY

QUICK = {"steps": 3}


@pytest.fixture(scope="session")
def captioned_run(trained: Callable[..., Run]) -> Run:
    return trained("captioned", "captioned-digits", steps=30, network=TINY, size="12", batch=32)


class Echo(Denoiser):
    """Says of x0 what the first number of its condition is, and 7 where there is none."""

    def __init__(self) -> None:
        super().__init__()
        self.schedule = SCHEDULES["cosine"]()

    def forward(self, x: Tensor, t: Time, cond: Tensor | None = None) -> Pair:
        assert cond is not None
        named = cond[:, :1].nan_to_num(7.0) if cond.is_floating_point() else cond[:, None].float()
        return Pair(named, named)


def test_conditions_as_tensors() -> None:
    labels, rows = torch.tensor([1, 2]), torch.tensor([[1.0, 2.0], [3.0, torch.nan]])
    assert null_condition(labels).tolist() == [-1, -1]
    assert null_condition(rows).isnan().all()
    assert [part.tolist() for part in split_conditions(labels)] == [[1, 2]]
    assert [part.tolist() for part in split_conditions(torch.tensor([[1, 2], [3, 4]]))] == [[1, 3], [2, 4]]
    assert len(split_conditions(rows)) == 1
    assert torch.equal(split_conditions(torch.stack([rows[:, :1], 10 * rows[:, :1]], 1))[1], 10 * rows[:, :1])
    kept = drop_conditions(rows, torch.tensor([True, False]))
    assert kept[0].isnan().all()
    assert kept[1, 0] == 3.0


def test_what_is_avoided_takes_the_place_of_no_condition() -> None:
    options = with_guidance({"prompt": "x", "negative_prompt": "y"})
    assert options["guidance"] == 2.0
    for scale in (1.5, 2.0, 4.0):
        weights = composition_weights({**options, "guidance": scale})
        guided = ClassifierFree(Echo(), scale, weights=weights)
        cond = torch.tensor([[[3.0], [5.0]]])
        found = guided(torch.zeros(1, 1), 0.5, cond).x0
        assert float(found) == pytest.approx(scale * 3 + (1 - scale) * 5)


def test_what_is_avoided_is_the_prompt_with_these_words(captioned_run: Run) -> None:
    form = captioned_run.config.data.condition
    assert form is not None
    rows = condition_vectors(form, {"prompt": "a thin seven", "negative_prompt": "slanted"}, "crop")
    assert [form.caption(row) for row in rows] == ["a thin seven", "a thin seven slanted"]
    assert negative_prompt(form, "a thin seven " * 2, "slanted backward thick") == "slanted backward thick"  # no room for both


def test_weighted_prompts_are_the_composition_of_labels() -> None:
    texts, weights = read_prompt("a seven: at 12:30::1.5, slanted::-0.5")
    assert texts == ("a seven: at 12:30", "slanted")
    guided = ClassifierFree(Echo(), 2.0, weights=weights)
    found = guided(torch.zeros(1, 1), 0.5, torch.tensor([[[3.0], [5.0]]])).x0
    assert float(found) == pytest.approx(7 + 2 * (1.5 * (3 - 7) - 0.5 * (5 - 7)))
    assert read_prompt("12:30, noon") == (("12:30, noon",), (1.0,))
    with pytest.raises(UserError, match="the prompt"):
        read_prompt("a seven::much")


def test_numbers_by_name() -> None:
    assert read_conditions("Angle=0.5, age=3") == {"angle": 0.5, "age": 3.0}
    for wrong in ("angle", "angle=x", "angle=inf", "=1x"):
        with pytest.raises(UserError, match="--condition"):
            read_conditions(wrong)


def test_prompts_steer_and_seeds_stay(captioned_run: Run) -> None:
    run = captioned_run
    three = run.sample(3, prompt="a thick seven", **QUICK)
    assert three.labels == ["a thick seven"] * 3
    np.testing.assert_allclose(run.sample(1, first=2, prompt="a thick seven", **QUICK).x[0], three.x[2], atol=1e-5)
    assert np.abs(run.sample(3, prompt="a thin one", guidance=3.0, **QUICK).x - three.x).max() > 1e-3
    unconditional = run.sample(3, guidance=0.0, **QUICK).x
    np.testing.assert_allclose(run.sample(3, prompt="", **QUICK).x, unconditional, atol=1e-6)
    avoided = run.sample(3, prompt="a thin one", negative_prompt="thick", **QUICK).x
    assert np.abs(avoided - run.sample(3, prompt="a thin one", guidance=2.0, **QUICK).x).max() > 1e-4


def test_without_a_prompt_captions_are_those_of_the_data(captioned_run: Run) -> None:
    labels = captioned_run.sample(8, **QUICK).labels
    assert labels is not None
    assert all(caption.startswith("a ") for caption in labels)
    assert len(set(labels)) > 2


@pytest.mark.parametrize(
    "prompt", ["zebra quux", "   ", "🦓🦓", "הספרה שבע", "a" * 10_000, "seven " * 2000, "\x00\x1b[2J\u202e"],
    ids=["unknown", "blank", "emoji", "right-to-left", "one-long-word", "many-words", "control"],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::reverie.base.errors.ReverieWarning")
def test_any_prompt_gives_a_picture(captioned_run: Run, prompt: str) -> None:
    assert np.isfinite(captioned_run.sample(1, prompt=prompt, **QUICK).x).all()


def test_unknown_words_of_a_prompt_are_named(captioned_run: Run) -> None:
    with pytest.warns(ReverieWarning) as reported:
        captioned_run.sample(1, prompt="a thick zebra, quux seven", **QUICK)
    (named,) = {str(warning.message) for warning in reported if "at most once" in str(warning.message)}
    assert "zebra" in named and "quux" in named and "thick" not in named and "seven" not in named


def test_a_prompt_that_is_cut_is_reported(captioned_run: Run) -> None:
    with pytest.warns(ReverieWarning, match="longer than"):
        captioned_run.sample(1, prompt="seven " * 100, **QUICK)


def test_what_cannot_be_requested_is_refused_in_a_sentence(captioned_run: Run, digits_run: Run) -> None:
    for run, options, words in (
        (captioned_run, {"label": "seven"}, "--prompt"),
        (captioned_run, {"condition": "angle=1"}, "trained without numbers"),
        (captioned_run, {"condition_image": "x.png"}, "without an image"),
        (captioned_run, {"prompt": "a", "negative_prompt": "b", "guidance": 0.5}, "above 1"),
        (digits_run, {"prompt": "seven"}, "give --label"),
        (digits_run, {"negative_prompt": "seven"}, "give --label"),
    ):
        with pytest.raises(UserError, match=words):
            run.sample(1, **options, **QUICK)


def test_steering_takes_prompts(captioned_run: Run) -> None:
    run, picture = captioned_run, np.zeros((12, 12), np.float32)
    assert len(reverie.inpaint(run, picture, mask="left-half", n=2, prompt="a thin one", method="replace", **QUICK).x) == 2
    assert reverie.edit(run, picture, 0.6, prompt="a thin one", **QUICK).x.shape[-2:] == (12, 12)
    made = reverie.illusion(run, "identity,rotate180", "a thin six|a thin nine", 1, **QUICK)
    assert made.titles == ["identity: a thin six", "rotate180: a thin nine"]
    assert len(reverie.illusion(run, "identity,rotate180", None, 1, **QUICK)) == 1


def test_a_captioned_training_resumes_bit_for_bit(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 255, (60, 8, 8)).astype(np.uint8)
    data = images, [f"image {k} of {k % 7} and {k % 5}" for k in range(60)]
    options = {"network": TINY, "batch": 16, "seed": 3, "steps": 12, "labels": "captions"}
    whole = reverie.train(data, tmp_path / "whole", progress=False, **options)
    steps = iter(api.begin(data, tmp_path / "parts", **options))
    assert len(list(islice(steps, 5))) == 5
    steps.close()
    again = reverie.train(data, resume=tmp_path / "parts", progress=False)
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, again.model.state_dict()[name]), name


def test_prompts_on_the_command_line(captioned_run: Run, command: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    requested = (
        "sample",
        captioned_run.path,
        "-n",
        2,
        "--steps",
        3,
        "--prompt",
        "a thin seven",
        "--negative-prompt",
        "slanted",
    )
    assert command(*requested, "--out", tmp_path / "x.png", "-q") == (0, "", "")
    assert command("sample", captioned_run.path, "-n", 2, "--steps", 3, "--out", tmp_path / "y.png", "-q") == (0, "", "")
    code, _, err = command("sample", captioned_run.path, "--label", "7", "--out", tmp_path / "z.png", "-q")
    assert code == 2
    assert err.count("\n") == 1
    assert (tmp_path / "x.png").is_file()
    code, out, _ = command("inspect", captioned_run.path)
    assert code == 0
    assert "captions of at most 8" in out


def test_guidance_is_shown_for_prompts(captioned_run: Run, tmp_path: Path) -> None:
    from reverie.gallery import guidance

    out = tmp_path / "sheet.png"
    assert guidance.draw(captioned_run, out, scales="1,4", prompts="a thin seven | a thick three", **QUICK) == [out]
    assert out.exists()
    with pytest.raises(UserError, match="give --prompts"):
        guidance.draw(captioned_run, out, **QUICK)
    with pytest.raises(UserError, match=r"prompts separated"):
        guidance.draw(captioned_run, out, prompts="a thin seven||", **QUICK)
