"""The content of the manifest that a broker writes to its bucket, and when it is written.

Covers: kafkawire.tiering.publishing.bucket, kafkawire.tiering.publishing.reconcile.
"""

from __future__ import annotations

import asyncio

from kafkawire.log.local_manifest.pending_changes import MAX_ROWS
from kafkawire.manifest.keys import CURRENT, OWNER, SEGMENTS, delta_key, snapshot_key
from kafkawire.metadata.catalog import ALL_BROKERS, BROKER_RESOURCE, TOPIC_RESOURCE, ConfigChange
from kafkawire.tiering.publishing.publisher import LINGER_S, SPACING_S
from tests.kit.env import EPOCH_MS
from tests.kit.tier.rounds import RoundsBroker, RoundsWorld


def test_first_delta_has_everything_known() -> None:
    world = RoundsWorld()
    world.topic("a", 3, **{"retention.ms": "5"})
    world.topic("b")
    world.catalog.apply_config(ConfigChange(BROKER_RESOURCE, ALL_BROKERS, "log.retention.ms", "9"))

    async def main() -> None:
        broker = RoundsBroker(world)
        await broker.rounds.open()
        assert world.manifest().topics == {}
        await broker.rounds.publish()
        assert broker.rounds.sequence == 1
        await broker.rounds.close()

    world.run(main)
    manifest = world.manifest()
    assert manifest.topics["a"].configs == {"retention.ms": "5"}
    assert manifest.topics["a"].partitions == (1, 2, 3)
    assert manifest.topics["b"].created_ms == 1234
    assert manifest.cluster.configs == {"log.retention.ms": "9"}
    assert manifest.cluster.next_partition == 5


def test_object_is_published_with_entries_and_ends() -> None:
    world = RoundsWorld()
    world.topic("a", 2)

    async def main() -> None:
        broker = RoundsBroker(world)
        await broker.rounds.open()
        row, segment, _ = await broker.upload((1, 0, 10), (2, 5, 9))
        manifest = world.manifest()
        found = manifest.find_object(row.uuid)
        assert found is not None
        assert (found.segment, found.size_bytes, found.entries) == (segment.uuid, 4096, 2)
        assert manifest.objects.retention_class(0) == "tiered"
        assert [(span.base, span.end) for span in manifest.spans(1)] == [(0, 10)]
        assert [(span.base, span.end) for span in manifest.spans(2)] == [(5, 9)]
        entry = manifest.entries[manifest.spans(2)[0].entry]
        assert (entry.start, entry.length, entry.index_checksum) == (164, 100, 7)
        await broker.start_log_at(1, 4)
        broker.rounds.log_start_moved(1)
        await broker.rounds.publish([], {row.uuid: EPOCH_MS})
        manifest = world.manifest()
        assert manifest.deleted == {row.uuid: EPOCH_MS}
        assert manifest.spans(1) == []
        partition = manifest.get_partition(1)
        assert partition is not None
        assert (partition.log_start, partition.end) == (4, 10)

    world.run(main)


def test_concurrent_changes_share_a_delta() -> None:
    world = RoundsWorld()
    world.topic("a", 8)

    async def main() -> None:
        broker = RoundsBroker(world)
        await broker.rounds.open()
        await broker.rounds.publish()
        objects = [await broker.object([(n, 0, 10)]) for n in range(1, 9)]
        before = broker.rounds.sequence
        await asyncio.gather(*[broker.rounds.publish([each]) for each in objects])
        assert broker.rounds.sequence == before + 1
        assert len(world.manifest().objects) == 8
        asked = world.bucket.requests.total()
        await broker.env.sleep(86_400)
        await broker.rounds.publish()
        assert world.bucket.requests.total() == asked
        await broker.rounds.close()
        assert world.bucket.requests.total() == asked

    world.run(main)


def test_deltas_have_a_distance_unless_one_is_urgent() -> None:
    world = RoundsWorld()
    world.topic("a", 8)

    async def main() -> None:
        broker = RoundsBroker(world)
        await broker.rounds.open()
        times = []
        for number, urgent in ((1, False), (2, False), (3, True), (4, True)):
            added = await broker.object([(number, 0, 10)])
            begun = world.loop.time()
            publishing = asyncio.ensure_future(broker.rounds.publish([added]))
            if urgent:
                await asyncio.sleep(0.01)
                broker.rounds.publish_soon()
            await publishing
            times.append(world.loop.time() - begun)
        assert times[1] > SPACING_S / 2
        assert max(times[2:]) < SPACING_S / 2
        await broker.rounds.close()

    world.run(main)


def test_change_without_waiter_is_delayed_and_batched() -> None:
    world = RoundsWorld()

    async def main() -> None:
        broker = RoundsBroker(world)
        await broker.rounds.open()
        for n in range(20):
            broker.rounds.topic_changed(world.topic(f"t{n}"))
            await broker.env.sleep(LINGER_S / 40)
        assert broker.rounds.sequence == 0
        await broker.env.sleep(LINGER_S)
        assert broker.rounds.sequence == 1
        assert len(world.manifest().topics) == 20
        gone = world.catalog.remove_topic(world.catalog.by_name["t3"].id)
        broker.rounds.topic_deleted(gone.id)
        change = ConfigChange(TOPIC_RESOURCE, "t4", "segment.ms", "5")
        world.catalog.apply_config(change)
        broker.rounds.topic_changed(world.catalog.by_name["t4"])
        broker.rounds.producer_ids_leased(3000)
        await broker.env.sleep(LINGER_S + 1)
        assert broker.rounds.sequence == 2
        manifest = world.manifest()
        assert "t3" not in manifest.topics
        assert manifest.topics["t4"].configs == {"segment.ms": "5"}
        assert manifest.cluster.next_producer_id == 3000

    world.run(main)


def test_changes_without_effect_on_bucket_make_no_request() -> None:
    world = RoundsWorld()
    world.topic("a", 2)

    async def main() -> None:
        broker = RoundsBroker(world)
        await broker.rounds.open()
        await broker.rounds.publish()
        asked = world.bucket.requests.total()
        await broker.start_log_at(2, 500)
        broker.rounds.log_start_moved(2)  # nothing of it was ever uploaded
        broker.rounds.log_start_moved(99)  # there is no such partition
        await broker.rounds.publish()
        assert world.bucket.requests.total() == asked
        assert broker.rounds.sequence == 1

    world.run(main)


def test_many_topics_are_written_in_slices() -> None:
    world = RoundsWorld(fold=100)
    count = 2 * MAX_ROWS + 7
    for n in range(count):
        world.topic(f"t{n}")

    async def main() -> None:
        broker = RoundsBroker(world)
        await broker.rounds.open()
        await broker.rounds.publish()
        assert broker.rounds.sequence == 3
        assert len(world.manifest().topics) == count

    world.run(main)


def test_unpublished_changes_are_published_after_crash() -> None:
    world = RoundsWorld()
    world.topic("kept", 2)
    world.topic("gone")
    world.topic("other")

    async def main() -> None:
        broker = RoundsBroker(world)
        await broker.rounds.open()
        await broker.upload((1, 0, 10), (2, 0, 30))
        await broker.die()
        world.catalog.remove_topic(world.catalog.by_name["gone"].id)
        world.catalog.apply_config(ConfigChange(TOPIC_RESOURCE, "other", "segment.ms", "5"))
        world.topic("new")
        await broker.start_log_at(2, 20)
        broker = RoundsBroker(world)
        await broker.rounds.open()
        await broker.rounds.publish()
        assert (broker.rounds.epoch, broker.rounds.sequence) == (2, 2)
        manifest = world.manifest()
        assert sorted(manifest.topics) == ["kept", "new", "other"]
        assert manifest.topics["other"].configs == {"segment.ms": "5"}
        assert [(s.base, s.end) for s in manifest.spans(2)] == [(20, 30)]
        await broker.die()
        asked = world.bucket.requests["put"]
        broker = RoundsBroker(world)
        await broker.rounds.open()
        await broker.rounds.publish()
        assert world.bucket.requests["put"] == asked + 1, "its claim, and no delta"

    world.run(main)


def test_log_start_beyond_published_unfinished_upload() -> None:
    """The manifest contains an upload of which SQL records no committed offset."""
    world = RoundsWorld()
    world.topic("a")

    async def main() -> None:
        broker = RoundsBroker(world)
        await broker.rounds.open()
        added = await broker.object([(1, 0, 10)])
        await broker.rounds.publish([added], {}, {1: 10})
        await broker.die()
        broker = RoundsBroker(world)
        await broker.start_log_at(1, 60)
        await broker.rounds.open()
        await broker.rounds.publish([], {added[0].uuid: EPOCH_MS})
        partition = world.manifest().get_partition(1)
        assert partition is not None
        assert (partition.log_start, partition.end) == (60, 60)

    world.run(main)


def test_folded_deltas_are_removed_an_hour_later_without_listing() -> None:
    world = RoundsWorld(fold=4)
    world.topic("a")

    async def main() -> None:
        broker = RoundsBroker(world)
        await broker.rounds.open()
        for n in range(12):
            await broker.upload((1, n, n + 1))
            await broker.env.sleep(60)
        assert len(world.manifest().spans(1)) == 12
        names = set(world.bucket.objects)
        assert {snapshot_key(0), snapshot_key(4), snapshot_key(12), delta_key(1)} <= names
        await broker.env.sleep(7200)
        assert set(world.bucket.objects) == names, "without changes nothing is written"
        for n in range(12, 16):
            await broker.upload((1, n, n + 1))
            await broker.env.sleep(60)
        deltas = {delta_key(n) for n in range(13, 17)}
        left = {key for key in world.bucket.objects if not key.startswith(SEGMENTS)}
        assert left == {OWNER, CURRENT, snapshot_key(12), snapshot_key(16), *deltas}
        assert len(world.manifest().spans(1)) == 16
        assert world.bucket.requests["list"] == 0
        assert broker.fs.listdir("/broker/tier") == []
        await broker.die()
        broker = RoundsBroker(world)
        await broker.rounds.open()
        assert broker.rounds.sequence == 16

    world.run(main)
