"""Groups of commands whose help has panels, and which accept old names of options."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

from reverie.base.deprecations import OPTIONS, flag, warn_renamed
from reverie.cli.layout import lay_out


class Group(TyperGroup):
    """A group whose commands accept the old names of their options for one release, with a warning; the help omits them."""

    def __init__(self, **settings: Any) -> None:
        """Lay out the help of every command."""
        super().__init__(**settings)
        for name, command in self.commands.items():
            lay_out(name if self.name != "gallery" else f"gallery {name}", command)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the name of the command, the command, and its arguments with current option names."""
        name, command, words = super().resolve_command(ctx, args)
        options = {option for parameter in getattr(command, "params", ()) for option in parameter.opts}
        renamed = {flag(old): flag(new) for old, new in OPTIONS.items() if flag(new) in options and flag(old) not in options}
        current = []
        for index, word in enumerate(words):
            if word == "--":
                current += words[index:]
                break
            option, equals, value = word.partition("=")
            if option in renamed:
                if not ctx.resilient_parsing:
                    warn_renamed(option, renamed[option])
                word = renamed[option] + equals + value
            current.append(word)
        return name, command, current
