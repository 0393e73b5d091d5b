"""The plan of a restore from a bucket: which objects are used, what is lost, what is doubtful."""

from __future__ import annotations

import random

import pytest

from kafkawire.codec.format_errors import FormatError, NewerFormatError
from kafkawire.manifest.keys import CURRENT, delta_key, segment_key
from kafkawire.metadata.checkpoint import PartitionCheckpoint, ProducerEntry
from kafkawire.objectstore.errors import StoreError
from kafkawire.progress import Progress, silent
from kafkawire.restore.bucket import gather_from_bucket
from kafkawire.restore.combine import add_bucket
from kafkawire.restore.evidence import (
    EPOCH_MARGIN,
    NUMBER_MARGIN,
    BucketEvidence,
    FolderEvidence,
    TopicSeen,
)
from kafkawire.restore.plan import Hole, RestorePlan, plan_restore, recovered_name
from kafkawire.tiering.publishing.owner import OwnerRecord
from kafkawire.tiering.store.object_footer import read_tail
from tests.kit.env import memory_env, sim_env
from tests.kit.memfs import MemFileSystem
from tests.kit.simloop import SimLoop, run
from tests.kit.tier.buckets import CLUSTER, Bucket, Share, Topic, uuid
from tests.kit.tier.fake_bucket import StoreFaults
from tests.kit.tier.fake_store import FakeStore

ORDERS = Topic("orders", [3, 4], {"retention.ms": "5"})
GROUPS = Topic("__consumer_offsets", [9], {"cleanup.policy": "compact"}, internal=True)


async def scan(bucket: Bucket, progress: Progress = silent) -> RestorePlan:
    return plan_restore(await gather_from_bucket(memory_env(), FakeStore(bucket), progress))


def kinds(restored: RestorePlan) -> list[str]:
    return [doubt.kind.value for doubt in restored.doubts]


def read_from(restored: RestorePlan, number: int) -> list[tuple[int, int, int]]:
    """(base, end, object) of a partition."""
    return sorted(
        (*share.offsets, int.from_bytes(share.file.object, "big"))
        for share in restored.shares.get(number, ())
    )


def checkpoint(restored: RestorePlan, number: int) -> PartitionCheckpoint:
    (found,) = [each for each in restored.checkpoints if each.number == number]
    return found


def test_number_that_two_topics_of_a_bucket_have() -> None:
    """One topic keeps the number and its offsets, the other one is empty under a new number."""
    seen = BucketEvidence()
    seen.get_or_add(1).next_offset = 5
    for name, created_ms in (("old", 1), ("new", 2)):
        id = name.encode().ljust(16)
        seen.topics[id] = TopicSeen(id, name, created_ms=created_ms, count=1, numbers={0: 1})
    restored = plan_restore(seen)
    numbers = {topic.name: topic.partitions[0].number for topic in restored.topics}
    assert numbers == {"new": 1, "old": 2 + NUMBER_MARGIN}
    assert [(each.number, each.next_offset) for each in restored.checkpoints] == [(1, 5)]


def test_partitions_that_only_the_bucket_of_a_folder_knows() -> None:
    """An object says how many partitions a topic has; there are records of the first one only."""
    bucket, seen = BucketEvidence(), FolderEvidence()
    bucket.topics[b"t" * 16] = TopicSeen(b"t" * 16, "t", count=3, numbers={0: 1})
    bucket.get_or_add(1).next_offset = 5
    add_bucket(seen, bucket)
    (topic,) = plan_restore(seen, 1).topics
    assert [(p.number, p.index) for p in topic.partitions] == [(1, 0), (2, 1), (3, 2)]


# From objects alone


async def test_plan_from_objects_alone() -> None:
    bucket = Bucket(ORDERS, GROUPS)
    entries = [ProducerEntry(77, 1, [(0, 0, 2, 5), (1, 1, 99, 5)]), ProducerEntry(90, 0, [])]
    bucket.put(1, Share(3, 0, 5), Share(9, 0, 2))
    bucket.put(2, Share(3, 5, 8, 2, [(3, 0), (4, 6), (9, 8)], entries))
    restored = await scan(bucket)
    assert (restored.cluster_id, restored.node_id) == (CLUSTER, 1)
    orders, groups = sorted(restored.topics, key=lambda topic: topic.name)[::-1]
    assert (orders.id, orders.name, orders.configs) == (ORDERS.id, "orders", ORDERS.configs)
    assert (groups.internal, groups.created_ms, orders.internal) == (True, 5, False)
    assert [(p.number, p.leader) for p in groups.partitions] == [(9, 1)]
    # Nothing of orders-1 was ever uploaded: it gets an unused number.
    assert [p.number for p in orders.partitions] == [3, 10 + NUMBER_MARGIN]
    assert restored.next_partition == 11 + NUMBER_MARGIN
    assert restored.next_producer_id == 91 + NUMBER_MARGIN
    assert read_from(restored, 3) == [(0, 5, 1), (5, 8, 2)]
    state = checkpoint(restored, 3)
    assert (state.log_start, state.next_offset) == (2, 8)
    # Epoch 9 began after the uploaded records: the new one must be above it nevertheless.
    assert state.leader_epochs == [(3, 0), (4, 6), (9 + EPOCH_MARGIN, 8)]
    assert orders.partitions[0].leader_epoch == 9 + EPOCH_MARGIN
    # A batch at offset 99 is in no object: its producer may send it again.
    assert state.producers == [ProducerEntry(77, 1, [(0, 0, 2, 5)])]
    assert restored.find_uploaded_ends() == {3: 8, 9: 2}
    assert restored.holes == []
    assert kinds(restored) == ["manifest"]
    assert "no manifest can be used" in restored.doubts[0].text


async def test_plan_of_empty_bucket() -> None:
    restored = await scan(Bucket())
    assert (restored.topics, restored.shares) == ([], {})


async def test_objects_of_other_clusters_are_excluded() -> None:
    bucket = Bucket(ORDERS)
    bucket.put(1, Share(3, 0, 5))
    bucket.put(2, Share(3, 0, 9), cluster="another")
    bucket.put(3, Share(3, 5, 6), cluster=None)
    restored = await scan(bucket)
    assert read_from(restored, 3) == [(0, 5, 1), (5, 6, 3)]
    assert kinds(restored) == ["manifest", "cluster", "cluster"]
    assert "1 objects are of cluster another, not of abc" in restored.doubts[1].text
    # The owner file decides whose bucket it is, whatever cluster most of its objects name.
    bucket.store("owner", OwnerRecord("another", 1, 2, "00", 0).pack())
    restored = await scan(bucket)
    assert (restored.cluster_id, read_from(restored, 3)) == ("another", [(0, 9, 2)])


async def test_unreadable_objects_are_named() -> None:
    bucket = Bucket(ORDERS)
    bucket.put(1, Share(3, 0, 5))
    bucket.truncate(bucket.put(2, Share(3, 5, 9)), 700)
    bucket.store("segments/notes.txt", b"what is this")
    restored = await scan(bucket)
    assert read_from(restored, 3) == [(0, 5, 1)]
    assert kinds(restored) == ["manifest", "unreadable", "unreadable"]
    assert "1 objects have strange names: segments/notes.txt" in restored.doubts[1].text
    assert f"{segment_key(uuid(2))} cannot be read: it does not end" in restored.doubts[2].text


async def test_several_uploads_of_one_segment_count_once() -> None:
    bucket = Bucket(ORDERS)
    bucket.put(7, Share(3, 0, 5), segment=7)
    bucket.put(8, Share(3, 0, 5), segment=7)
    restored = await scan(bucket)
    assert read_from(restored, 3) == [(0, 5, 7)]
    assert kinds(restored) == ["manifest"]


async def test_two_objects_of_one_generation_are_doubtful() -> None:
    bucket = Bucket(ORDERS)
    bucket.put(1, Share(3, 0, 5))
    bucket.put(2, Share(3, 0, 5), created_ms=1_800_000_000_000)
    restored = await scan(bucket)
    assert read_from(restored, 3) == [(0, 5, 2)]
    assert kinds(restored) == ["manifest", "overlap"]
    assert "offsets 0-4 of orders-0 are in two objects of generation 0" in restored.doubts[1].text


async def test_lost_offsets_become_gaps() -> None:
    bucket = Bucket(ORDERS)
    bucket.put(1, Share(3, 2, 5), Share(4, 0, 3))
    bucket.put(2, Share(3, 8, 9))
    bucket.put(3, Share(3, 12, 13), Share(4, 7, 8))
    restored = await scan(bucket)
    assert [checkpoint(restored, 3).log_start, checkpoint(restored, 3).next_offset] == [2, 13]
    assert restored.holes == [[Hole(3, 5, 8), Hole(4, 3, 7)], [Hole(3, 9, 12)]]
    assert restored.find_uploaded_ends() == {3: 5, 4: 3}
    said = [doubt.text for doubt in restored.doubts if doubt.kind == "gap"]
    assert said == [
        "offsets 0-1 of orders-0 are lost", "offsets 5-7 of orders-0 are lost",
        "offsets 9-11 of orders-0 are lost", "offsets 3-6 of orders-1 are lost",
    ]  # fmt: skip


async def test_older_topic_of_same_name_is_renamed() -> None:
    old = Topic("orders", [1], id=b"o" * 16)
    bucket = Bucket(old, ORDERS)
    bucket.put(1, Share(1, 0, 5))
    bucket.put(2, Share(3, 0, 2), created_ms=1_800_000_000_000)
    restored = await scan(bucket)
    other = recovered_name("orders", old.id)
    assert {topic.name: topic.id for topic in restored.topics} == {
        "orders": ORDERS.id,
        other: old.id,
    }
    (doubt,) = [doubt.text for doubt in restored.doubts if doubt.kind == "topic"]
    assert f"the older one is kept as {other}" in doubt
    assert checkpoint(restored, 1).next_offset == 5


async def test_settings_of_objects_without_an_origin_are_lost() -> None:
    bucket = Bucket(ORDERS)
    bucket.put(1, Share(4, 0, 5), cluster=None)
    restored = await scan(bucket)
    (topic,) = restored.topics
    assert (topic.name, len(topic.partitions), topic.configs) == ("orders", 2, {})
    assert restored.cluster_id == ""
    assert "topic orders is known from its records only" in restored.doubts[-1].text


# From a manifest


async def test_plan_from_manifest() -> None:
    bucket = Bucket(ORDERS, GROUPS)
    entries = [ProducerEntry(77, 1, [(0, 0, 2, 5)])]
    bucket.put(1, Share(3, 0, 5), Share(9, 0, 2))
    bucket.put(2, Share(3, 5, 8, 0, [(3, 0), (5, 7)], entries))
    bucket.manifest({3: (1, 8), 9: (0, 2)})
    restored = await scan(bucket)
    assert kinds(restored) == []
    assert (restored.cluster_id, restored.configs) == (CLUSTER, {"log.retention.ms": "7"})
    assert [topic.name for topic in restored.topics] == ["__consumer_offsets", "orders"]
    orders = restored.topics[1]
    assert [p.number for p in orders.partitions] == [3, 4]
    state = checkpoint(restored, 3)
    assert (state.log_start, state.next_offset, state.producers) == (1, 8, entries)
    # The object knows an epoch that the manifest did not.
    assert state.leader_epochs == [(3, 0), (5 + EPOCH_MARGIN, 8)]
    assert restored.next_partition == 50 + NUMBER_MARGIN
    assert restored.next_producer_id == 2000 + NUMBER_MARGIN
    assert [used.file.retention_class for used in restored.files()] == [
        "delete/tiered/ever"
    ] * 2  # fmt: skip


async def test_objects_newer_than_manifest_are_used() -> None:
    bucket = Bucket(ORDERS)
    bucket.put(1, Share(3, 0, 5))
    bucket.put(2, Share(3, 5, 8))
    bucket.put(3, Share(3, 0, 4), generation=2)  # the manifest lists better ones
    bucket.manifest({3: (0, 5)}, [1])
    restored = await scan(bucket)
    assert read_from(restored, 3) == [(0, 5, 1), (5, 8, 2)]
    assert kinds(restored) == ["unnamed"]
    assert "1 objects are newer than the manifest" in restored.doubts[0].text


async def test_deleted_and_missing_objects_of_manifest() -> None:
    bucket = Bucket(ORDERS)
    bucket.put(1, Share(3, 0, 5))
    bucket.forget(bucket.put(2, Share(3, 5, 8)))
    bucket.truncate(bucket.put(3, Share(3, 8, 9)), 10)
    bucket.put(4, Share(3, 0, 9), generation=1)
    bucket.manifest({3: (0, 9)}, [1, 2, 3], deleted=[4])
    restored = await scan(bucket)
    assert read_from(restored, 3) == [(0, 5, 1)]
    assert restored.holes == [[Hole(3, 5, 9)]]
    assert checkpoint(restored, 3).next_offset == 9
    texts = {doubt.kind.value: doubt.text for doubt in restored.doubts}
    assert kinds(restored) == ["missing", "missing", "deleted", "gap"]
    assert "1 objects are there that the manifest calls deleted" in texts["deleted"]
    assert "has 10 bytes" in texts["missing"]
    assert texts["gap"] == "offsets 5-8 of orders-0 are lost"


async def test_log_is_empty_if_all_offsets_are_lost() -> None:
    bucket = Bucket(ORDERS)
    bucket.forget(bucket.put(1, Share(3, 0, 5)))
    bucket.manifest({3: (0, 5)})
    restored = await scan(bucket)
    state = checkpoint(restored, 3)
    assert (state.log_start, state.next_offset, restored.holes) == (5, 5, [])


async def test_damaged_manifest_is_ignored_and_newer_one_refused() -> None:
    bucket = Bucket(ORDERS)
    bucket.put(1, Share(3, 0, 5))
    bucket.manifest({3: (0, 5)})
    data = bytearray(bucket.data(delta_key(1)))
    data[len(data) // 2] ^= 1
    bucket.store(delta_key(1), bytes(data))
    restored = await scan(bucket)
    assert (kinds(restored), read_from(restored, 3)) == (["manifest"], [(0, 5, 1)])
    bucket.store(CURRENT, b'{"format": 99, "snapshot": 0}')
    with pytest.raises(ValueError, match="start the newer version"):
        await scan(bucket)


# Asking


def test_failed_requests_are_retried() -> None:
    bucket = Bucket(ORDERS)
    for name in range(20):
        bucket.put(name + 1, Share(3, 5 * name, 5 * name + 5))
    reported: list[tuple[str, int, int]] = []

    async def main(loop: SimLoop) -> None:
        env = sim_env(loop, random.Random(1), MemFileSystem())
        bucket.faults = StoreFaults(error_rate=0.2, slow_down_rate=0.1)
        seen = await gather_from_bucket(env, FakeStore(bucket), lambda *says: reported.append(says))
        assert len(read_from(plan_restore(seen), 3)) == 20
        assert reported[-1] == ("objects", 20, 20)
        bucket.faults = StoreFaults(down=True)
        with pytest.raises(StoreError, match="cannot be reached"):
            await gather_from_bucket(env, FakeStore(bucket), silent)

    loop = SimLoop()
    run(loop, main(loop))


async def test_footers_are_read_by_two_or_three_requests() -> None:
    bucket = Bucket(Topic("t", list(range(1, 2000))))
    key = bucket.put(1, *(Share(n, 0, 1) for n in range(1, 2000)))
    store = FakeStore(bucket)
    tail = await read_tail(store, key, len(bucket.data(key)))
    assert (len(tail.directory), len(tail.states), bucket.requests["get"]) == (1999, 1999, 3)
    assert tail.origin is not None
    small = bucket.put(2, Share(1, 0, 1))
    assert (await read_tail(store, small, len(bucket.data(small)))).directory[0].number == 1
    assert bucket.requests["get"] == 5


async def test_invalid_footers_are_refused() -> None:
    bucket = Bucket(ORDERS)
    key = bucket.put(1, Share(3, 0, 5))
    size = len(bucket.data(key))
    store = FakeStore(bucket)
    for wrong in (10, size + 1, size - 1):
        with pytest.raises(FormatError):
            await read_tail(store, key, wrong)
    data = bytearray(bucket.data(key))
    for at in range(64, len(data), 7):  # the header is 64 bytes; batches are not read
        harmed = bytearray(data)
        harmed[at] ^= 4
        bucket.store(key, bytes(harmed))
        try:
            tail = await read_tail(store, key, size)
        except FormatError:
            continue
        assert [entry.end_offset for entry in tail.directory] == [5]
    harmed = bytearray(data)
    harmed[size - 16] = 9  # the version in the trailer, with its checksum wrong
    bucket.store(key, bytes(harmed))
    with pytest.raises(FormatError) as caught:
        await read_tail(store, key, size)
    assert not isinstance(caught.value, NewerFormatError)
