"""Write docs/book/reference.md: every command and option from the program itself, the Python interface from its docstrings.

python -m tools.reference            write it
python -m tools.reference --check    only check that it matches the program; part of `make lint`
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

PAGE = Path(__file__).parent.parent / "docs" / "book" / "reference.md"
MANY = 5  # commands that share an option, or parameters of a function, from which on they are abbreviated
HEAD = """# Reference

Which commands, options, functions and classes are there? `python -m tools.reference` writes this page from the program.

## Commands

Options of a named component follow a colon:
`--schedule linear:steps=40`, `--sampler ddim:eta=0.5`, `--grid karras:rho=7`, `--network mlp:hidden=64`. `reverie list KIND`
prints the names of each kind with their options. `--config FILE.toml` reads options from a file; those on the command line
take precedence. `reverie --install-completion` installs tab completion.
"""
MODULES = {
    "reverie": "The functions behind the commands.",
    "reverie.runs.run:Run": "A trained model with its folder: what `reverie.train` and `reverie.load` return.",
    "reverie.diffusion.schedule": "Schedules.",
    "reverie.diffusion.pair": "Clean data and noise, and prediction targets.",
    "reverie.diffusion.process": "The forward process and its posterior.",
    "reverie.diffusion.denoiser": "Denoisers.",
    "reverie.diffusion.oracle": "Optimal denoisers in closed form.",
    "reverie.diffusion.loss": "Losses, weights and times.",
    "reverie.diffusion.samplers.loop": "The sampling loop.",
    "reverie.diffusion.guidance": "Guidance.",
    "reverie.diffusion.known": "Inpainting and inverse problems.",
    "reverie.diffusion.views": "Views of illusions.",
    "reverie.diffusion.likelihood": "Likelihood.",
    "reverie.nets.embedding": "Embeddings.",
    "reverie.autodiff": "Derivatives.",
    "reverie.transport": "Optimal transport.",
    "reverie.kernels": "Kernels.",
    "reverie.divergence": "Divergences.",
}


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("<", "&lt;").strip()


def _leaves(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield each command below one with its full name, in the order of the program."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield name, command
    for word, each in (inner or {}).items():
        yield from _leaves(each, f"{name} {word}")


def _names(option: Any) -> str:
    return ", ".join(f"`{o}`" for o in (*option.opts, *option.secondary_opts))


def _line(option: Any) -> str:
    default = option.default() if callable(option.default) else option.default
    shown = "" if default in (None, False, "", ()) or option.is_flag else f" Default: `{default}`."
    return f"- {_names(option)}: {_plain(option.help or '')}{shown}"


def commands(program: Any, name: str) -> Iterator[str]:
    """Yield the options of many commands, then a section for each command; an option of several is described in the first."""
    leaves = [
        (name, command, [p for p in command.params if not getattr(p, "hidden", False)])
        for name, command in _leaves(program, name)
    ]
    options = [p for _, _, params in leaves for p in params if p.param_type_name == "option"]
    first = {line: "shared-options" for line, count in Counter(map(_line, options)).items() if count >= MANY}
    yield "\n".join(
        ["### Shared options\n", "`--json` and `--quiet` work with almost every command; the others as listed.\n", *first]
    )
    for name, command, params in leaves:
        yield f"\n### {name}\n\n{_plain(command.help or '')}\n"
        for p in (p for p in params if p.param_type_name == "argument"):
            usage = (p.metavar or p.name).upper() if p.required else f"[{(p.metavar or p.name)}]".upper()
            yield f"- `{usage}`: {_plain(p.help or '')}"
        elsewhere: dict[str, list[str]] = {}
        for p in (p for p in params if p.param_type_name == "option"):
            place = first.setdefault(_line(p), name.replace(" ", "-"))
            if place == name.replace(" ", "-"):
                yield _line(p)
            elif not {"--json", "--quiet"} & {*p.opts}:
                elsewhere.setdefault(place, []).append(_names(p))
        for place, names in elsewhere.items():
            command_name = place.replace("-", " ", 2 if "gallery" in place else 1)
            title = "Shared" if place == "shared-options" else f"As in {command_name}"
            yield f"- [{title}](#{place}): {', '.join(names)}"


def _public(module: Any) -> Iterator[tuple[str, Any]]:
    names = getattr(module, "__all__", None)
    for name in names or [n for n in vars(module) if not n.startswith("_")]:
        thing = getattr(module, name)
        own = names is not None or getattr(thing, "__module__", None) == module.__name__
        if own and (inspect.isclass(thing) or inspect.isfunction(thing)) and (thing.__doc__ or "").strip():
            yield name, thing


def _signature(thing: Any) -> str:
    try:
        found = inspect.signature(thing)
    except (ValueError, TypeError):
        return ""
    names = [str(p).split(":")[0].split("=")[0].strip() for n, p in found.parameters.items() if n != "self"]
    return f"({', '.join(names[:MANY] + ['...'] * (len(names) > MANY))})"


def interface() -> Iterator[str]:
    """Yield a table for each module: what it offers, in the first sentence of its docstring."""
    for place, words in MODULES.items():
        module_name, _, owner = place.partition(":")
        module = importlib.import_module(module_name)
        if owner:
            kind = getattr(module, owner)
            members = inspect.getmembers_static(kind, lambda m: inspect.isfunction(m) or isinstance(m, property))
            rows = [(n, m) for n, m in members if not n.startswith("_") and (m.__doc__ or "").strip()]
        else:
            rows = list(_public(module))
        lines = [f"\n### {place.replace(':', '.')}", "", words, ""]
        for name, thing in rows:
            sentence = re.split(r"(?<=[.?!])\s", (inspect.getdoc(thing) or "").strip())[0].split("\n\n")[0]
            arguments = "" if inspect.isclass(thing) or isinstance(thing, property) else _signature(thing)
            lines.append(f"- `{name}{arguments}`: {_plain(sentence)}")
        yield "\n".join(lines)


def page() -> str:
    """Return the text of the page."""
    from reverie.cli.main import app

    return "\n".join([HEAD, *commands(typer.main.get_command(app), "reverie"), "\n## Python", *interface(), ""])


def main() -> None:
    """Write the page, or check it."""
    text = page()
    if "--check" not in sys.argv:
        PAGE.write_text(text)
    elif PAGE.read_text() != text:
        raise SystemExit(f"{PAGE.name} does not match the program; run: python -m tools.reference")


if __name__ == "__main__":
    main()
