"""The persister: share states at the coordinator that has them, in this broker or another.

A request goes to the share coordinator of its share partition. While that is loading or moves, it
is sent again, for WAIT_S at most. Requests to another broker are sent together: while one message
is on its way, those that come meanwhile wait for its answer and share the next one. Kafka:
PersisterStateManager.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.io.ports import Env
from kafkawire.share.persister import SharePartitionKey, ShareState, StateBatch
from kafkawire.share.state.machine import (
    DeleteState,
    InitializeState,
    ReadState,
    ReadSummary,
    StateAnswer,
    StateRequest,
    WriteState,
)
from kafkawire.share.state.service import ShareStateService, coordinator_key

logger = logging.getLogger(__name__)

WAIT_S = 5.0
"""How long a request is tried (Kafka: share.coordinator.write.timeout.ms)."""
RETRY_S = 0.05
"""Pause between two attempts: a load of a small partition takes as long."""
MAX_AT_ONCE = 200
"""Requests in one message: they are decided there in a few milliseconds."""

AWAY = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.BROKER_NOT_AVAILABLE,
    }
)
"""Errors after which the coordinator is searched for again."""


class RemoteStates(Protocol):
    """The share coordinators of other brokers."""

    async def send(
        self, broker: int, requests: Sequence[StateRequest]
    ) -> dict[tuple[bytes, int], StateAnswer]:
        """Send requests of one kind and one group as one message; return the answers by topic id
        and partition. Raises KafkaError if the outcome is unknown."""
        ...


class _Queued(NamedTuple):
    """A request that waits to be sent to another broker."""

    request: StateRequest
    answer: asyncio.Future[StateAnswer]


class StatePersister:
    """Implements kafkawire.share.persister.Persister, and what group coordinators need of it."""

    def __init__(
        self, env: Env, node_id: int, service: ShareStateService, remote: RemoteStates
    ) -> None:
        self._env = env
        self._node_id = node_id
        self._service = service
        self._remote = remote
        self._queues: dict[int, deque[_Queued]] = {}
        self._sending: set[int] = set()

    # -- for leaders of share partitions --------------------------------------------------

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> ShareState:
        """Return the state, and fence earlier leaders; see Persister."""
        answer = await self.execute(ReadState(key, leader_epoch))
        _check(answer)
        state = answer.state
        assert state is not None
        return ShareState(
            state.state_epoch, state.start_offset, state.batches, state.delivery_complete_count
        )

    async def write(
        self,
        key: SharePartitionKey,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: tuple[StateBatch, ...],
    ) -> None:
        """Merge `batches` into the state; see Persister."""
        _check(
            await self.execute(
                WriteState(
                    key, state_epoch, leader_epoch, start_offset, delivery_complete_count, batches
                )
            )
        )

    # -- for group coordinators -----------------------------------------------------------

    async def execute_all(
        self, requests: Sequence[InitializeState | DeleteState | ReadSummary]
    ) -> list[StateAnswer]:
        """Return the answers to requests, in their order."""
        answers: list[StateAnswer] = []
        for start in range(0, len(requests), MAX_AT_ONCE):
            part = requests[start : start + MAX_AT_ONCE]
            answers += await asyncio.gather(*map(self.execute, part))
        return answers

    # -- requests -------------------------------------------------------------------------

    async def execute(self, request: StateRequest) -> StateAnswer:
        """Return the answer of the coordinator, or the error with which the last attempt ended."""
        # Nearly always: it is here and active.
        local = self._service.handle_request(request)
        answer = StateAnswer(ErrorCode.NOT_COORDINATOR) if local is None else await local
        if answer.code not in AWAY:
            return answer
        clock = self._env.clock
        deadline = clock.monotonic() + WAIT_S
        while answer.code in AWAY:
            answer = await self._attempt(request)
            if answer.code in AWAY:
                if clock.monotonic() >= deadline:
                    break
                await self._env.sleep(RETRY_S)
        return answer

    async def _attempt(self, request: StateRequest) -> StateAnswer:
        try:
            partition = await self._service.coordinator_of(coordinator_key(request.key))
        except KafkaError as error:
            logger.warning("cannot create topic %s: %s", self._service.topic, error)
            return StateAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message)
        if partition.leader != self._node_id:
            return await self._send(partition.leader, request)
        local = self._service.handle_request(request)
        if local is None:
            return StateAnswer(self._service.absence(coordinator_key(request.key)))
        return await local

    async def _send(self, broker: int, request: StateRequest) -> StateAnswer:
        answer: asyncio.Future[StateAnswer] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(broker, deque()).append(_Queued(request, answer))
        if broker not in self._sending:
            self._sending.add(broker)
            self._env.spawn(self._drain(broker), f"share states to broker {broker}")
        return await answer

    async def _drain(self, broker: int) -> None:
        queue = self._queues[broker]
        try:
            while queue:
                sent = _take_alike(queue)
                await self._send_together(broker, sent)
        finally:
            self._sending.discard(broker)
            for _, answer in queue:  # of a task that was cancelled
                _settle(answer, StateAnswer(ErrorCode.NETWORK_EXCEPTION))
            queue.clear()

    async def _send_together(self, broker: int, sent: Sequence[_Queued]) -> None:
        answers: dict[tuple[bytes, int], StateAnswer] = {}
        lost = StateAnswer(ErrorCode.UNKNOWN_SERVER_ERROR)
        try:
            answers = await self._remote.send(broker, [each.request for each in sent])
        except KafkaError as error:
            lost = StateAnswer(error.code, error.message)
        finally:
            for request, answer in sent:
                key = request.key
                _settle(answer, answers.get((key.topic_id, key.partition), lost))


def _take_alike(queue: deque[_Queued]) -> list[_Queued]:
    """Remove and return the first request, and others that one message can have together with
    it."""
    first = queue.popleft()
    taken, left, keys = [first], [], {first.request.key}
    while queue and len(taken) < MAX_AT_ONCE:
        each = queue.popleft()
        key = each.request.key
        # Two requests about a share partition would have one answer.
        alike = type(each.request) is type(first.request) and key not in keys
        if alike and key.group_id == first.request.key.group_id:
            taken.append(each)
        else:
            left.append(each)
        keys.add(key)
    queue.extendleft(reversed(left))
    return taken


def _settle(future: asyncio.Future[StateAnswer], answer: StateAnswer) -> None:
    # Cancelled, if its connection has closed.
    if not future.done():
        future.set_result(answer)


def _check(answer: StateAnswer) -> None:
    """Raise the error of an answer."""
    if answer.code is not ErrorCode.NONE:
        raise KafkaError(answer.code, answer.message)
