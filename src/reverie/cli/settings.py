"""Settings of a training from a file: TOML with the names of the options, or a run to repeat."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

from reverie.base.deprecations import OPTIONS, warn_renamed
from reverie.base.errors import UserError, unknown
from reverie.base.files import own_file, reason
from reverie.base.parse import read_toml
from reverie.cli.options import options_of_training

CONFIG = "config.toml"  # of a run
ARGUMENTS: dict[str, tuple[str, type]] = {"data": ("data", str), "out": ("out", Path), "device": ("device", str)}
KINDS = {str: "text", Path: "a path", int: "a whole number", float: "a number", bool: "true or false"}


def read_settings(path: Path) -> dict[str, Any]:
    """Return the settings in a file, or those a run was started with, by the parameter names of `reverie.train`."""
    if path.is_dir():
        path = own_file(path, CONFIG)
    table = _read(path)
    if path.name == CONFIG and isinstance(table.get("training"), dict):
        from reverie import api

        table = api.rerun_settings(path.parent)
    options = {
        **ARGUMENTS,
        **{name: (p.name, get_args(get_args(p.annotation)[0] | None)[0]) for name, p in options_of_training().items()},
    }
    settings = {}
    for file_key, value in table.items():
        key = file_key.replace("-", "_")
        if key not in options and (new := OPTIONS.get(key)) in options:
            warn_renamed(f"{file_key} in {path}", new)
            key = new
        if key not in options:
            raise unknown(file_key, options, f"setting in {path}:")
        name, kind = options[key]
        settings[name] = _typed(path, file_key, value, kind)
    return settings


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_toml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"--config file not found: {path}; give a .toml file or the folder of a run") from None
    except OSError as error:
        raise UserError(f"cannot read --config {path}: {reason(error)}; give a readable .toml file") from None
    except ValueError as error:  # not TOML, or not text
        raise UserError(f"not valid TOML: {path}: {error}; write lines such as steps = 2000") from None


def _typed(path: Path, key: str, value: Any, kind: type) -> Any:
    """Return a value in the type of its option; text may also be a number, a list, or a table with a name and options."""
    match value:
        case bool():
            fits = kind is bool
        case int():
            fits = kind in (int, float, str)
        case float():
            fits = kind in (float, str)
        case str():
            fits = kind in (str, Path)
        case dict():
            fits = kind is str and isinstance(value.get("name"), str)
        case list():
            fits = kind is str and all(isinstance(part, str | dict) for part in value)
        case _:
            fits = False
    if not fits:
        raise UserError(f"wrong value of {key} in {path}: {value!r}; give {KINDS[kind]}")
    if kind is not str:
        return kind(value)
    from reverie.base.spec import format_spec

    if isinstance(value, list):
        return ",".join(_typed(path, key, part, str) for part in value)
    return format_spec(value) if isinstance(value, dict) else str(value)
