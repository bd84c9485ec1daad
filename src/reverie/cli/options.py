"""The options that commands share, each with one meaning."""

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


def completer(kind: str) -> Any:
    """Return a function that completes the names of a kind; it loads no torch, for which nobody would wait."""

    def complete(incomplete: str) -> list[str]:
        from reverie import api

        return [name for name in api.names_of(kind) if name.startswith(incomplete)]

    return complete


def named(kind: str, text: str, *flags: str) -> Any:
    """Return an option that takes a name from one of the tables."""
    return typer.Option(*flags, help=f"{text}; `reverie list {kind}` shows them.", autocompletion=completer(kind))


RunPath = Annotated[Path, typer.Argument(help="Folder of a run.", metavar="RUN")]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of everything random.")]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or mps.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but warnings and errors.")]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace samples that are in the folder.")]
ProcessesOption = Annotated[int, typer.Option("--processes", help="Processes on this machine that share the work.")]
SamplerOption = Annotated[str | None, named("samplers", "How to sample, with options like ddim:eta=0.5", "--sampler")]
SamplingSteps = Annotated[int | None, typer.Option("--steps", help="Times on the grid; most samplers evaluate once at each.")]
StepsOrAuto = Annotated[
    str | None, typer.Option("--steps", help="Times on the grid, or auto, which says what is chosen and why.", metavar="N|auto")
]
GridOption = Annotated[str | None, named("grids", "How the times are spaced, with options like karras:rho=7", "--grid")]
SizeOption = Annotated[str | None, typer.Option("--size", help="Size of images: 32, or 64x48 for height x width.")]
FIT_HELP = "How images are brought to that size: crop, pad, stretch, or auto, which pads where a crop would cut too much."
LABELS_HELP = (
    "Where labels come from: auto, folder, top-folder, last-folder, name, csv, jsonl, cls (told by shards) or none; captions:"
    " the text of each image instead; or a column of a table or of metadata.csv."
)
FitOption = Annotated[str, typer.Option("--fit", help=FIT_HELP)]
ChannelsOption = Annotated[int | None, typer.Option("--channels", help="1 grey, 3 colour, 4 with transparency; else inferred.")]
LabelsOption = Annotated[str, typer.Option("--labels", help=LABELS_HELP)]
DataDirOption = Annotated[Path | None, typer.Option("--data-dir", help="Where the files of named data sets are.")]
MovedDataOption = Annotated[
    str | None, typer.Option("--data", help="Where the run's data are now, if they were moved or renamed.", metavar="PATH")
]
StrictOption = Annotated[bool, typer.Option("--strict", help="Refuse data with broken files instead of skipping them.")]
LabelOption = Annotated[
    str | None, typer.Option("--label", help="Class to draw, all for each in turn, or a weighted sum such as 6:1.5,8:-1.")
]
PromptOption = Annotated[
    str | None,
    typer.Option(
        "--prompt",
        help="What to draw, in words, or weighted: 'a seven::1.5, slanted::-0.5'; what a text goes on from, or answers.",
    ),
]
NegativePromptOption = Annotated[
    str | None, typer.Option("--negative-prompt", help="Text that guidance moves away from; the guidance scale is then 2.")
]
ConditionOption = Annotated[
    str | None, typer.Option("--condition", help="Numbers that the model is conditioned on, by name: angle=0.5.")
]
ConditionImageOption = Annotated[
    Path | None, typer.Option("--condition-image", help="Picture to draw by, for a model that is told one.", metavar="FILE")
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
AdapterOption = Annotated[
    list[str] | None,
    typer.Option("--adapter", help="Add what a run learned with --lora, with a weight: RUN:0.7; several times for several."),
]
PrecisionOption = Annotated[
    str | None,
    typer.Option("--precision", help="fp32, or bf16, which is taken by itself where the processor is quick at it."),
]


WindowOption = Annotated[
    int | None,
    typer.Option("--window", help="Take rows of numbers as a series in time, in windows of so many; of text, characters."),
]
TextOption = Annotated[
    str | None,
    typer.Option("--text", help="Column of a .csv file, or field of a .jsonl file, that holds text.", metavar="COLUMN"),
]
PairsOption = Annotated[
    str | None,
    typer.Option(
        "--pairs",
        help="Columns of sources and targets, with a comma between, else source,target; of DATA.txt, the file of its targets.",
        metavar="COLUMNS|FILE",
    ),
]
ColumnsOption = Annotated[
    str | None,
    typer.Option(
        "--columns",
        help="Columns of a table to learn, with commas between, or all; else all but ids and times.",
        metavar="COLUMNS",
    ),
]
BeamsOption = Annotated[
    int | None, typer.Option("--beams", help="Of answers: search with so many candidates, and show the likeliest of them.")
]
TemperatureOption = Annotated[
    float | None,
    typer.Option("--temperature", help="Of text: 1 as it was learned, below it surer, 0, as of answers, always the likeliest."),
]
TopKOption = Annotated[int | None, typer.Option("--top-k", help="Of text: choose among the k likeliest tokens only.")]
TopPOption = Annotated[
    float, typer.Option("--top-p", help="Of text: choose among the fewest tokens whose share is at least p only.")
]
LengthOption = Annotated[int | None, typer.Option("--length", help="Of text: characters, at most; a window if not given.")]


LAST = ("device", "json", "quiet")  # options that the help lists at the end


def _sampling(
    label: LabelOption = None,
    prompt: PromptOption = None,
    negative_prompt: NegativePromptOption = None,
    condition: ConditionOption = None,
    condition_image: ConditionImageOption = None,
    guidance: GuidanceOption = 1.0,
    guidance_interval: IntervalOption = None,
    guidance_rescale: RescaleOption = 0.0,
    classifier_guidance: ClassifierGuidanceOption = 0.0,
    autoguidance: AutoguidanceOption = None,
    sampler: SamplerOption = None,
    steps: SamplingSteps = None,
    grid: GridOption = None,
    precision: PrecisionOption = None,
    seed: SeedOption = 0,
) -> None:
    """Hold the options of sampling, those of `reverie.runs.sampling_options.Options`, and what each is if not given."""


def _writing(
    temperature: TemperatureOption = None,
    top_k: TopKOption = None,
    top_p: TopPOption = 1.0,
    length: LengthOption = None,
    beams: BeamsOption = None,
) -> None:
    """Hold the options of sampling that are of text alone."""


def _training(
    family: Annotated[
        str | None, named("families", "Kind of model, with options like NAME:key=value; else by the kind of data", "--family")
    ] = None,
    purpose: Annotated[
        str | None, typer.Option("--purpose", help="What to be good at: samples, or likelihood.", metavar="PURPOSE")
    ] = None,
    minutes: Annotated[float | None, typer.Option("--minutes", help="Train for this long.")] = None,
    steps: Annotated[int | None, typer.Option("--steps", help="Train for this many steps.")] = None,
    epochs: Annotated[float | None, typer.Option("--epochs", help="Train for this many passes over the data.")] = None,
    until: Annotated[
        str | None, typer.Option("--until", help="converged: stop when nothing improves, within --minutes.")
    ] = None,
    clock: Annotated[
        str | None, typer.Option("--clock", help="What --minutes are counted by: wall, or processor, all its threads together.")
    ] = None,
    keep: Annotated[str | None, typer.Option("--keep", help="The last weights, or best: of the least held-out loss.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of everything random; 0 if not given.")] = None,
    size: SizeOption = None,
    fit: Annotated[str | None, typer.Option("--fit", help=FIT_HELP)] = None,
    channels: ChannelsOption = None,
    labels: Annotated[str | None, typer.Option("--labels", help=LABELS_HELP)] = None,
    data_dir: DataDirOption = None,
    strict: StrictOption = False,
    window: WindowOption = None,
    condition_columns: Annotated[
        str | None,
        typer.Option("--condition-columns", help="Columns of metadata whose numbers the model is told.", metavar="COLUMNS"),
    ] = None,
    condition_image: Annotated[
        str | None,
        typer.Option("--condition-image", help="Column of metadata that names an image to draw by.", metavar="COLUMN"),
    ] = None,
    text: TextOption = None,
    pairs: PairsOption = None,
    columns: ColumnsOption = None,
    tokenizer: Annotated[
        str | None, named("tokenizers", "How text becomes tokens, with options like bpe:size=1000", "--tokenizer")
    ] = None,
    points: Annotated[int | None, typer.Option("--points", help="How many points to generate, for data that are.")] = None,
    batch: Annotated[int | None, typer.Option("--batch", help="Data per step.")] = None,
    accumulate: Annotated[int | None, typer.Option("--accumulate", help="Batches whose gradients make one step.")] = None,
    processes: Annotated[int | None, typer.Option("--processes", help="Processes on this machine that share the work.")] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Add gradients in one order, so that any number of processes gives the same bits.")
    ] = False,
    shard: Annotated[
        bool, typer.Option("--shard", help="Share parameters, optimizer state and averages out among the processes (FSDP).")
    ] = False,
    micro_batches: Annotated[
        int | None, typer.Option("--micro-batches", help="Parts of a batch that processes share out.")
    ] = None,
    optimizer: Annotated[str | None, typer.Option("--optimizer", help="adamw or muon.")] = None,
    learning_rate: Annotated[float | None, typer.Option("--learning-rate", help="Highest learning rate.")] = None,
    warmup: Annotated[
        float | None, typer.Option("--warmup", help="Share of the training in which the learning rate rises.")
    ] = None,
    decay: Annotated[str | None, typer.Option("--decay", help="How the learning rate falls: cosine or step.")] = None,
    weight_decay: Annotated[float | None, typer.Option("--weight-decay", help="Pull of the weights towards zero.")] = None,
    gradient_clip: Annotated[float | None, typer.Option("--gradient-clip", help="Longest gradient; more is cut.")] = None,
    ema_share: Annotated[
        float | None, typer.Option("--ema-share", help="Share of the steps that the average of the weights (EMA) is over.")
    ] = None,
    label_dropout: Annotated[
        float | None, typer.Option("--label-dropout", help="How often a label is hidden, for guidance to work: 0 to 1.")
    ] = None,
    clusters: Annotated[
        int | None,
        typer.Option("--clusters", help="Clusters of images that the network is told of; 0 is none."),
    ] = None,
    precision: Annotated[str | None, typer.Option("--precision", help="fp32, or bf16; by itself what is quick here.")] = None,
    schedule: Annotated[
        str | None, named("schedules", "Noise schedule, with options like linear:steps=40", "--schedule")
    ] = None,
    network: Annotated[str | None, named("networks", "Network, with options like mlp:hidden=64", "--network")] = None,
    target: Annotated[str | None, named("targets", "What the network predicts", "--target")] = None,
    loss: Annotated[str | None, named("losses", "What an error costs, with options like huber:delta=0.5", "--loss")] = None,
    weight: Annotated[
        str | None, named("weights", "Weight of the loss over noise levels, with options like vlb:steps=16", "--weight")
    ] = None,
    variance: Annotated[
        str | None, typer.Option("--variance", help="fixed, or learned: the network tells how sure it is of each number.")
    ] = None,
    times: Annotated[str | None, named("times", "How training times are drawn", "--times")] = None,
    augment: Annotated[
        str | None, named("augmentations", "Changes of training images, like flip,shift:share=0.2; auto, none", "--augment")
    ] = None,
    beta: Annotated[float | None, typer.Option("--beta", help="Weight of the KL of a vae or hvae.")] = None,
    free_bits: Annotated[
        float | None, typer.Option("--free-bits", help="Nats that each latent number of a vae or hvae tells without cost.")
    ] = None,
    kl_warmup: Annotated[
        float | None, typer.Option("--kl-warmup", help="Share of the training in which the weight of the KL rises to --beta.")
    ] = None,
    latent_space: Annotated[
        bool | None,
        typer.Option("--latent/--no-latent", help="Draw codes of an autoencoder, trained first; else by the size."),
    ] = None,
    codec: Annotated[
        Path | None, typer.Option("--codec", help="Draw in the latent space of this autoencoder.", metavar="RUN")
    ] = None,
    start_from: Annotated[Path | None, typer.Option("--from", help="Begin with this run's weights.", metavar="RUN")] = None,
    lora: Annotated[
        str | None, typer.Option("--lora", help="With --from: learn changes of low rank alone, like rank=8.", metavar="RANK")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run that is in the folder.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard events as well.")] = False,
) -> None:
    """Hold the options of training, by the names that `reverie.train` takes; what is None or False is not asked for."""


def options_of_training() -> dict[str, inspect.Parameter]:
    """Return the options of training by their names on the command line, with _ for -."""
    found = {}
    for parameter in inspect.signature(_training, eval_str=True).parameters.values():
        option = parameter.annotation.__metadata__[0]
        flag = (
            option.param_decls[0] if option.param_decls else option.default
        )  # typer takes the first for a default until later
        found[flag.partition("/")[0].removeprefix("--").replace("-", "_")] = parameter
    return found


def _taking(holder: Callable[..., None], without: tuple[str, ...]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command what a function holds as its **options, but for what is left out or has another meaning there."""

    def give(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True)
        shared = inspect.signature(holder, eval_str=True).parameters
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


def sampling(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of sampling, but for those left out."""
    return _taking(_sampling, without)


def writing(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of sampling text."""
    return _taking(_writing, ())(command)


def training(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of training."""
    return _taking(_training, ())(command)


def read_steps(text: str | None) -> int | None:
    """Return the number of steps that is asked for; None where it is to be chosen."""
    if text is None or text == "auto":
        return None
    if not text.strip().lstrip("+-").isdecimal():
        raise UserError(f"--steps takes a whole number or auto, got {text!r}")
    return int(text)


def screen_for(json: bool, quiet: bool) -> Screen:
    """Return what speaks to the user, as the two options ask."""
    from reverie.api import Screen

    return Screen(json, quiet)
