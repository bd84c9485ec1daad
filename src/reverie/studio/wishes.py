"""What the page may ask for, checked field by field, and the same as commands and lines of Python."""

from __future__ import annotations

import shlex
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Id = Annotated[str, Field(pattern=r"^[0-9a-f]{12,32}$")]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Text = Annotated[str, Field(max_length=10_000)]
Number = Annotated[float, Field(ge=-1e6, le=1e6)]
MOST_IMAGES, MOST_POINTS = 64, 5000


class Wish(BaseModel):
    """A request of the page; what it does not know is refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Sampling(Wish):
    """How to sample; what is not given is not asked for.  See `reverie.runs.sampling_options.Options`."""

    label: Name | None = None
    prompt: Text | None = None
    negative_prompt: Text | None = None
    guidance: Number | None = None
    guidance_interval: tuple[Number, Number] | None = None
    guidance_rescale: Number | None = None
    classifier_guidance: Number | None = None
    autoguidance: Number | None = None
    sampler: Name | None = None
    grid: Name | None = None
    steps: Annotated[int, Field(ge=1, le=1000)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0

    def options(self) -> dict[str, Any]:
        """Return the options that were given, as the verbs take them."""
        given = {key: getattr(self, key) for key in Sampling.model_fields}
        return {key: value for key, value in given.items() if value is not None}

    def words(self, *without: str) -> list[str]:
        """Return the same as words of the command line."""
        found = []
        for key, value in self.options().items():
            if key not in without:
                text = ",".join(map(plain, value)) if isinstance(value, tuple) else plain(value)
                found += [f"--{key.replace('_', '-')}", text]
        return found

    def arguments(self, *without: str) -> str:
        """Return the same as arguments of a call in Python."""
        return "".join(f", {key}={_python(value)}" for key, value in self.options().items() if key not in without)


class DrawWish(Sampling):
    """Draw n data of a seed, from number `first` on."""

    run: Id
    n: Annotated[int, Field(ge=1, le=MOST_POINTS)] = 16
    first: Annotated[int, Field(ge=0, le=10**9)] = 0


class FilmWish(DrawWish):
    """The same as a file."""

    form: Annotated[str, Field(pattern=r"^(png|gif|mp4|npy)$")] = "gif"


class NearestWish(Wish):
    """The training datum that is nearest to each of a drawing."""

    drawing: Id


class PictureWish(Sampling):
    """Work on a picture that was sent."""

    run: Id
    picture: Id
    n: Annotated[int, Field(ge=1, le=16)] = 4


class InpaintWish(PictureWish):
    """Fill what a mask covers; mask: a digit for each pixel, row by row, 1 where to fill."""

    mask: Annotated[str, Field(pattern=r"^[01]+$", max_length=2**20)]
    method: Name | None = None


class EditWish(PictureWish):
    """Draw a picture again, noised to the time `strength` first."""

    strength: Annotated[float, Field(gt=0, le=1)] = 0.6


class RestoreWish(PictureWish):
    """Degrade a picture and undo that."""

    task: Name
    method: Name = "moment"


class InterpolateWish(Sampling):
    """The way from one picture, or seed, to another."""

    run: Id
    begin: Id | Annotated[int, Field(ge=0, lt=2**31)]
    end: Id | Annotated[int, Field(ge=0, lt=2**31)]
    frames: Annotated[int, Field(ge=2, le=60)] = 16


class IllusionWish(Sampling):
    """Pictures that are something else in every view."""

    run: Id
    views: Annotated[list[Name], Field(min_length=2, max_length=4)]
    labels: Annotated[list[Name], Field(max_length=4)] = []
    n: Annotated[int, Field(ge=1, le=16)] = 4


class SendWish(Wish):
    """A picture for a run, as base64."""

    run: Id
    content: Annotated[str, Field(max_length=32 * 2**20)]


class EvaluateWish(Wish):
    """Measure runs beside each other."""

    runs: Annotated[list[Id], Field(min_length=1, max_length=6)]
    n: Annotated[int, Field(ge=16, le=4096)] = 256


class InspectWish(Wish):
    """Look at data: a name, or an id."""

    data: Name


class LessonWish(Wish):
    """A formula at work.  values: by the names of the lesson's controls."""

    lesson: Name
    run: Id | None = None
    picture: Id | None = None
    values: dict[Name, Any] = Field(default_factory=dict, max_length=32)


class StartWish(Wish):
    """A new training."""

    data: Name
    name: Name
    options: dict[Name, str | float | bool | None] = Field(default_factory=dict, max_length=64)


class ResumeWish(Wish):
    """More of a training."""

    options: dict[Name, str | float | None] = Field(default_factory=dict, max_length=4)


def plain(value: Any) -> str:
    """Write a number without needless digits."""
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _python(value: Any) -> str:
    return f"{value:.10g}" if isinstance(value, float) else repr(value)


def command(verb: str, *words: str) -> str:
    """Return a command as it is typed."""
    return shlex.join(["reverie", verb, *words])
