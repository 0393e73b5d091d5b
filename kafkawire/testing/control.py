"""Settings and methods of all brokers for tests: records, and commands: faults, time, brokers.

The methods are those of BrokerProcess and of brokers in the test's process. They return when the
broker has done what they say; kafkawire.testing.commands is its end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from kafkawire.codec.configs.parse import text_of
from kafkawire.codec.configs.row import Value

if TYPE_CHECKING:
    from kafkawire.testing.topics import ReadRecord

__tracebackhide__ = True  # pytest shows the line of the test, not those here

TEST_SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",  # the first consumer waits for no others
    "log.retention.ms": "-1",  # records of fixed, old timestamps stay
    "disk.warn.percent": "100",  # the disk is that of the machine of the tests
    "journal.bytes": str(4 << 20),
    "recycle.bytes": "0",  # no journals in reserve
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}
"""Settings that suit tests: a small data folder, quick consumer groups. The fixtures, the container
and the brokers in this process use them; BrokerProcess leaves the choice to its caller."""

Ports = Mapping[int, Mapping[str, int]]
"""Ports by node id and name of the listener."""
SYSTEM_CLOCK, MANUAL_CLOCK = "system", "manual"
CLOCK_SETTINGS: dict[str, dict[str, str]] = {
    SYSTEM_CLOCK: {},
    # A check that is running when the clock moves is repeated a second later.
    MANUAL_CLOCK: dict.fromkeys(
        (
            "delegation.token.expiry.check.interval.ms",
            "log.cleaner.backoff.ms",
            "log.retention.check.interval.ms",
            "offsets.retention.check.interval.ms",
            "producer.id.expiration.check.interval.ms",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms",
            "transaction.remove.expired.transaction.cleanup.interval.ms",
        ),
        "1000",
    ),
}


def settings_for(clock: str, settings: Mapping[str, object]) -> dict[str, str]:
    """Return settings as texts, with those that suit a clock. ValueError if there is no such
    clock."""
    if clock not in CLOCK_SETTINGS:
        raise ValueError(f"clock={clock}: it must be system or manual")
    return {
        **CLOCK_SETTINGS[clock],
        **{name: text_of(cast("Value", value)) or "" for name, value in settings.items()},
    }


CHECK_S = 0.01
"""Interval of the check whether a fault was used."""


class BrokerFailed(AssertionError):
    """The broker did not start or stop as expected: a sentence with the reason, and its output."""


class BrokerControl:
    """A broker for tests. Faults end with it: a restarted broker has none.

    `api`: Kafka's name or its key; `times`: for how many requests, None for all until
    `clear_faults`. A request can have a delay and an error. ValueError: there is no such API or
    error, or it cannot have this fault.
    """

    @property
    def bootstrap(self) -> str:
        """Value for the bootstrap servers of clients."""
        raise NotImplementedError

    def records(self, topic: str) -> list[ReadRecord]:
        """Return all records of a topic; see TopicConsumer.read."""
        from kafkawire.testing.topics import TopicConsumer

        return TopicConsumer(self.bootstrap).read(topic, 0)

    def wait_for(
        self,
        topic: str,
        wanted: int | Callable[[ReadRecord], object],
        timeout_s: float = 10.0,
    ) -> list[ReadRecord]:
        """Wait for records of a topic, and return all that it has; see TopicConsumer.wait_for."""
        from kafkawire.testing.topics import TopicConsumer

        return TopicConsumer(self.bootstrap).wait_for(topic, wanted, timeout_s)

    def _command(self, name: str, *arguments: object) -> Any:
        """Have the broker execute a method of kafkawire.testing.commands.BrokerCommands."""
        raise NotImplementedError

    def advance(self, seconds: float) -> float:
        """Move the clock of a broker that was started with `clock="manual"` forward: what is due in
        that time is done immediately, such as retention, schedules, and the ends of sessions and
        transactions. Return how many seconds it is ahead of the machine's. ValueError if the clock
        is not manual."""
        return float(self._command("advance", float(seconds)))

    def fail(
        self,
        api: str | int,
        error: str | int,
        topic: str | None = None,
        partition: int | None = None,
        times: int | None = 1,
    ) -> UsedFault:
        """Answer requests with an error, by Kafka's name or its code, without serving them. With
        `topic` (and `partition`) only what they ask of it fails, and the rest is served."""
        return self._fault("fail", api, times, error, topic, partition)

    def delay(self, api: str | int, seconds: float, times: int | None = 1) -> UsedFault:
        """Serve requests later."""
        return self._fault("delay", api, times, None, None, None, float(seconds))

    def drop(self, api: str | int, times: int | None = 1) -> UsedFault:
        """Close the connections of requests instead of serving them."""
        return self._fault("drop", api, times)

    def throttle(self, api: str | int, seconds: float, times: int | None = 1) -> UsedFault:
        """Serve requests with a throttle time in the answer, and read no more from their
        connections for so long, as if the client was over a quota."""
        return self._fault("throttle", api, times, None, None, None, float(seconds))

    def leaders(self, topic: str) -> dict[int, int]:
        """Return the node id of the leader of each partition. ValueError: there is no such
        topic."""
        return cast("dict[int, int]", self._command("leaders", topic))

    def move_leader(self, topic: str, partition: int, to: int) -> None:
        """Have another broker of `brokers` lead a partition; return when all of them know it. The
        leader of a partition of __consumer_offsets coordinates its groups. ValueError."""
        self._command("move_leader", topic, partition, to)

    def stop_broker(self, node: int) -> None:
        """Stop one of `brokers` after the others lead its partitions, as Kafka's controlled
        shutdown does. ValueError."""
        self._command("stop_broker", node)

    def start_broker(self, node: int) -> None:
        """Start a broker that `stop_broker` has stopped, at the same ports. It gets new partitions
        again, and those that `move_leader` moves. ValueError."""
        self._command("start_broker", node)

    def clear_faults(self) -> None:
        """End all faults."""
        self._command("clear_faults")

    def _fault(self, kind: str, api: str | int, *arguments: object) -> UsedFault:
        return UsedFault(self, f"{kind} {api}", self._command("add_fault", kind, api, *arguments))


class UsedFault:
    """A fault that a test has added to its broker."""

    def __init__(self, broker: BrokerControl, name: str, number: int) -> None:
        self._broker = broker
        self._name = name
        self._number = number

    @property
    def used(self) -> int:
        """How many requests have had it."""
        return int(self._broker._command("count_uses", self._number))

    def wait(self, times: int = 1, timeout_s: float = 10.0) -> None:
        """Wait until so many requests have had it. AssertionError after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while (used := self.used) < times:
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"{self._name} was used by {used} of {times} requests after {timeout_s:g} s"
                )
            time.sleep(CHECK_S)
