"""Specs: a name with options, `ddim:eta=0.5` on the command line, a table in config.toml, a dict in Python."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar, get_args, get_origin

from pydantic import BeforeValidator, ConfigDict, PydanticUserError, TypeAdapter, ValidationError

from reverie.base.deprecations import current_spec_options
from reverie.base.errors import UserError, advice, pick, unknown

T = TypeVar("T")
Spec = dict[str, Any]
MAX_SHOWN = 200  # maximum characters of the input that an error message repeats


def parse(spec: str | Mapping[str, Any]) -> Spec:
    """Parse `name` or `name:key=value,key=[value,value]` into {"name": name, key: value}."""
    if not isinstance(spec, str):
        return dict(spec)
    name, _, options = spec.partition(":")
    parsed: Spec = {"name": name.strip()}
    for option in filter(None, (o.strip() for o in re.split(r",(?![^\[]*\])", options))):
        key, equals, value = option.partition("=")
        if not equals:
            raise UserError(
                f"cannot read {option!r} in {spec!r}; write options as name:key=value,key=value and lists as key=[value,value]"
            )
        value = value.strip()
        is_list = value.startswith("[") and value.endswith("]")
        parsed[key.strip()] = [v.strip() for v in value[1:-1].split(",") if value != "[]"] if is_list else value
    return parsed


def format_spec(spec: Mapping[str, Any] | str) -> str:
    """Format a spec for the command line; the inverse of `parse`."""
    if isinstance(spec, str):
        return spec

    def value(v: Any) -> str:
        return f"[{','.join(map(str, v))}]" if isinstance(v, list | tuple) else str(v)

    options = ",".join(f"{key}={value(v)}" for key, v in spec.items() if key != "name")
    return f"{spec['name']}:{options}" if options else str(spec["name"])


def as_list(annotation: Any, value: Any) -> Any:
    """Return a single word as a list if the type is a list: `widths=8` is `widths=[8]`.

    Numbers are unchanged: files, unlike command lines, contain explicit lists.
    """
    kind = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    is_sequence = get_origin(kind) is list or (get_origin(kind) is tuple and Ellipsis in get_args(kind))
    return [value] if is_sequence and isinstance(value, str) else value


def first_problem(error: ValidationError) -> str:
    """Return the first problem of a pydantic error in one clause; other messages than Reverie's own get the invalid value."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    value = repr(first["input"])
    value = value if len(value) <= MAX_SHOWN else f"{value[:MAX_SHOWN]} ..."
    own_error = first.get("ctx", {}).get("error") if first["type"] == "value_error" else None
    message = str(own_error) if own_error is not None else f"got {value}; {advice(first['msg'])}"
    return f"{where}: {message}" if where else message


def complete(table: Mapping[str, Callable[..., T]], spec: str | Mapping[str, Any], what: str) -> Spec:
    """Validate a spec against the signature of the named object and fill in defaults, so that it can be stored."""
    options = parse(spec)
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise UserError(f"a {what} needs a name, got {spec!r}")
    parameters = inspect.signature(pick(table, name, what), eval_str=True).parameters
    options = current_spec_options(name, options)
    full: Spec = {"name": name}
    for key in options:
        if key not in parameters:
            if not parameters:
                raise UserError(f"the {what} {name!r} takes no options, got {key!r}")
            raise unknown(key, parameters, f"option of the {what} {name!r}:")
    for key, parameter in parameters.items():
        if key not in options:
            if parameter.default is parameter.empty:
                raise UserError(f"the {what} {name!r} needs a value for {key!r}")
            full[key] = parameter.default
            continue
        try:
            full[key] = _adapter(parameter.annotation).validate_python(as_list(parameter.annotation, options[key]))
        except ValidationError as error:
            raise UserError(f"invalid option {key!r} of the {what} {name!r}: {first_problem(error)}") from None
    return full


def _adapter(annotation: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(annotation, config=ConfigDict(allow_inf_nan=False))
    except PydanticUserError:  # a type with its own configuration
        return TypeAdapter(annotation)


def spec_of(table: Mapping[str, Callable[..., Any]], what: str) -> BeforeValidator:
    """Return the pydantic validator of a spec of this table, which fills in defaults."""

    def validate(spec: Any) -> Spec:
        if not isinstance(spec, Mapping):
            raise ValueError(f"a {what} is a table with a name and options")
        return complete(table, spec, what)

    return BeforeValidator(validate)


def build(table: Mapping[str, Callable[..., T]], spec: str | Mapping[str, Any], what: str) -> T:
    """Construct the object that a spec names."""
    options = complete(table, spec, what)
    return table[options.pop("name")](**options)
