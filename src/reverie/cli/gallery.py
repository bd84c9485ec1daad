"""The commands of the gallery: figures that illustrate formulas and runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from reverie.cli.group import Group
from reverie.cli.options import (
    ChannelsOption,
    DataDirOption,
    DataName,
    DeviceOption,
    FitOption,
    JsonOption,
    QuietOption,
    RunPath,
    SeedOption,
    SizeOption,
    TextOption,
    option,
    sampling,
    screen_for,
)

gallery = typer.Typer(name="gallery", cls=Group, help="Plot figures that illustrate formulas and runs.", no_args_is_help=True)

FolderOption = Annotated[Path, option("Folder for the figures", "--out", metavar="FOLDER")]
PictureOption = Annotated[Path, option("Figure to write", "--out", metavar="X.png")]


def _plot(name: str, out: Path, json: bool, quiet: bool, reading: dict[str, Any] | None = None, **options: Any) -> None:
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
    prompt: Annotated[str | None, option("Source of the answer", "--prompt", default="an example", metavar="TEXT")] = None,
    device: DeviceOption = "auto",
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Plot the attention of each token of an answer over its source, for a run of text pairs."""
    _plot("alignment", out, json, quiet, run=run, prompt=prompt, device=device)


@gallery.command()
def attention(
    run: RunPath,
    out: PictureOption = Path("gallery/attention.png"),
    prompt: Annotated[str | None, option("Sentence to analyse", "--prompt", default="an example", metavar="TEXT")] = None,
    device: DeviceOption = "auto",
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Plot the attention weights of a sentence, for every layer and head of a transformer of text."""
    _plot("attention", out, json, quiet, run=run, prompt=prompt, device=device)


@gallery.command()
def autodiff(out: FolderOption = Path("gallery/autodiff"), json: JsonOption = False, quiet: QuietOption = False) -> None:
    """Plot automatic differentiation: graphs and sweeps, memory, cost, implicit functions, uncertainty."""
    _plot("autodiff", out, json, quiet)


@gallery.command()
def coloring(out: FolderOption = Path("gallery/coloring"), json: JsonOption = False, quiet: QuietOption = False) -> None:
    """Plot sparse matrices with their graphs, colourings, compressed forms and minimum colours."""
    _plot("coloring", out, json, quiet)


@gallery.command()
def cost(out: FolderOption = Path("gallery/cost"), json: JsonOption = False, quiet: QuietOption = False) -> None:
    """Plot the cost of a transformer over length and width: by formula, counted and timed."""
    _plot("cost", out, json, quiet)


@gallery.command()
def depth(out: PictureOption = Path("gallery/depth.png"), json: JsonOption = False, quiet: QuietOption = False) -> None:
    """Plot the effect of residuals, LayerNorm and BatchNorm on gradients over depth."""
    _plot("depth", out, json, quiet)


@gallery.command()
def embeddings(out: FolderOption = Path("gallery/embeddings"), json: JsonOption = False, quiet: QuietOption = False) -> None:
    """Plot the sinusoidal embedding: curves, heatmap and distances."""
    _plot("embeddings", out, json, quiet)


@gallery.command()
def autoencoder(
    run: RunPath,
    out: FolderOption = Path("gallery/autoencoder"),
    device: DeviceOption = "auto",
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Plot reconstructions, latents, interpolations, and the error of the best linear autoencoder."""
    _plot("autoencoder", out, json, quiet, run=run, device=device)


@gallery.command()
def forward(
    data: DataName,
    out: FolderOption = Path("gallery/forward"),
    schedule: Annotated[
        str, option("Noise schedule with options, such as linear:steps=40", "--schedule", metavar="NAME", kind="schedules")
    ] = "linear",
    size: SizeOption = None,
    fit: FitOption = "auto",
    channels: ChannelsOption = None,
    data_dir: DataDirOption = None,
    seed: SeedOption = 0,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Plot the forward process of images or points, as a sheet and as a film."""
    reading = {"size": size, "fit": fit, "channels": channels, "data_dir": data_dir}
    _plot("forward", out, json, quiet, reading, data=data, schedule=schedule, seed=seed)


@gallery.command()
def gradients(
    runs: Annotated[
        list[Path] | None, typer.Argument(help="Runs of rnn and lstm to plot as well.", metavar="[RUN]...", show_default=False)
    ] = None,
    out: PictureOption = Path("gallery/gradients.png"),
    device: DeviceOption = "auto",
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Plot vanishing and exploding gradients over time in recurrent networks and in runs of them."""
    _plot("gradients", out, json, quiet, runs=runs or (), device=device)


@gallery.command()
def graphs(out: PictureOption = Path("gallery/graphs.png"), json: JsonOption = False, quiet: QuietOption = False) -> None:
    """Plot the graphical model of every family with its factorisation."""
    _plot("graphs", out, json, quiet)


@gallery.command()
def normal(
    out: PictureOption = Path("gallery/normal.png"),
    seed: SeedOption = 0,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Plot normal samples against their density, and Bayes' rule for normal distributions."""
    _plot("normal", out, json, quiet, seed=seed)


@gallery.command()
def schedules(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(help="Runs whose schedules are plotted as well.", metavar="[RUN]...", show_default=False),
    ] = None,
    out: PictureOption = Path("gallery/schedules.png"),
    device: DeviceOption = "auto",
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Plot all noise schedules, and the learned ones of runs."""
    _plot("schedules", out, json, quiet, runs=runs or (), device=device)


@gallery.command()
def score(
    run: RunPath,
    out: PictureOption = Path("gallery/score.png"),
    device: DeviceOption = "auto",
    seed: SeedOption = 0,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Plot the learned score of a run of points in the plane, and DDIM trajectories with few and many steps."""
    _plot("score", out, json, quiet, run=run, device=device, seed=seed)


@gallery.command()
def series(
    run: RunPath,
    out: FolderOption = Path("gallery/series"),
    device: DeviceOption = "auto",
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Plot time series next to samples, a forecast as a fan chart, and autocovariances."""
    _plot("series", out, json, quiet, run=run, device=device)


@gallery.command()
def sigma(
    out: PictureOption = Path("gallery/sigma.png"),
    seed: SeedOption = 0,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Plot models of one noise level, too small, medium or too large, and of all levels."""
    _plot("sigma", out, json, quiet, seed=seed)


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
    """Plot the forward and reverse process of the spiral and the optimal denoiser."""
    _plot("spiral", out, json, quiet, run=run, device=device, **options)


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
    """Plot the same seeds under every sampler at 5, 10, 20 and 50 NFE, with the time of each."""
    _plot("samplers", out, json, quiet, run=run, device=device, **options)


@gallery.command()
@sampling("label", "guidance")
def guidance(
    run: RunPath,
    out: PictureOption = Path("gallery/guidance.png"),
    scales: Annotated[str, option("Guidance scales separated by commas", "--scales", metavar="SCALES")] = "0,1,2,4,8",
    prompts: Annotated[
        str | None,
        option("Prompts of a run with captions, one row each, separated by |", "--prompts", default="none", metavar="TEXTS"),
    ] = None,
    device: DeviceOption = "auto",
    json: JsonOption = False,
    quiet: QuietOption = False,
    **options: Any,
) -> None:
    """Plot the same seeds under increasing guidance: a row for each label or prompt, a column for each scale."""
    _plot("guidance", out, json, quiet, run=run, scales=scales, prompts=prompts, device=device, **options)


@gallery.command()
def transport(
    out: FolderOption = Path("gallery/transport"),
    seed: SeedOption = 0,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Plot optimal transport: plans, potentials, convergence, and divergences of separating supports."""
    _plot("transport", out, json, quiet, seed=seed)


@gallery.command()
def flow(
    out: FolderOption = Path("gallery/flow"),
    seed: SeedOption = 0,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Plot the time of each flow to noise and back over the dimension of the data."""
    _plot("flow", out, json, quiet, seed=seed)


@gallery.command()
def kernels(
    out: FolderOption = Path("gallery/kernels"),
    seed: SeedOption = 0,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Plot kernels: Gram matrices, kernel principal components, and the polynomial feature map."""
    _plot("kernels", out, json, quiet, seed=seed)


@gallery.command()
def tokens(
    data: DataName,
    out: FolderOption = Path("gallery/tokens"),
    prompt: Annotated[str | None, option("Text to tokenize", "--prompt", default="an example", metavar="TEXT")] = None,
    text: TextOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Plot the merges of byte-pair encoding, the length of encoded texts, and the tokens of a word."""
    _plot("tokens", out, json, quiet, {"text": text}, data=data, prompt=prompt)
