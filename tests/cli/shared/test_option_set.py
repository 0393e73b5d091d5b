"""Options declared once for several commands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from kafkawire.cli.shared.parameters import OptionSet, with_options


@dataclass(frozen=True)
class Colours(OptionSet):
    red: Annotated[str, typer.Option("--red", metavar="SHADE", help="The red.")] = "dark"
    blue: Annotated[bool, typer.Option("--blue", help="With blue.")] = False


@dataclass(frozen=True)
class MoreColours(Colours):
    green: Annotated[int, typer.Option("--green", help="How green.")] = 3


@with_options
def paint(what: str, colours: MoreColours = MoreColours(), twice: bool = False) -> None:
    """Paint something."""
    print(what, colours, twice)


def run(*words: str) -> str:
    app = typer.Typer()
    app.command()(paint)
    return CliRunner().invoke(app, list(words)).output


def test_function_gets_the_set() -> None:
    assert run("wall") == "wall MoreColours(red='dark', blue=False, green=3) False\n"
    given = run("wall", "--red", "light", "--blue", "--green", "5", "--twice")
    assert given == "wall MoreColours(red='light', blue=True, green=5) True\n"


def test_help_has_the_options() -> None:
    shown = run("--help")
    assert [name for name in ("--red", "SHADE", "--blue", "--green", "--twice") if name in shown]
    assert "Paint something." in shown
    assert "--colours" not in shown
