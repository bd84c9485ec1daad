"""The command that starts the studio."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from reverie.base.errors import UserError
from reverie.cli.options import option, options_of_training

if TYPE_CHECKING:
    from reverie.studio.trainings import FormField

KINDS = {int: "integer", float: "number", bool: "switch"}
NOT_ON_PAGE = ("data_dir", "codec", "from", "overwrite", "tensorboard", "latent")  # paths, and options that the form omits


def form() -> list[FormField]:
    """Return the options of `reverie train` that the page offers."""
    from reverie import api
    from reverie.studio.trainings import FormField

    fields = []
    for name, parameter in options_of_training().items():
        annotated = parameter.annotation
        kind = KINDS.get(get_args(get_args(annotated)[0] | None)[0], "text")
        declared = annotated.__metadata__[0]
        text = declared.help
        table = next((table for table in api.KINDS if f"`reverie list {table}`" in text), None)
        if name not in NOT_ON_PAGE:
            default = f"; default: {declared.show_default}" if isinstance(declared.show_default, str) else ""
            about = text.partition("; `reverie list")[0].rstrip(".")
            fields.append(FormField(name.replace("_", "-"), f"{about}{default}", kind, table))
    return fields


def studio(
    folder: Annotated[Path, typer.Argument(help="Folder with runs and data.", metavar="[FOLDER]")] = Path(),
    port: Annotated[int, option("Port of the server; 0 is any free port", "--port", metavar="N")] = 0,
    host: Annotated[
        str | None,
        option("Address of the server, to allow other machines", "--host", default="this machine only", metavar="ADDRESS"),
    ] = None,
    browser: Annotated[bool, option("Open the page in the browser", "--browser/--no-browser")] = True,
) -> None:
    """Open the studio, a page in the browser: train, sample, steer and inspect models."""
    try:
        from reverie.studio.server import serve
    except ModuleNotFoundError as error:
        raise UserError(f"the studio needs the package {error.name}; install it with: pip install 'reverie[studio]'") from None
    serve(folder, form(), host=host, port=port, browser=browser)
