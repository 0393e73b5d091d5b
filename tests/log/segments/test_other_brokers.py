"""Segments that another broker of the data folder wrote.

Covers: kafkawire.log.segments.store.segment_store, kafkawire.log.segments.merge.merger.
"""

from __future__ import annotations

import os.path

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.fsck.check import check
from kafkawire.log.partition.partition import Partition
from kafkawire.log.segments.store.segment_store import NotLocal
from kafkawire.offsets.catalog.port import LIVE
from tests.kit.env import EPOCH_MS
from tests.kit.log.logs import batch, read_all
from tests.kit.log.pair import Member, Pair
from tests.kit.waiting import settle, until


@pytest.fixture
async def pair() -> Pair:
    made = Pair()
    await made.start()
    return made


async def fill(member: Member, *partitions: Partition, count: int = 3) -> None:
    """Append a few records and cut them."""
    for at in range(count):
        for partition in partitions:
            value = b"%d-%d" % (partition.number, partition.next_offset + at)
            partition.append(batch(value, timestamp_ms=EPOCH_MS + at), EPOCH_MS)
    await member.log.commit_log.wait_until_committed()
    await cut(member)


async def cut(member: Member) -> None:
    log = member.log
    log.journals.prepare(again=True)
    await until(lambda: bool(log.journals.ready))
    log.commit_log.roll()
    await log.commit_log.wait_until_committed()
    await until(lambda: all(each.indexed for each in log.journals if each.rolled))
    await settle()
    assert await log.segments.cut()
    await log.checkpoint()


def there(pair: Pair, path: str) -> bool:
    return os.path.basename(path) in pair.fs.listdir(os.path.dirname(path))


async def test_new_leader_reads_segments_in_the_other_folder(pair: Pair) -> None:
    (partition,) = await pair.topic("t")
    await fill(pair.first, partition)
    before = await read_all(partition)
    (moved,) = await pair.move([partition.number], 2)
    assert moved.log is pair.second.log.commit_log
    assert await read_all(moved) == before
    assert not pair.fs.listdir("/data/brokers/2/segments"), "nothing was copied"
    assert not pair.second.log.segments.store.by_id
    assert await moved.offset_for_time(EPOCH_MS + 1) == (1, EPOCH_MS + 1)
    assert await moved.max_timestamp() == (2, EPOCH_MS + 2)
    await fill(pair.second, moved)
    assert [at for at, _ in await read_all(moved)] == list(range(6))


async def test_start_finds_segments_of_the_other_folder(pair: Pair) -> None:
    (partition,) = await pair.topic("t")
    await fill(pair.first, partition)
    (moved,) = await pair.move([partition.number], 2)
    moved.append(batch(b"new"), EPOCH_MS)  # so that the start loads it
    await pair.second.log.commit_log.wait_until_committed()
    await pair.second.kill()
    await pair.second.start()
    again = pair.second.log.partitions[partition.number]
    assert [at for at, _ in await read_all(again)] == [0, 1, 2, 3]


async def test_missing_file_is_named(pair: Pair) -> None:
    (partition,) = await pair.topic("t")
    await fill(pair.first, partition)
    (moved,) = await pair.move([partition.number], 2)
    (segment,) = pair.second.log.segments.store.others.values()
    pair.fs.remove(segment.path)
    with pytest.raises(KafkaError) as caught:
        await read_all(moved)
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE
    assert f"segment {segment.name} of broker 1 has no file {segment.path}" in str(caught.value)


async def test_segment_of_another_machine_is_no_damage_before_its_upload(pair: Pair) -> None:
    """Otherwise a coordinator would begin without the groups or transactions in it."""
    (partition,) = await pair.topic("t")
    await fill(pair.first, partition)
    (moved,) = await pair.move([partition.number], 2)
    (segment,) = pair.second.log.segments.store.others.values()
    folder = os.path.dirname(segment.path)
    file = pair.fs.files.pop(segment.path)  # as on another machine
    pair.fs.folders.discard(folder)
    with pytest.raises(KafkaError) as caught:
        await read_all(moved)
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert f"segment {segment.name} is on the machine of broker 1 only" in str(caught.value)
    pair.fs.makedirs(folder)
    pair.fs.files[segment.path] = file
    assert [at for at, _ in await read_all(moved)] == [0, 1, 2]


async def test_segment_with_an_object_and_without_a_file_is_not_local(pair: Pair) -> None:
    (partition,) = await pair.topic("t")
    await fill(pair.first, partition)
    await pair.move([partition.number], 2)
    store = pair.second.log.segments.store
    (segment,) = store.others.values()
    pair.fs.remove(segment.path)
    rows = pair.second.storage.segments_by_id

    async def uploaded(ids: list[int]) -> object:
        found = await rows(ids)
        for row in found:
            row.object = b"o" * 16
        return found

    pair.second.storage.segments_by_id = uploaded  # type: ignore[method-assign, assignment]
    assert store.is_local(segment.row.id)
    with pytest.raises(NotLocal):
        async with store.open_segment(segment.row.id):
            pass
    assert not store.is_local(segment.row.id)
    await store.prepare_others([segment])
    assert segment.path == f"/data/brokers/2/downloads/{segment.name}.segment"
    assert not segment.has_file


async def test_missing_file_without_an_object_is_no_reason_for_a_download(pair: Pair) -> None:
    (partition,) = await pair.topic("t")
    await fill(pair.first, partition)
    await pair.move([partition.number], 2)
    store = pair.second.log.segments.store
    (segment,) = store.others.values()
    path = segment.path
    await store.prepare_others([segment])  # the folder is shared
    assert segment.path == path
    pair.fs.remove(path)
    with pytest.raises(KafkaError, match="has no file"):
        await store.prepare_others([segment])


async def test_downloads_of_an_earlier_process_are_removed(pair: Pair) -> None:
    pair.fs.makedirs("/data/brokers/2/downloads")
    pair.fs.open("/data/brokers/2/downloads/left.segment", create=True).close()
    await pair.second.kill()
    await pair.second.start()
    assert pair.fs.listdir("/data/brokers/2/downloads") == []


async def test_segment_goes_with_its_last_mapping_and_its_writer_removes_it(pair: Pair) -> None:
    (partition,) = await pair.topic("t")
    await fill(pair.first, partition)
    (moved,) = await pair.move([partition.number], 2)
    await fill(pair.second, moved)
    (segment,) = pair.second.log.segments.store.others.values()
    await moved.delete_records(3)
    await pair.second.log.segments.tend()
    await pair.second.log.segments.sweep(now=True)
    assert not pair.second.log.segments.store.others
    assert there(pair, segment.path)
    await pair.first.log.segments.tend()
    await pair.first.log.segments.sweep(now=True)
    assert not there(pair, segment.path)
    assert await pair.first.storage.segments_by_id([segment.row.id]) == []
    assert [at for at, _ in await read_all(moved)] == [3, 4, 5]


async def test_rows_of_others_are_renewed(pair: Pair) -> None:
    """A file that its broker removed since, or a row that is gone."""
    partitions = await pair.topic("t", 2)
    await fill(pair.first, partitions[0])
    await fill(pair.first, partitions[1])
    await pair.move([each.number for each in partitions], 2)
    store = pair.second.log.segments.store
    first, second = store.others
    rows = pair.second.storage.segments_by_id

    async def changed(ids: list[int]) -> object:
        found = [row for row in await rows(ids) if row.id != second]
        for row in found:
            row.local = False
        return found

    pair.second.storage.segments_by_id = changed  # type: ignore[method-assign, assignment]
    await store.renew_others()
    assert list(store.others) == [first]
    assert not store.is_local(first)
    assert os.path.dirname(store.others[first].path) == "/data/brokers/1/segments"


async def test_merge_leaves_out_what_another_broker_leads(pair: Pair) -> None:
    stays, goes = await pair.topic("t", 2)
    await fill(pair.first, stays, goes)
    await fill(pair.first, stays, goes)
    await pair.move([goes.number], 2)
    segments = pair.first.log.segments
    shared = [segment.row for segment in segments.store.by_id.values()]
    rewrite = await segments.rewriter._plan(list(shared))
    assert list(rewrite.parts) == [stays.number]
    await segments.rewriter._rewrite(rewrite)
    assert len(stays.segments) == 1
    assert [row.state for row in await pair.first.storage.segments_by_id([shared[0].id])] == [LIVE]
    rest = await segments.rewriter._plan(list(shared))
    assert not rest.inputs, "nothing in them is led here any more"
    moved = await pair.second.find(goes.number)
    assert [at for at, _ in await read_all(moved)] == list(range(6))
    assert [at for at, _ in await read_all(stays)] == list(range(6))


async def test_segment_is_not_rewritten_to_free_a_part_of_it(pair: Pair) -> None:
    """Its file would stay for the partition that another broker leads."""
    stays, goes = await pair.topic("t", 2)
    await fill(pair.first, stays, goes)
    await pair.move([goes.number], 2)
    segments = pair.first.log.segments
    (segment,) = segments.store.by_id.values()
    assert not (await segments.rewriter._plan([segment.row])).inputs
    segment.payload_bytes = 10 * segment.row.live_bytes
    assert await segments.rewriter.run()
    assert not await segments.rewriter.run(), "it rests"


async def test_both_folders_are_cleaned_after_the_deletion_of_a_topic(pair: Pair) -> None:
    (partition,) = await pair.topic("t")
    await fill(pair.first, partition)
    (moved,) = await pair.move([partition.number], 2)
    await fill(pair.second, moved)
    folders = [f"/data/brokers/{node}/segments" for node in (1, 2)]
    assert [len(pair.fs.listdir(each)) for each in folders] == [1, 1]
    await pair.second.metadata.delete_topics([moved.topic_id])
    for member in (pair.first, pair.second):
        member.log.remove_topic(member.catalog.remove_topic(moved.topic_id))
    for member in (pair.first, pair.second, pair.first):
        await member.log.segments.tend()
        await member.log.segments.sweep(now=True)
    assert [pair.fs.listdir(each) for each in folders] == [[], []]


async def test_fsck_knows_the_segments_of_both_folders(pair: Pair) -> None:
    stays, goes = await pair.topic("t", 2)
    await fill(pair.first, stays, goes)
    (moved,) = await pair.move([goes.number], 2)
    await fill(pair.second, moved)
    for member in (pair.first, pair.second):
        await member.log.close()
    path = next(iter(pair.second.log.segments.store.others.values())).path
    for found in ("", "offsets 0-2 are in no segment and no journal"):
        problems = []
        for member in (pair.first, pair.second):
            home = f"/data/brokers/{member.node_id}"
            report = await check(
                member.env, home, member.node_id, member.catalog, member.storage, member.metadata
            )
            problems.append([each.text for each in report.problems])
        assert problems[1] == ([found] if found else [])
        assert bool(problems[0]) == bool(found)
        if not found:
            pair.fs.remove(path)
