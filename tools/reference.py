"""Write docs/book/reference.md: every command and option from the program itself, the Python interface from its docstrings.

python -m tools.reference            write it
python -m tools.reference --check    only tell whether it is that of the program; part of `make lint`
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

PAGE = Path(__file__).parent.parent / "docs" / "book" / "reference.md"
ROOMS = {
    "reverie": "The verbs, which the command line calls as well.",
    "reverie.runs.run:Run": "A trained model with its folder: what `reverie.train` and `reverie.load` return.",
    "reverie.diffusion.schedule": "Schedules.",
    "reverie.diffusion.pair": "Clean data and noise, and what a network can be asked for.",
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


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;").strip()


def commands(command: Any, name: str) -> Iterator[str]:
    """Yield a section for each command below one, in the order of the program."""
    inner = getattr(command, "commands", None)
    if inner is not None:
        for word, each in inner.items():
            yield from commands(each, f"{name} {word}")
        return
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option"]
    said = " ".join(((p.metavar or p.name) if p.required else f"[{(p.metavar or p.name)}]").upper() for p in arguments)
    yield f"### {name}\n\n{_cell(command.help or '')}\n\n```\n{' '.join([name, said, '[OPTIONS]']).replace('  ', ' ')}\n```\n"
    rows = [(f"`{(p.metavar or p.name).upper()}`", p.help or "", "") for p in arguments]
    for p in options:
        default = p.default() if callable(p.default) else p.default
        shown = "" if default in (None, False, "", ()) or p.is_flag else f"`{default}`"
        rows.append((", ".join(f"`{o}`" for o in (*p.opts, *p.secondary_opts)), p.help or "", shown))
    lines = ["| option | what it does | default |", "|---|---|---|"]
    yield "\n".join([*lines, *(f"| {a} | {_cell(b)} | {_cell(c)} |" for a, b, c in rows)]) + "\n"


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
    return (
        "("
        + ", ".join(str(p).split(":")[0].split(" = ")[0].split("=")[0] for n, p in found.parameters.items() if n != "self")
        + ")"
    )


def interface() -> Iterator[str]:
    """Yield a table for each module: what it offers, in the first sentence of its docstring."""
    for place, words in ROOMS.items():
        module_name, _, owner = place.partition(":")
        module = importlib.import_module(module_name)
        if owner:
            kind = getattr(module, owner)
            members = inspect.getmembers_static(kind, lambda m: inspect.isfunction(m) or isinstance(m, property))
            rows = [(n, m) for n, m in members if not n.startswith("_") and (m.__doc__ or "").strip()]
        else:
            rows = list(_public(module))
        lines = [f"### {place.replace(':', '.')}", "", words, "", "| name | what it is |", "|---|---|"]
        for name, thing in rows:
            sentence = (inspect.getdoc(thing) or "").strip().split("\n\n")[0]
            said = "" if inspect.isclass(thing) or isinstance(thing, property) else _signature(thing)
            lines.append(f"| `{name}{said}` | {_cell(sentence)} |")
        yield "\n".join(lines) + "\n"


def made() -> str:
    """Return the page."""
    from reverie.cli.main import app

    head = (
        "# Reference\n\nEvery command with every option, as the program has them, and the Python interface by its docstrings."
        " Written by `python -m tools.reference`.\n\n## Commands\n"
    )
    return "\n".join([head, *commands(typer.main.get_command(app), "reverie"), "## Python\n", *interface()])


def main() -> None:
    """Write the page, or check it."""
    page = made()
    if "--check" not in sys.argv:
        PAGE.write_text(page)
    elif PAGE.read_text() != page:
        raise SystemExit(f"{PAGE.name} is not that of the program; run: python -m tools.reference")


if __name__ == "__main__":
    main()
