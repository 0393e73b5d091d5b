"""pytest plugin: the fixtures `kafkawire_broker`, `kafkawire_session_broker` and a factory.

    def test_produce(kafkawire_broker):
        producer = KafkaProducer(bootstrap_servers=kafkawire_broker.bootstrap)

Loaded in every pytest run where kafkawire is installed, so nothing heavy is imported here:
kafkawire.testing.broker is imported when a test uses a fixture. That module documents the broker
object: `bootstrap`, `port`, `data`, `output`, `stop()`, `kill()`, `restart()`.

- `kafkawire_broker`: an empty broker for one test, which may kill it.
- `kafkawire_session_broker`: one broker for the whole session; tests share its topics, so use
  different names, and leave it running.
- `kafkawire_broker_factory`: starts brokers with settings: `factory(settings={"flush": "os"})`.

All start with `group.initial.rebalance.delay.ms=0`, as Kafka's own test brokers do: the first
consumer of a group does not wait three seconds for others. `settings` may override it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from kafkawire.testing.broker import BrokerProcess

Factory = Callable[..., "BrokerProcess"]

QUICK = {"group.initial.rebalance.delay.ms": "0"}
"""What a test's broker has unless it is given other settings."""


@pytest.fixture(scope="session")
def kafkawire_broker_factory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Factory]:
    """Factory that starts a broker with the keyword arguments of BrokerProcess (`settings`,
    `arguments`, `environ`, `data`). Running brokers are stopped at the end of the session."""
    from kafkawire.testing.broker import BrokerProcess

    started: list[BrokerProcess] = []

    def start(**options: Any) -> BrokerProcess:
        data = options.pop("data", None) or tmp_path_factory.mktemp("kafkawire")
        options["settings"] = {**QUICK, **(options.get("settings") or {})}
        broker = BrokerProcess(data, **options)
        started.append(broker)
        broker.start()
        return broker

    yield start
    for broker in started:
        broker.stop()


@pytest.fixture(scope="session")
def kafkawire_session_broker(kafkawire_broker_factory: Factory) -> BrokerProcess:
    """A broker shared by the tests of this session, stopped at its end."""
    return kafkawire_broker_factory()


@pytest.fixture
def kafkawire_broker(kafkawire_broker_factory: Factory) -> Iterator[BrokerProcess]:
    """A broker for one test on a free port, stopped after the test."""
    broker = kafkawire_broker_factory()
    yield broker
    broker.stop()
