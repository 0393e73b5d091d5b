"""The commit against a real broker, without Spark: killed before and after every request, driver or
broker. A read_committed consumer of another client sees every record once.

Covers: kafkawire.client.transactions, kafkawire_spark.sink.transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from kafkawire.reading.files.open import open_place
from kafkawire.testing.plugin import Factory
from kafkawire.testing.process import BrokerProcess
from kafkawire_spark.sink import staging
from tests.kit.minio import Minio
from tests.kit.spark.sink import Killed, read_committed
from tests.kit.spark.sink_driver import ROWS, STEPS, Driver, at_step, killed, wanted
from tests.kit.spark.topics import Topics

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def broker(kafkawire_broker_factory: Factory) -> Iterator[BrokerProcess]:
    made = kafkawire_broker_factory()
    yield made
    made.stop()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_driver_killed_at_a_step(step: str, when: str, broker: BrokerProcess) -> None:
    topic = f"{step}-{when}"
    Topics(broker).make(topic, 3)
    driver = Driver(broker.bootstrap, topic)
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
    driver = Driver(broker.bootstrap, topic)
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
    driver = Driver(broker.bootstrap, "twins")
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


def test_batches_are_staged_in_a_bucket(
    broker: BrokerProcess, minio: Minio, tier_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in minio.environ.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setattr(staging, "INLINE_BYTES", 0)
    minio.client().create_bucket(Bucket=tier_url.split("/")[2])
    Topics(broker).make("staged", 3)
    place = open_place(tier_url)
    assert Driver(broker.bootstrap, "staged", place).commit(0)
    assert len(list(place.list())) == 1
    found = read_committed(broker.bootstrap, "staged", ROWS)
    assert Counter(value for _, _, value in found) == wanted(0)
    staging.discard(place, ["q"])
    assert list(place.list()) == []
