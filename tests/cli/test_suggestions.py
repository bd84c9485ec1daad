"""What is suggested for options and data that are not there."""

from __future__ import annotations

from typer.main import get_command

from reverie.base.errors import UserError
from reverie.cli.main import app
from reverie.cli.suggestions import ALIASES, closest_option
from reverie.data import DATASETS, load_data


def test_every_suggestion_is_an_option_of_some_command() -> None:
    known = {name for command in get_command(app).commands.values() for param in command.params for name in param.opts}
    assert set(ALIASES.values()) <= known
    assert closest_option("--xyzzy", known) is None and closest_option("--learning_rate", known) == "--learning-rate"


def test_all_names_are_listed_only_where_none_is_close() -> None:
    def message(name: str) -> str:
        try:
            load_data(name)
        except UserError as error:
            return str(error)
        raise AssertionError(name)

    close, far = message("digts"), message("qqqqqqqqqq")
    assert "'digits'" in close and "reverie list data" in close and "eight-gaussians" not in close
    assert all(name in far for name in DATASETS)
