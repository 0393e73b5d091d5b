"""A share group after a restore from a backup, which has the group but not how far it has read."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import AcknowledgeType

from kafkawire.testing.process import BrokerProcess
from tests.kit.cli import Typed
from tests.real.conftest import OTHER_BROKER
from tests.real.test_share_groups import create_topic, member, poll, produce, set_group

SETTINGS = {
    "share.coordinator.state.topic.num.partitions": "2",
    "group.share.min.heartbeat.interval.ms": "100",
    "group.share.heartbeat.interval.ms": "300",
}


def read(server: str, count: int, first: int = 0) -> None:
    """Produce records, and read and accept them with a new member of "pool"."""
    produce(server, "jobs", count)
    consumer = member(server, "pool", "jobs")
    offsets: list[int] = []
    while len(offsets) < count:
        messages = poll(consumer)
        assert messages, f"only offsets {offsets} came"
        for message in messages:
            offsets.append(message.offset())
            consumer.acknowledge(message, AcknowledgeType.ACCEPT)
        consumer.commit_sync(30)
    consumer.close()
    assert sorted(offsets) == list(range(first, first + count))


@pytest.mark.skipif(OTHER_BROKER is not None, reason="restores a broker of its own")
def test_a_restored_share_group_reads_on(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", settings=SETTINGS) as broker:
        create_topic(broker.bootstrap, "jobs")
        set_group(broker.bootstrap, "pool", share_auto_offset_reset="earliest")
        read(broker.bootstrap, 10)
        words = ("backup", str(tmp_path / "saved"), "--data", str(tmp_path / "data"))
        assert Typed(broker.bootstrap, *words).code == 0
    restored = Typed("", "restore", str(tmp_path / "saved"), "--data", str(tmp_path / "new"))
    assert (restored.code, restored.err) == (0, "")
    with BrokerProcess(tmp_path / "new", settings=SETTINGS) as broker:
        (group,) = Typed(broker.bootstrap, "groups", "describe", "pool", "--json").json
        assert (group["type"], group["offsets"][0]["committed"]) == ("share", None)
        read(broker.bootstrap, 5, 10)
        assert "group pool: share coordinators have lost states" in broker.output
        (group,) = Typed(broker.bootstrap, "groups", "describe", "pool", "--json").json
        assert [(row["committed"], row["lag"]) for row in group["offsets"]] == [(15, 0)]
