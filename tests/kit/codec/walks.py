"""Walk a batch whole and in steps: both must find the same."""

from __future__ import annotations

from collections.abc import Callable

from kafkawire.codec.configs.settings import TopicConfig
from kafkawire.codec.errors import KafkaError
from kafkawire.codec.validate import Head, LongBatch, unpack_long, walk, walk_long
from kafkawire.codec.walk import Walked, walk_records


def walked_both_ways(view: memoryview, head: Head, config: TopicConfig, now_ms: int) -> int:
    """The newest timestamp, or the KafkaError, that `walk` finds; in steps where it finds a long
    batch."""
    slow = outcome(lambda: _in_steps(view, head, config, now_ms))
    try:
        fast = outcome(lambda: walk(view, head, config, now_ms))
    except LongBatch:
        fast = slow
    if isinstance(fast, KafkaError):
        assert isinstance(slow, KafkaError)
        assert fast.code is slow.code
        assert fast.record_errors == slow.record_errors
        raise fast
    assert fast == slow
    return fast


def outcome(call: Callable[[], int]) -> int | KafkaError:
    """The value that a call returns, or the exception it raises."""
    try:
        return call()
    except KafkaError as error:
        return error


def _in_steps(view: memoryview, head: Head, config: TopicConfig, now_ms: int) -> int:
    data = unpack_long(view, head)
    assert isinstance(data, bytes | bytearray)
    steps = walk_long(data, head, config, now_ms)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            newest: int = end.value
            return newest


def walked_one(data: bytes, base: int) -> int:
    """The newest timestamp of the one record of an unpacked batch, by the general path."""
    walked = Walked(61)
    walk_records(data, walked, 1, base)
    walked.end_walk(data, base)
    return walked.newest
