"""The options that commands share, each with one meaning."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from reverie.api import Screen


def completer(kind: str) -> Any:
    """Return a function that completes the names of a kind."""

    def complete(incomplete: str) -> list[str]:
        from reverie import api

        return [name for name in api.names()[kind] if name.startswith(incomplete)]

    return complete


def named(kind: str, text: str, *flags: str) -> Any:
    """Return an option that takes a name from one of the tables."""
    return typer.Option(*flags, help=f"{text}; `reverie list {kind}` shows them.", autocompletion=completer(kind))


RunPath = Annotated[Path, typer.Argument(help="Folder of a run.", metavar="RUN")]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of everything random.")]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or mps.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but warnings and errors.")]
SamplerOption = Annotated[str | None, named("samplers", "How to sample, with options like ddim:eta=0.5", "--sampler")]
SamplingSteps = Annotated[int | None, typer.Option("--steps", help="Times on the grid; most samplers evaluate once at each.")]
GridOption = Annotated[str | None, named("grids", "How the times are spaced, with options like karras:rho=7", "--grid")]
SizeOption = Annotated[str | None, typer.Option("--size", help="Size of images: 32, or 64x48 for height x width.")]
FIT_HELP = "How images are brought to that size: crop, pad, stretch, or auto, which pads where a crop would cut too much."
LABELS_HELP = "Where labels come from: auto, folder, top-folder, last-folder, name, csv, jsonl or none; of a table, a column."
FitOption = Annotated[str, typer.Option("--fit", help=FIT_HELP)]
ChannelsOption = Annotated[int | None, typer.Option("--channels", help="1 grey, 3 colour, 4 with transparency; else inferred.")]
LabelsOption = Annotated[str, typer.Option("--labels", help=LABELS_HELP)]
DataDirOption = Annotated[Path | None, typer.Option("--data-dir", help="Where the files of named data sets are.")]
MovedDataOption = Annotated[
    Path | None, typer.Option("--data", help="Where the run's data are now, if they were moved or renamed.", metavar="PATH")
]
StrictOption = Annotated[bool, typer.Option("--strict", help="Refuse data with broken files instead of skipping them.")]
LabelOption = Annotated[
    str | None, typer.Option("--label", help="Class to draw, all for each in turn, or a weighted sum such as 6:1.5,8:-1.")
]
GuidanceOption = Annotated[float, typer.Option("--guidance", help="Classifier-free guidance scale; 1 is none.")]
IntervalOption = Annotated[
    str | None, typer.Option("--guidance-interval", help="Times t it is limited to, LOW,HIGH; 0 is data, 1 is noise.")
]
RescaleOption = Annotated[
    float, typer.Option("--guidance-rescale", help="How far contrast is taken back to that without guidance, 0 to 1.")
]
ClassifierGuidanceOption = Annotated[
    float, typer.Option("--classifier-guidance", help="Scale of the classifier's gradient; 0 is none.")
]
AutoguidanceOption = Annotated[
    float | None,
    typer.Option("--autoguidance", help="Scale of autoguidance; 1 is none, and not given what training chose."),
]
PrecisionOption = Annotated[
    str, typer.Option("--precision", help="fp32, or bf16: faster on many processors, with slightly other images.")
]


LAST = ("device", "json", "quiet")  # options that the help lists at the end


def _sampling(
    label: LabelOption = None,
    guidance: GuidanceOption = 1.0,
    guidance_interval: IntervalOption = None,
    guidance_rescale: RescaleOption = 0.0,
    classifier_guidance: ClassifierGuidanceOption = 0.0,
    autoguidance: AutoguidanceOption = None,
    sampler: SamplerOption = None,
    steps: SamplingSteps = None,
    grid: GridOption = None,
    precision: PrecisionOption = "fp32",
    seed: SeedOption = 0,
) -> None:
    """Hold the options of sampling, those of `reverie.runs.run.Options`, and what each is if not given."""


def sampling(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of sampling as its **options; one that it names itself, or that is left out, goes before."""

    def give(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True)
        shared = inspect.signature(_sampling, eval_str=True).parameters
        first = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD and p.name not in LAST]
        added = [p for p in shared.values() if p.name not in {*own.parameters, *without}]
        last = [p for p in own.parameters.values() if p.name in LAST]

        @functools.wraps(command)
        def called(**given: Any) -> None:
            command(**given)

        parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in (*first, *added, *last)]
        called.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]  # which typer reads
        return called

    return give


def screen_for(json: bool, quiet: bool) -> Screen:
    """Return what speaks to the user, as the two options ask."""
    from reverie.api import Screen

    return Screen(json, quiet)
