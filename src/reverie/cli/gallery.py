"""The gallery's commands: pictures that show a formula at work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from reverie.cli.group import Group
from reverie.cli.options import (
    ChannelsOption,
    DataDirOption,
    DeviceOption,
    FitOption,
    JsonOption,
    QuietOption,
    RunPath,
    SeedOption,
    SizeOption,
    TextOption,
    completer,
    named,
    sampling,
    screen_for,
)

DATA_HELP = "Name of a data set, or a path."
DataName = Annotated[str, typer.Argument(help=DATA_HELP, metavar="DATA", autocompletion=completer("data"))]

gallery = typer.Typer(name="gallery", cls=Group, help="Pictures that show a formula at work.", no_args_is_help=True)

FolderOption = Annotated[Path, typer.Option("--out", help="Folder for the pictures.")]
PictureOption = Annotated[Path, typer.Option("--out", help="Picture to draw.")]


def _draw(name: str, out: Path, json: bool, quiet: bool, reading: dict[str, Any] | None = None, **options: Any) -> None:
    screen = screen_for(json, quiet)
    from reverie import api

    with screen.reading() as on_progress:
        options |= {"reading": {**reading, "on_progress": on_progress}} if reading is not None else {}
        files = api.gallery(name, out, **options)
    screen.result({"files": [str(f) for f in files]}, "wrote " + "\n      ".join(map(str, files)))


@gallery.command()
def alignment(
    run: RunPath,
    out: PictureOption = Path("gallery/alignment.png"),
    prompt: Annotated[str | None, typer.Option("--prompt", help="What is answered; an example if not given.")] = None,
    device: DeviceOption = "auto",
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Draw where each token of an answer looks in its source, for a run of pairs of texts."""
    _draw("alignment", out, json, quiet, run=run, prompt=prompt, device=device)


@gallery.command()
def attention(
    run: RunPath,
    out: PictureOption = Path("gallery/attention.png"),
    prompt: Annotated[str | None, typer.Option("--prompt", help="The sentence whose attention is shown.")] = None,
    device: DeviceOption = "auto",
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Draw where each token of a sentence looks, for every layer and head of a transformer of text."""
    _draw("attention", out, json, quiet, run=run, prompt=prompt, device=device)


@gallery.command()
def autodiff(out: FolderOption = Path("gallery/autodiff"), json: JsonOption = False, quiet: QuietOption = False) -> None:
    """Draw derivatives at work: graphs with their sweeps, memory, costs, implicit functions, uncertainty."""
    _draw("autodiff", out, json, quiet)


@gallery.command()
def coloring(out: FolderOption = Path("gallery/coloring"), json: JsonOption = False, quiet: QuietOption = False) -> None:
    """Draw sparse matrices with their graphs, colourings, compressed forms and fewest colours."""
    _draw("coloring", out, json, quiet)


@gallery.command()
def cost(out: FolderOption = Path("gallery/cost"), json: JsonOption = False, quiet: QuietOption = False) -> None:
    """Draw what a transformer costs over length and width: by the formula, counted and timed."""
    _draw("cost", out, json, quiet)


@gallery.command()
def depth(out: PictureOption = Path("gallery/depth.png"), json: JsonOption = False, quiet: QuietOption = False) -> None:
    """Draw what residuals, LayerNorm and BatchNorm do to gradients over depth."""
    _draw("depth", out, json, quiet)


@gallery.command()
def embeddings(out: FolderOption = Path("gallery/embeddings"), json: JsonOption = False, quiet: QuietOption = False) -> None:
    """Draw the sinusoidal embedding: its curves, heatmap and distances."""
    _draw("embeddings", out, json, quiet)


@gallery.command()
def autoencoder(
    run: RunPath,
    out: FolderOption = Path("gallery/autoencoder"),
    device: DeviceOption = "auto",
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Draw what an autoencoder gives back, its codes, ways between images, and what the best linear one would lose."""
    _draw("autoencoder", out, json, quiet, run=run, device=device)


@gallery.command()
def forward(
    data: Annotated[
        str, typer.Argument(help="Name of a data set, or a path.", metavar="DATA", autocompletion=completer("data"))
    ],
    out: FolderOption = Path("gallery/forward"),
    schedule: Annotated[str, named("schedules", "Noise schedule, with options like linear:steps=40", "--schedule")] = "linear",
    size: SizeOption = None,
    fit: FitOption = "auto",
    channels: ChannelsOption = None,
    data_dir: DataDirOption = None,
    seed: SeedOption = 0,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Draw images or points turning into noise, as a sheet and as a film."""
    reading = {"size": size, "fit": fit, "channels": channels, "data_dir": data_dir}
    _draw("forward", out, json, quiet, reading, data=data, schedule=schedule, seed=seed)


@gallery.command()
def gradients(
    runs: Annotated[
        list[Path] | None, typer.Argument(help="Runs of rnn and lstm that are shown as well.", metavar="[RUN]...")
    ] = None,
    out: PictureOption = Path("gallery/gradients.png"),
    device: DeviceOption = "auto",
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Draw how gradients vanish, explode or last over time in recurrent networks, and in runs of them."""
    _draw("gradients", out, json, quiet, runs=runs or (), device=device)


@gallery.command()
def graphs(out: PictureOption = Path("gallery/graphs.png"), json: JsonOption = False, quiet: QuietOption = False) -> None:
    """Draw the graphical model of every family, with its factorisation in letters and in words."""
    _draw("graphs", out, json, quiet)


@gallery.command()
def normal(
    out: PictureOption = Path("gallery/normal.png"),
    seed: SeedOption = 0,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Draw normal samples against their density, and Bayes' rule for normal distributions."""
    _draw("normal", out, json, quiet, seed=seed)


@gallery.command()
def schedules(
    runs: Annotated[
        list[Path] | None, typer.Argument(help="Runs whose schedules are shown as well.", metavar="[RUN]...")
    ] = None,
    out: PictureOption = Path("gallery/schedules.png"),
    device: DeviceOption = "auto",
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Draw all noise schedules, and what runs have learned of theirs."""
    _draw("schedules", out, json, quiet, runs=runs or (), device=device)


@gallery.command()
def score(
    run: RunPath,
    out: PictureOption = Path("gallery/score.png"),
    device: DeviceOption = "auto",
    seed: SeedOption = 0,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Draw the score that a run of points in the plane has learned, and the paths of DDIM in few and in many steps."""
    _draw("score", out, json, quiet, run=run, device=device, seed=seed)


@gallery.command()
def series(
    run: RunPath,
    out: FolderOption = Path("gallery/series"),
    device: DeviceOption = "auto",
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Draw series beside samples of a run, a continuation as a fan, and covariances over lags."""
    _draw("series", out, json, quiet, run=run, device=device)


@gallery.command()
def sigma(
    out: PictureOption = Path("gallery/sigma.png"),
    seed: SeedOption = 0,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Draw what is learned from one noise level that is too small, middling or too large, and from all of them."""
    _draw("sigma", out, json, quiet, seed=seed)


@gallery.command()
@sampling("label", "guidance", "guidance_interval", "guidance_rescale", "classifier_guidance")
def spiral(
    run: RunPath,
    out: FolderOption = Path("gallery/spiral"),
    device: DeviceOption = "auto",
    json: JsonOption = False,
    quiet: QuietOption = False,
    **options: Any,
) -> None:
    """Draw the spiral's forward and reverse process and its optimal solution."""
    _draw("spiral", out, json, quiet, run=run, device=device, **options)


@gallery.command()
@sampling("sampler", "steps")
def samplers(
    run: RunPath,
    out: PictureOption = Path("gallery/samplers.png"),
    device: DeviceOption = "auto",
    json: JsonOption = False,
    quiet: QuietOption = False,
    **options: Any,
) -> None:
    """Draw the same seeds under every sampler at 5, 10, 20 and 50 network evaluations, with the time each takes."""
    _draw("samplers", out, json, quiet, run=run, device=device, **options)


@gallery.command()
@sampling("label", "guidance")
def guidance(
    run: RunPath,
    out: PictureOption = Path("gallery/guidance.png"),
    scales: Annotated[str, typer.Option("--scales", help="Guidance scales, with commas between.")] = "0,1,2,4,8",
    prompts: Annotated[
        str | None, typer.Option("--prompts", help="Of a run of captions: a row for each prompt, with | between.")
    ] = None,
    device: DeviceOption = "auto",
    json: JsonOption = False,
    quiet: QuietOption = False,
    **options: Any,
) -> None:
    """Draw the same seeds under growing guidance: labels or prompts down, scales across."""
    _draw("guidance", out, json, quiet, run=run, scales=scales, prompts=prompts, device=device, **options)


@gallery.command()
def transport(
    out: FolderOption = Path("gallery/transport"),
    seed: SeedOption = 0,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Draw optimal transport: plans, potentials, convergence, and divergences as supports part."""
    _draw("transport", out, json, quiet, seed=seed)


@gallery.command()
def flow(
    out: FolderOption = Path("gallery/flow"),
    seed: SeedOption = 0,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Draw how long each kind of flow takes to noise and back, as data grow."""
    _draw("flow", out, json, quiet, seed=seed)


@gallery.command()
def kernels(
    out: FolderOption = Path("gallery/kernels"),
    seed: SeedOption = 0,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Draw kernels: Gram matrices, kernel principal components, and the polynomial feature map."""
    _draw("kernels", out, json, quiet, seed=seed)


@gallery.command()
def tokens(
    data: DataName,
    out: FolderOption = Path("gallery/tokens"),
    prompt: Annotated[str | None, typer.Option("--prompt", help="What is split into tokens.")] = None,
    text: TextOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Draw which pairs byte-pair encoding merges, how short texts become, and how a word is split."""
    _draw("tokens", out, json, quiet, {"text": text}, data=data, prompt=prompt)
