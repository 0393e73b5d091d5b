"""The queue of writes that a sink does not have yet."""

from __future__ import annotations

from functools import partial
from typing import Any

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.io.callbacks import Callback
from kafkawire.log.partition.waiting_queue import (
    FailedPartitions,
    UncommittedWrite,
    WaitingQueue,
    after_calls,
    unless_for_others,
)


class Row:
    """The part of a partition that a queue moves. `seen`: what readers were shown."""

    def __init__(self) -> None:
        self.high_watermark = 0
        self.watchers = True
        self.seen: list[int] = []

    def raise_high_watermark(self, end: int) -> None:
        self.high_watermark = end

    def notify_watchers(self) -> None:
        self.seen.append(self.high_watermark)


class Fixture:
    def __init__(self) -> None:
        self.queue = WaitingQueue(UncommittedWrite, 100)
        self.row: Any = Row()
        self.answers: list[tuple[str, BaseException | None]] = []

    def wait(self, name: str) -> None:
        fn: Callback = partial(self._answer, name)
        self.queue.wait([fn])

    def _answer(self, name: str, failure: BaseException | None) -> None:
        self.answers.append((name, failure))

    def complete(self) -> None:
        for fn in self.queue.complete().callbacks:
            fn(None)


def test_callers_wait_for_what_was_added_before_them() -> None:
    fixture = Fixture()
    queue, row = fixture.queue, fixture.row
    fixture.wait("nothing")
    queue.add(row, 3, 10)
    fixture.wait("first")
    first = queue.seal(1000, 5.0)
    fixture.wait("also first")
    queue.add(row, 7, 20)
    fixture.wait("second")
    queue.seal(2000, 6.0)
    assert (first.log_position, first.at_s, queue.size_bytes) == (1000, 5.0, 30)
    assert fixture.answers == [("nothing", None)]
    fixture.complete()
    assert fixture.answers[1:] == [("first", None), ("also first", None)]
    fixture.complete()
    assert fixture.answers[3:] == [("second", None)]
    assert (row.seen, queue.size_bytes) == ([3, 7], 0)


def test_room_shrinks_with_what_is_not_durable() -> None:
    fixture = Fixture()
    fixture.queue.add(fixture.row, 1, 60)
    fixture.queue.seal(1000, 0.0)
    fixture.queue.add_bytes(50)  # such as a frame of the catalog
    assert fixture.queue.room_bytes() == -10
    fixture.queue.complete()
    assert fixture.queue.room_bytes() == 50


def test_failure_answers_all_and_those_that_come_later() -> None:
    fixture = Fixture()
    queue, row = fixture.queue, fixture.row
    queue.add(row, 1, 10)
    fixture.wait("sealed")
    queue.seal(1000, 0.0)
    queue.add(row, 2, 10)
    fixture.wait("newest")
    why = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is gone")
    queue.fail(why)
    fixture.wait("later")
    assert fixture.answers == [("sealed", why), ("newest", why), ("later", why)]
    assert (row.high_watermark, row.seen, list(queue.sealed)) == (0, [], [])


def test_high_watermark_never_falls() -> None:
    fixture = Fixture()
    fixture.row.high_watermark = 9
    fixture.queue.add(fixture.row, 4, 10)
    fixture.queue.seal(1000, 0.0)
    fixture.complete()
    assert (fixture.row.high_watermark, fixture.row.seen) == (9, [])


def test_callers_of_several_sinks_get_the_first_failure() -> None:
    answers: list[BaseException | None] = []
    fn = after_calls(2, answers.append)
    fn(None)
    assert answers == []
    fn(None)
    assert answers == [None]
    why = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
    fn = after_calls(3, answers.append)
    for failure in (None, why, None):
        fn(failure)
    assert answers == [None, why]


def test_failure_of_some_partitions_is_reported_at_the_end() -> None:
    row: Any = Row()
    some = FailedPartitions(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, "too few", [row])
    answers: list[BaseException | None] = []
    fn = after_calls(2, answers.append)
    fn(some)
    assert answers == []
    fn(None)
    for partition in (row, None):
        unless_for_others(answers.append, partition)(some)
    assert answers == [some, some, None]
