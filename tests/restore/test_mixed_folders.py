"""Folders that two metadata databases wrote to, one after the other: nothing of either is lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from kafkawire.fsck.check import check
from kafkawire.log.manager import Log
from kafkawire.log.recovery.identity import IdentityError
from kafkawire.progress import silent
from kafkawire.restore.data_folder import gather_from_folder
from kafkawire.restore.plan import plan_restore, recovered_name
from tests.kit.env import EPOCH_MS, OffloadWorker
from tests.kit.log.cutting import cut, expected, fill, started
from tests.kit.log.logs import FOLDER, World, batch, read_all
from tests.kit.memory_metadata import MemoryDatabase
from tests.kit.waiting import settle
from tests.restore.test_rebuild import clean, rebuilt


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Disable the check that a folder and its metadata belong together, as in earlier versions."""

    async def accept(*_: object) -> None:
        return

    with monkeypatch.context() as patch:
        patch.setattr("kafkawire.log.manager.check_known", accept)
        patch.setattr("kafkawire.log.segments.manager.check_records", accept)
        yield patch


async def begin(world: World) -> None:
    """Start another process, with a worker of its own."""
    world.env = replace(world.env, worker=OffloadWorker(world.env.offload, world.fs))
    await world.start()


async def lose_metadata(world: World, seed: int) -> None:
    """Stop, and start with an empty database: partition numbers start again."""
    await world.log.close()
    world.database = MemoryDatabase(seed=seed)
    await begin(world)


async def write(world: World, name: str, word: bytes, count: int) -> None:
    partition = world.find(name)
    for at in range(count):
        value = b"%s %d" % (word, at) + bytes(400)
        partition.append(batch(value, timestamp_ms=EPOCH_MS + at), EPOCH_MS)
        await partition.log.wait_until_committed()
    await settle()


def words(records: list[tuple[int, bytes | None]]) -> list[tuple[int, bytes]]:
    return [(offset, (value or b"").rstrip(b"\0")) for offset, value in records]


def wanted(word: bytes, count: int) -> list[tuple[int, bytes]]:
    return [(at, b"%s %d" % (word, at)) for at in range(count)]


@pytest.mark.parametrize("cut_first", [False, True])
async def test_topics_of_same_name_and_number_are_both_kept(
    unchecked: pytest.MonkeyPatch, cut_first: bool
) -> None:
    world = await started(0)
    await world.topic("orders")
    await world.topic("only-before", retention_ms="777")
    await write(world, "orders", b"old", 60)
    await write(world, "only-before", b"before", 30)
    old = world.catalog.by_name["orders"]
    if cut_first:
        await cut(world)
    await lose_metadata(world, 5)
    await world.topic("only-after")
    await world.topic("orders")
    await write(world, "orders", b"new", 45)
    await write(world, "only-after", b"after", 25)
    new = world.catalog.by_name["orders"]
    await world.log.close()
    unchecked.undo()
    report = await check(world.env, FOLDER, 1, world.catalog, world.storage, world.metadata)
    assert not report.clean
    made = await rebuilt(world)
    other = recovered_name("orders", old.id)
    assert sorted(topic.name for topic in made.topics) == [
        "only-after", "only-before", "orders", other,
    ]  # fmt: skip
    assert any(f"the older one is kept as {other}" in text for text in made.texts())
    await clean(world)
    await begin(world)
    assert world.catalog.by_name["orders"].id == new.id
    assert world.catalog.by_name[other].id == old.id
    assert world.catalog.by_name["only-before"].configs == {"retention.ms": "777"}
    assert words(await read_all(world.find("orders"))) == wanted(b"new", 45)
    assert words(await read_all(world.find(other))) == wanted(b"old", 60)
    assert words(await read_all(world.find("only-before"))) == wanted(b"before", 30)
    assert words(await read_all(world.find("only-after"))) == wanted(b"after", 25)
    await goes_on(world, other, 60)


async def goes_on(world: World, name: str, end: int) -> None:
    """Check that offsets continue, also after further ends; and that the folder can be rebuilt once
    more."""
    assert world.find(name).next_offset == end
    await write(world, name, b"later", 40)
    await cut(world)
    await world.log.close()
    await clean(world)
    again = plan_restore(gather_from_folder(world.env, FOLDER, silent), 1)
    assert not again.mixed
    await rebuilt(world)
    await begin(world)
    assert world.find(name).next_offset == end + 40
    assert words(await read_all(world.find(name)))[end:] == [
        (end + at, b"later %d" % at) for at in range(40)
    ]


async def test_old_journals_are_quarantined(unchecked: pytest.MonkeyPatch) -> None:
    world = await started(1)
    await fill(world.find("t0"), 60)
    await cut(world)
    await lose_metadata(world, 5)
    await world.topic("t0")
    await fill(world.find("t0"), 10)
    await world.log.close()
    unchecked.undo()
    await rebuilt(world)
    aside = world.fs.listdir(f"{FOLDER}/quarantine")
    assert any(name.endswith(".journal") for name in aside)
    assert not any(name.endswith(".journal") for name in world.fs.listdir(f"{FOLDER}/journals"))


async def test_folder_without_identity_is_compared_with_metadata(
    unchecked: pytest.MonkeyPatch,
) -> None:
    world = await started(2)
    await fill(world.find("t1"), 60)
    await lose_metadata(world, 5)
    await world.topic("a")
    await world.topic("b")
    await fill(world.find("b"), 10)
    await world.log.close()
    unchecked.undo()
    with pytest.raises(IdentityError, match="does not know t1"):
        await Log.open(
            world.env, FOLDER, world.config, world.catalog, world.storage, world.metadata, 1,
            verify=True,
        )  # fmt: skip


@pytest.mark.parametrize("published", [False, True])
async def test_interrupted_conversion_is_repeated(
    unchecked: pytest.MonkeyPatch, published: bool
) -> None:
    from kafkawire.restore.segment_files import rewrite_folder

    world = await started(1)
    await fill(world.find("t0"), 60)
    await cut(world)
    old = world.catalog.by_name["t0"]
    await lose_metadata(world, 5)
    await world.topic("t0")
    await fill(world.find("t0"), 10)
    await world.log.close()
    unchecked.undo()
    seen = gather_from_folder(world.env, FOLDER, silent)
    first = plan_restore(seen, 1)
    first.cluster_id = "c"
    conversion = rewrite_folder(world.env, FOLDER, seen, first, 1, silent)
    if published:
        conversion.publish()
    await rebuilt(world)
    await clean(world)
    await begin(world)
    assert await read_all(world.find(recovered_name("t0", old.id))) == expected(0, 60)
    assert await read_all(world.find("t0")) == expected(0, 10)


async def test_records_of_unnamed_partitions_get_a_topic() -> None:
    world = await started(1)
    await fill(world.find("t0"), 5)
    await world.log.close()
    seen = gather_from_folder(world.env, FOLDER, silent)
    (partition,) = seen.partitions.values()
    partition.topic, partition.topic_id, partition.index = "", b"", -1
    seen.topics.clear()
    made = plan_restore(seen, 1)
    assert [topic.name for topic in made.topics] == [f"recovered-partition-{partition.number}"]
    assert [each.next_offset for each in made.checkpoints] == [5]
