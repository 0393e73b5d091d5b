"""Kafka Streams with group.protocol=streams (KIP-1071) on three machines: the one whose broker
coordinates the group is killed, taken over, and comes back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.java.brokers import TRANSACTIONS
from tests.java.conftest import Program
from tests.java.test_streams_groups import SETTINGS, WordCount
from tests.java.tools import ToolServer
from tests.kit.machines import REPLICATED, Machines, running
from tests.kit.minio import Minio
from tests.kit.waiting import wait_until

pytestmark = pytest.mark.machines

DURABILITY: dict[str, dict[str, object]] = {"s3": {"durability": "s3"}, "replicated": REPLICATED}

TRANSACTION_TIMEOUT_MS = 30_000
"""Longer than a takeover: a commit of a transaction that has timed out ends Kafka Streams, with
Kafka's brokers, too (see TOO_LATE of test_streams)."""


@pytest.fixture(params=["s3", "replicated"])
def machines(
    tmp_path: Path, request: pytest.FixtureRequest, minio: Minio, tier_url: str
) -> Iterator[Machines]:
    settings = {
        **DURABILITY[request.param],
        **TRANSACTIONS,
        **SETTINGS,
        "log.cleaner.enable": "false",  # each count is expected in the changelog
    }
    with running(tmp_path, request, minio, tier_url, settings) as made:
        yield made


def test_word_count_is_exact_when_a_machine_is_killed(
    machines: Machines, newer_program: Program, newer_tools: ToolServer, tmp_path: Path, name: str
) -> None:
    state = tmp_path / "state"
    word_count = WordCount(name, newer_program, newer_tools, state, TRANSACTION_TIMEOUT_MS)

    def coordinator() -> int:
        return wait_until(lambda: machines.coordinator(1, name), f"a coordinator of {name}")

    victim = coordinator()

    def kill() -> None:
        machines.kill(victim)
        machines.wait_for_host(victim, machines.machines.keys() - {victim})

    def come_back() -> None:
        machines.start(victim)
        machines.wait_for_all_at_home()

    word_count.run(machines.addresses, kill, come_back)
