"""The port to the share coordinators, which have the states of share partitions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from kafkawire.codec.errors import ErrorCode
from kafkawire.share.state.machine import DeleteState, InitializeState, ReadSummary, StateAnswer


class ShareStates(Protocol):
    """The share coordinators, here and at other brokers."""

    async def execute_all(
        self, requests: Sequence[InitializeState | DeleteState | ReadSummary]
    ) -> list[StateAnswer]:
        """Return the answers to requests, in their order, once what they change is durable."""
        ...


class LoadedShareStates:
    """Share coordinators that are loaded when a share group first needs them."""

    def __init__(self, load: Callable[[], Awaitable[ShareStates]]) -> None:
        self._load = load

    async def execute_all(
        self, requests: Sequence[InitializeState | DeleteState | ReadSummary]
    ) -> list[StateAnswer]:
        return await (await self._load()).execute_all(requests)


class NoShareStates:
    """A cluster without share coordinators."""

    async def execute_all(
        self, requests: Sequence[InitializeState | DeleteState | ReadSummary]
    ) -> list[StateAnswer]:
        return [StateAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE) for _ in requests]
