"""Clients of the lives of a broker: producers that retry until they are answered, and reads."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random

from kafkawire.codec.batches import Record, iter_batches, pack, records
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.partition.partition import Partition
from tests.kit.sinks.lives import SinkLife, SinkWorld
from tests.kit.sinks.records import Row

RETRIED = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
)  # fmt: skip
WINDOW = 3
PATIENCE_S = 4.0
"""How long a producer waits for an answer until it asks another broker."""


@dataclass
class Pending:
    """A batch that was sent. `first`: the sequence number of its first value."""

    first: int
    values: list[bytes]
    answered: bool = False


@dataclass(eq=False)
class Producer:
    """An idempotent producer of one partition, with up to WINDOW batches in flight; with
    `producer_id` -1 one without a producer id, which sends some values twice. `life`: the process
    it is connected to; a new connection begins with the oldest unanswered batch. `time_ms`: the
    timestamp of its records, None: the time at the broker. `acks_all`: without it the producer has
    acks=1, is answered at once and sends nothing again."""

    world: SinkWorld
    producer_id: int
    number: int
    rng: Random
    name: bytes = b""
    next: int = 0
    pending: list[Pending] = field(default_factory=list)
    life: SinkLife | None = None
    attempt: int = 0
    last_answer_s: float = 0.0
    over: bool = False
    time_ms: int | None = None
    acks_all: bool = True

    async def run(self) -> None:
        """Produce until `over`, then until everything is answered."""
        while not (self.over and not self.pending):
            await asyncio.sleep(self.rng.random() * 0.3)
            stale = self.world.loop.now - self.last_answer_s > PATIENCE_S
            if self.life is None or self.life.over or (self.pending and stale):
                if not self._connect():
                    continue
                for each in list(self.pending):
                    if not self._send(each):
                        break
            elif len(self.pending) < WINDOW and not self.over:
                self._send_next()

    def _connect(self) -> bool:
        serving = self.world.serving
        self.life = None
        if serving:
            self.life = serving[-1] if self.rng.random() < 0.7 else self.rng.choice(serving)
            self.attempt += 1
            self.last_answer_s = self.world.loop.now
        return self.life is not None

    def _send_next(self) -> None:
        values = [
            b"%s:%d %s" % (self.name, self.next + at, bytes(self.rng.choice((0, 30, 300, 1500))))
            for at in range(self.rng.randrange(1, 4))
        ]
        batch = Pending(self.next, values)
        self.next += len(values)
        self.pending.append(batch)
        self._send(batch)

    def _send(self, pending: Pending) -> bool:
        """Send a batch; return whether it was accepted. The connection is given up otherwise."""
        life, attempt = self.life, self.attempt
        if not self.acks_all:
            self.pending.remove(pending)  # it is not sent again
        if life is None or life.over:
            return False
        try:
            partition = life.log.loader.get(self.number)
            if life.log.commit_log.full:
                if self.acks_all:
                    self.life = None
                return False
            base = partition.append(self._batch(life, pending), life.env.clock.now_ms()).base_offset
        except KafkaError as failure:
            if not self._retries(failure.code, life):
                raise AssertionError(
                    f"{self.name!r} sent {pending.first}: {failure!r}"
                ) from failure
            self.life = None
            return False
        if not self.acks_all:
            return True

        def answered(failure: BaseException | None) -> None:
            if life.over or self.attempt != attempt or pending.answered:
                return
            if failure is not None or self.rng.random() < 0.03:  # the answer is lost
                self.life = None
                self.attempt += 1
            else:
                self._answered(life, pending, base)

        partition.after_commit(answered)
        return True

    def _retries(self, code: ErrorCode, life: SinkLife) -> bool:
        """Whether a process may refuse a batch with this error. A superseded one does not know what
        its successor has acknowledged."""
        if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            return any(each.epoch > life.epoch for each in self.world.lives)
        return code in RETRIED

    def _answered(self, life: SinkLife, pending: Pending, base: int) -> None:
        """Take an answer. A superseded process may give one only for what its successor has."""
        end = base + len(pending.values)
        for each in self.world.lives:
            if each.started and each.epoch > life.epoch:
                assert end <= each.served[self.number], (
                    f"a superseded process of epoch {life.epoch} has acknowledged offset {end - 1},"
                    f" and epoch {each.epoch} has served up to {each.served[self.number]}"
                )
        pending.answered = True
        if pending in self.pending:
            self.pending.remove(pending)
        self.last_answer_s = self.world.loop.now
        for at, value in enumerate(pending.values):
            self.world.records.ack(self.number, base + at, value)
        self.world.note(f"{self.name.decode()} {pending.first} at {base}")

    def _batch(self, life: SinkLife, pending: Pending) -> memoryview:
        time_ms = life.env.clock.now_ms() if self.time_ms is None else self.time_ms
        rows = [Record(at, time_ms, None, value) for at, value in enumerate(pending.values)]
        if self.producer_id < 0:
            return memoryview(pack(rows))
        ids = {"producer_id": self.producer_id, "producer_epoch": 0}
        return memoryview(pack(rows, base_sequence=pending.first, **ids))


async def read(partition: Partition, start: int, upto: int = 1 << 62) -> list[tuple[int, Row]]:
    """Read what is below the high watermark, batch by batch. Raises KafkaError."""
    found: list[tuple[int, Row]] = []
    offset, end = start, min(partition.high_watermark, upto)
    while offset < end:
        plan = partition.plan(offset, 2000, partition.high_watermark, True)
        buffers = [bytes(each) for each in await partition.log.read(plan)]
        before = offset
        for buffer in buffers:
            for at, head in iter_batches(buffer):
                for row in records(buffer, at):
                    assert isinstance(row, Record)
                    assert row.value is not None
                    if row.offset >= offset:
                        found.append((row.offset, (bytes(row.value), head.leader_epoch)))
                offset = head.last_offset + 1
        assert offset > before, f"nothing at {before} of {partition.topic}"
    return found
