"""The commit against a real broker, without Spark: killed before and after every request, driver or
broker. A read_committed consumer of another client sees every record once.

Covers: kafkawire.client.transactions, kafkawire.spark.sink.connection.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from kafkawire.spark.sink import transaction
from kafkawire.spark.sink.connection import SinkConnection
from kafkawire.spark.sink.options import parse_options
from kafkawire.spark.sink.partitions import Partitioner
from kafkawire.spark.sink.rows import RowEncoder
from kafkawire.spark.sink.staging import StagedPart, StagingWriter
from kafkawire.spark.sink.transaction import BatchIdentity, SinkTransaction
from kafkawire.testing.broker import BrokerProcess
from kafkawire.testing.plugin import Factory
from tests.kit.spark.sink import Killed, read_committed
from tests.kit.spark.topics import Topics

pytestmark = pytest.mark.real

STEPS = ("init_producer", "committed", "add_partitions", "append", "add_offsets", "commit_offsets",
         "end")  # fmt: skip
ROWS = 40


@pytest.fixture(scope="module")
def broker(kafkawire_broker_factory: Factory) -> Iterator[BrokerProcess]:
    made = kafkawire_broker_factory()
    yield made
    made.stop()


class Driver:
    """A driver that commits micro-batches of a query to a topic of its own."""

    def __init__(self, broker: BrokerProcess, topic: str) -> None:
        self._bootstrap, self._topic = broker.bootstrap, topic
        self._options = parse_options(
            {"kafka.bootstrap.servers": self._bootstrap, "topic": topic, "batchBytes": "500"},
            streaming=True,
        )

    def commit(self, number: int) -> bool:
        connection = SinkConnection(self._bootstrap)
        try:
            identity = BatchIdentity(f"id-{self._topic}", number, "query")
            made = SinkTransaction(connection, self._options, identity, None)
            return made.commit(self._staged(number, connection))
        finally:
            connection.close()

    def _staged(self, number: int, connection: SinkConnection) -> tuple[StagedPart, ...]:
        values = [b"%d-%d" % (number, row) for row in range(ROWS)]
        partitioner = Partitioner(connection.partitions, 0)
        encoder = RowEncoder(self._options, partitioner, StagingWriter(None, "q"))
        return encoder.encode([pa.record_batch({"key": values, "value": values})])


def wanted(*numbers: int) -> Counter[bytes]:
    return Counter(b"%d-%d" % (number, row) for number in numbers for row in range(ROWS))


def at_step(
    monkeypatch: pytest.MonkeyPatch, step: str, when: str, strike: Callable[[], None]
) -> None:
    """Call `strike` before or after the first call of this step; the calls of a killed driver after
    it fail, too."""
    struck: list[bool] = []

    def patched(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any, **named: Any) -> Any:
            if struck and struck[0]:
                raise Killed
            if name != step or struck:
                return call(*given, **named)
            if when == "before":
                hit()
            found = call(*given, **named)
            if when == "after":
                hit()
            return found

        return run

    def hit() -> None:
        struck.append(False)
        try:
            strike()
        except Killed:
            struck[0] = True
            raise

    for name in STEPS:
        monkeypatch.setattr(transaction, name, patched(name, getattr(transaction, name)))


def killed() -> None:
    raise Killed


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_driver_killed_at_a_step(step: str, when: str, broker: BrokerProcess) -> None:
    topic = f"{step}-{when}"
    Topics(broker).make(topic, 3)
    driver = Driver(broker, topic)
    assert driver.commit(0)
    with pytest.MonkeyPatch.context() as patched:
        at_step(patched, step, when, killed)
        with pytest.raises(Killed):
            driver.commit(1)
    # Only where the last request was executed the micro-batch is committed.
    assert driver.commit(1) == ((step, when) != ("end", "after"))
    assert driver.commit(2)
    found = read_committed(broker.bootstrap, topic, 3 * ROWS)
    assert Counter(value for _, _, value in found) == wanted(0, 1, 2)


@pytest.mark.parametrize(
    ("step", "when"),
    [
        *((step, "before") for step in STEPS),
        *((step, "after") for step in ("append", "commit_offsets", "end")),
    ],
)
def test_broker_killed_at_a_step(
    step: str, when: str, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver waits for the broker, and goes on."""
    topic = f"broker-{step}-{when}"
    Topics(broker).make(topic, 3)
    driver = Driver(broker, topic)
    assert driver.commit(0)

    def strike() -> None:
        broker.kill()
        broker.start()

    with pytest.MonkeyPatch.context() as patched:
        at_step(patched, step, when, strike)
        assert driver.commit(1)
    assert not driver.commit(1)
    found = read_committed(broker.bootstrap, topic, 2 * ROWS)
    assert Counter(value for _, _, value in found) == wanted(0, 1)


def test_two_drivers_of_a_query_write_once(broker: BrokerProcess) -> None:
    """One is presumed dead and continues in the middle of its transaction, with the second one's
    commit in between."""
    Topics(broker).make("twins", 3)
    driver = Driver(broker, "twins")
    with pytest.MonkeyPatch.context() as patched:
        done: list[bool] = []

        def strike() -> None:
            patched.undo()
            done.append(driver.commit(0))

        at_step(patched, "add_offsets", "before", strike)
        with pytest.raises(Exception, match="another writer with the same transactionalId"):
            driver.commit(0)
    assert done == [True]
    found = read_committed(broker.bootstrap, "twins", ROWS)
    assert Counter(value for _, _, value in found) == wanted(0)
