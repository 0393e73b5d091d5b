"""Groups of commands that are named in a table and imported when one of them is run.

A command is a function with its options in its signature and its help in its docstring. The help of
a group imports all its commands.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

PLAIN: dict[str, Any] = {"rich_markup_mode": None, "pretty_exceptions_enable": False}
"""Settings for help and errors without rich, which loads slowly and cannot be piped."""


class LazyGroup(TyperGroup):
    """A group whose `places` name `module:function`, below kafkawire.cli, by command."""

    places: ClassVar[Mapping[str, str]] = {}

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        # Names for the help and for suggestions after a typing error.
        self.commands = {**{name: TyperCommand(name) for name in self.places}, **self.commands}

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import and return a command; None if there is none of this name."""
        if cmd_name not in self.places:
            return super().get_command(ctx, cmd_name)
        module, _, function = self.places[cmd_name].partition(":")
        single = typer.Typer(add_completion=False, **PLAIN)
        single.command(cmd_name)(getattr(import_module(f"kafkawire.cli.{module}"), function))
        return typer.main.get_command(single)


def group(text: str, places: Mapping[str, str]) -> typer.Typer:
    """Return a group with this help text and these commands."""
    made = typer.Typer(
        cls=type("Group", (LazyGroup,), {"places": places}),
        help=text,
        no_args_is_help=True,
        add_completion=False,
        **PLAIN,
    )
    made.callback(help=text)(_nothing)
    return made


def _nothing() -> None:
    """Callback for typer, which creates no group without a callback or a command."""
