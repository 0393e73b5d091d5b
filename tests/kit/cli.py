"""Run commands in the test process, without the KAFKAWIRE_ variables of its environment."""

from __future__ import annotations

import os

import pytest
from typer.testing import CliRunner

run = CliRunner().invoke


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("KAFKAWIRE_"):
            monkeypatch.delenv(name)
