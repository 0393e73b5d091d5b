"""Commands run in the test itself, whatever KAFKAWIRE_ variables its own environment has."""

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
