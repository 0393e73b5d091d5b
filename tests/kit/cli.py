"""Run commands in the test process, without the KAFKAWIRE_ variables of its environment."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
import typer.main
from kafka import KafkaProducer
from typer.testing import CliRunner

from kafkawire.cli.app import app

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


NEW_YEAR_MS = 1_767_225_600_000


class Typed:
    """A command that was run: its exit code and its output."""

    def __init__(self, server: str, *words: str) -> None:
        result = CliRunner(env={"KAFKAWIRE_SERVER": server}).invoke(app, list(words))
        self.code, self.out, self.err = result.exit_code, result.stdout, result.stderr

    @property
    def json(self) -> Any:
        assert (self.code, self.err) == (0, "")
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        assert (self.code, self.err) == (0, "")
        return [json.loads(line) for line in self.out.splitlines()]


def produce(server: str, topic: str, counts: dict[int, int]) -> None:
    """Append this many records to each partition, a second apart from the start of 2026."""
    producer = KafkaProducer(bootstrap_servers=server, acks="all")
    sent = [
        producer.send(
            topic,
            b"%d" % number,
            key=b"k",
            partition=partition,
            timestamp_ms=NEW_YEAR_MS + 1000 * number,
        )
        for partition, count in counts.items()
        for number in range(count)
    ]
    assert all(future.get(90) for future in sent)
    producer.close()
