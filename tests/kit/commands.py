"""The commands of the command line, and command lines with their required arguments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from kafkawire.cli.app import app

NOWHERE = "127.0.0.1:1"
"""An address where no process listens."""


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """(words, command) of every command that is not a group."""
    if hasattr(command, "commands"):
        for name in sorted(command.commands):
            yield from leaves(command.get_command(None, name), (*path, name))  # imports it
    else:
        yield path, command


def all_commands() -> dict[tuple[str, ...], Any]:
    """Every command by its words."""
    return dict(leaves(typer.main.get_command(app)))


def words_of(
    command: Any, changed: Any = None, value: str = "", server: str = NOWHERE
) -> list[str]:
    """A command line with the required arguments, and `changed` set to `value`."""
    words: list[str] = []
    for parameter in command.params:
        given = value if parameter is changed else None
        if parameter.param_type_name == "argument":
            words.append(given if given is not None else "some")
        elif given is not None:
            words += [parameter.opts[0], given]
        elif parameter.name == "server":
            words += [parameter.opts[0], server]
        elif parameter.required:
            words += [parameter.opts[0], "some"]
    return words
