"""The command line.  torch is imported only when work starts."""

from __future__ import annotations

import atexit
import gc
import io
import sys
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.exceptions import TyperException

from reverie.base.errors import ReverieWarning, UserError, advice, out_of_memory
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
    option,
    read_steps,
    sampling,
    screen_for,
    writing,
)
from reverie.cli.steering import steering
from reverie.cli.studio import studio
from reverie.cli.suggestions import closest_option
from reverie.cli.train import distil, train

if TYPE_CHECKING:
    from reverie.api import Run, Screen

app = typer.Typer(
    name="reverie",
    cls=Group,
    help="Train, sample, steer and evaluate denoising diffusion models on your own small data.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog="Start with: reverie train spiral --out runs/spiral",
)
app.add_typer(gallery)
app.add_typer(steering)

USER_ERROR, INTERRUPTED = 2, 130


def _version(requested: bool) -> None:
    if requested:
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
    n: Annotated[int | None, option("Number of samples", "-n", default="16, of text 1", metavar="N")] = None,
    out: Annotated[
        str | None,
        option("X.png, X.gif, X.mp4, X.npy, X.csv, X.txt or a folder", "--out", default="samples.png; text is printed",
               metavar="PATH"),
    ] = None,
    steps: StepsOrAuto = None,
    overwrite: OverwriteOption = False,
    adapter: AdapterOption = None,
    backend: Annotated[
        str,
        option("Backend: torch, or onnx (ONNX Runtime), which is faster for hundreds of images on a CPU", "--backend",
               metavar="NAME"),
    ] = "torch",
    processes: ProcessesOption = 1,
    device: DeviceOption = "auto",
    json: JsonOption = False,
    quiet: QuietOption = False,
    **options: Any,
) -> None:  # fmt: skip
    """Sample a run: an image sheet, a film, an array or text; an interrupted image folder is resumed."""
    screen = screen_for(json, quiet)
    from reverie import api

    if api.serve_if_worker(device):
        return
    options["steps"] = read_steps(steps)
    loaded = api.with_adapters(api.load(run, device), adapter or ())
    if steps == "auto":
        screen.notify(loaded.explain_sampling(options))
    elif newer := loaded.newer_default(options):
        screen.notify(newer)
    if backend != "torch":
        loaded = api.with_backend(loaded, backend)
    if options["beams"] is not None and options["prompt"] is not None and out is None and loaded.kind == "pairs":
        show_answers(screen, loaded, options)
        return
    if loaded.kind in ("text", "pairs") and out is None:
        show_text(screen, loaded, 1 if n is None else n, options)
        return
    n, out = 16 if n is None else n, out or "samples.png"
    try:
        with screen.counting(loaded.kind) as advance:
            files = api.sample_to(
                loaded, n, out, overwrite=overwrite, processes=processes, on_progress=advance, notify=screen.notify, **options
            )
    except KeyboardInterrupt as stopped:
        screen.notify(f"interrupted; {str(stopped) or f'{out} was not written'}")
        raise
    wrote = ", ".join(map(str, files)) if len(files) < 4 else f"{len(files):,} files in {files[0].parent}"
    screen.result({"files": [str(f) for f in files], "samples": n, "seed": options["seed"]}, f"wrote {wrote}")


def show_text(screen: Screen, run: Run, n: int, options: dict[str, Any]) -> None:
    """Print texts while they are sampled; with --json, when all are complete."""
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
            if screen.is_verbose:
                print(visible(piece, lines=True), end="", flush=True)
        texts.append("".join(pieces))
        if screen.is_verbose:
            print("\n" + "-" * 60 if k + 1 < n else "")
    screen.result({"texts": texts, "samples": n, "seed": options["seed"]}, "") if screen.as_json else None


def show_answers(screen: Screen, run: Run, options: dict[str, Any]) -> None:
    """Print the most likely answers of a beam search with their log-probabilities."""
    run.check_options(options)
    answers = run.answers(options["prompt"], options["beams"], options["length"])
    rows = [{"text": answer.text, "log_prob": answer.log_prob, "ended": answer.ended} for answer in answers]
    lines = [f"{answer.log_prob:9.4f}  {visible(answer.text)}{'' if answer.ended else ' ...'}" for answer in answers]
    screen.result({"source": options["prompt"], "answers": rows}, "\n".join(lines))


app.command()(evaluate)
app.command()(compare)


@app.command()
def inspect(
    what: Annotated[str, typer.Argument(help="Name or path of a data set, or folder of a run.", metavar="DATA|RUN")],
    out: Annotated[Path | None, option("Overview image to write", "--out", default="none", metavar="X.png")] = None,
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
    minutes: Annotated[
        float | None,
        option(
            "Training budget for which the default size of colour images is shown", "--minutes", default="none", metavar="M"
        ),
    ] = None,
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
        description = api.inspect(what, out=out, seed=seed, device=device, minutes=minutes, reading=reading)
    screen.table({**description, "picture": str(out)} if out is not None else description)


restore.register(app)
compress.register(app)
exchange.register(app)
pack.register(app)


app.command(name="list")(list_names)
app.command()(runs)
app.command()(studio)


def _print_error(sentence: str) -> None:
    """Print one sentence as one line on standard error, with control characters escaped."""
    print(visible(sentence), file=sys.stderr)


def _warnings_once() -> Callable[..., None]:
    """Return a handler that prints each warning of Reverie once."""
    shown = set[str]()

    def show(message: Warning | str, category: type[Warning], *location: Any, **details: Any) -> None:
        if issubclass(category, ReverieWarning) and str(message) not in shown:
            shown.add(str(message))
            _print_error(f"warning: {message}")

    return show


def main() -> None:
    """Run the command line; a user error is one sentence and exit code 2, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # for characters that the terminal lacks
            stream.reconfigure(errors="backslashreplace")
    atexit.register(gc.disable)  # the end of the process frees all memory at once
    warnings.showwarning = _warnings_once()
    warnings.simplefilter("always", ReverieWarning)
    with interrupted_by_sigterm() as request:
        code = _run()
    sys.exit(request.code if code == INTERRUPTED else code)


def _run() -> int:
    """Run the command line, print one sentence about an error, and return the exit code."""
    try:
        code = app(standalone_mode=False)
    except UserError as error:
        _print_error(f"error: {error}")
        code = USER_ERROR
    except TyperException as error:
        if sentence := _sentence(error):  # empty if the help was printed
            _print_error(f"error: {sentence}")
        code = USER_ERROR
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        _print_error("error: out of memory; reduce -n, --batch or --size")
        code = USER_ERROR
    except OSError as error:
        _print_error(f"error: {error.filename or 'the output'}: {(error.strerror or str(error)).lower()}; check path and disk")
        code = USER_ERROR
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    return code if isinstance(code, int) else 0


def _sentence(error: TyperException) -> str:
    unknown, context = getattr(error, "option_name", None), getattr(error, "ctx", None)
    if unknown is not None and context is not None and error.__class__.__name__ == "NoSuchOption":
        closest = closest_option(
            unknown, (name for param in context.command.params for name in (*param.opts, *param.secondary_opts))
        )
        hint = f"did you mean {closest}?" if closest else f"{_path(context)} --help lists the options"
        return f"{context.info_name} has no option {unknown}; {hint}"
    sentence = " ".join(str(error.format_message() if hasattr(error, "format_message") else error).split())
    flags: list[str] = list(getattr(getattr(error, "param", None), "opts", ()))
    if values := [value for flag, value in pairwise(sys.argv) if flag in flags and "Input should be" in sentence]:
        return f"invalid value of {flags[0]}: {values[-1]!r}; {advice(sentence[sentence.index('Input should be') :])}"
    if not sentence or context is None or ";" in sentence:
        return sentence
    return f"{sentence.rstrip('.')}; see {_path(context)} --help"


def _path(context: Any) -> str:
    """Return the command of a context as it is typed."""
    return f"{_path(context.parent)} {context.info_name}" if context.parent is not None else "reverie"
