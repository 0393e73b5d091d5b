"""Records of all kinds through a schedule topic of a simulated broker: large ones, nulls, headers;
and due times that are refused, each with Kafka's code and the index of its record.

Covers: kafkawire.schedules.step, kafkawire.schedules.check, kafkawire.schedules.headers.
"""

from __future__ import annotations

import pytest

from kafkawire.codec.batches import Record, pack
from kafkawire.codec.errors import ErrorCode
from kafkawire.schedules.headers import DELIVER_AFTER, DELIVER_AT, DELIVER_EVERY, SCHEDULED_FROM
from tests.kit.schedules.broker import ScheduleWorld
from tests.kit.schedules.scripted import LATER, ORDERS
from tests.schedules.test_delivery import simulated

MIB = 1 << 20
LIMIT = {"max.message.bytes": str(4 * MIB)}
LAST_MS = 253_402_300_799_999

Headers = list[tuple[str, bytes | None]]


def test_records_and_keys_of_a_megabyte() -> None:
    async def main(world: ScheduleWorld) -> None:
        await world.create("large", {**LIMIT, "compression.type": "producer"})
        now = world.now_ms()
        sent = [
            Record(0, now + 500, b"k", b"v" * MIB),
            Record(0, now + 600, b"k" * MIB, b"v"),
            Record(0, now + 700, b"l" * MIB, None),
            Record(0, now + 800, None, b"w" * MIB, [("h", b"x" * MIB)]),
        ]
        for each in sent:
            await world.send([each])
        await world.sleep(0.1)
        await world.restart()
        await world.sleep(2)
        found = await world.records("large")
        assert [(row.key, row.value) for row in found] == [(row.key, row.value) for row in sent]
        assert found[3].headers[0] == ("h", b"x" * MIB)

    simulated(main, configs={"schedule.target.topic": "large", **LIMIT}, journal_bytes=8 * MIB)


def test_record_is_refused_that_is_too_large_for_its_target() -> None:
    async def main(world: ScheduleWorld) -> None:
        now = world.now_ms()
        small, large = Record(0, now, b"k", b"v"), Record(1, now, b"k", b"v" * MIB)
        row = await world.try_produce(bytes(pack([small, large])))
        assert row.error_code == ErrorCode.INVALID_RECORD
        assert [each.batch_index for each in row.record_errors] == [1]
        assert "max.message.bytes of the target topic orders" in row.error_message
        assert await world.rows(LATER) == []

    simulated(main, configs={"schedule.target.topic": ORDERS, **LIMIT}, journal_bytes=8 * MIB)


def test_nulls_and_headers_are_kept() -> None:
    """Null values of a topic that is not compacted are records like others."""

    async def main(world: ScheduleWorld) -> None:
        now = world.now_ms()
        headers: Headers = [("a", None), ("a", b"1"), ("a", b""), ("", b"empty name"), ("b", None)]
        sent = [
            Record(0, now + 500, None, b"no key"),
            Record(1, now + 500, b"k", None),
            Record(2, now + 500, None, None),
            Record(3, now + 500, b"", b""),
            Record(4, now + 500, b"k", b"v", headers),
        ]
        await world.send(sent)
        await world.sleep(1)
        found = await world.records(ORDERS)
        assert [(row.key, row.value) for row in found] == [(row.key, row.value) for row in sent]
        for number, (row, record) in enumerate(zip(found, sent, strict=True)):
            origin = (SCHEDULED_FROM, b"%s-0-%d" % (LATER.encode(), number))
            assert row.headers == [*record.headers, origin]

    simulated(main)


REFUSED: list[tuple[str, int, Headers, str]] = [
    ("no time", 0, [(DELIVER_AT, b"tomorrow")], "is not a time"),
    ("empty", 0, [(DELIVER_AT, b"")], "is not a time"),
    ("null", 0, [(DELIVER_AT, None)], "has no text"),
    ("no ASCII", 0, [(DELIVER_AT, "2026\u2212".encode())], "has no text"),
    ("negative", 0, [(DELIVER_AT, b"-1")], "is not a time"),
    ("before 1970", 0, [(DELIVER_AT, b"1969-12-31T23:59:59Z")], "is not between the years"),
    ("year 10000", 0, [(DELIVER_AT, str(LAST_MS + 1).encode())], "is not between the years"),
    ("year 10000 as text", 0, [(DELIVER_AT, b"10000-01-01T00:00:00Z")], "is not a time"),
    ("long", 0, [(DELIVER_AT, b"1" * 100_000)], "is not a time"),
    ("negative delay", 0, [(DELIVER_AFTER, b"-5")], "is not a duration"),
    ("negative duration", 0, [(DELIVER_AFTER, b"-PT5S")], "is not a duration"),
    ("months", 0, [(DELIVER_AFTER, b"P1M")], "is not a duration"),
    ("8,000 years", 0, [(DELIVER_AFTER, b"P999999999D")], "is longer than 8,000 years"),
    ("delay past 9999", 0, [(DELIVER_AFTER, b"P2932890D")], "is after the year 9999"),
    ("timestamp", LAST_MS + 1, [], "is after the year 9999"),
    ("both", 0, [(DELIVER_AT, b"1"), (DELIVER_AFTER, b"1")], "it has both"),
    ("every", 0, [(DELIVER_EVERY, b"PT0.5S")], "is shorter than a second"),
    ("never", 0, [(DELIVER_EVERY, b"0 0 31 2 *")], "31 2"),
]


def test_due_times_that_are_refused() -> None:
    """Each with INVALID_RECORD and the index of the record; others of the batch are not stored."""

    async def main(world: ScheduleWorld) -> None:
        now = world.now_ms()
        for name, timestamp, headers, words in REFUSED:
            good = Record(0, now, b"k", b"v")
            bad = Record(1, timestamp or now, b"k", b"v", headers)
            last = Record(2, now, b"k", b"v")
            row = await world.try_produce(bytes(pack([good, bad, last])))
            assert row.error_code == ErrorCode.INVALID_RECORD, name
            (error,) = row.record_errors
            assert error.batch_index == 1, name
            assert words in error.batch_index_error_message, name
            assert len(row.error_message) < 500, name
        assert await world.rows(LATER) == []
        assert await world.delivered() == []

    simulated(main)


@pytest.mark.parametrize("codec", [0, 1, 4])
def test_all_faults_of_a_batch_are_listed(codec: int) -> None:
    async def main(world: ScheduleWorld) -> None:
        now = world.now_ms()
        items = [
            Record(n, now, b"k", b"v", [(DELIVER_AT, b"x")] if n % 3 == 1 else [])
            for n in range(20)
        ]
        row = await world.try_produce(bytes(pack(items, codec=codec)))
        assert row.error_code == ErrorCode.INVALID_RECORD
        assert [each.batch_index for each in row.record_errors] == list(range(1, 20, 3))

    simulated(main)


def test_due_times_in_the_past_and_without_timestamp() -> None:
    async def main(world: ScheduleWorld) -> None:
        now = world.now_ms()
        past: list[Headers] = [
            [(DELIVER_AT, b"0")],
            [(DELIVER_AT, b"1970-01-01T00:00:00Z")],
            [(DELIVER_AFTER, b"0")],
            [],
        ]
        for number, headers in enumerate(past):
            timestamp = now if headers else -1
            await world.send([Record(0, timestamp, b"k", b"%d" % number, headers)])
        await world.sleep(1)
        found = sorted(row.value or b"" for row in await world.delivered())
        assert found == [b"0", b"1", b"2", b"3"]
        far = [(DELIVER_AT, str(LAST_MS).encode())]
        await world.send([Record(0, now, b"k", b"the last moment", far)])
        await world.sleep(1)
        await world.restart()
        await world.sleep(1)
        assert len(await world.delivered()) == 4
        assert world.deliverer.backlog.waiting == 1

    simulated(main)
