"""Moves of partitions, with a log that only takes notes.

Covers: kafkawire.broker.moving.mover, kafkawire.broker.moving.reassignment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from kafkawire.broker.change_log import ChangeLog
from kafkawire.broker.following.applier import CatalogApplier, Moves
from kafkawire.broker.following.lock import CatalogLock
from kafkawire.broker.moving import mover as mover_module
from kafkawire.broker.moving.mover import RETRY_S, PartitionMover
from kafkawire.broker.moving.plan import DRAINING, STOPPING
from kafkawire.broker.moving.reassignment import Reassignment, Wish
from kafkawire.broker.new_topics import check_replicas
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.io.slices import Slices
from kafkawire.metadata.catalog import (
    BROKER_RESOURCE,
    DECOMMISSIONING,
    Catalog,
    ConfigChange,
    NewTopic,
)
from kafkawire.metadata.store import MetadataError
from kafkawire.security.audit import NoAudit
from tests.kit.memory_metadata import MemoryDatabase, MemoryMetadata
from tests.kit.waiting import until

OFFSETS = "__consumer_offsets"


class Log:
    """The log of a broker: what it was asked for. `refuses`: partitions that are not handed over
    now; `fails`: raised once."""

    def __init__(self, steps: list[Any]) -> None:
        self.steps = steps
        self.stopped: set[int] = set()
        self.refuses: set[int] = set()
        self.fails: Exception | None = None
        self.led: Callable[[int], bool] = lambda number: True
        self.commit_log = SimpleNamespace(follower_sink=self)

    def need(self) -> None:
        self.steps.append(("need",))

    async def hand_over(self, numbers: Iterable[int], patience_s: float) -> Any:
        wanted = list(numbers)
        self.steps.append(("hand over", wanted))
        await asyncio.sleep(0)
        if self.fails is not None:
            failure, self.fails = self.fails, None
            raise failure
        ready = [number for number in wanted if number not in self.refuses]
        self.stopped |= set(ready)
        refused = dict.fromkeys(self.refuses & {*wanted}, "busy")
        return SimpleNamespace(ready=ready, refused=refused)

    def resume(self, numbers: Iterable[int]) -> None:
        self.stopped -= {number for number in numbers if self.led(number)}


class Service:
    """A service of coordinators."""

    def __init__(self, steps: list[Any]) -> None:
        self.steps = steps

    async def resign(self, indexes: Iterable[int]) -> None:
        self.steps.append(("resign", list(indexes)))

    async def lead(self, indexes: Iterable[int]) -> None:
        self.steps.append(("lead", list(indexes)))


class Node:
    """Broker 1 of brokers 1 to 4; broker 3 has another data folder."""

    def __init__(self) -> None:
        self.steps: list[Any] = []
        self.now = 0.0
        self.faults: dict[str, Exception] = {}
        self.metadata = MemoryMetadata(MemoryDatabase(), fault=self._fault)
        self.log = Log(self.steps)
        self.service = Service(self.steps)
        self.alive = [1, 2]
        self.candidates: dict[int, str] = {}  # segments that wait for their upload
        self.config = SimpleNamespace(broker_draining=False)

    def _fault(self, method: str) -> Exception | None:
        return self.faults.pop(method, None)

    async def open(self, **topics: list[int]) -> Node:
        self.catalog: Catalog = await self.metadata.open()
        for node, folder in ((1, "a"), (2, "a"), (3, "b"), (4, "a")):
            await self.metadata.register_broker(node, {}, None, folder)
        for name, leaders in topics.items():
            configs = {"durability": "s3"} if name.startswith("s3_") else {}
            new = NewTopic(OFFSETS if name == "_o" else name, leaders, configs)
            (info,) = await self.metadata.create_topics([new])
            self.catalog.add_topic(info)
        self.catalog.note_version(await self.metadata.catalog_version())
        self.log.led = lambda number: self.catalog.leader_of(number) == 1
        slices = Slices(lambda: 0.0)
        env = SimpleNamespace(
            slices=slices,
            clock=SimpleNamespace(monotonic=lambda: self.now),
            hooks=None,
            spawn=lambda work, name: asyncio.ensure_future(work),
            sleep=lambda seconds: asyncio.sleep(0),
        )
        broker: Any = SimpleNamespace(
            catalog=self.catalog, node_id=1, log=self.log, env=env, metadata=self.metadata,
            config=self.config, tiering=SimpleNamespace(dispatcher=self),
        )  # fmt: skip
        applier = CatalogApplier(broker, lambda topic: None, self._nothing, self._moved)
        lock = CatalogLock(self.catalog, self.metadata, applier.apply)
        services: Any = {OFFSETS: self._service}
        self.mover = PartitionMover(broker, lock, services, lambda: self.alive)
        changes = ChangeLog(lambda: 0.0, NoAudit())
        self.reassignment = Reassignment(broker, lock, changes, check_replicas, self.mover.check)
        return self

    async def plan(self, only: int | None = None, **targets: int) -> None:
        """Store planned moves of all partitions of topics, or of `only` one of each."""
        for name, target in targets.items():
            rows = self.catalog.by_name[name].partitions
            moves = {row.number: target for row in rows if only in (None, row.index)}
            await self.metadata.plan_moves(moves, self.catalog.stored_version)
            self.catalog.set_moves(moves)

    async def _nothing(self, names: Iterable[str]) -> None:
        pass

    async def _moved(self, moves: Moves) -> None:
        self.steps.append(("lost", moves.lost))

    async def _service(self) -> Any:
        return self.service

    async def ask(self, *wishes: tuple[str, int, list[int] | None]) -> list[ErrorCode | None]:
        found = await self.reassignment.alter([Wish(*wish) for wish in wishes], "tests")
        return [None if error is None else error.code for error in found]

    async def settle(self) -> None:
        """Check for work until a check finds none."""
        for _ in range(20):
            self.mover.check()
            await asyncio.sleep(0.001)

    def leaders(self, name: str) -> list[int]:
        return [p.leader for p in self.catalog.by_name[name].partitions]


async def test_partitions_are_stopped_before_their_leader_changes() -> None:
    node = await Node().open(t=[1, 1, 1])
    assert await node.ask(("t", 0, [2]), ("t", 2, [2])) == [None, None]
    await until(lambda: node.leaders("t") == [2, 1, 2])
    assert node.steps[:2] == [("hand over", [1, 3]), ("lost", [1, 3])]
    assert node.catalog.moves == {}
    stored = await MemoryMetadata(node.metadata._database).open()
    assert [p.leader_epoch for p in stored.by_name["t"].partitions] == [1, 0, 1]
    assert node.log.stopped == {1, 3}  # another broker leads them


async def test_coordinators_end_before_their_partition_is_stopped() -> None:
    node = await Node().open(_o=[1, 1], t=[1])
    await node.ask((OFFSETS, 1, [2]), ("t", 0, [2]))
    await until(lambda: node.leaders(OFFSETS) == [1, 2] and node.leaders("t") == [2])
    at = node.steps.index(("resign", [1]))
    assert node.steps[at + 1] == ("hand over", [2])
    assert ("lead", []) in node.steps


async def test_failed_move_allows_appends_again_and_is_repeated() -> None:
    node = await Node().open(_o=[1])
    node.faults["move_partitions"] = MetadataError("the disk is full")
    await node.ask((OFFSETS, 0, [2]))
    await until(lambda: ("lead", [0]) in node.steps)
    await node.settle()
    assert (node.leaders(OFFSETS), node.log.stopped) == ([1], set())
    assert sum(step[0] == "hand over" for step in node.steps) == 1  # not at once
    node.log.fails = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
    for _ in range(2):
        node.now += RETRY_S
        await node.settle()
    assert node.leaders(OFFSETS) == [2]


async def test_refused_partition_waits_and_the_others_move() -> None:
    node = await Node().open(t=[1, 1])
    node.log.refuses = {1}
    await node.ask(("t", 0, [2]), ("t", 1, [2]))
    await until(lambda: node.leaders("t") == [1, 2])
    assert node.catalog.moves == {1: 2}
    node.log.refuses.clear()
    node.now += RETRY_S
    await node.settle()
    assert node.leaders("t") == [2, 2]


async def test_move_to_a_broker_that_is_not_alive_waits() -> None:
    node = await Node().open(t=[1])
    node.catalog.set_silent(frozenset({2}))
    await node.ask(("t", 0, [2]))
    await node.settle()
    assert node.steps == []
    node.catalog.set_silent(frozenset())
    await node.settle()
    assert node.leaders("t") == [2]


async def test_move_that_has_become_impossible_is_cancelled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = await Node().open(t=[1])
    (number,) = (p.number for p in node.catalog.by_name["t"].partitions)
    await node.metadata.plan_moves({number: 3}, node.catalog.stored_version)
    node.catalog.set_moves({number: 3})
    await node.settle()
    assert (node.catalog.moves, node.leaders("t")) == ({}, [1])
    assert "partition t-0 is not moved" in caplog.text


@pytest.mark.parametrize(("wish", "code"), [
    (("t", 0, [3]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    (("t", 0, [9]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    (("t", 0, []), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    (("t", 0, [1, 2]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    (("t", 0, [2, 2]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    (("t", 7, [2]), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (("t", -1, [2]), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (("absent", 0, [2]), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (("t", 0, None), ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
    (("t", 0, [1]), None),
])  # fmt: skip
async def test_impossible_moves_are_refused(
    wish: tuple[str, int, list[int] | None], code: ErrorCode | None
) -> None:
    node = await Node().open(t=[1])
    assert await node.ask(wish) == [code]
    assert node.catalog.moves == {}


async def test_planned_move_is_cancelled_by_its_leader_or_no_replicas() -> None:
    node = await Node().open(t=[1, 1])
    node.catalog.set_silent(frozenset({2}))
    await node.ask(("t", 0, [2]), ("t", 1, [2]))
    assert node.catalog.moves == {1: 2, 2: 2}
    assert await node.ask(("t", 0, None), ("t", 1, [1])) == [None, None]
    assert node.catalog.moves == {}
    assert (await MemoryMetadata(node.metadata._database).open()).moves == {}


async def test_draining_broker_hands_over_all_that_it_leads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mover_module, "PLANNED_AT_ONCE", 4)
    monkeypatch.setattr(mover_module, "BATCH", 3)
    node = await Node().open(t=[1] * 9, u=[2, 1], v=[3])
    node.config.broker_draining = True
    node.alive = [1, 3]  # none has the same folder
    await node.settle()
    assert node.leaders("t") == [1] * 9
    node.alive = [1, 2, 3]
    node.now += RETRY_S
    await until(lambda: node.mover.check() or 1 not in node.leaders("t") + node.leaders("u"))  # type: ignore[func-returns-value]
    assert (node.leaders("t"), node.leaders("v")) == ([2] * 9, [3])
    assert max(len(step[1]) for step in node.steps if step[0] == "hand over") <= 3


async def test_drained_broker_reports_once_that_it_leads_nothing() -> None:
    node = await Node().open(t=[1, 1, 2])
    reports: list[list[int]] = []
    node.mover.when_idle(lambda: reports.append(node.leaders("t")))
    await node.settle()
    assert reports == []  # it is not drained
    node.config.broker_draining = True
    node.candidates[7] = "a segment"
    await node.settle()
    assert (node.leaders("t"), reports) == ([2, 2, 2], [])
    node.candidates.clear()
    await until(lambda: node.mover.check() or bool(reports))  # type: ignore[func-returns-value]
    await node.settle()
    assert reports == [[2, 2, 2]]


async def test_brokers_that_are_drained_too_get_nothing() -> None:
    node = await Node().open(t=[1])
    node.config.broker_draining = True
    node.catalog.apply_config(ConfigChange(BROKER_RESOURCE, "2", DRAINING, "true"))
    await node.settle()
    assert (node.leaders("t"), node.catalog.moves) == ([1], {})


async def test_broker_that_is_to_get_replicated_partitions_begins_to_replicate() -> None:
    node = await Node().open(t=[2], s3_u=[2])
    await node.plan(t=1, s3_u=1)
    await node.settle()
    assert ("need",) not in node.steps
    (info,) = await node.metadata.create_topics([NewTopic("r", [2], {"durability": "replicated"})])
    node.catalog.add_topic(info)
    await node.plan(r=1)
    await node.settle()
    assert ("need",) in node.steps


async def test_reassignment_to_a_broker_that_is_drained_is_refused() -> None:
    node = await Node().open(t=[1])
    node.catalog.apply_config(ConfigChange(BROKER_RESOURCE, "2", DRAINING, "true"))
    assert await node.ask(("t", 0, [2])) == [ErrorCode.INVALID_REPLICA_ASSIGNMENT]


@pytest.mark.parametrize("setting", [DRAINING, STOPPING])
async def test_move_to_a_broker_that_hands_over_its_own_waits(setting: str) -> None:
    node = await Node().open(t=[1])
    await node.plan(t=2)
    node.catalog.apply_config(ConfigChange(BROKER_RESOURCE, "2", setting, "true"))
    await node.settle()
    assert (node.leaders("t"), node.catalog.moves) == ([1], {1: 2})
    node.catalog.apply_config(ConfigChange(BROKER_RESOURCE, "2", setting, None))
    await node.settle()
    assert node.leaders("t") == [2]


async def test_drain_does_not_wait_for_a_broker_that_is_not_alive() -> None:
    """The partition was to be moved to broker 4, which is gone: it still is, afterwards."""
    node = await Node().open(t=[1, 1])
    await node.plan(t=4)
    node.catalog.set_silent(frozenset({4}))
    node.config.broker_draining = True
    await node.settle()
    assert (node.leaders("t"), node.catalog.moves) == ([2, 2], {1: 4, 2: 4})


async def test_drain_does_not_move_back_to_what_it_chose_before() -> None:
    node = await Node().open(t=[1])
    node.log.refuses = {1}
    node.config.broker_draining = True
    await node.settle()
    assert node.catalog.moves == {1: 2}
    node.catalog.set_silent(frozenset({2}))
    node.alive = [1, 4]
    node.log.refuses.clear()
    node.now += RETRY_S
    await node.settle()
    assert (node.leaders("t"), node.catalog.moves) == ([4], {})


async def test_broker_that_stops_hands_over_what_other_machines_can_lead() -> None:
    node = await Node().open(t=[1, 1], s3_u=[1, 1, 2])
    node.alive = [1, 2]  # broker 2 has the same data folder, and stops at the same time
    assert await node.mover.remaining() == 0
    node.alive = [1, 2, 3]
    assert await node.mover.remaining() == 2
    node.mover.leave()
    await node.settle()
    assert await node.mover.remaining() == 0
    assert (node.leaders("t"), node.leaders("s3_u")) == ([1, 1], [3, 3, 2])
    assert node.catalog.moves == {3: 1, 4: 1}
    assert (await MemoryMetadata(node.metadata._database).open()).moves == {3: 1, 4: 1}


async def test_decommissioned_broker_hands_over_all_and_gets_nothing_back() -> None:
    """Also if its process stops meanwhile: another machine continues."""
    for stops in (False, True):
        node = await Node().open(t=[1, 1], s3_u=[1])
        node.catalog.apply_config(ConfigChange(BROKER_RESOURCE, "1", DECOMMISSIONING, "true"))
        node.alive = [1, 3] if stops else [1, 2, 3]
        if stops:
            node.mover.leave()
        node.mover.check()
        await node.settle()
        assert node.leaders("s3_u") == [3 if stops else 2]
        assert (node.leaders("t"), node.catalog.moves) == ([1, 1] if stops else [2, 2], {})


async def test_partition_of_a_third_broker_goes_back_to_that_one() -> None:
    """Broker 1 leads it while broker 4 is stopped, and then stops, too."""
    node = await Node().open(s3_u=[1, 1])
    await node.plan(s3_u=4, only=0)
    node.catalog.set_silent(frozenset({4}))
    node.alive = [1, 3]
    node.mover.leave()
    await node.settle()
    assert (node.leaders("s3_u"), node.catalog.moves) == ([3, 3], {1: 4, 2: 1})


async def test_close_ends_a_move_in_progress() -> None:
    node = await Node().open(t=[1])
    await node.ask(("t", 0, [2]))
    await node.mover.close()
    assert node.log.stopped == set() or node.leaders("t") == [2]
    await node.mover.close()
