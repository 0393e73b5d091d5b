"""Group members in threads of their own, like real ones: a member that polls late delays a
rebalance."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any


class Member(threading.Thread):
    """Polls `consumer` until asked to leave, keeps what it read; closes it in its own thread."""

    def __init__(self, consumer: Any, poll: Callable[[Any], list[Any]]) -> None:
        super().__init__(daemon=True)
        self.consumer = consumer
        self.records: list[Any] = []
        self.assigned: set[tuple[str, int]] = set()
        self.error: BaseException | None = None
        self._poll = poll
        self._stop_asked = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            while not self._stop_asked.is_set():
                self.records += self._poll(self.consumer)
                self.assigned = {(at.topic, at.partition) for at in self.consumer.assignment()}
            self.consumer.close()
        except BaseException as error:
            self.error = error

    def leave(self) -> None:
        self._stop_asked.set()
        self.join(30)
        assert not self.is_alive(), "the member does not end"
        if self.error is not None:
            raise self.error


def poll_kafka_python(consumer: Any) -> list[Any]:
    """Poll a kafka-python member, waiting long enough for a rebalance to end in one poll.

    When poll() returns in the middle of one, kafka-python 3.0.12 can lose the assignment that
    follows: it stays REBALANCING without heartbeats, and never gets partitions. With 100 ms on a
    busy machine that happened once in some 15 rounds, with 2 s in none of 48.
    """
    return [record for batch in consumer.poll(timeout_ms=2000).values() for record in batch]


def wait_for(done: Callable[[], bool], limit_s: float = 90, what: Callable[[], Any] = str) -> None:
    """Wait until `done()`; fail with the text of `what()`."""
    end = time.monotonic() + limit_s
    while not done():
        assert time.monotonic() < end, what()
        time.sleep(0.03)


def wait_for_shares(members: list[Member], shares: list[int], limit_s: float = 90) -> None:
    """Until the members hold disjoint shares of these sizes, in any order."""

    def shared() -> bool:
        for member in members:
            if member.error is not None:
                raise member.error
        sizes = sorted(len(member.assigned) for member in members)
        together = set[tuple[str, int]]().union(*(member.assigned for member in members))
        return sizes == sorted(shares) and len(together) == sum(shares)

    wait_for(shared, limit_s, lambda: [member.assigned for member in members])
