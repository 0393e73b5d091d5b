"""Faults that the manifest of a bucket survives: failures, lost responses, outages, damage, other
owners."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kafkawire.manifest.keys import CURRENT, delta_key, snapshot_key
from kafkawire.manifest.reader import unpack_current
from kafkawire.objectstore.errors import Refused, StoreError
from kafkawire.tiering.publishing.publisher import OwnedByOther
from tests.kit.tier.fake_bucket import StoreFaults
from tests.kit.tier.rounds import RoundsBroker, RoundsWorld


def test_failed_fold_is_not_retried_after_every_delta() -> None:
    world = RoundsWorld(fold=4)
    world.topic("a")

    async def main() -> None:
        broker = RoundsBroker(world)
        await broker.rounds.open()
        broker.fs.faults.room_bytes = 0
        for n in range(9):
            await broker.upload((1, n, n + 1))
            await broker.env.sleep(5)
        assert world.bucket.requests["get"] < 10, "two tries"
        assert world.manifest().state.sequence == 9
        assert snapshot_key(4) not in world.bucket.objects
        broker.fs.faults.room_bytes = None
        for n in range(9, 13):
            await broker.upload((1, n, n + 1))
            await broker.env.sleep(5)
        assert snapshot_key(12) in world.bucket.objects
        assert len(world.manifest().spans(1)) == 13

    world.run(main)


def test_failed_removals_do_not_prevent_folding() -> None:
    world = RoundsWorld(fold=2)
    world.topic("a")

    async def main() -> None:
        broker = RoundsBroker(world)

        async def refuse(keys: Sequence[str]) -> int:
            raise Refused("AccessDenied", "nothing may be removed")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(broker.store, "delete", refuse)
            await broker.rounds.open()
            for n in range(9):
                await broker.upload((1, n, n + 1))
                await broker.env.sleep(3600)
        assert snapshot_key(8) in world.bucket.objects
        assert len(unpack_current(world.bucket.objects[CURRENT]).obsolete) == 4
        await broker.upload((1, 9, 10))
        await broker.env.sleep(5)
        assert delta_key(1) not in world.bucket.objects
        assert len(world.manifest().spans(1)) == 10

    world.run(main)


def test_delta_with_lost_response_is_recognised() -> None:
    world = RoundsWorld(fold=100)
    world.topic("a")

    async def main() -> None:
        broker = RoundsBroker(world)
        await broker.rounds.open()
        added = await broker.object([(1, 0, 10)])
        world.bucket.faults = StoreFaults(lost_rate=1.0)
        with pytest.raises(StoreError):
            await broker.rounds.publish([added])
        assert isinstance(broker.rounds.error, StoreError)
        again = broker.env.spawn(broker.rounds.publish([added]), "again")
        await broker.env.sleep(0)
        world.bucket.faults = StoreFaults()
        await again
        assert broker.rounds.sequence == 1
        assert broker.rounds.error is None
        assert delta_key(2) not in world.bucket.objects
        assert len(world.manifest().objects) == 1

    world.run(main)


def test_outage_of_an_hour_is_reported_and_survived() -> None:
    world = RoundsWorld()
    world.topic("a")

    async def main() -> None:
        broker = RoundsBroker(world)
        await broker.rounds.open()
        await broker.upload((1, 0, 10))
        world.bucket.faults = StoreFaults(down=True)
        added = await broker.object([(1, 10, 20)])
        with pytest.raises(StoreError, match="EndpointConnectionError"):
            await broker.rounds.publish([added], {}, {1: 20})
        await broker.env.sleep(3600)
        assert isinstance(broker.rounds.error, StoreError)
        assert broker.rounds.failures > 100
        world.bucket.faults = StoreFaults()
        await broker.env.sleep(30)
        assert broker.rounds.error is None
        assert [(s.base, s.end) for s in world.manifest().spans(1)] == [(0, 10), (10, 20)]
        world.bucket.faults = StoreFaults(refused="AccessDenied")
        with pytest.raises(Refused):
            await broker.rounds.publish([await broker.object([(1, 20, 30)])])
        world.bucket.faults = StoreFaults()

    world.run(main)


def test_bucket_of_other_cluster_is_refused_in_one_sentence() -> None:
    world = RoundsWorld()

    async def main() -> None:
        await RoundsBroker(world).rounds.open()
        other = RoundsBroker(world, 1, "another")
        with pytest.raises(OwnedByOther, match="kafkawire restore TIER"):
            await other.rounds.open()

    world.run(main)


def test_later_of_two_brokers_owns_bucket() -> None:
    world = RoundsWorld()
    world.topic("a", 4)

    async def main() -> None:
        first, second = RoundsBroker(world), RoundsBroker(world)
        reported = []
        first.rounds.on_lost = lambda: reported.append(True)
        await first.rounds.open()
        await first.upload((1, 0, 10))
        await second.rounds.open()
        await first.upload((2, 0, 10))  # it does not know yet, and its delta is written first
        await second.upload((3, 0, 10))
        assert second.rounds.sequence == 3
        with pytest.raises(OwnedByOther, match="epoch 2"):
            await first.upload((4, 0, 10))
        assert not first.rounds.owned
        assert reported == [True]
        with pytest.raises(OwnedByOther):
            await first.rounds.publish()
        with pytest.raises(OwnedByOther):
            await first.rounds.open()
        assert second.rounds.owned
        assert len(world.manifest().objects) == 3
        asked = world.bucket.requests.total()
        first.rounds.topic_changed(world.topic("b"))
        await first.env.sleep(3600)
        assert world.bucket.requests.total() == asked

    world.run(main)


@pytest.mark.parametrize("lost", ["snapshot", "delta", "current", "truncated"])
def test_damaged_manifest_is_rebuilt_from_rows(lost: str) -> None:
    world = RoundsWorld(fold=3)
    world.topic("a")

    async def main() -> None:
        broker = RoundsBroker(world)
        await broker.rounds.open()
        for n in range(8):
            await broker.upload((1, n, n + 1))
            await broker.env.sleep(5)
        await broker.die()
        bucket = world.bucket
        if lost == "snapshot":
            bucket.forget(snapshot_key(6))
        elif lost == "delta":
            bucket.store(delta_key(7), b"rubbish")
        elif lost == "current":
            bucket.forget(CURRENT)
        else:
            bucket.truncate(snapshot_key(6), 100)
        broker = RoundsBroker(world)
        await broker.rounds.open()
        await broker.rounds.publish()
        await broker.env.sleep(10)
        assert broker.rounds.sequence > 1_000_000, "numbers that were never used"
        manifest = world.manifest()
        assert [(s.base, s.end) for s in manifest.spans(1)] == [(n, n + 1) for n in range(8)]
        assert list(manifest.topics) == ["a"]
        assert await broker.upload((1, 8, 9))
        assert bucket.requests["list"] == 0

    world.run(main)
