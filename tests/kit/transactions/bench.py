"""A transaction coordinator on a fake log, with markers that are written by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.coordination.coordinator import CoordinatorPhase
from kafkawire.transactions.coordinator import TransactionCoordinator
from kafkawire.transactions.machine.decision import SendMarkers
from kafkawire.transactions.machine.records import TransactionRecord, decode_record
from kafkawire.transactions.machine.request import (
    AddPartitions,
    Answer,
    EndTransaction,
    InitProducer,
    Request,
)
from kafkawire.transactions.machine.transaction import TopicPartition, TransactionState
from kafkawire.transactions.marker_sender import Leader, MarkerSender, Results
from tests.kit.groups.log import FakeCommitLog, FakePartition, fake_env
from tests.kit.transactions.desk import ID, T0, TransactionSettings

Callback = Callable[[BaseException | None], None]


class TransactionLog(FakeCommitLog):
    """A log whose writes and commits happen together, by hand."""

    def after_write(self, fn: Callback) -> None:
        """Without a commit of its own: the next one serves."""
        self.callbacks.append(fn)


class StatePartition(FakePartition):
    """One partition of `__transaction_state`."""

    def __init__(self, log: FakeCommitLog, index: int = 0) -> None:
        super().__init__(log, index)
        self.topic = "__transaction_state"
        self.topic_id = b"s" * 16
        self.leader_epoch = 7

    def stored(self) -> list[TransactionRecord]:
        """The records of everything appended."""
        found = [decode_record(key, value) for key, value in self.pairs()]
        return [record for record in found if record is not None]

    def states(self) -> list[TransactionState | None]:
        return [None if each.value is None else each.value.state for each in self.stored()]


class FakeCluster:
    """Leaders by hand; markers are written when they are sent, unless `held` or `failing`."""

    def __init__(self) -> None:
        self.leaders: dict[TopicPartition, Leader | None] = {}
        self.sent: list[tuple[int, SendMarkers]] = []
        self.codes: dict[TopicPartition, ErrorCode] = {}
        self.failing: Exception | None = None
        self.held: asyncio.Event | None = None
        self.requests = 0

    def leader_of(self, partition: TopicPartition) -> Leader | None:
        return self.leaders.get(partition, Leader(1, 0))

    def append_at_once(self, work: SendMarkers) -> Results | None:
        return None

    async def write_markers(self, broker: int, work: Sequence[SendMarkers]) -> Sequence[Results]:
        self.requests += 1
        self.sent += [(broker, each) for each in work]
        if self.held is not None:
            await self.held.wait()
        if self.failing is not None:
            raise self.failing
        return [{at: self.codes.get(at, ErrorCode.NONE) for at in each.partitions} for each in work]


class TransactionBench:
    """One coordinator, and short forms of the requests of tests."""

    def __init__(self, **changed: int) -> None:
        self.env = fake_env()
        self.log = TransactionLog()
        self.partition = StatePartition(self.log)
        self.settings = TransactionSettings(**changed)  # type: ignore[arg-type]
        self.cluster = FakeCluster()
        self.sender = MarkerSender(self.env, self.cluster)
        self.next_pid = 1000
        self.no_pids: Exception | None = None
        self.coordinator = self.make()

    def make(self) -> TransactionCoordinator:
        log: Any = self.log
        partition: Any = self.partition
        return TransactionCoordinator(
            self.env, self.settings, partition, log, "/transactions", self.sender, self.take
        )

    async def take(self) -> int:
        await asyncio.sleep(0)
        if self.no_pids is not None:
            raise self.no_pids
        self.next_pid += 1
        return self.next_pid - 1

    @property
    def active(self) -> bool:
        return self.coordinator.phase is CoordinatorPhase.ACTIVE

    def begin(self) -> TransactionBench:
        self.coordinator.begin_empty()
        return self

    async def reload(self) -> TransactionBench:
        """As a restart does: another coordinator, of the next epoch, over what is committed."""
        self.sender.close()
        self.partition.lose_uncommitted()
        self.partition.leader_epoch += 1
        self.sender = MarkerSender(self.env, self.cluster)
        self.coordinator = self.make()
        await self.coordinator.load()
        assert self.active
        return self

    def ask(self, request: Request) -> asyncio.Future[Answer]:
        return self.coordinator.answer_request(request)

    async def now(self, request: Request) -> Answer:
        """Ask, and commit until there is an answer."""
        future = self.ask(request)
        await self.until(future.done)
        return future.result()

    async def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(30):
            if condition():
                return
            await asyncio.sleep(0)
            self.log.commit()
        raise AssertionError("it does not happen")

    async def settle(self) -> None:
        for _ in range(12):
            await asyncio.sleep(0)
            self.log.commit()

    # -- short forms ----------------------------------------------------------------------

    async def init(self, id_: str = ID) -> Answer:
        return await self.now(InitProducer(id_, 60_000))

    async def add(self, at: Answer, *partitions: TopicPartition, tv: int = 2) -> Answer:
        chosen = frozenset(partitions or (T0,))
        return await self.now(AddPartitions(ID, at.producer_id, at.producer_epoch, chosen, tv))

    def end(self, at: Answer, commit: bool = True, tv: int = 2) -> asyncio.Future[Answer]:
        return self.ask(EndTransaction(ID, at.producer_id, at.producer_epoch, commit, tv))

    async def open(self, *partitions: TopicPartition) -> Answer:
        """An id with an open transaction of these partitions."""
        at = await self.init()
        assert (await self.add(at, *partitions)).code == 0
        return at

    async def now_end(self, at: Answer) -> Answer:
        future = self.end(at)
        await self.until(future.done)
        return future.result()

    async def now_ended(self) -> Answer:
        """A transaction from its beginning to its end."""
        answer = await self.now_end(await self.open())
        await self.settle()
        return answer

    @property
    def state(self) -> TransactionState:
        return self.coordinator.shard.transactions[ID].state


def no_room() -> KafkaError:
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full")
