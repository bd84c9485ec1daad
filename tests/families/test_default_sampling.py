"""Default samplers: few steps, more with steering."""

from __future__ import annotations

import pytest

from reverie.base.errors import UserError
from reverie.cli.options import read_steps
from reverie.families.diffusion.sampling import STEERING, SamplingProfile, chosen_sampling
from reverie.families.diffusion.sampling_record import explain_sampling

GREY, COLOUR = (1, 28, 28), (3, 64, 64)


def test_grey_images_are_drawn_in_twelve_evaluations() -> None:
    assert chosen_sampling(GREY, {}) == ("dpm++sde", 12, "uniform")
    assert chosen_sampling(GREY, {"steps": 25, "grid": "trailing"}) == ("dpm++sde", 25, "trailing")


def test_another_sampler_has_the_steps_that_it_needs() -> None:
    assert chosen_sampling(GREY, {"sampler": "ddpm"}) == ("ddpm", 40, "uniform")
    assert chosen_sampling(GREY, {"sampler": "dpm++sde"}) == ("dpm++sde", 12, "uniform")


@pytest.mark.parametrize("profile", ["data", "codes"])
def test_colour_images_use_twenty_evaluations_without_steering(profile: SamplingProfile) -> None:
    assert chosen_sampling(COLOUR, {}, profile) == ("dpm++sde", 20, "uniform")
    assert "emoji and photos" in explain_sampling(COLOUR, {}, profile) and "as requested" in explain_sampling(
        COLOUR, {"steps": 12}, profile
    )
    assert chosen_sampling(COLOUR, {"steer": object()}, profile) == ("ddpm", 40, "uniform")
    assert chosen_sampling(COLOUR, {"sampler": "ddpm"}, profile) == ("ddpm", 40, "uniform")


@pytest.mark.parametrize("key", STEERING)
def test_steering_keeps_its_own(key: str) -> None:
    assert chosen_sampling(GREY, {key: object()}) == ("ddpm", 40, "uniform")
    assert chosen_sampling(GREY, {key: object(), "steps": 7}) == ("ddpm", 7, "uniform")


def test_a_student_samples_in_four_steps_with_every_sampler() -> None:
    assert chosen_sampling(GREY, {}, "student") == ("ddpm", 4, "trailing:last=0.5")
    assert chosen_sampling((2,), {"steps": 1, "steer": object()}, "student") == ("ddpm", 1, "trailing:last=0.5")


def test_a_student_of_classifiers_is_drawn_in_two_unless_it_is_steered() -> None:
    assert chosen_sampling(GREY, {}, "quick student") == ("ddpm", 2, "trailing:last=0.5")
    assert chosen_sampling(GREY, {"steps": 1}, "quick student") == ("ddpm", 1, "trailing:last=0.5")
    assert chosen_sampling(GREY, {"steer": object()}, "quick student") == ("ddpm", 4, "trailing:last=0.5")


@pytest.mark.parametrize(
    ("options", "profile", "message"),
    [
        ({}, "data", "dpm++sde in 12 steps"),
        ({"sampler": "ddpm"}, "data", "ddpm in 40 steps"),
        ({}, "student", "default of students"),
        ({}, "quick student", "ddpm in 2 steps "),
    ],
)
def test_the_chosen_sampling_is_explained(options: dict[str, str], profile: SamplingProfile, message: str) -> None:
    assert message in explain_sampling(GREY, options, profile)


def test_steps_are_a_number_or_auto() -> None:
    assert read_steps("auto") is read_steps(None) is None and read_steps("12") == 12
    with pytest.raises(UserError, match=r"--steps.*'many'"):
        read_steps("many")
