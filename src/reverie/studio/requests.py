"""The requests that the page sends, validated field by field, and the equivalent commands and Python code."""

from __future__ import annotations

import shlex
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Id = Annotated[str, Field(pattern=r"^[0-9a-f]{12,32}$")]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Text = Annotated[str, Field(max_length=10_000)]
Number = Annotated[float, Field(ge=-1e6, le=1e6)]
MAX_IMAGES, MAX_POINTS = 64, 5000


class StudioRequest(BaseModel):
    """A request of the page; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class SamplingOptions(StudioRequest):
    """Options of sampling; None is the default.  See `reverie.runs.sampling_options.Options`."""

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
        """Return the options that are set, as `run.sample` takes them."""
        values = {key: getattr(self, key) for key in SamplingOptions.model_fields}
        return {key: value for key, value in values.items() if value is not None}

    def command_options(self, *without: str) -> list[str]:
        """Return the options that are set, as arguments of the command line."""
        arguments = []
        for key, value in self.options().items():
            if key not in without:
                text = ",".join(map(format_value, value)) if isinstance(value, tuple) else format_value(value)
                arguments += [f"--{key.replace('_', '-')}", text]
        return arguments

    def python_arguments(self, *without: str) -> str:
        """Return the options that are set, as arguments of a call in Python."""
        return "".join(f", {key}={_python(value)}" for key, value in self.options().items() if key not in without)


class SampleRequest(SamplingOptions):
    """Generate n samples of a seed, from index `first` on."""

    run: Id
    n: Annotated[int, Field(ge=1, le=MAX_POINTS)] = 16
    first: Annotated[int, Field(ge=0, le=10**9)] = 0


class SampleFileRequest(SampleRequest):
    """Generate the same samples as a file."""

    format: Annotated[str, Field(pattern=r"^(png|gif|mp4|npy)$")] = "gif"


class NearestRequest(StudioRequest):
    """Find the nearest training sample of each generated sample."""

    samples: Id


class ImageRequest(SamplingOptions):
    """Generate n results from an uploaded image."""

    run: Id
    image: Id
    n: Annotated[int, Field(ge=1, le=16)] = 4


class InpaintRequest(ImageRequest):
    """Inpaint an image.  mask: a digit for each pixel, row by row, 1 for pixels to generate."""

    mask: Annotated[str, Field(pattern=r"^[01]+$", max_length=2**20)]
    method: Name | None = None


class EditRequest(ImageRequest):
    """Edit an image: noise it to the time `strength` and denoise it (SDEdit, Meng et al. 2022)."""

    strength: Annotated[float, Field(gt=0, le=1)] = 0.6


class RestoreRequest(ImageRequest):
    """Degrade an image and restore it."""

    task: Name
    method: Name = "moment"


class InterpolateRequest(SamplingOptions):
    """Interpolate between two images or seeds."""

    run: Id
    begin: Id | Annotated[int, Field(ge=0, lt=2**31)]
    end: Id | Annotated[int, Field(ge=0, lt=2**31)]
    frames: Annotated[int, Field(ge=2, le=60)] = 16


class IllusionRequest(SamplingOptions):
    """Generate images that match another label in each of several views."""

    run: Id
    views: Annotated[list[Name], Field(min_length=2, max_length=4)]
    labels: Annotated[list[Name], Field(max_length=4)] = []
    n: Annotated[int, Field(ge=1, le=16)] = 4


class UploadRequest(StudioRequest):
    """Upload an image for a run.  content: base64."""

    run: Id
    content: Annotated[str, Field(max_length=32 * 2**20)]


class EvaluateRequest(StudioRequest):
    """Evaluate and compare runs."""

    runs: Annotated[list[Id], Field(min_length=1, max_length=6)]
    n: Annotated[int, Field(ge=16, le=4096)] = 256


class InspectRequest(StudioRequest):
    """Inspect a dataset, by name or id."""

    data: Name


class DemoRequest(StudioRequest):
    """Evaluate an interactive demo.  values: of its controls, by name."""

    demo: Name
    run: Id | None = None
    image: Id | None = None
    values: dict[Name, Any] = Field(default_factory=dict, max_length=32)


class StartRequest(StudioRequest):
    """Start a training."""

    data: Name
    name: Name
    options: dict[Name, str | float | bool | None] = Field(default_factory=dict, max_length=64)


class ResumeRequest(StudioRequest):
    """Resume a training."""

    options: dict[Name, str | float | None] = Field(default_factory=dict, max_length=4)


def format_value(value: Any) -> str:
    """Return a number with at most 10 significant digits, any other value as text."""
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _python(value: Any) -> str:
    return f"{value:.10g}" if isinstance(value, float) else repr(value)


def format_command(verb: str, *arguments: str) -> str:
    """Return a `reverie` command, quoted for a shell."""
    return shlex.join(["reverie", verb, *arguments])
