"""Renamed Python names and options work for one release and name their successors."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import typer

from reverie import api
from reverie.base.deprecations import OPTIONS, PARAMETERS, RENAMED, VALUES, current_options, flag, renamed_options
from reverie.base.errors import UserError
from reverie.cli.main import app
from reverie.runs.sampling_options import Options
from reverie.training.training_options import TrainingOptions

PYTHON_OPTIONS = {**Options.__annotations__, **TrainingOptions.__annotations__}


@pytest.mark.parametrize(
    ("module", "old", "new"), [(m, old, new) for m, names in RENAMED.items() for old, new in names.items()]
)
def test_an_old_name_gives_the_new_object_and_a_warning(module: str, old: str, new: str) -> None:
    place, _, name = new.rpartition(".")
    with pytest.warns(DeprecationWarning, match=rf"{place or module}\.{name}$"):
        found = getattr(import_module(module), old)
    assert found is getattr(import_module(place or module), name)


@pytest.mark.parametrize("module", RENAMED)
def test_an_unknown_name_is_an_attribute_error(module: str) -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        getattr(import_module(module), "no_such_name")  # noqa: B009


def _commands(group: Any) -> list[tuple[Any, str, Any]]:
    """Return each command with its group and name."""
    found = []
    for name, command in group.commands.items():
        found += _commands(command) if hasattr(command, "commands") else [(group, name, command)]
    return found


@pytest.mark.parametrize("old", OPTIONS)
def test_commands_take_an_old_option_with_a_warning(old: str) -> None:
    new, seen = OPTIONS[old], 0
    for group, name, command in _commands(typer.main.get_command(app)):
        flags = {option for parameter in command.params for option in parameter.opts}
        assert flag(old) not in flags, name  # so that no help shows it
        if flag(new) not in flags:
            continue
        context = type("Context", (), {"resilient_parsing": False, "token_normalize_func": None})()
        with pytest.warns(DeprecationWarning, match=f"{flag(old)} .*{flag(new)}"):
            words = group.resolve_command(context, [name, flag(old), "1", f"{flag(old)}=2", "--", flag(old)])[2]
        assert words == [flag(new), "1", f"{flag(new)}=2", "--", flag(old)]
        seen += 1
    assert seen


@pytest.mark.parametrize("old", OPTIONS)
def test_python_takes_an_old_option_with_a_warning(old: str) -> None:
    @renamed_options
    def verb(**options: Any) -> dict[str, Any]:
        return options

    with pytest.warns(DeprecationWarning, match=f"{old} .*{OPTIONS[old]}"):
        assert verb(**{old: 1}) == {OPTIONS[old]: 1}
    with pytest.raises(UserError, match=OPTIONS[old]):
        verb(**{old: 1, OPTIONS[old]: 2})
    assert current_options({old: 1}) == {OPTIONS[old]: 1}
    assert OPTIONS[old] in PYTHON_OPTIONS and old not in PYTHON_OPTIONS


@pytest.mark.parametrize("old", PARAMETERS)
def test_an_old_parameter_of_a_verb_is_taken_with_a_warning(old: str) -> None:
    @renamed_options
    def verb(**options: Any) -> dict[str, Any]:
        return options

    with pytest.warns(DeprecationWarning, match=f"{old} .*{PARAMETERS[old]}"):
        assert verb(**{old: 1}) == {PARAMETERS[old]: 1}


@pytest.mark.parametrize(("option", "old", "new"), [(key, *pair) for key, values in VALUES.items() for pair in values.items()])
def test_an_old_value_is_taken_with_a_warning(option: str, old: str, new: str) -> None:
    @renamed_options
    def verb(**options: Any) -> dict[str, Any]:
        return options

    with pytest.warns(DeprecationWarning, match=f"{option}.*{old}.*{new}"):
        assert verb(**{option: old}) == {option: new}
    assert current_options({option: old, "steps": 3}) == {option: new, "steps": 3}


def test_the_verbs_take_old_options(tmp_path: Any) -> None:
    with pytest.warns(DeprecationWarning, match="gradient_clip"):
        run = api.train("moons", tmp_path / "run", points=50, steps=1, batch=8, gradient_limit=2.0)  # type: ignore[call-arg]
    assert run.config.training.gradient_clip == 2.0
    with pytest.warns(DeprecationWarning, match="condition"), pytest.raises(UserError):
        run.sample(1, told="angle=1")  # type: ignore[call-arg]


def test_the_command_line_prints_one_line(command: Any, tmp_path: Any) -> None:
    words = ("train", "moons", "--points", 50, "--steps", 1, "--batch", 8, "--gradient-limit", 2, "--until", "good", "-q")
    code, out, err = command(*words, "--out", tmp_path / "run")
    lines = err.splitlines()
    assert code == 0 and out == "" and len(lines) == 2
    assert "--gradient-limit" in lines[0] and "--gradient-clip" in lines[0] and "converged" in lines[1]
