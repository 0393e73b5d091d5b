"""`kafkawire cluster decommission` while brokers stop; the whole is in
tests/real/test_decommission.py.

Covers: kafkawire.cli.cluster.decommission.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from kafkawire.cli.cluster import decommission as command
from kafkawire.client.errors import BrokerError, ClientError, NoAnswer
from kafkawire.codec.errors import ErrorCode


class StoppedBroker:
    """A cluster of two, of which broker 2 has stopped. Broker 1 lists it until connections were
    made again `listed` times."""

    def __init__(self, listed: int) -> None:
        self.listed = listed
        self.resets = 0

    def nodes(self) -> list[int]:
        return [1, 2] if self.resets < self.listed else [1]

    def reset(self) -> None:
        self.resets += 1


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of the command, which only its pauses advance: their times."""
    made: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: sum(made), sleep=made.append)
    monkeypatch.setattr(command, "time", clock)
    return made


def run(monkeypatch: pytest.MonkeyPatch, cluster: StoppedBroker, error: ClientError) -> None:
    """Decommission broker 2, without waiting. `error`: of settings while it is listed."""

    @contextmanager
    def connected(server: str) -> Iterator[StoppedBroker]:
        yield cluster

    def alter(*_: object) -> None:
        if 2 in cluster.nodes():
            raise error

    monkeypatch.setattr(command, "connect_cluster", connected)
    monkeypatch.setattr(command, "alter", alter)
    monkeypatch.setattr(command, "leaders", lambda _: {})
    command.decommission(2, undo=False, wait=False, server="any:1")


@pytest.mark.usefixtures("pauses")
def test_broker_that_others_still_list_after_it_stopped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = StoppedBroker(3)
    run(monkeypatch, cluster, NoAnswer("cannot connect to any:2: Connection refused"))
    assert cluster.resets == 3
    out, err = capsys.readouterr()
    assert out == "broker 2 is being decommissioned: 0 partitions to be moved\n"
    assert err.startswith("broker 2 is not alive: ")


def test_error_is_reported_when_a_broker_stays_unreachable(
    monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    with pytest.raises(NoAnswer, match="Connection refused"):
        run(monkeypatch, StoppedBroker(1_000_000), NoAnswer("Connection refused"))
    assert sum(pauses) == command.UNREACHABLE_S


def test_answer_with_an_error_is_reported_at_once(
    monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    with pytest.raises(BrokerError):
        run(monkeypatch, StoppedBroker(3), BrokerError("broker 2", ErrorCode.INVALID_CONFIG))
    assert not pauses
