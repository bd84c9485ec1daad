"""The gallery's commands: pictures that show a formula at work."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reverie.cli.options import (
    DeviceOption,
    GridOption,
    JsonOption,
    QuietOption,
    RunPath,
    SamplerOption,
    SamplingSteps,
    SeedOption,
    screen_for,
)

if TYPE_CHECKING:
    from reverie.api import Screen

gallery = typer.Typer(name="gallery", help="Pictures that show a formula at work.", no_args_is_help=True)


def _tell(screen: Screen, files: list[Path]) -> None:
    screen.result({"files": [str(f) for f in files]}, "wrote " + "\n      ".join(map(str, files)))


@gallery.command()
def autodiff(
    out: Annotated[Path, typer.Option("--out", help="Folder for the pictures.")] = Path("gallery/autodiff"),
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Draw derivatives at work: a graph with both sweeps, memory, costs, second order, uncertainty."""
    screen = screen_for(json, quiet)
    from reverie.gallery.autodiff import draw

    files = draw(out)
    _tell(screen, files)


@gallery.command()
def coloring(
    out: Annotated[Path, typer.Option("--out", help="Folder for the pictures.")] = Path("gallery/coloring"),
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Draw sparse matrices with their graphs, colourings and compressed forms."""
    screen = screen_for(json, quiet)
    from reverie.gallery.coloring import draw

    files = draw(out)
    _tell(screen, files)


@gallery.command()
def embeddings(
    out: Annotated[Path, typer.Option("--out", help="Folder for the pictures.")] = Path("gallery/embeddings"),
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Draw the sinusoidal embedding: its curves, heatmap and distances."""
    screen = screen_for(json, quiet)
    from reverie.gallery.embeddings import draw

    files = draw(out)
    _tell(screen, files)


@gallery.command()
def spiral(
    run: RunPath,
    out: Annotated[Path, typer.Option("--out", help="Folder for the pictures.")] = Path("gallery/spiral"),
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Draw the spiral's forward and reverse process and its optimal solution."""
    screen = screen_for(json, quiet)
    from reverie.gallery.spiral import draw

    files = draw(run, out, seed, device)
    _tell(screen, files)


@gallery.command()
def samplers(
    run: RunPath,
    out: Annotated[Path, typer.Option("--out", help="Picture to draw.")] = Path("gallery/samplers.png"),
    grid: GridOption = None,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Draw the same seeds under every sampler at 5, 10, 20 and 50 network evaluations, with the time each takes."""
    screen = screen_for(json, quiet)
    from reverie.gallery.samplers import draw

    files = draw(run, out, seed, device, grid)
    _tell(screen, files)


@gallery.command()
def guidance(
    run: RunPath,
    out: Annotated[Path, typer.Option("--out", help="Picture to draw.")] = Path("gallery/guidance.png"),
    scales: Annotated[str, typer.Option("--scales", help="Guidance scales, with commas between.")] = "0,1,2,4,8",
    sampler: SamplerOption = None,
    steps: SamplingSteps = None,
    grid: GridOption = None,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Draw the same seeds under growing guidance: labels down, scales across."""
    screen = screen_for(json, quiet)
    from reverie.gallery.guidance import draw

    files = draw(run, out, scales, device, seed=seed, sampler=sampler, steps=steps, grid=grid)
    _tell(screen, files)


@gallery.command()
def transport(
    out: Annotated[Path, typer.Option("--out", help="Folder for the pictures.")] = Path("gallery/transport"),
    seed: SeedOption = 0,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Draw optimal transport: plans, potentials, convergence, and divergences as supports part."""
    screen = screen_for(json, quiet)
    from reverie.gallery.transport import draw

    files = draw(out, seed)
    _tell(screen, files)


@gallery.command()
def kernels(
    out: Annotated[Path, typer.Option("--out", help="Folder for the pictures.")] = Path("gallery/kernels"),
    seed: SeedOption = 0,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Draw kernels: Gram matrices, kernel principal components, and the polynomial feature map."""
    screen = screen_for(json, quiet)
    from reverie.gallery.kernels import draw

    files = draw(out, seed)
    _tell(screen, files)
