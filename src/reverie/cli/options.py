"""Options that several commands share, each with one meaning."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reverie.base.errors import UserError

if TYPE_CHECKING:
    from reverie.api import Screen

PLANNED = "chosen for data and budget"  # help text for defaults that the training plan chooses


def option(text: str, *flags: str, default: str | None = None, metavar: str | None = None, kind: str | None = None) -> Any:
    """Return an option.

    default: text in the help for a default of None; kind: of the accepted names, which the shell completes.
    """
    text = f"{text}; `reverie list {kind}` prints the names" if kind else text
    return typer.Option(
        *flags, help=f"{text}.", show_default=default or True, metavar=metavar,
        autocompletion=completer(kind) if kind else None,
    )  # fmt: skip


def completer(kind: str) -> Any:
    """Return a function that completes the names of a kind without importing torch."""

    def complete(incomplete: str) -> list[str]:
        from reverie import api

        return [name for name in api.names_of(kind) if name.startswith(incomplete)]

    return complete


SIZE = "Image size in pixels: 32, or 64x48 for height x width"
FIT = "Resizing of images: crop, pad, stretch, or auto, which pads where a crop would cut too much"
CHANNELS = "Image channels: 1 grey, 3 colour, 4 colour and transparency"
LABELS = (
    "Source of labels: auto, folder, top-folder, last-folder, name, csv, jsonl, cls (files of shards), none, captions (texts"
    " instead of labels), or a column of a table or of metadata.csv"
)
DATA_DIR = "Folder with the files of named data sets"
PROCESSES = "Processes on this machine that share the work"
PRECISION = "Floating-point precision: fp32 or bf16"
DEVICE = "Device: auto, cpu, cuda or mps"

RunPath = Annotated[Path, typer.Argument(help="Folder of a run.", metavar="RUN")]
DataName = Annotated[
    str,
    typer.Argument(help="Name or path of a data set.", metavar="DATA", autocompletion=completer("data"), show_default=False),
]
SeedOption = Annotated[int, option("Seed of all random numbers", "--seed", metavar="N")]
DeviceOption = Annotated[str, option(DEVICE, "--device", metavar="NAME")]
JsonOption = Annotated[bool, option("Print the result as JSON on standard output", "--json")]
QuietOption = Annotated[bool, option("Print only warnings and errors", "--quiet", "-q")]
OverwriteOption = Annotated[bool, option("Replace existing samples in the folder", "--overwrite")]
OverwriteRunOption = Annotated[bool, option("Replace an existing run in the folder", "--overwrite")]
ProcessesOption = Annotated[int, option(PROCESSES, "--processes", metavar="N")]
SizeOption = Annotated[str | None, option(SIZE, "--size", default="inferred", metavar="PIXELS")]
FitOption = Annotated[str, option(FIT, "--fit", metavar="METHOD")]
ChannelsOption = Annotated[int | None, option(CHANNELS, "--channels", default="inferred", metavar="N")]
LabelsOption = Annotated[str, option(LABELS, "--labels", metavar="SOURCE")]
DataDirOption = Annotated[Path | None, option(DATA_DIR, "--data-dir", default="$REVERIE_DATA or the cache", metavar="FOLDER")]
MovedDataOption = Annotated[
    str | None, option("Present path of the run's data, if moved or renamed", "--data", default="as in the run", metavar="PATH")
]
StrictOption = Annotated[bool, option("Refuse data with broken files instead of skipping them", "--strict")]
AdapterOption = Annotated[
    list[str] | None,
    option(
        "Adapter (a run trained with --lora) with a weight, RUN:0.7; repeatable", "--adapter", default="none", metavar="RUN"
    ),
]
ClockOption = Annotated[
    str | None,
    option("Clock of --minutes: wall, or processor (CPU time of all threads)", "--clock", default="wall", metavar="CLOCK"),
]
WindowOption = Annotated[
    int | None,
    option("Length of a window: rows of numbers as a time series, or characters of text", "--window", default="none",
           metavar="N"),
]  # fmt: skip
TextOption = Annotated[
    str | None,
    option("Text column of a .csv file, or text field of a .jsonl file", "--text", default="none", metavar="COLUMN"),
]
PairsOption = Annotated[
    str | None,
    option("Columns of sources and targets with a comma between; for DATA.txt, the file of the targets", "--pairs",
           default="source,target", metavar="COLUMNS|FILE"),
]  # fmt: skip
ColumnsOption = Annotated[
    str | None,
    option("Columns of a table to learn, separated by commas, or all", "--columns", default="all but ids and times",
           metavar="COLUMNS"),
]  # fmt: skip
StepsOrAuto = Annotated[
    str | None,
    option("Number of grid times; most samplers evaluate the network once at each; auto also prints the choice and its reason",
           "--steps", default="as the run recorded", metavar="N|auto"),
]  # fmt: skip


RECORDED = "as the run recorded"
COMMON = ("device", "json", "quiet")  # options that the help lists at the end


def _sampling(
    label: Annotated[
        str | None,
        option("Class to sample, all for each in turn, or a weighted sum such as 6:1.5,8:-1", "--label",
               default="as often as in the data", metavar="LABEL"),
    ] = None,
    prompt: Annotated[
        str | None,
        option("Text condition, or a weighted sum such as 'a seven::1.5, slanted::-0.5'; the prefix of a text; the source of"
               " an answer", "--prompt", default="none", metavar="TEXT"),
    ] = None,
    negative_prompt: Annotated[
        str | None,
        option("Text that guidance moves away from; sets --guidance to 2", "--negative-prompt", default="none", metavar="TEXT"),
    ] = None,
    condition: Annotated[
        str | None,
        option("Numbers that the model is conditioned on, by name: angle=0.5", "--condition", default="none",
               metavar="NAME=VALUE"),
    ] = None,
    condition_image: Annotated[
        Path | None, option("Image that the model is conditioned on", "--condition-image", default="none", metavar="FILE")
    ] = None,
    guidance: Annotated[float, option("Scale of classifier-free guidance; 1 is none", "--guidance", metavar="SCALE")] = 1.0,
    guidance_interval: Annotated[
        str | None,
        option("Times t with guidance, LOW,HIGH; 0 is data, 1 is noise", "--guidance-interval", default="0,1",
               metavar="LOW,HIGH"),
    ] = None,
    guidance_rescale: Annotated[
        float,
        option("Strength, 0 to 1, of rescaling the contrast to that without guidance", "--guidance-rescale", metavar="SHARE"),
    ] = 0.0,
    classifier_guidance: Annotated[
        float, option("Scale of the classifier's gradient; 0 is none", "--classifier-guidance", metavar="SCALE")
    ] = 0.0,
    autoguidance: Annotated[
        float | None,
        option("Scale of autoguidance by an early checkpoint; 1 is none", "--autoguidance", default=RECORDED, metavar="SCALE"),
    ] = None,
    sampler: Annotated[
        str | None,
        option("Sampler with options, such as ddim:eta=0.5", "--sampler", default=RECORDED, metavar="NAME", kind="samplers"),
    ] = None,
    steps: Annotated[
        int | None,
        option("Number of grid times; most samplers evaluate the network once at each", "--steps", default=RECORDED,
               metavar="N"),
    ] = None,
    grid: Annotated[
        str | None,
        option("Time grid with options, such as karras:rho=7", "--grid", default=RECORDED, metavar="NAME", kind="grids"),
    ] = None,
    precision: Annotated[
        str | None, option(PRECISION, "--precision", default="bf16 where the processor is fast at it", metavar="TYPE")
    ] = None,
    seed: SeedOption = 0,
) -> None:  # fmt: skip
    """Declare the options of sampling, those of `reverie.runs.sampling_options.Options`, with their defaults."""


def _writing(
    temperature: Annotated[
        float | None,
        option("Temperature of the token distribution; 0 takes the most likely token", "--temperature",
               default="1, for answers 0", metavar="T"),
    ] = None,
    top_k: Annotated[
        int | None, option("Sample among the k most likely tokens", "--top-k", default="all tokens", metavar="K")
    ] = None,
    top_p: Annotated[
        float, option("Sample among the fewest tokens with total probability p", "--top-p", metavar="P")
    ] = 1.0,
    length: Annotated[
        int | None, option("Maximum length of a text in characters", "--length", default="one window", metavar="N")
    ] = None,
    beams: Annotated[
        int | None,
        option("Width of a beam search for answers; prints the most likely ones", "--beams", default="no search", metavar="N"),
    ] = None,
) -> None:  # fmt: skip
    """Declare the options of sampling text."""


def _training(
    family: Annotated[
        str | None,
        option("Model family with options, NAME:key=value", "--family", default="by the kind of data", metavar="NAME",
               kind="families"),
    ] = None,
    purpose: Annotated[
        str | None,
        option("Objective: samples (their quality) or likelihood", "--purpose", default="samples", metavar="PURPOSE"),
    ] = None,
    minutes: Annotated[float | None, option("Length in minutes", "--minutes", default=PLANNED, metavar="M")] = None,
    steps: Annotated[int | None, option("Length in optimizer steps", "--steps", default=PLANNED, metavar="N")] = None,
    epochs: Annotated[float | None, option("Length in passes over the data", "--epochs", default=PLANNED, metavar="N")] = None,
    until: Annotated[
        str | None,
        option("Early stopping: converged stops within --minutes when no metric improves", "--until", default="end",
               metavar="CONDITION"),
    ] = None,
    clock: ClockOption = None,
    keep: Annotated[
        str | None,
        option("Weights to keep: last, or best for the lowest held-out loss", "--keep", default="last", metavar="WHICH"),
    ] = None,
    seed: Annotated[int | None, option("Seed of all random numbers", "--seed", default="0", metavar="N")] = None,
    size: SizeOption = None,
    fit: Annotated[str | None, option(FIT, "--fit", default="auto", metavar="METHOD")] = None,
    channels: ChannelsOption = None,
    labels: Annotated[str | None, option(LABELS, "--labels", default="auto", metavar="SOURCE")] = None,
    data_dir: DataDirOption = None,
    strict: StrictOption = False,
    window: WindowOption = None,
    condition_columns: Annotated[
        str | None,
        option("Metadata columns with numbers that the model is conditioned on", "--condition-columns", default="none",
               metavar="COLUMNS"),
    ] = None,
    condition_image: Annotated[
        str | None,
        option("Metadata column with the file of an image that the model is conditioned on", "--condition-image",
               default="none", metavar="COLUMN"),
    ] = None,
    text: TextOption = None,
    pairs: PairsOption = None,
    columns: ColumnsOption = None,
    tokenizer: Annotated[
        str | None,
        option("Tokenizer with options, such as bpe:size=1000", "--tokenizer", default=PLANNED, metavar="NAME",
               kind="tokenizers"),
    ] = None,
    points: Annotated[
        int | None, option("Number of points of a generated data set", "--points", default="by the data set", metavar="N")
    ] = None,
    batch: Annotated[int | None, option("Batch size", "--batch", default=PLANNED, metavar="N")] = None,
    accumulate: Annotated[
        int | None, option("Batches whose gradients are accumulated for a step", "--accumulate", default="1", metavar="N")
    ] = None,
    processes: Annotated[int | None, option(PROCESSES, "--processes", default="1", metavar="N")] = None,
    exact: Annotated[
        bool, option("Add gradients in a fixed order: the same bits for any number of processes", "--exact")
    ] = False,
    shard: Annotated[
        bool, option("Shard parameters, optimizer state and EMA among the processes (FSDP)", "--shard")
    ] = False,
    micro_batches: Annotated[
        int | None,
        option("Micro-batches of a batch, which the processes share", "--micro-batches", default=PLANNED, metavar="N"),
    ] = None,
    optimizer: Annotated[
        str | None, option("Optimizer: adamw or muon", "--optimizer", default=PLANNED, metavar="NAME")
    ] = None,
    learning_rate: Annotated[
        float | None, option("Peak learning rate", "--learning-rate", default=PLANNED, metavar="RATE")
    ] = None,
    warmup: Annotated[
        float | None,
        option("Share of the training in which the learning rate rises", "--warmup", default="0.02", metavar="SHARE"),
    ] = None,
    decay: Annotated[
        str | None, option("Decay of the learning rate: cosine or step", "--decay", default="cosine", metavar="NAME")
    ] = None,
    weight_decay: Annotated[
        float | None, option("Weight decay", "--weight-decay", default=PLANNED, metavar="RATE")
    ] = None,
    gradient_clip: Annotated[
        float | None, option("Maximum norm of the gradient, to which it is clipped", "--gradient-clip", default="1",
                             metavar="NORM")
    ] = None,
    ema_share: Annotated[
        float | None,
        option("Length of the moving average (EMA) of the weights as a share of the steps", "--ema-share", default="0.05",
               metavar="SHARE"),
    ] = None,
    label_dropout: Annotated[
        float | None,
        option("Condition dropout: probability of the null condition, for guidance", "--label-dropout", default=PLANNED,
               metavar="SHARE"),
    ] = None,
    clusters: Annotated[
        int | None,
        option("Number of image clusters that the network is conditioned on; 0 is none", "--clusters", default=PLANNED,
               metavar="N"),
    ] = None,
    precision: Annotated[
        str | None, option(PRECISION, "--precision", default="bf16 where the device is fast at it", metavar="TYPE")
    ] = None,
    schedule: Annotated[
        str | None,
        option("Noise schedule with options, such as linear:steps=40", "--schedule", default=PLANNED, metavar="NAME",
               kind="schedules"),
    ] = None,
    network: Annotated[
        str | None,
        option("Network with options, such as mlp:hidden=64", "--network", default=PLANNED, metavar="NAME", kind="networks"),
    ] = None,
    target: Annotated[
        str | None, option("Prediction target of the network", "--target", default=PLANNED, metavar="NAME", kind="targets")
    ] = None,
    loss: Annotated[
        str | None,
        option("Loss with options, such as huber:delta=0.5", "--loss", default="mse", metavar="NAME", kind="losses"),
    ] = None,
    weight: Annotated[
        str | None,
        option("Loss weighting over noise levels with options, such as vlb:steps=16", "--weight", default=PLANNED,
               metavar="NAME", kind="weights"),
    ] = None,
    variance: Annotated[
        str | None,
        option("Variance of the reverse process: fixed, or learned by the network", "--variance", default="fixed",
               metavar="NAME"),
    ] = None,
    times: Annotated[
        str | None, option("Distribution of the training times", "--times", default=PLANNED, metavar="NAME", kind="times")
    ] = None,
    augment: Annotated[
        str | None,
        option("Augmentations such as flip,shift:share=0.2, or auto, or none", "--augment", default="auto", metavar="NAMES",
               kind="augmentations"),
    ] = None,
    beta: Annotated[float | None, option("KL weight of a vae or hvae", "--beta", default=PLANNED, metavar="WEIGHT")] = None,
    free_bits: Annotated[
        float | None,
        option("Free bits: nats of each latent of a vae or hvae without penalty", "--free-bits", default=PLANNED,
               metavar="NATS"),
    ] = None,
    kl_warmup: Annotated[
        float | None,
        option("Share of the training in which the KL weight rises to --beta", "--kl-warmup", default=PLANNED, metavar="SHARE"),
    ] = None,
    latent_space: Annotated[
        bool | None,
        option("Diffuse the latents of an autoencoder, which is trained first", "--latent/--no-latent",
               default="by the image size"),
    ] = None,
    codec: Annotated[
        Path | None, option("Diffuse the latents of this autoencoder", "--codec", default="none", metavar="RUN")
    ] = None,
    start_from: Annotated[
        Path | None, option("Run whose weights initialize the new one", "--from", default="none", metavar="RUN")
    ] = None,
    lora: Annotated[
        str | None,
        option("Rank of an adapter (LoRA) to train with --from, such as rank=8", "--lora", default="none", metavar="RANK"),
    ] = None,
    overwrite: OverwriteRunOption = False,
    tensorboard: Annotated[bool, option("Write TensorBoard events as well", "--tensorboard")] = False,
) -> None:  # fmt: skip
    """Declare the options of training by the names of `reverie.train`; None and False are omitted from the call."""


def options_of_training() -> dict[str, inspect.Parameter]:
    """Return the options of training by their names on the command line, with _ for -."""
    options = {}
    for parameter in inspect.signature(_training, eval_str=True).parameters.values():
        declared = parameter.annotation.__metadata__[0]
        flag = declared.param_decls[0] if declared.param_decls else declared.default  # typer stores the first flag as default
        options[flag.partition("/")[0].removeprefix("--").replace("-", "_")] = parameter
    return options


def _add_options(source: Callable[..., None], without: tuple[str, ...]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds the parameters of a function to a command with **options, except those in `without`."""

    def add(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        shared = inspect.signature(source, eval_str=True).parameters
        first = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD and p.name not in COMMON]
        added = [p for p in shared.values() if p.name not in {*signature.parameters, *without}]
        final = [p for p in signature.parameters.values() if p.name in COMMON]

        @functools.wraps(command)
        def wrapper(**options: Any) -> None:
            command(**options)

        parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in (*first, *added, *final)]
        wrapper.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # which typer reads
        return wrapper

    return add


def sampling(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds the options of sampling, except those in `without`."""
    return _add_options(_sampling, without)


def writing(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of sampling text to a command."""
    return _add_options(_writing, ())(command)


def training(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of training to a command."""
    return _add_options(_training, ())(command)


def read_steps(text: str | None) -> int | None:
    """Return the number of steps; None to choose it automatically."""
    if text is None or text == "auto":
        return None
    if not text.strip().lstrip("+-").isdecimal():
        raise UserError(f"--steps is not a whole number: {text!r}; give a number or auto")
    return int(text)


def screen_for(json: bool, quiet: bool) -> Screen:
    """Return the output of a command under --json and --quiet."""
    from reverie.api import Screen

    return Screen(json, quiet)
