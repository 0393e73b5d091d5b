"""A hanging transaction, which can arise without verification, as in Apache Kafka.

The setting is the whole broker's, so both brokers are of this module alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkawire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kafkawire.testing.process import BrokerProcess
from tests.java.apache import start, stop
from tests.java.calls.wire import Owner
from tests.java.conftest import wait_for_coordinators
from tests.java.transactional import Side, on_both
from tests.kit.waiting import wait_until
from tests.real.conftest import OTHER_BROKER, SETTINGS

BROKER = 4
VERIFICATION = "transaction.partition.verification.enable"
INVALID_STATE = 48
PROBES = 50
"""Partitions to try whether a changed setting is obeyed, which in Kafka takes a moment."""


@pytest.fixture(scope="module")
def sides(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[tuple[str, str]]]:
    """(name, address) of both brokers."""
    if OTHER_BROKER:
        yield [("other broker", OTHER_BROKER)]
        return
    jars: Path = request.getfixturevalue("jars")
    pid, address = start(tmp_path_factory.mktemp("kafka"), f"{jars}/*")
    try:
        with BrokerProcess(tmp_path_factory.mktemp("ours"), settings=SETTINGS) as ours:
            both = [("Apache Kafka", address), ("ours", ours.bootstrap)]
            for _, bootstrap in both:
                wait_for_coordinators(bootstrap)
            yield both
    finally:
        stop(pid)


def verify(side: Side, enable: bool) -> None:
    """Change the setting of the whole cluster, and wait until it is obeyed."""
    row = AlterableConfig(name=VERIFICATION, value=str(enable).lower())
    changed = AlterConfigsResource(resource_type=BROKER, resource_name="", configs=[row])
    request = IncrementalAlterConfigsRequest(resources=[changed])
    assert side.send("IncrementalAlterConfigs", request, 1).responses[0].error_code == 0
    topic = side.topic(f"probe-{enable}", PROBES)
    probe = side.owner(f"probe-{enable}")
    partitions = iter(range(PROBES))

    def obeyed() -> bool:
        code, _ = side.produce_once((topic, next(partitions)), probe, 0, version=9)
        side.transcript.pop()
        return code == (INVALID_STATE if enable else 0)

    wait_until(obeyed, f"{VERIFICATION}={enable}")


@on_both
def test_hanging_transaction(side: Side) -> None:
    part = side.topic(), 0
    owner: Owner = side.owner()
    verify(side, False)
    assert side.produce(part, owner, 0, version=9) == (0, 0)
    assert side.describe(owner.id or "")[1] == "Empty"
    side.write(part, b"after")
    assert side.offset_of(part, committed=True) == 0
    (found,) = side.producers(part)
    assert found.current_txn_start_offset == 0
    verify(side, True)
    assert side.produce(part, owner, 1, version=9) == (0, 2)  # it is open: nothing is asked
    for version in range(6):
        code = side.end_old(owner, True, version) if version < 5 else side.end(owner, True, 5)[0]
        assert code == INVALID_STATE
    assert side.markers(part, owner.pid, 0) == 0
    assert side.offset_of(part, committed=True) == 4
    assert side.fetch(part).visible() == [b"after"]
    assert side.produce(part, owner, 2, version=9)[0] == INVALID_STATE
    assert side.produce(part, owner, 2, version=12) == (0, 4)
