"""Delivery by a simulated broker through faults: a full disk, damaged segments, targets that are
created again, segments that are only in the bucket, transactions that end before a crash.

Covers: kafkawire.schedules.deliverer, kafkawire.schedules.feed, kafkawire.schedules.targets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from kafkawire.codec.batches import Record
from kafkawire.messages.delete_topics import DeleteTopicsRequest
from kafkawire.schedules.deliverer import HELD_RETRY_S
from kafkawire.schedules.headers import CANCELS, DELIVER_AT
from tests.kit.log.damaged_life import settle
from tests.kit.schedules.broker import ScheduleWorld
from tests.kit.schedules.scripted import ORDERS, Row
from tests.schedules.test_delivery import simulated

RECORDS = 30


def values(rows: Sequence[Row]) -> Counter[bytes]:
    return Counter(row.value or b"" for row in rows)


def due_at(moment_ms: int, count: int = RECORDS, size: int = 0) -> list[Record]:
    return [Record(n, moment_ms, b"k", b"record %d " % n + b"x" * size) for n in range(count)]


def once(records: Sequence[Record]) -> Counter[bytes]:
    return Counter(each.value or b"" for each in records)


async def delete(world: ScheduleWorld, name: str) -> None:
    answer = await world.call(DeleteTopicsRequest(topic_names=[name], timeout_ms=1000), 5)
    assert not answer.responses[0].error_code


@pytest.mark.parametrize("killed", [False, True])
def test_target_that_is_created_again_gets_what_is_due_afterwards(killed: bool) -> None:
    async def main(world: ScheduleWorld) -> None:
        now = world.now_ms()
        before, after = due_at(now + 500, 3), due_at(now + 3000)
        await world.send(before)
        await world.send(after)
        await world.sleep(1)
        assert values(await world.delivered()) == once(before)
        await delete(world, ORDERS)
        if killed:
            await world.world.life(0, "kill")
            assert await world.world.start()
        await world.create(ORDERS)
        await world.sleep(4)
        assert values(await world.delivered()) == once(after)
        await world.restart()
        await world.sleep(HELD_RETRY_S + 2)
        assert values(await world.delivered()) == once(after)

    simulated(main)


def test_full_disk_delays_what_is_due() -> None:
    async def main(world: ScheduleWorld) -> None:
        now = world.now_ms()
        records = due_at(now + 1000)
        await world.send(records)
        await world.sleep(0.5)
        world.world.fs.faults.room_bytes = 100
        await world.sleep(5)
        assert await world.delivered() == []
        world.world.fs.faults.room_bytes = None
        await world.sleep(3)
        assert values(await world.delivered()) == once(records)
        await world.restart()
        await world.sleep(2)
        assert values(await world.delivered()) == once(records)

    simulated(main)


def damage(world: ScheduleWorld, text: bytes) -> int:
    """Flip a bit wherever a file has this text; return how often."""
    count = 0
    for node in world.world.fs.files.values():
        at = bytes(node.data).find(text)
        if at >= 0:
            node.data[at] ^= 1
            settle(node)
            count += 1
    return count


def test_damaged_records_do_not_hold_up_others() -> None:
    """Of the batches of a segment, one is damaged."""

    async def main(world: ScheduleWorld) -> None:
        now = world.now_ms()
        batches = [
            [Record(n, now + 20_000, b"k", b"batch %d of ten %d" % (at, n)) for n in range(5)]
            for at in range(10)
        ]
        for each in batches:
            await world.send(each)
        await world.sleep(10)
        await world.world.life(0, "close")
        assert damage(world, b"batch 4 of ten 2") > 0
        assert await world.world.start()
        await world.sleep(15)
        expected: Counter[bytes] = Counter()
        for at, each in enumerate(batches):
            if at != 4:
                expected += once(each)
        assert values(await world.delivered()) == expected

    simulated(main)


def test_records_that_are_only_in_the_bucket_are_in_time() -> None:
    async def main(world: ScheduleWorld) -> None:
        now = world.now_ms()
        records = due_at(now, size=1000)
        headers: list[tuple[str, bytes | None]] = [(DELIVER_AT, b"%d" % (now + 120_000))]
        for each in records:
            await world.send([Record(0, now, each.key, each.value, headers)])
        await world.send([Record(0, now, b"k", b"cancelled", headers)])
        cancel = Record(0, now, b"c", b"", [(CANCELS, b"%d" % RECORDS)])
        await world.send([cancel])
        while any(b"record 7 " in bytes(node.data) for node in world.world.fs.files.values()):
            await world.sleep(1)
            assert world.now_ms() < now + 80_000, "the segments stay local"
        await world.restart()
        assert await world.delivered() == []
        await world.sleep((now + 121_000 - world.now_ms()) / 1000)
        found = await world.delivered()
        assert values(found) == once(records)
        for row in found:
            assert 0 <= row.timestamp - now - 120_000 <= 100

    simulated(
        main,
        configs={
            "schedule.target.topic": ORDERS,
            "remote.storage.enable": "true",
            "tiering.max.lag.ms": "5000",
            "tiering.min.object.bytes": "1",
            "local.retention.ms": "1",
            "retention.ms": "-1",
        },
    )


def test_aborted_records_are_not_delivered_after_a_restart() -> None:

    async def main(world: ScheduleWorld) -> None:
        await world.transaction(["aborted"], commit=False)
        await world.transaction(["committed"], commit=True)
        await world.world.life(0, "kill")
        assert await world.world.start()
        await world.sleep(2)
        assert values(await world.delivered()) == Counter({b"committed": 1})
        await world.transaction(["aborted later"], commit=False)
        await world.sleep(1)
        await world.restart()
        await world.sleep(2)
        assert values(await world.delivered()) == Counter({b"committed": 1})

    simulated(main)


@pytest.mark.parametrize("how", ["close", "kill"])
def test_last_step_is_not_repeated_when_the_target_has_forgotten_its_producer(how: str) -> None:
    async def main(world: ScheduleWorld) -> None:
        records = due_at(world.now_ms() + 500)
        await world.send(records)
        await world.sleep(400)
        assert values(await world.delivered()) == once(records)
        producers = world.partition(ORDERS).producers
        state = world.deliverer.state
        assert state is not None
        assert producers.next_sequence(state.producer_id) is None
        await world.world.life(0, how)
        assert await world.world.start()
        await world.sleep(5)
        assert values(await world.delivered()) == once(records)
        later = due_at(world.now_ms() + 500, 3)
        await world.send(later)
        await world.sleep(2)
        assert len(await world.delivered()) == len(records) + 3

    simulated(
        main,
        producer_id_expiration_ms=120_000,
        producer_id_expiration_check_interval_ms=10_000,
    )
