"""Members of a share group that settle records until they are stopped, and a check of their
answers: each record is accepted, and no record comes again after its acceptance was answered.

`python -m tests.kit.share_load BOOTSTRAP GROUP TOPIC` is a member that settles nothing: it prints a
line once it has records, and holds them until it is killed.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from confluent_kafka import AcknowledgeType, KafkaException, ShareConsumer, TopicPartition

from kafkawire.codec.errors import ErrorCode
from tests.kit.cluster import QUIET
from tests.kit.waiting import wait_until

HOLDS = "holds"
Place = tuple[int, int]
"""A partition and an offset."""
REFUSALS = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.INVALID_RECORD_STATE,
        ErrorCode.SHARE_SESSION_NOT_FOUND,
        ErrorCode.INVALID_SHARE_SESSION_EPOCH,
    }
)
"""Errors after which nothing is stored. After others it may be: the client had no answer, or the
leader none from the share coordinator."""
MAX_WAITING_POLLS = 6
"""Polls after which a member has all that brokers sent before: twice the number of brokers, because
each poll returns the answer of one."""


class Settled(NamedTuple):
    """One delivery of a record and how a member settled it. `since`: a time before the broker sent
    it; `answered`: when the member knew the result, both monotonic; `stored`: whether it is stored,
    None: unknown; `error`: the text of the error."""

    place: Place
    accepted: bool
    since: float
    answered: float
    stored: bool | None
    error: str = ""


def share_consumer(bootstrap: str, group: str, topic: str) -> Any:
    """Return a member that settles each record itself."""
    consumer = ShareConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "share.acknowledgement.mode": "explicit",
            "socket.timeout.ms": 10_000,
            "reconnect.backoff.max.ms": 1000,
            "log_level": QUIET,
        }
    )
    consumer.subscribe([topic])
    return consumer


class ShareMember:
    """A member in a thread: it releases each fifth record at its first delivery, and accepts the
    others."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self.settled: list[Settled] = []
        self.errors: list[str] = []
        self._consumer = share_consumer(bootstrap, group, topic)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            polled: deque[float] = deque(maxlen=MAX_WAITING_POLLS)
            while not self._ending.is_set():
                polled.append(time.monotonic())
                messages = [each for each in self._consumer.poll(0.5) if each.error() is None]
                if messages:
                    self._settle(messages, polled[0])
            self._consumer.close()
        except Exception as failure:  # reported by `end`, in the thread of the test
            self.errors.append(f"{type(failure).__name__}: {failure}")
            raise

    def _settle(self, messages: Sequence[Any], since: float) -> None:
        accepted: dict[Place, bool] = {}
        for each in messages:
            kept = each.offset() % 5 != 0 or each.delivery_count() > 1
            kind = AcknowledgeType.ACCEPT if kept else AcknowledgeType.RELEASE
            self._consumer.acknowledge(each, kind)
            accepted[each.partition(), each.offset()] = kept
        answers: dict[TopicPartition, KafkaException | None] | None
        text = "no result"
        try:
            answers = self._consumer.commit_sync(10)
        except KafkaException as failure:
            answers, text = None, str(failure)
        answered = time.monotonic()
        results: dict[int, tuple[bool | None, str]] = {}
        for at, error in (answers or {}).items():
            refused = error is not None and error.args[0].code() in REFUSALS
            stored = True if error is None else False if refused else None
            results[at.partition] = stored, str(error or "")
        self.settled += [
            Settled(place, kept, since, answered, *results.get(place[0], (None, text)))
            for place, kept in accepted.items()
        ]

    def ask_to_end(self) -> None:
        self._ending.set()

    def end(self) -> None:
        """Leave the group."""
        self.ask_to_end()
        self._thread.join(120)
        assert not self._thread.is_alive(), "the member does not end"
        assert self.errors == []


class ShareLoad:
    """Members of one group."""

    def __init__(self, bootstrap: str, group: str, topic: str, members: int = 3) -> None:
        self.members = [ShareMember(bootstrap, group, topic) for _ in range(members)]

    def settled(self) -> Iterator[Settled]:
        """All that was settled until now, by member."""
        for each in self.members:
            yield from list(each.settled)

    def wait_for_progress(self, partitions: Collection[int]) -> None:
        """Wait until a record of each partition that is delivered from now on is stored as
        accepted."""
        began = time.monotonic()

        def progressed() -> bool:
            assert not any(each.errors for each in self.members), self.members
            found = {
                each.place[0]
                for each in self.settled()
                if each.accepted and each.stored and each.since > began
            }
            return found >= set(partitions)

        wait_until(progressed, f"accepted records of partitions {sorted(partitions)}")


@contextmanager
def share_loaded(bootstrap: str, group: str, topic: str) -> Iterator[ShareLoad]:
    """Members that have left when the context ends."""
    load = ShareLoad(bootstrap, group, topic)
    try:
        yield load
    finally:
        for each in load.members:
            each.ask_to_end()
        for each in load.members:
            each.end()


def check_settled(produced: Collection[Place], settled: Iterable[Settled]) -> list[str]:
    """Return what a share group must not do. Call it when the group has settled all records.

    A record may come once more after an accept whose result is unknown, and a member may settle a
    record that it got before another one accepted it, after its lock or its broker had ended.
    """
    by_place: dict[Place, list[Settled]] = defaultdict(list)
    for each in settled:
        by_place[each.place].append(each)
    found = [
        f"{place} is not accepted: {by_place[place]}"
        for place in produced
        if not _is_accepted(by_place[place])
    ]
    for place, deliveries in by_place.items():
        accepted = [each.answered for each in deliveries if each.accepted and each.stored]
        if any(each.since > min(accepted, default=math.inf) for each in deliveries):
            found.append(f"{place} is delivered after it was accepted: {deliveries}")
        if place not in produced:
            found.append(f"{place} was not acknowledged to its producer")
    return found


def _is_accepted(deliveries: Sequence[Settled]) -> bool:
    """Return whether a record was accepted, or may have been."""
    return any(each.accepted and each.stored is not False for each in deliveries)


def _hold(bootstrap: str, group: str, topic: str) -> None:
    consumer = share_consumer(bootstrap, group, topic)
    while not any(each.error() is None for each in consumer.poll(0.5)):
        pass
    print(HOLDS, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    _hold(*sys.argv[1:])
