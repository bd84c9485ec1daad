"""The command line.  torch is imported only when work starts."""

from __future__ import annotations

import atexit
import gc
import io
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.exceptions import TyperException

from reverie.base.errors import ReverieWarning, UserError, out_of_memory
from reverie.base.signals import interrupted_by_sigterm
from reverie.base.visible import visible
from reverie.cli import compress, exchange, pack, restore
from reverie.cli.evaluate import compare, evaluate
from reverie.cli.gallery import gallery
from reverie.cli.group import Group
from reverie.cli.listing import list_names, runs
from reverie.cli.options import (
    AdapterOption,
    ChannelsOption,
    ColumnsOption,
    DataDirOption,
    DeviceOption,
    FitOption,
    JsonOption,
    LabelsOption,
    OverwriteOption,
    PairsOption,
    ProcessesOption,
    QuietOption,
    RunPath,
    SeedOption,
    SizeOption,
    StepsOrAuto,
    StrictOption,
    TextOption,
    WindowOption,
    read_steps,
    sampling,
    screen_for,
    writing,
)
from reverie.cli.steering import steering
from reverie.cli.studio import studio
from reverie.cli.suggestions import meant
from reverie.cli.train import distil, train

if TYPE_CHECKING:
    from reverie.api import Run, Screen

app = typer.Typer(
    name="reverie",
    cls=Group,
    help="Train, sample, steer and measure denoising diffusion models on your own small data.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog="Start with: reverie train spiral --out runs/spiral",
)
app.add_typer(gallery)
app.add_typer(steering)

USER_MISTAKE, INTERRUPTED = 2, 130
BUDGET_HELP = "Budget of a training: it decides how large colour images are, which is shown."


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"reverie {version('reverie')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    pass


app.command()(train)
app.command()(distil)


@app.command()
@sampling()
@writing
def sample(
    run: RunPath,
    n: Annotated[int | None, typer.Option("-n", help="How many; 16 if not given, of text 1.")] = None,
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            help="X.png, X.gif, X.mp4, X.npy, X.csv or a folder, samples.png if not given; text is shown, or X.txt.",
        ),
    ] = None,
    steps: StepsOrAuto = None,
    overwrite: OverwriteOption = False,
    adapter: AdapterOption = None,
    backend: Annotated[
        str, typer.Option("--backend", help="torch, or onnx: ONNX Runtime, quicker for many hundred images on a CPU.")
    ] = "torch",
    processes: ProcessesOption = 1,
    device: DeviceOption = "auto",
    json: JsonOption = False,
    quiet: QuietOption = False,
    **options: Any,
) -> None:
    """Draw samples from a run as a picture, a film or an array, or write text; a folder of images is gone on with."""
    screen = screen_for(json, quiet)
    from reverie import api

    if api.serve_if_worker(device):
        return
    options["steps"] = read_steps(steps)
    opened = api.with_adapters(api.load(run, device), adapter or ())
    if steps == "auto":
        screen.say(opened.explain_sampling(options))
    elif newer := opened.newer_default(options):
        screen.say(newer)
    if backend != "torch":  # which needs nothing more to be loaded
        opened = api.with_backend(opened, backend)
    if options["beams"] is not None and options["prompt"] is not None and out is None and opened.kind == "pairs":
        show_answers(screen, opened, options)
        return
    if opened.kind in ("text", "pairs") and out is None:
        show_text(screen, opened, 1 if n is None else n, options)
        return
    n, out = 16 if n is None else n, out or "samples.png"
    try:
        with screen.counting(opened.kind) as advance:
            files = api.sample_to(
                opened, n, out, overwrite=overwrite, processes=processes, on_progress=advance, say=screen.say, **options
            )
    except KeyboardInterrupt as stopped:
        screen.say(f"interrupted; {str(stopped) or f'{out} is written when all are drawn, so nothing was kept'}")
        raise
    wrote = ", ".join(map(str, files)) if len(files) < 4 else f"{len(files):,} files in {files[0].parent}"
    screen.result({"files": [str(f) for f in files], "samples": n, "seed": options["seed"]}, f"wrote {wrote}")


def show_text(screen: Screen, run: Run, n: int, options: dict[str, Any]) -> None:
    """Write texts to standard output as they come; with --json, when all are written."""
    from reverie import api

    if run.kind == "pairs" and screen.as_json:
        rows = [{"source": source, "target": target} for source, target in run.sample(n, **options).pairs]
        screen.result({"pairs": rows, "samples": n, "seed": options["seed"]}, "")
        return
    texts = []
    for k in range(n):
        pieces = []
        for piece in api.write_text(run, k, **options):
            pieces.append(piece)
            if screen.talks:
                print(visible(piece, lines=True), end="", flush=True)
        texts.append("".join(pieces))
        if screen.talks:
            print("\n" + "-" * 60 if k + 1 < n else "")
    screen.result({"texts": texts, "samples": n, "seed": options["seed"]}, "") if screen.as_json else None


def show_answers(screen: Screen, run: Run, options: dict[str, Any]) -> None:
    """Show the likeliest answers that a beam search finds, with the logarithms of their probabilities."""
    run.check_options(options)
    found = run.answers(options["prompt"], options["beams"], options["length"])
    rows = [{"text": one.text, "log_prob": one.log_prob, "ended": one.ended} for one in found]
    lines = [f"{one.log_prob:9.4f}  {visible(one.text)}{'' if one.ended else ' ...'}" for one in found]
    screen.result({"source": options["prompt"], "answers": rows}, "\n".join(lines))


app.command()(evaluate)
app.command()(compare)


@app.command()
def inspect(
    what: Annotated[str, typer.Argument(help="Name or path of a data set, or folder of a run.", metavar="DATA|RUN")],
    out: Annotated[Path | None, typer.Option("--out", help="Draw it to this picture as well.")] = None,
    size: SizeOption = None,
    fit: FitOption = "auto",
    channels: ChannelsOption = None,
    labels: LabelsOption = "auto",
    data_dir: DataDirOption = None,
    strict: StrictOption = False,
    window: WindowOption = None,
    text: TextOption = None,
    pairs: PairsOption = None,
    columns: ColumnsOption = None,
    minutes: Annotated[float | None, typer.Option("--minutes", help=BUDGET_HELP)] = None,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Describe a data set or a run."""
    screen = screen_for(json, quiet)
    from reverie import api

    with screen.reading() as on_progress:
        reading = {
            "size": size, "fit": fit, "channels": channels, "labels": labels, "data_dir": data_dir, "strict": strict,
            "window": window, "text": text, "pairs": pairs, "columns": columns, "on_progress": on_progress,
        }  # fmt: skip
        found = api.inspect(what, out=out, seed=seed, device=device, minutes=minutes, reading=reading)
    screen.table({**found, "picture": str(out)} if out is not None else found)


restore.register(app)
compress.register(app)
exchange.register(app)
pack.register(app)


app.command(name="list")(list_names)
app.command()(runs)
app.command()(studio)


def _tell(sentence: str) -> None:
    """Print one sentence, with whatever names are in it, as one line on standard error."""
    print(visible(sentence), file=sys.stderr)


def _warnings_once() -> Callable[..., None]:
    """Return what shows our warnings, each sentence once."""
    shown = set[str]()

    def show(message: Warning | str, category: type[Warning], *where: Any, **also: Any) -> None:
        if issubclass(category, ReverieWarning) and str(message) not in shown:
            shown.add(str(message))
            _tell(f"warning: {message}")

    return show


def main() -> None:
    """Run the command line: a user's mistake is one sentence and exit code 2, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal may lack letters that a name has
            stream.reconfigure(errors="backslashreplace")
    atexit.register(gc.disable)  # the end of a process frees all its memory at once
    warnings.showwarning = _warnings_once()
    warnings.simplefilter("always", ReverieWarning)
    with interrupted_by_sigterm() as request:
        code = _run()
    sys.exit(request.code if code == INTERRUPTED else code)


def _run() -> int:
    """Run the command line and return the exit code, after one sentence where something is wrong."""
    try:
        code = app(standalone_mode=False)
    except UserError as error:
        _tell(f"error: {error}")
        code = USER_MISTAKE
    except TyperException as error:
        if said := _sentence(error):  # nothing to say where the help was printed instead
            _tell(f"error: {said}")
        code = USER_MISTAKE
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        _tell("error: there is not enough memory for this; ask for fewer or smaller things")
        code = USER_MISTAKE
    except OSError as error:
        _tell(f"error: {error.filename or 'the output'}: {(error.strerror or str(error)).lower()}")
        code = USER_MISTAKE
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    return code if isinstance(code, int) else 0


def _sentence(error: TyperException) -> str:
    option, context = getattr(error, "option_name", None), getattr(error, "ctx", None)
    if option is not None and context is not None and error.__class__.__name__ == "NoSuchOption":
        like = meant(option, (name for param in context.command.params for name in (*param.opts, *param.secondary_opts)))
        hint = f"did you mean {like}?" if like else f"reverie {context.info_name} --help shows those there are"
        return f"{context.info_name} has no option {option}; {hint}"
    said = error.format_message() if hasattr(error, "format_message") else str(error)
    return " ".join(str(said).split())
