"""A log compared with a dict: after any operations in any order, it holds what the dict holds.

The dict keeps written and committed records apart; a power failure may lose what is only written,
but only from the end. Hypothesis searches for the shortest sequence that gives a difference.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kafkawire.codec.errors import KafkaError
from tests.kit.env import EPOCH_MS
from tests.kit.log.logs import World, batch, read_all

T = TypeVar("T")
PARTITIONS = st.integers(0, 1)


class LogModel(RuleBasedStateMachine):
    """`written`: the records that the log must hold now, (offset -> value) per partition;
    `committed`: the end of what a power failure must keep."""

    def __init__(self) -> None:
        super().__init__()
        logging.disable(logging.CRITICAL)
        self.loop = asyncio.new_event_loop()
        self.written: list[dict[int, bytes]] = [{}, {}]
        self.committed = [0, 0]
        self.log_start = [0, 0]
        self.queued: list[tuple[int, list[bytes]]] = []
        self.counter = 0

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    @initialize(
        journal_bytes=st.sampled_from([4096, 1 << 14]), hot_bytes=st.sampled_from([0, 1 << 20])
    )
    def begin(self, journal_bytes: int, hot_bytes: int) -> None:
        self.world = World(
            journal_bytes=journal_bytes,
            hot_bytes=hot_bytes,
            recycle_bytes=1 << 16,
            commit_delay_ms=3_600_000,
        )
        self.wait(self.world.start())
        self.wait(self.world.topic("t", 2))

    @rule(index=PARTITIONS, sizes=st.lists(st.integers(0, 1500), min_size=1, max_size=3))
    def append(self, index: int, sizes: list[int]) -> None:
        """Add a batch to the next write batch."""
        values = []
        for size in sizes:
            self.counter += 1
            values.append(b"%d:" % self.counter + bytes(size))
        self.queued.append((index, values))

    @rule()
    def write(self) -> None:
        """The end of a write batch."""
        bases = self.wait(self._written())
        for (index, values), base in zip(self.queued, bases, strict=True):
            assert base == self._end(index)
            self.written[index].update(enumerate(values, base))
        self.queued.clear()

    async def _written(self) -> list[int]:
        """Append what is queued; the base offsets, once it is written."""
        bases = self._append()
        done = asyncio.get_running_loop().create_future()
        self.world.log.commit_log.after_write(done.set_result)
        assert await done is None
        return bases

    def _append(self) -> list[int]:
        return [
            self.world.find("t", index).append(batch(*values), EPOCH_MS).base_offset
            for index, values in self.queued
        ]

    @rule()
    def commit(self) -> None:
        self.write()
        self.wait(self.world.log.commit_log.wait_until_committed())
        self._note_committed()

    def _note_committed(self) -> None:
        for index in (0, 1):
            self.committed[index] = self.world.find("t", index).high_watermark
            assert self.committed[index] == self._end(index)

    def _end(self, index: int) -> int:
        return max([self.log_start[index], *(offset + 1 for offset in self.written[index])])

    @rule()
    def fail(self) -> None:
        """Fail the write: the disk is full, queued batches fail, nothing else changes."""
        self.world.fs.faults.room_bytes = 10
        if self.queued:
            with pytest.raises(AssertionError):
                self.wait(self._written())
            self.queued.clear()
        self.world.fs.faults.room_bytes = None

    @rule(index=PARTITIONS, share=st.floats(0, 1))
    def delete_records(self, index: int, share: float) -> None:
        self.commit()
        partition = self.world.find("t", index)
        target = int(self.log_start[index] + share * (self._end(index) - self.log_start[index]))
        self.log_start[index] = self.wait(partition.delete_records(target))
        self.written[index] = {o: v for o, v in self.written[index].items() if o >= target}

    @rule()
    def checkpoint(self) -> None:
        self.write()
        self.wait(self.world.log.checkpoint())
        self._note_committed()
        self.wait(self.world.log.retention.reclaim())

    @rule()
    def restart(self) -> None:
        self.write()
        self.wait(self.world.restart())
        self._note_committed()

    @rule(power=st.booleans())
    def crash(self, power: bool) -> None:
        """Without power, what was only written may be lost, from some offset on."""
        self.queued.clear()
        self.wait(self.world.crash(power))
        for index in (0, 1):
            end = self.world.find("t", index).next_offset
            if not power:
                assert end == self._end(index)
            assert self.committed[index] <= end <= self._end(index)
            self.written[index] = {o: v for o, v in self.written[index].items() if o < end}
        self._note_committed()

    @rule(index=PARTITIONS, share=st.floats(0, 1), max_bytes=st.integers(0, 4000))
    def read(self, index: int, share: float, max_bytes: int) -> None:
        partition = self.world.find("t", index)
        start = partition.log_start
        offset = int(start + share * (partition.high_watermark - start))
        plan = partition.plan(offset, max_bytes, partition.high_watermark, True)
        assert (plan.size_bytes > 0) is (offset < partition.high_watermark)

    @invariant()
    def holds_what_the_dict_holds(self) -> None:
        if not hasattr(self, "world"):
            return
        for index in (0, 1):
            partition = self.world.find("t", index)
            assert partition.log_start == self.log_start[index]
            assert partition.next_offset == self._end(index)
            end = partition.high_watermark
            try:
                found = self.wait(read_all(partition))
            except KafkaError as failure:
                raise AssertionError(f"partition {index}: {failure}") from failure
            if found:  # a commit may have moved the high watermark meanwhile
                end = max(end, found[-1][0] + 1)
            assert found == sorted((o, v) for o, v in self.written[index].items() if o < end)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.wait(self.world.log.close())
        self.loop.close()
        logging.disable(logging.NOTSET)


TestLogModel = pytest.mark.slow(LogModel.TestCase)
TestLogModel.settings = hypothesis_settings(
    max_examples=max(100, hypothesis_settings().max_examples),  # fewer hardly append
    stateful_step_count=30,
)
