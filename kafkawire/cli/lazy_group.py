"""Groups of commands that are named in a table and imported when one of them is run.

A command is a function with its options in its signature and its help in its docstring. A module
with START has a StartedCommand. The help of a group reads the first sentence of each docstring from
the source, which imports no command.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from kafkawire.cli.command import (
    USAGE_ERROR,
    Command,
    StartedCommand,
    option_help,
    options,
    sentence,
)
from kafkawire.cli.shared.output import fail

PLAIN: dict[str, Any] = {"rich_markup_mode": None, "pretty_exceptions_enable": False}
"""Settings for help and errors without rich, which loads slowly and cannot be piped."""


class LazyGroup(TyperGroup):
    """A group whose `places` name `module:function`, below kafkawire.cli or in kafkawire_spark, by
    command."""

    places: ClassVar[Mapping[str, str]] = {}

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        # Names for the help and for suggestions after a typing error.
        self.commands = {**self.commands, **{name: TyperCommand(name) for name in self.places}}

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import and return a command; None if there is none of this name."""
        if cmd_name not in self.places:
            return super().get_command(ctx, cmd_name)
        module, _, function = self.places[cmd_name].partition(":")
        imported = import_module(_full_name(module))
        return _command(cmd_name, getattr(imported, function), getattr(imported, "START", None))

    def summary(self, name: str) -> str:
        """Return the first sentence of the help of a command or group."""
        if name in self.places:
            return summary_of(self.places[name])
        return first_sentence(self.commands[name].help or "")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write options, then commands with their summaries."""
        with formatter.section("Options"):
            formatter.write_dl([option_help(each) for each in options(self, ctx)])
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.summary(name)) for name in self.commands])

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run the command line; a usage error is one sentence, with exit code 2."""
        given = extra.get("args", args[0] if args else None)
        words = sys.argv[1:] if given is None else list(given)
        try:
            code = super().main(*args, **{**extra, "standalone_mode": False})
        except USAGE_ERROR as error:
            if type(error).__name__ == "NoArgsIsHelpError":
                print(error, file=sys.stderr)
                raise SystemExit(2) from None
            fail(sentence(error, words), 2)
        except typer.Abort:
            fail("aborted")
        raise SystemExit(code if isinstance(code, int) else 0)


@cache
def _command(
    name: str, run: Callable[..., Any], start: Callable[[list[str]], int | None] | None
) -> Any:
    """Return the command that calls a function. It keeps no state of its runs, and Typer takes ten
    times as long to build one as to parse its arguments, so one is built for each function."""
    kind: Any = Command
    if start is not None:
        kind = type("Started", (StartedCommand,), {"start": staticmethod(start)})
    single = typer.Typer(add_completion=False, **PLAIN)
    single.command(name, cls=kind)(run)
    return typer.main.get_command(single)


@cache
def summary_of(place: str) -> str:
    """Return the first sentence of the docstring of `module:function`, see LazyGroup."""
    module, _, function = place.partition(":")
    top, *parts = _full_name(module).split(".")
    path = Path(import_module(top).__path__[0], *parts).with_suffix(".py")
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return first_sentence(ast.get_docstring(node) or "")
    return ""


def _full_name(module: str) -> str:
    return module if module.startswith("kafkawire_") else f"kafkawire.cli.{module}"


def first_sentence(text: str) -> str:
    """Return the first sentence of a help text on one line."""
    return re.split(r"(?<=\.) ", " ".join(text.partition("\n\n")[0].split()))[0]


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
