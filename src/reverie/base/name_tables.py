"""Tables of names, read from the source without importing it, and descriptions of their entries."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class NameTable:
    """A table and its module: `NameTable("diffusion.schedules", "SCHEDULES")`."""

    module: str
    name: str

    def load(self) -> Mapping[str, Any]:
        """Import the module and return the table."""
        table: Mapping[str, Any] = getattr(import_module(f"reverie.{self.module}"), self.name)
        return table

    def names(self) -> list[str]:
        """Return the names in the table, from its source if available, which is fast, or else from the table itself."""
        try:
            return self.parse_names()
        except (OSError, SyntaxError, ValueError):
            return list(self.load())

    def parse_names(self) -> list[str]:
        """Return the names as written in the source."""
        body = _parsed(self.module).body
        for node in body:
            match node:
                case ast.Assign([ast.Name(name)], value) | ast.AnnAssign(ast.Name(name), _, value) if name == self.name:
                    return list(self._keys(value))
                case ast.Expr(ast.Call(ast.Attribute(ast.Name(name), "update"), [value])) if name == self.name:
                    return list(self._keys(value))
        for node in body:
            if isinstance(node, ast.ImportFrom) and any((alias.asname or alias.name) == self.name for alias in node.names):
                return NameTable(str(node.module).removeprefix("reverie."), self.name).parse_names()
        raise ValueError(f"{self.module} has no {self.name}")

    def _keys(self, node: ast.AST | None) -> Iterator[str]:
        """Yield the names in an expression: a dict, a tuple, nested tables, or a comprehension over functions."""
        match node:
            case ast.Constant(value=str(name)):
                yield name
            case ast.Name(id=name):
                yield from NameTable(self.module, name).parse_names()
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    yield from self._keys(value if key is None else key)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                for part in parts:
                    yield from self._keys(part.value if isinstance(part, ast.Starred) else part)
            case ast.DictComp(key=ast.Name(), generators=[ast.comprehension(iter=ast.Call(func=ast.Attribute(value=table)))]):
                yield from self._keys(table)  # {name: ... for name, ... in TABLE.items()}
            case ast.DictComp(key=ast.Attribute(attr="__name__"), generators=[ast.comprehension(iter=ast.Tuple(elts=parts))]):
                yield from (part.id for part in parts if isinstance(part, ast.Name))  # {f.__name__: f for f in (f, g)}
            case _:
                raise ValueError(f"the names in {self.name} of {self.module} cannot be parsed from the source")


@cache
def _parsed(module: str) -> ast.Module:
    path = ROOT.joinpath(*module.split("."))
    return ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8"))


@dataclass(frozen=True)
class NameEntry:
    """A name that a command accepts: a one-line description, the options with their defaults, and the source."""

    name: str
    about: str
    options: Mapping[str, Any] = field(default_factory=dict)
    source: str | None = None


def describe_entry(name: str, entry: Any, without: Collection[str] = ()) -> NameEntry:
    """Describe an entry of a table: a class by docstring and signature, a function by its docstring, a spec by itself."""
    if isinstance(entry, Mapping):
        from reverie.base.spec import format_spec

        return NameEntry(name, format_spec(entry))
    about = (inspect.getdoc(entry) or "").partition("\n")[0]
    if not inspect.isclass(entry):
        return NameEntry(name, about)
    parameters = inspect.signature(entry).parameters
    return NameEntry(name, about, {key: p.default for key, p in parameters.items() if key not in without})
