"""Seeded histories of committed and pending offsets, compared with a model after every step.

Producers commit in transactions, consumers without; offsets, topics and groups are deleted, and
expire; write batches fail, the coordinator is killed and loaded from snapshot and log, the log is
compacted. Invariants:
- current and pending offsets are what the log means by Kafka's rule of record offsets;
- after every step a load, with and without a snapshot, gives the same state, and a backup has it;
- what was acknowledged is in the log after every failure;
- a group exists as long as it has offsets, pending ones included.

`SIM_SEEDS=500 pytest tests/groups/test_pending_simulation.py` runs more.
"""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any

import pytest

from kafkawire.cli.backup import LiveRecords
from kafkawire.codec.batches import read_head
from kafkawire.codec.errors import ErrorCode
from kafkawire.coordination import snapshot
from kafkawire.groups.load import GroupLoader
from kafkawire.groups.model.records import encode_record
from kafkawire.groups.pending import PendingOffsets
from kafkawire.groups.snapshot import group_snapshot
from kafkawire.messages.delete_groups import DeleteGroupsRequest
from tests.kit.groups.desk import commit_of, offset_delete
from tests.kit.groups.log import Bench
from tests.kit.groups.model import known
from tests.kit.groups.pending_model import compacted, meaning
from tests.kit.groups.transactions import codes, ending, stable, verified
from tests.kit.waiting import ticks, until

SEEDS = int(os.environ.get("SIM_SEEDS", "20"))
STEPS = 60
GROUPS = ("g", "h")
TOPICS = ("t", "u")
PRODUCERS = (4001, 4002, 4003)
MINUTE_MS = 60_000


class History:
    """One coordinator and what happens to it."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.bench = Bench(offsets_retention_minutes=5).begin()
        self.number = 0
        self.asked: list[tuple[int, asyncio.Future[Any]]] = []
        self.acked: list[int] = []

    @property
    def shard(self) -> Any:
        return self.bench.coordinator.shard

    def some(self) -> dict[tuple[str, int], int]:
        """Some partitions, with an offset that occurs once."""
        self.number += 1
        places = [(t, p) for t in TOPICS for p in range(2)]
        chosen = self.dice.sample(places, self.dice.randrange(1, 4))
        return dict.fromkeys(chosen, self.number)

    def request(self) -> Any:
        dice, group = self.dice, self.dice.choice(GROUPS)
        producer = dice.choice(PRODUCERS)
        match dice.randrange(12):
            case 0 | 1 | 2:
                return commit_of(self.some(), group=group)
            case 3 | 4 | 5 | 6:
                return verified(self.some(), producer=producer, group=group)
            case 7 | 8:
                return ending(commit=True, producer=producer)
            case 9:
                return ending(commit=False, producer=producer)
            case 10:
                request = offset_delete(*self.some())
                request.group_id = group
                return request
            case _ if dice.random() < 0.3:
                return DeleteGroupsRequest(groups_names=[group])
            case _:
                return stable(group, *((t, 0) for t in TOPICS))

    async def step(self) -> None:
        dice, bench = self.dice, self.bench
        for _ in range(dice.randrange(1, 4)):  # some of them share a write batch
            request = self.request()
            self.asked.append((self.number, bench.ask(request)))
            if hasattr(request, "group"):
                self.check_stable(request, self.asked[-1][1])
        match dice.randrange(12):
            case 0:
                bench.coordinator.forget_topic(dice.choice(TOPICS))
            case 1:
                bench.env.clock.ms += dice.randrange(4 * MINUTE_MS)  # type: ignore[attr-defined]
                await bench.coordinator._expire(bench.coordinator._life)
            case 2:
                await ticks()
                bench.log.fail()
                await until(lambda: bench.active)
                self.collect()
            case _:
                pass
        await self.settle()
        if dice.random() < 0.3:
            await bench.coordinator._store(0)
        if dice.random() < 0.2:
            end = dice.randrange(bench.partition.next_offset + 1)
            # The newest snapshot is younger than delete.retention.ms: see SNAPSHOT_MAX_AGE_MS.
            place = bench.coordinator.place
            found = snapshot.read(bench.env.fs, place)
            expired = end if found is None else min(end, found.next_offset)
            bench.partition.batches = compacted(bench.partition.batches, end, expired)

    def check_stable(self, request: Any, answer: asyncio.Future[Any]) -> None:
        """RequireStable shows what the shard has at this moment."""
        found = self.shard.offsets.pending.pending_partitions(request.group.group_id)

        def check(done: asyncio.Future[Any]) -> None:
            if done.cancelled() or done.result().error_code:
                return
            shown = [code == ErrorCode.UNSTABLE_OFFSET_COMMIT for code in codes(done.result())]
            assert shown == expected

        expected = [(t, 0) in found for t in TOPICS]
        answer.add_done_callback(check)

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)
            self.bench.log.commit()
        self.collect()
        assert not self.asked

    def collect(self) -> None:
        waiting = []
        for number, answer in self.asked:
            if not answer.done():
                waiting.append((number, answer))
            elif hasattr(answer.result(), "topics") and set(codes(answer.result())) == {0}:
                self.acked.append(number)
        self.asked = waiting

    async def check(self) -> None:
        state = known(self.shard)
        log = meaning(self.bench.partition.batches)
        offsets = {
            (group, topic, partition): value.offset
            for group, topics in state["offsets"].items()
            for topic, partitions in topics.items()
            for partition, value in partitions.items()
        }
        assert offsets == log.offsets
        pending = {
            (p.producer_id, (p.record.group_id, p.record.topic, p.record.partition),
             p.record.value.offset)
            for p in state["pending"]
        }  # fmt: skip
        assert pending == log.open
        assert {key[0] for key in offsets} | {key[0] for _, key, _ in pending} <= set(
            state["groups"]
        )
        backed_up = LiveRecords()
        for batch in self.bench.partition.batches:
            backed_up.add(batch, 0, read_head(batch), 0, 1 << 40)
        contents = backed_up.contents(0)
        assert {pair for pair in contents.pairs if pair[0][:2] == b"\0\1"} == {
            encode_record(record) for record in self.shard.offsets.records()
        }
        stored = [(p.producer_id, p.superseded, *encode_record(p.record)) for p in state["pending"]]
        assert contents.pending == stored
        for folder in ("/groups", "/nowhere"):
            assert await self.loaded(folder) == state, folder

    async def loaded(self, folder: str) -> dict[str, Any]:
        partition, log, settings = self.bench.partition, self.bench.log, self.bench.settings
        place = group_snapshot(folder, partition.topic_id, partition.index)
        arguments: Any = (self.bench.env, settings, partition, log, place)
        found = GroupLoader(*arguments)
        await found.load()
        assert found.next_offset == self.bench.coordinator.appender.next_offset
        return known(found.shard)


async def simulate(seed: int) -> History:
    history = History(seed)
    for step in range(STEPS):
        try:
            await history.step()
            await history.check()
            if history.dice.random() < 0.2:
                await history.bench.reload()
                await history.settle()
        except Exception as error:
            raise AssertionError(f"seed {seed}, step {step}") from error
    history.bench.coordinator.timers.clear()
    return history


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_pending_offsets_follow_the_log(seed: int) -> None:
    history = await simulate(seed)
    assert len(history.acked) > 20


async def refused(changes: pytest.MonkeyPatch) -> bool:
    """Whether the simulation fails with the code as changed."""
    for seed in range(10):
        try:
            await simulate(seed)
        except AssertionError:
            changes.undo()
            return True
    changes.undo()
    return False


@pytest.mark.parametrize("mutation", ["supersede", "drop", "order"])
async def test_simulation_finds_mutations(mutation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if mutation == "supersede":  # a marker always wins
        monkeypatch.setattr(PendingOffsets, "supersede", lambda *_: None)
    elif mutation == "drop":  # a tombstone leaves pending offsets
        monkeypatch.setattr(PendingOffsets, "remove", lambda *_: None)
    else:  # of two transactions the first to end wins
        supersede = PendingOffsets.supersede
        monkeypatch.setattr(
            PendingOffsets, "supersede", lambda self, key, before=None: supersede(self, key)
        )
    assert await refused(monkeypatch)
