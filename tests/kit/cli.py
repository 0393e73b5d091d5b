"""Run commands in the test process, without the KAFKAWIRE_ variables of its environment."""

from __future__ import annotations

import os
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

run = CliRunner().invoke


def commands_of(group: typer.Typer) -> dict[str, Any]:
    """The commands of a group by name, each imported."""
    made: Any = typer.main.get_command(group)
    return {name: made.get_command(None, name) for name in made.list_commands(None)}


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("KAFKAWIRE_"):
            monkeypatch.delenv(name)
