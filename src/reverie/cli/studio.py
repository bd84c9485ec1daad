"""The command that opens the studio."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from reverie.base.errors import UserError
from reverie.cli.options import options_of_training

if TYPE_CHECKING:
    from reverie.studio.trainings import FormField

KINDS = {int: "integer", float: "number", bool: "switch"}
LEFT_OUT = ("data_dir", "codec", "from", "overwrite", "tensorboard", "latent")  # of paths, or not for a page


def form() -> list[FormField]:
    """Return the options of `reverie train` that the page offers, as the command line has them."""
    from reverie import api
    from reverie.studio.trainings import FormField

    fields = []
    for name, parameter in options_of_training().items():
        annotated = parameter.annotation
        kind = KINDS.get(get_args(get_args(annotated)[0] | None)[0], "text")
        text = annotated.__metadata__[0].help
        table = next((table for table in api.KINDS if f"`reverie list {table}`" in text), None)
        if name not in LEFT_OUT:
            fields.append(FormField(name.replace("_", "-"), text.partition("; `reverie list")[0], kind, table))
    return fields


def studio(
    folder: Annotated[Path, typer.Argument(help="Where your runs and data are.", metavar="[FOLDER]")] = Path(),
    port: Annotated[int, typer.Option("--port", help="Port to listen at; 0 is any that is free.")] = 0,
    host: Annotated[
        str | None, typer.Option("--host", help="Address to listen at, for other machines; else this machine alone.")
    ] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")] = True,
) -> None:
    """Open a page in the browser: watch, draw from, steer and understand your own models."""
    try:
        from reverie.studio.server import serve
    except ModuleNotFoundError as error:
        raise UserError(f"the studio needs {error.name}; install it with: pip install 'reverie[studio]'") from None
    serve(folder, form(), host=host, port=port, browser=browser)
