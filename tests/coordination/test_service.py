"""The coordinators of all partitions of a topic are created in slices, and closed with the service.

Covers: kafkawire.coordination.service, kafkawire.coordination.coordinator,
kafkawire.coordination.appender, kafkawire.coordination.loader.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kafkawire.codec.errors import ErrorCode
from kafkawire.coordination.service import CoordinatorService
from tests.kit.groups.log import fake_env

PARTITIONS = 50


class OneCoordinator:
    """The calls that it got."""

    def __init__(self, index: int) -> None:
        self.calls: list[str] = []
        self.partition = SimpleNamespace(index=index)

    def start(self) -> None:
        self.calls.append("start")

    def begin_empty(self) -> None:
        self.calls.append("begin")

    async def close(self, _patience_s: float) -> None:
        self.calls.append("close")


class Service(CoordinatorService[Any]):
    """`slices` counts the places where the event loop may run on."""

    topic = "__state"

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *topics: str) -> None:
        catalog: Any = type("Catalog", (), {"by_name": dict.fromkeys(topics)})
        super().__init__(fake_env(), catalog, self.internal)
        self.created: list[OneCoordinator] = []
        self.slices = 0
        self.close_after = -1
        monkeypatch.setattr(type(self.env.slices), "give_way", self.give_way)

    async def give_way(self) -> None:
        self.slices += 1
        if self.slices == self.close_after:
            await self.close()

    async def internal(self) -> Any:
        return [None, *range(1, PARTITIONS)]

    def new_coordinator(self, partition: Any) -> OneCoordinator:
        self.created.append(OneCoordinator(partition))
        return self.created[-1]

    @staticmethod
    def partition_of(name: str, partitions: int) -> int:
        return int(name) % partitions


@pytest.mark.parametrize(("topics", "call"), [((), "begin"), (("__state",), "start")])
async def test_they_are_created_in_slices(
    topics: tuple[str, ...], call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(monkeypatch, *topics)
    await service.open()
    await service.open()
    assert [each.calls for each in service.created] == [[call]] * (PARTITIONS - 1)
    assert service.slices >= PARTITIONS
    assert service.find_coordinator("0") is None
    assert service.find_coordinator("51") is service.created[0]
    assert service.absence("1") is ErrorCode.NOT_COORDINATOR
    await service.close()
    assert all(each.calls == [call, "close"] for each in service.created)
    assert service.absence("1") is ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.mark.parametrize("topics", [(), ("__state",)])
async def test_a_service_closed_while_it_opens_closes_what_it_created(
    topics: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(monkeypatch, *topics)
    service.close_after = 3
    await service.open()
    assert all(each.calls[-1] == "close" for each in service.created)


async def test_nothing_is_created_at_a_start_without_the_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = Service(monkeypatch)
    await service.start()
    assert not service.created
    assert service.find_coordinator("1") is None
