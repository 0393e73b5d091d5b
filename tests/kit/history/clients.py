"""Clients of librdkafka that record a history: constant load on a topic while brokers fail.

with RecordedLoad(bootstrap, "t", 4) as load:
    load.history.fault("kill broker 2")
    ...
    load.heal()
assert load.findings(bootstrap) == []

Producers are idempotent with acks=all and send to all partitions alternately; readers without a
group follow all partitions from their starts; members of one group read, commit what they have read
and ask for what is committed. Each runs in a thread of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from tests.kit.cluster import QUIET
from tests.kit.exactly_once.checker import Finding
from tests.kit.exactly_once.history import Partition
from tests.kit.history.checker import NONE, PROGRESS, Track, check
from tests.kit.history.history import Event, Final, History, Result
from tests.kit.steady_load import full_reader, read_partition
from tests.kit.waiting import wait_until

REFUSED = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
    }
)
"""Errors that depend on the records alone, so that no attempt can have stored them. After any other
error, an earlier attempt whose answer was lost may have stored them."""
COMMIT_REFUSED = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError._NO_OFFSET,
    }
)
COMMIT_INTERVAL_S = 0.3
RATE_PER_S = 80.0
"""Of each producer: some records are always in flight, and three machines and the clients of one
test leave time for the tests that run next to it."""
ENDS_WITHIN_S = 120.0
"""A client that was asked to stop may wait for answers as long as librdkafka does (60 s)."""


class _Worker:
    """A client in a thread, from `start` to `stop`; `errors`: those that it has seen."""

    group = ""

    def __init__(self, name: str, history: History, partitions: Sequence[Partition]) -> None:
        self.name = name
        self._partitions = partitions
        self.errors: list[str] = []
        self._history = history
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def _work(self) -> None:
        try:
            self._run()
        except Exception as failure:  # reported by `stop`, in the thread of the test
            self.errors.append(f"{type(failure).__name__}: {failure}")
            raise

    def _run(self) -> None:
        raise NotImplementedError

    def start(self) -> None:
        self._thread.start()

    def ask_to_stop(self) -> None:
        if not self._ending.is_set():
            self._history.ended(self.name)
            self._ending.set()

    def stop(self) -> None:
        """Ask it to stop, and wait until it has."""
        self.ask_to_stop()
        if self._thread.ident is None:
            return  # it was never started
        self._thread.join(ENDS_WITHIN_S)
        assert not self._thread.is_alive(), f"{self.name} does not end: {self.errors[-3:]}"


class RecordingProducer(_Worker):
    """An idempotent producer that sends `rate_per_s` records a second, alternately to partitions.

    While nothing is acknowledged it stops at `max_unsent` records, so that a long outage does not
    fill the memory.
    """

    def __init__(
        self,
        name: str,
        history: History,
        bootstrap: str,
        partitions: Sequence[Partition],
        rate_per_s: float,
        max_unsent: int = 10_000,
        **settings: Any,
    ) -> None:
        super().__init__(name, history, partitions)
        self._interval_s = 1 / rate_per_s
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 5,
                "queue.buffering.max.messages": max_unsent,
                "reconnect.backoff.max.ms": 1000,
                "log_level": QUIET,
                "error_cb": lambda error: self.errors.append(str(error)),
                **{key.replace("_", "."): value for key, value in settings.items()},
            }
        )

    def start(self) -> None:
        self._history.began(self.name, self._partitions, idempotent=True, acks_all=True)
        super().start()

    def _run(self) -> None:
        due, sent = time.monotonic(), 0
        while not self._ending.is_set():
            partition = self._partitions[sent % len(self._partitions)]
            sent += 1
            self._send(partition, f"{self.name}-{sent}")
            due = max(due + self._interval_s, time.monotonic() - 0.1)  # no burst after a pause
            self._producer.poll(0)
            while (wait_s := due - time.monotonic()) > 0:
                self._producer.poll(wait_s)
        self._producer.flush(60)
        self._producer.purge()
        self._producer.flush(10)

    def _send(self, partition: Partition, value: str) -> None:
        step = self._history.send(self.name, partition, value)

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                self._history.ok(step, message.offset() if message.offset() >= 0 else NONE)
            elif error.code() in REFUSED:
                self._history.fail(step, str(error))
            else:
                self._history.unknown(step, str(error))

        topic, index = partition
        while not self._ending.is_set():
            try:
                self._producer.produce(
                    topic, value.encode(), partition=index, on_delivery=delivered
                )
                return
            except BufferError:
                self._producer.poll(0.1)
            except KafkaException:
                self._history.fail(step, "not accepted by the library")
                raise
        self._history.fail(step, "stopped while the queue of the library was full")


class RecordingReader(_Worker):
    """A consumer of all partitions from an offset (their starts); with a `group`, a member of it,
    which starts where the group has committed."""

    def __init__(
        self,
        name: str,
        history: History,
        bootstrap: str,
        partitions: Sequence[Partition],
        group: str = "",
        start: int = OFFSET_BEGINNING,
        **settings: Any,
    ) -> None:
        super().__init__(name, history, partitions)
        self.group = group
        self._uncommitted: dict[Partition, int] = {}
        self._commit_due = 0.0
        self._start = start
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group or "unused",
                # A reader that continues elsewhere would hide that its position was refused.
                "auto.offset.reset": "earliest" if group else "error",
                "enable.auto.commit": False,
                "heartbeat.interval.ms": 500,
                "session.timeout.ms": 10_000,
                "reconnect.backoff.max.ms": 1000,
                "log_level": QUIET,
                "error_cb": lambda error: self.errors.append(str(error)),
                **{key.replace("_", "."): value for key, value in settings.items()},
            }
        )

    def start(self) -> None:
        self._history.began(self.name, self._partitions, group=self.group)
        if self.group:
            topics = sorted({topic for topic, _ in self._partitions})
            self._consumer.subscribe(topics, on_assign=self._moved, on_revoke=self._moved)
        else:
            starts = [TopicPartition(*each, self._start) for each in self._partitions]
            self._consumer.assign(starts)
        super().start()

    def _moved(self, *_: object) -> None:
        """Forget positions: another member may own the partitions, or has owned them."""
        self._uncommitted.clear()

    def _run(self) -> None:
        try:
            while not self._ending.is_set():
                # One at a time: a batch may contain records of partitions that a rebalance, served
                # by the same call, has taken away.
                message = self._consumer.poll(0.1)
                if message is not None:
                    self._record(message)
                if self.group and time.monotonic() >= self._commit_due:
                    self._commit()
                    self._ask_committed()
                    self._commit_due = time.monotonic() + COMMIT_INTERVAL_S
        finally:
            self._consumer.close()

    def _record(self, message: Message) -> None:
        partition = message.topic(), message.partition()
        error = message.error()
        if error is None:
            offset, value = message.offset(), _value(message)
            self._history.read(self.name, partition, offset, value, _epoch(message))
            self._uncommitted[partition] = offset + 1
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            self._history.read_refused(self.name, partition, str(error))
        else:
            self.errors.append(str(error))

    def _commit(self) -> None:
        offsets, self._uncommitted = self._uncommitted, {}
        if not offsets:
            return
        steps = {
            partition: self._history.commit(self.name, self.group, partition, offset)
            for partition, offset in offsets.items()
        }
        rows = [TopicPartition(*partition, offset) for partition, offset in offsets.items()]
        try:
            answers = self._consumer.commit(offsets=rows, asynchronous=False)
        except KafkaException as failure:
            for step in steps.values():
                self._end_commit(step, failure.args[0])
            return
        for answer in answers:
            self._end_commit(steps[answer.topic, answer.partition], answer.error)

    def _end_commit(self, step: Event, error: KafkaError | None) -> None:
        if error is None:
            self._history.ok(step)
        elif error.code() in COMMIT_REFUSED:
            self._history.fail(step, str(error))
        else:
            self._history.unknown(step, str(error))

    def _ask_committed(self) -> None:
        """Ask for the committed offsets of the partitions that this member owns."""
        owned = self._consumer.assignment()
        steps = {
            (row.topic, row.partition): self._history.ask_committed(
                self.name, self.group, (row.topic, row.partition)
            )
            for row in owned
        }
        try:
            answers = self._consumer.committed(owned, timeout=10) if owned else []
        except KafkaException as failure:  # librdkafka does not retry this request
            for step in steps.values():
                self._history.unknown(step, str(failure))
            return
        for answer in answers:
            step = steps[answer.topic, answer.partition]
            if answer.error is None:
                self._history.ok(step, answer.offset if answer.offset >= 0 else NONE)
            else:
                self._history.unknown(step, str(answer.error))


class RecordedLoad:
    """Clients of a topic that work until `stop`. `bootstrap`: addresses of several brokers, since a
    client without any connection asks one of them; `rate_per_s`: records a second of each producer;
    `prefix`: of the clients' names, for several loads with one history; `settings`: of all clients,
    with underscores."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        *,
        producers: int = 2,
        readers: int = 1,
        members: int = 2,
        rate_per_s: float = RATE_PER_S,
        history: History | None = None,
        prefix: str = "",
        **settings: Any,
    ) -> None:
        self.history = history or History()
        self.partitions: list[Partition] = [(topic, index) for index in range(partitions)]
        at = self.history, bootstrap, self.partitions
        self.workers: list[RecordingProducer | RecordingReader] = [
            *(
                RecordingProducer(f"{prefix}producer{n}", *at, rate_per_s, **settings)
                for n in range(producers)
            ),
            *(RecordingReader(f"{prefix}reader{n}", *at, **settings) for n in range(readers)),
            *(
                RecordingReader(f"{prefix}member{n}", *at, f"{prefix}group", **settings)
                for n in range(members)
            ),
        ]

    def __enter__(self) -> RecordedLoad:
        for each in self.workers:
            each.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.stop()
            return
        for each in self.workers:
            error.add_note(f"errors of {each.name}: {each.errors[-5:]}")
            each.ask_to_stop()

    def wait_for_progress(self) -> None:
        """Wait until each producer and reader, and the group as a whole, has succeeded in every
        partition since this call."""
        missing: set[Track] = {
            (each.group or each.name, partition)
            for each in self.workers
            for partition in self.partitions
        }
        seen = len(self.history.events)

        def progressed() -> bool:
            nonlocal seen
            new = self.history.events[seen:]
            seen += len(new)
            for event in new:
                if event.kind in PROGRESS and event.result is Result.OK:
                    missing.discard((event.group or event.client, event.partition))
            return not missing

        wait_until(progressed, lambda: f"progress of {sorted(missing)}")

    def heal(self, note: str = "") -> None:
        """Report that all is healed, and wait for progress."""
        self.history.healed(note)
        self.wait_for_progress()

    def stop(self) -> None:
        """End all clients: producers wait for their answers, then readers end."""
        producing = [each for each in self.workers if isinstance(each, RecordingProducer)]
        for each in producing:
            each.ask_to_stop()
        for each in producing:
            each.stop()
        for reader in self.workers:
            reader.ask_to_stop()
        for reader in self.workers:
            reader.stop()

    def findings(self, bootstrap: str, kept: Path | None = None) -> list[Finding]:
        """Stop, read everything with one broker as bootstrap, and check. `kept`: a file for the
        history if there are findings."""
        self.stop()
        read_finally(self.history, bootstrap, self.partitions)
        found = check(self.history)
        if found and kept is not None:
            self.history.save(kept)
        return found


def read_finally(history: History, bootstrap: str, partitions: Iterable[Partition]) -> None:
    """Read partitions from their starts to their ends as the final read of a history."""
    consumer = full_reader(bootstrap)
    try:
        for topic, index in partitions:
            start, end, messages = read_partition(consumer, topic, index)
            rows = [(each.offset(), _value(each), _epoch(each)) for each in messages]
            history.final[topic, index] = Final(start, end, rows)
    finally:
        consumer.close()


def _value(message: Message) -> str:
    return (message.value() or b"").decode()


def _epoch(message: Message) -> int:
    epoch = message.leader_epoch()
    return NONE if epoch is None else int(epoch)
