"""Writes for partitions that the broker has led in an earlier term are refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from functools import partial
from pathlib import Path

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.metadata import pairing
from kafkawire.metadata.catalog import NewTopic
from kafkawire.metadata.checkpoint import Checkpoint, PartitionCheckpoint
from kafkawire.metadata.session import Session
from kafkawire.metadata.sql import SqlMetadata
from kafkawire.metadata.store import OlderMetadata
from kafkawire.offsets.catalog.port import STARTED, SegmentRow
from kafkawire.offsets.catalog.sql import statements
from kafkawire.offsets.catalog.sql.storage import SqlStorage
from tests.kit.postgres import new_database

WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.real)])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return await new_database(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path}/metadata.db"


@pytest.fixture
async def store(url: str) -> AsyncIterator[SqlMetadata]:
    made = SqlMetadata(url)
    await made.open()
    await made.register_broker(1, {}, None)
    yield made
    await made.close()


async def move(store: SqlMetadata, numbers: list[int], leader: int) -> None:
    seen = (await store.changes_since(0)).version
    await store.move_partitions(numbers, leader, seen)


def led_in(numbers: list[int], epochs: dict[int, int], session: Session) -> Collection[int]:
    return statements.require_leader(
        session, numbers, 1, statements.LeaderTerm(epochs.get, lambda: 1)
    )


async def test_write_of_earlier_term_is_refused(store: SqlMetadata, url: str) -> None:
    (info,) = await store.create_topics([NewTopic("t", [1, 1])])
    moved, kept = (partition.number for partition in info.partitions)
    known = {moved: 0, kept: 0}
    life = 1
    term = statements.LeaderTerm(known.get, lambda: life)
    storage = SqlStorage(store, 1, lambda: 0, term)
    states = [PartitionCheckpoint(number, 10, 0) for number in (moved, kept)]
    await storage.save_checkpoint(Checkpoint(1, 5, states))
    await move(store, [moved], 2)
    refused: list[Callable[[], Awaitable[None]]] = [
        partial(storage.save_checkpoint, Checkpoint(1, 6, states)),
        partial(storage.save_tiering_offsets, {moved: (3, 3)}),
    ]
    for call in refused:
        with pytest.raises(KafkaError) as caught:
            await call()
        assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    await move(store, [moved], 1)  # this broker leads it again, in epoch 2
    for call in refused:
        with pytest.raises(KafkaError):
            await call()
    assert await storage.load_log_position(1) == 5
    known[moved] = 2
    await storage.save_checkpoint(Checkpoint(1, 6, states))
    assert await storage.load_log_position(1) == 6
    await store.register_broker(1, {}, None)  # the same process: the same term
    await storage.save_checkpoint(Checkpoint(1, 7, states))
    again = SqlMetadata(url)
    await again.open()
    await again.register_broker(1, {}, None)  # another start of this broker
    await again.close()
    with pytest.raises(KafkaError):
        await storage.save_checkpoint(Checkpoint(1, 8, states))
    life = 2
    await storage.save_checkpoint(Checkpoint(1, 8, states))


async def test_no_change_is_stored_in_an_older_copy(store: SqlMetadata) -> None:
    """Not even if only the last transaction is missing, as after a switch to a standby server."""
    (info,) = await store.create_topics([NewTopic("t", [1])])
    number = info.partitions[0].number
    await store.transact(lambda session: pairing.pair(session, 1, bytes(16), 1))
    storage = SqlStorage(store, 1, lambda: 0, None, pairing.SeenInSql(metadata_id=bytes(16)))
    for place in (5, 6):
        state = PartitionCheckpoint(number, place, 0)
        await storage.save_checkpoint(Checkpoint(1, place, [state]))
    older = "UPDATE data_folders SET generation = generation - 1"
    await store.transact(lambda session: session.run(older))
    changes: list[Callable[[], Awaitable[object]]] = [
        partial(storage.save_checkpoint, Checkpoint(1, 7, [])),
        partial(storage.start_segments, [SegmentRow(bytes(16), 1, 0)]),
        partial(storage.remove_mappings, {number: 1}),
        partial(storage.set_due, None, 1),
        partial(storage.save_tiering_offsets, {number: (3, 3)}),
    ]
    for change in changes:
        with pytest.raises(OlderMetadata, match="its generation is"):
            await change()
    assert await storage.load_log_position(1) == 6
    assert await storage.segments(1, [STARTED], 10) == []


@pytest.mark.real
async def test_next_start_waits_for_transactions_of_this_one(postgres_url: str) -> None:
    """It would otherwise load rows before this process changes them."""
    url = await new_database(postgres_url)
    store = SqlMetadata(url)
    await store.open()
    await store.register_broker(1, {}, None)
    (info,) = await store.create_topics([NewTopic("t", [1])])
    checked = asyncio.Event()
    registered = threading.Event()
    loop = asyncio.get_running_loop()

    def transaction(session: Session) -> int:
        statements.require_leader(
            session, [info.partitions[0].number], 1, statements.LeaderTerm(lambda _: 0, lambda: 1)
        )
        loop.call_soon_threadsafe(checked.set)
        waiting = 0
        while not waiting and not registered.is_set():
            ((waiting,),) = session.rows(WAITING)
        assert not registered.is_set()
        return waiting

    async def register() -> None:
        await checked.wait()
        other = SqlMetadata(url)
        await other.open()
        await other.register_broker(1, {}, None)
        registered.set()
        await other.close()

    _, waiting = await asyncio.gather(register(), store.transact(transaction))
    assert waiting == 1
    await store.close()


async def test_partitions_are_compared_in_parts(
    store: SqlMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statements, "CHECKED_AT_ONCE", 3)
    (info, gone) = await store.create_topics([NewTopic("t", [1] * 8), NewTopic("gone", [1])])
    await store.delete_topics([gone.id])
    numbers = [p.number for each in (info, gone) for p in each.partitions]
    living = await store.transact(
        lambda session: statements.require_leader(session, numbers, 1, None)
    )
    assert sorted(living) == numbers[:-1]
    for wrong in numbers[:-1]:
        epochs = {number: int(number == wrong) for number in numbers}
        with pytest.raises(KafkaError):
            await store.transact(partial(led_in, numbers, epochs))
