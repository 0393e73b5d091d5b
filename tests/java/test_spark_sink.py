"""The transactions of the Spark sink on Apache Kafka and here, and as Apache Kafka's tools see
them."""

from __future__ import annotations

from collections import Counter

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kafkawire_spark.sink.options import PROGRESS_TOPIC
from tests.java.conftest import Tool
from tests.kit.spark.sink import Killed, read_committed
from tests.kit.spark.sink_driver import ROWS, Driver, at_step, killed, wanted


@pytest.mark.parametrize("step", ["append", "end"])
def test_killed_driver_repeats_its_micro_batch(
    step: str, sides: list[tuple[str, str]], name: str
) -> None:
    """The same on both brokers: the sink needs nothing that Kafka does not have."""
    for side, address in sides:
        topic = f"{name}-{step}"
        admin = AdminClient({"bootstrap.servers": address})
        admin.create_topics([NewTopic(topic, 3, 1)])[topic].result(60)
        driver = Driver(address, topic)
        assert driver.commit(0), side
        with pytest.MonkeyPatch.context() as patched:
            at_step(patched, step, "after", killed)
            with pytest.raises(Killed):
                driver.commit(1)
        assert driver.commit(1) == (step != "end"), side
        found = read_committed(address, topic, 2 * ROWS)
        assert Counter(value for _, _, value in found) == wanted(0, 1), side


def test_tools_see_transactions_of_the_sink(tool: Tool, bootstrap: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, 3, 1)])[name].result(60)
    driver = Driver(bootstrap, name)
    assert driver.commit(0)
    with pytest.MonkeyPatch.context() as patched:
        at_step(patched, "end", "before", killed)
        with pytest.raises(Killed):
            driver.commit(1)

    def read(level: str) -> Counter[bytes]:
        options = ("--from-beginning", "--timeout-ms", "3000", "--isolation-level", level)
        lines = tool("ConsoleConsumer", "--topic", name, *options, code=None).split()
        return Counter(line.encode() for line in lines)

    assert read("read_committed") == wanted(0)
    assert read("read_uncommitted") == wanted(0, 1)
    described = tool("TransactionsCommand", "describe", "--transactional-id", f"id-{name}")
    assert "Ongoing" in described
    assert driver.commit(1)
    assert read("read_committed") == wanted(0, 1)
    group = tool("ConsumerGroupCommand", "--describe", "--group", f"id-{name}")
    (row,) = [line.split() for line in group.splitlines() if PROGRESS_TOPIC in line]
    assert row[2:4] == ["0", "2"]  # partition 0: two micro-batches
