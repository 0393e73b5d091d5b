"""The transaction service: finds the coordinator of a transactional id and asks it.

An id belongs to one partition of `__transaction_state` (kafkawire.coordination.service). Two tasks
abort overdue transactions and forget expired ids.

Requests decide before they return.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Protocol

from kafkawire.codec import java_hash
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.coordination.coordinator import CoordinatorPhase
from kafkawire.coordination.service import CoordinatorService, InternalPartitions
from kafkawire.log.io.ports import Env
from kafkawire.messages import describe_transactions as described
from kafkawire.messages import list_transactions as listed
from kafkawire.transactions.coordinator import (
    Reply,
    TakeProducerId,
    TransactionCoordinator,
    answer_future,
    settle_answer,
)
from kafkawire.transactions.machine.init_producer import check_request
from kafkawire.transactions.machine.queries import describe_transaction, list_transactions
from kafkawire.transactions.machine.request import (
    AddPartitions,
    Answer,
    InitProducer,
    ListFilter,
    Request,
    TransactionConfig,
    VerifyPartitions,
)
from kafkawire.transactions.machine.transaction import TopicPartition
from kafkawire.transactions.marker_sender import MarkerPort, MarkerSender

if TYPE_CHECKING:
    from kafkawire.log.append.commit_log import CommitLog
    from kafkawire.log.partition.partition import Partition
    from kafkawire.metadata.catalog import Catalog

STATE_TOPIC = "__transaction_state"

CoordinatorTask = Callable[[TransactionCoordinator], Awaitable[None]]


class ServiceConfig(TransactionConfig, Protocol):
    """The settings of the machine, and how often its tasks run; names are Kafka's."""

    @property
    def transaction_abort_timed_out_transaction_cleanup_interval_ms(self) -> int: ...
    @property
    def transaction_remove_expired_transaction_cleanup_interval_ms(self) -> int: ...


class TransactionService(CoordinatorService[TransactionCoordinator]):
    """All transactions this broker coordinates. `internal` gives the partitions of the topic,
    making it if need be; None = led elsewhere."""

    topic = STATE_TOPIC

    def __init__(
        self,
        env: Env,
        config: ServiceConfig,
        folder: str,
        commit_log: CommitLog,
        internal: InternalPartitions,
        catalog: Catalog,
        port: MarkerPort,
        take_producer_id: TakeProducerId,
    ) -> None:
        super().__init__(env, catalog, internal)
        self.config = config
        self.folder = f"{folder}/transactions"
        self.commit_log = commit_log
        self.sender = MarkerSender(env, port)
        self._take_producer_id = take_producer_id
        self._tasks: list[asyncio.Task[None]] = []

    # -- life -----------------------------------------------------------------------------

    def new_coordinator(self, partition: Partition) -> TransactionCoordinator:
        return TransactionCoordinator(
            self.env, self.config, partition, self.commit_log, self.folder, self.sender,
            self._take_producer_id,
        )  # fmt: skip

    partition_of = staticmethod(java_hash.partition_of)

    async def open(self) -> None:
        """Have a coordinator for each partition, and the two tasks. Raises KafkaError if the topic
        cannot be created."""
        await super().open()
        if not self._tasks and not self._closed:
            self._tasks = [
                self.env.spawn(self._abort_overdue(), "abort overdue transactions"),
                self.env.spawn(self._expire(), "forget expired transactional ids"),
            ]

    async def close(self) -> None:
        self._closed = True
        for task in self._tasks:
            task.cancel()
        # First: what is not sent now is sent after the next start.
        self.sender.close()
        await super().close()

    # -- tasks ----------------------------------------------------------------------------

    async def _abort_overdue(self) -> None:
        config = self.config
        while True:
            delay_ms = config.transaction_abort_timed_out_transaction_cleanup_interval_ms
            await self.env.sleep(delay_ms / 1000)
            await self._each("aborting overdue transactions", TransactionCoordinator.abort_overdue)

    async def _expire(self) -> None:
        config = self.config
        while True:
            delay_ms = config.transaction_remove_expired_transaction_cleanup_interval_ms
            await self.env.sleep(delay_ms / 1000)
            await self._each("forgetting expired transactional ids", TransactionCoordinator.expire)

    async def _each(self, what: str, act: CoordinatorTask) -> None:
        for coordinator in self.list_led():
            try:
                await act(coordinator)
            # A defect in one must not end the task of all.
            except Exception:
                coordinator.appender.log_defect(what)

    # -- requests -------------------------------------------------------------------------

    def request_decision(
        self, request: Request, reply: Reply, decided: Callable[[], None] | None = None
    ) -> None:
        """Have the coordinator of an id decide a request now; `reply` is called with its answer,
        perhaps before this returns, and `decided` as by the coordinator. Hot."""
        # What is wrong whatever the state of the id is answered by any broker (as in Kafka).
        code = self._check(request)
        coordinator = self.find_coordinator(request.transactional_id)
        if code is ErrorCode.NONE and coordinator is not None:
            coordinator.request_decision(request, reply, decided)
        else:
            reply(Answer(code or self.absence(request.transactional_id)))

    def answer_request(
        self, request: Request, decided: Callable[[], None] | None = None
    ) -> asyncio.Future[Answer]:
        future = answer_future()
        self.request_decision(request, partial(settle_answer, future), decided)
        return future

    def _check(self, request: Request) -> ErrorCode:
        if isinstance(request, InitProducer):
            return check_request(request, self.config)
        return ErrorCode.NONE if request.transactional_id else ErrorCode.INVALID_REQUEST

    async def init_producer(
        self, request: InitProducer | None, decided: Callable[[], None] | None = None
    ) -> Answer:
        """InitProducerId; None: without a transactional id, which takes a fresh producer id.
        `decided` as for `request_decision`."""
        if request is not None:
            return await self.answer_request(request, decided)
        try:
            return Answer(ErrorCode.NONE, await self._take_producer_id(), 0)
        except KafkaError as error:
            return Answer(error.code)

    async def verify(self, request: VerifyPartitions) -> dict[TopicPartition, ErrorCode]:
        coordinator = self.find_coordinator(request.transactional_id)
        if coordinator is None:
            return dict.fromkeys(request.partitions, self.absence(request.transactional_id))
        return await coordinator.verify(request)

    def answer_at_once(self, request: AddPartitions | VerifyPartitions) -> bool:
        """Whether partitions belong to the open transaction, as the coordinator's `answer_at_once`
        says."""
        # Not by a coordinator elsewhere: its record is in another log than the caller's data.
        coordinator = self.find_coordinator(request.transactional_id)
        return coordinator is not None and coordinator.answer_at_once(request)

    async def wait_for_completion(self, transactional_id: str, timeout_s: float) -> None:
        """Return when no markers of an id are outstanding as known here, or after `timeout_s`."""
        coordinator = self.find_coordinator(transactional_id)
        # Elsewhere: its completion is not known here, so the caller asks again after the time.
        if coordinator is None:
            await self.env.sleep(timeout_s)
        else:
            await coordinator.wait_for_completion(transactional_id, timeout_s)

    # -- operators ------------------------------------------------------------------------

    async def describe(self, transactional_id: str) -> described.TransactionState:
        """One id, with an error of its own."""
        coordinator = self.find_coordinator(transactional_id)
        try:
            if not transactional_id:
                raise KafkaError(ErrorCode.INVALID_REQUEST)
            if coordinator is None:
                raise KafkaError(self.absence(transactional_id))
            return await coordinator.read(
                partial(describe_transaction, coordinator.shard, transactional_id)
            )
        except KafkaError as error:
            return described.TransactionState(
                error_code=int(error.code), transactional_id=transactional_id
            )

    async def find(self, wanted: ListFilter) -> list[listed.TransactionState]:
        """The ids of every partition led here that pass the filters. Raises KafkaError while one of
        them is loading."""
        if self.gained:
            raise KafkaError(CoordinatorPhase.LOADING.value)
        found: list[listed.TransactionState] = []
        for coordinator in self.list_led():
            now_ms = self.env.clock.now_ms()
            shown = await coordinator.read(
                partial(list_transactions, coordinator.shard, wanted, now_ms)
            )
            for each in shown:
                if each is not None:
                    found.append(each)
                await self.env.slices.give_way()
        return found

    async def ids_of(self, producer_ids: Collection[int]) -> dict[int, str]:
        """The transactional ids that have these producer ids now, as far as they are coordinated
        here and loaded."""
        found: dict[int, str] = {}
        for coordinator in self.list_led():
            for transactional_id, at in list(coordinator.shard.transactions.items()):
                if at.producer_id in producer_ids:
                    found[at.producer_id] = transactional_id
                await self.env.slices.give_way()
        return found
