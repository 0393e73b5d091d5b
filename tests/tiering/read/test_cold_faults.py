"""Cold reads when the store fails, is down, or has lost, damaged or replaced an object."""

from __future__ import annotations

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.manifest.keys import segment_key
from kafkawire.offsets.catalog.port import ObjectRow
from tests.kit.log.segments import split
from tests.kit.tier.cold import ColdWorld, gets, prepared, simulated, take, whole
from tests.kit.tier.fake_bucket import Hook


def test_transient_errors_are_retried_without_reader_error() -> None:
    async def main(world: ColdWorld) -> None:
        await prepared(world)
        batches = await whole(world)
        await world.remote(world.segments())
        faults = world.bucket.faults
        faults.error_rate = faults.slow_down_rate = faults.lost_rate = faults.partial_rate = 0.15
        faults.delay_s = (0.01, 0.2)
        cold = world.open_tier(blocks=4)
        for _ in range(3):
            assert await whole(world) == batches
            for block in [*cold.tier(0).cache._blocks.values()]:
                cold.tier(0).cache.remove(block)
        assert cold.counts.failed > 5

    for seed in range(4):
        simulated(main, seed)


def test_store_outage_is_reported_then_waited_for() -> None:
    async def main(world: ColdWorld) -> None:
        await prepared(world)
        batches = await whole(world)
        await world.remote(world.segments())
        world.bucket.faults.down, world.bucket.faults.timeout_s = True, 0.3
        world.open_tier()
        assert await take(world, "t", 3, patience_s=0.5) == (b"", 0)  # it may be slow alone
        await world.env.sleep(5)
        with pytest.raises(KafkaError, match=r"t-0 at offset 3.*EndpointConnectionError") as caught:
            await take(world, "t", 3, patience_s=0.5)
        assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        began = world.env.clock.monotonic()
        with pytest.raises(KafkaError):
            await take(world, "t", 50)  # as long as it takes: until it has failed
        assert 25 < world.env.clock.monotonic() - began < 60
        world.bucket.faults.down = False
        await world.env.sleep(6)
        assert await whole(world) == batches

    simulated(main)


def test_refusal_of_an_unknown_tier_is_not_remembered() -> None:
    """It is that of another broker, and is found later: the objects in it are read at once."""

    async def main(world: ColdWorld) -> None:
        await prepared(world)
        batches = await whole(world)
        await world.remote(world.segments())
        cold = world.open_tier()
        known, cold._stores = cold._stores, lambda _: None
        with pytest.raises(KafkaError, match="UnknownTier") as caught:
            await take(world, "t", 3)
        assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        cold._stores = known
        assert await whole(world) == batches

    simulated(main)


@pytest.mark.parametrize("harm", ["forgotten", "truncated", "damaged", "index", "refused"])
def test_unreadable_object_is_named_and_others_are_read(
    harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(world: ColdWorld) -> None:
        await prepared(world)
        batches = await whole(world)
        await world.remote(world.segments())
        key = f"segments/{world.segments()[1].row.object.hex()}.segment"
        mapping = world.find("t").segments.mapping(world.find("t").number, 1)
        data = bytearray(world.bucket.objects[key])
        if harm == "forgotten":
            world.bucket.forget(key)
        elif harm == "truncated":
            world.bucket.truncate(key, mapping.start + 100)
        elif harm == "refused":
            world.bucket.hook = refuse(world, key)
        else:
            at = mapping.start + 200 if harm == "damaged" else mapping.index_start + 5
            data[at] ^= 1
            world.bucket.store(key, bytes(data))
        cold = world.open_tier()
        with pytest.raises(KafkaError, match=f"{key}, t-0 at offset 40") as caught:
            await take(world, "t", 40, 600)
        lost = harm != "refused"
        code = ErrorCode.CORRUPT_MESSAGE if lost else ErrorCode.KAFKA_STORAGE_ERROR
        assert caught.value.code == code
        for offset in (0, 39, 80, 119, 122):
            assert (await take(world, "t", offset, 600))[0] == batches[offset]
        got = split((await take(world, "t", 38))[0])
        assert got == batches[38:40]  # the records before it
        assert cold.counts.gone == (harm == "forgotten")
        asked = gets(world)
        with pytest.raises(KafkaError):
            await take(world, "t", 40, 600)
        assert harm != "refused" or gets(world) == asked  # no request is repeated at once
        named = [r for r in caplog.records if r.levelname == "ERROR" and key in r.message]
        assert len(named) == 1
        assert "t-0" in named[0].message
        assert "offsets 40-" in named[0].message

    simulated(main)


def refuse(world: ColdWorld, key: str) -> Hook:
    """No permission for one object."""

    def hook(moment: str, kind: str, asked: str) -> None:
        if moment == "call":
            world.bucket.faults.refused = "AccessDenied" if asked == key else ""

    return hook


def test_damage_in_transit_is_read_again() -> None:
    async def main(world: ColdWorld) -> None:
        await prepared(world)
        batches = await whole(world)
        await world.remote(world.segments())
        cold = world.open_tier()
        assert (await take(world, "t", 3, 600))[0] == batches[3]
        for block in cold.tier(0).cache._blocks.values():
            world.remote_store.memory[block.at + 2000] ^= 1
            block.checked = (0, 0)
        assert await whole(world) == batches
        assert cold.counts.damaged

    simulated(main)


def test_replaced_object_is_looked_up_again() -> None:
    async def main(world: ColdWorld) -> None:
        await prepared(world)
        batches = await whole(world)
        await world.remote(world.segments())
        cold = world.open_tier()
        for segment in world.segments():
            old = segment.row
            uuid = world.env.random.randbytes(16)
            data = world.bucket.objects[segment_key(old.object)]
            world.bucket.store(segment_key(uuid), data)
            moved = ObjectRow(uuid, old.id, 1, tier=1, size_bytes=old.size_bytes, state=1)
            await world.storage.relocate_objects({old.object: moved})
            world.bucket.forget(segment_key(old.object))
            assert segment.row is old  # the loaded state does not have the change yet
        assert await whole(world) == batches
        assert cold.counts.gone == 0
        assert {segment.row.tier for segment in world.segments()} == {1}

    simulated(main)
