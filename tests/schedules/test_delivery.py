"""Delivery by a simulated broker, in virtual time: when, in which order, and what holds it up.

Covers: kafkawire.schedules.deliverer, kafkawire.schedules.backlog, kafkawire.schedules.feed,
kafkawire.schedules.check, kafkawire.schedules.configs, kafkawire.schedules.targets,
kafkawire.schedules.starter, kafkawire.schedules.service.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kafkawire.codec.batches import Record, pack
from kafkawire.codec.compression import ZSTD
from kafkawire.codec.errors import ErrorCode
from kafkawire.messages.delete_topics import DeleteTopicsRequest
from kafkawire.schedules import backlog, window
from kafkawire.schedules.deliverer import HELD_RETRY_S
from kafkawire.schedules.headers import CANCELS, DELIVER_AT, DELIVER_EVERY, SCHEDULED_FROM
from tests.kit.schedules.broker import ScheduleWorld
from tests.kit.schedules.scripted import LATER, ORDERS
from tests.kit.seeds import quiet

LATE_MS = 100
"""The most that a delivery may be late; the disk of the simulation takes up to 16 ms for a step."""

Main = Callable[[ScheduleWorld], Awaitable[None]]


def simulated(main: Main, **values: Any) -> None:
    with quiet():
        ScheduleWorld(**values).run(main)


def test_records_are_delivered_in_time_and_in_order() -> None:
    async def main(world: ScheduleWorld) -> None:
        now = world.now_ms()
        dues = [now + 2_000 - 7 * n for n in range(100)]
        for at in range(0, 100, 10):
            await world.send([Record(n, dues[at + n], b"k", b"") for n in range(10)])
        await world.sleep(3)
        found = await world.delivered()
        assert len(found) == 100
        moments = [row.timestamp for row in found]
        assert moments == sorted(moments)
        order = [int((row.headers[SCHEDULED_FROM] or b"").rsplit(b"-")[-1]) for row in found]
        assert order == sorted(range(100), reverse=True), "the last record was due first"
        for row, offset in zip(found, order, strict=True):
            assert dues[offset] <= row.timestamp <= dues[offset] + LATE_MS

    simulated(main)


def test_late_records_are_delivered_at_once() -> None:
    async def main(world: ScheduleWorld) -> None:
        now = world.now_ms()
        await world.send([Record(0, now + 500, b"k", b"first")])
        await world.sleep(1)
        await world.send([Record(0, now - 60_000, b"k", b"late"), Record(1, now, b"k", b"later")])
        await world.sleep(0.2)
        assert [row.value for row in await world.delivered()] == [b"first", b"late", b"later"]

    simulated(main)


def test_compressed_and_transactional_records() -> None:
    async def main(world: ScheduleWorld) -> None:
        now = world.now_ms()
        items = [Record(n, now, b"k", b"%d" % n) for n in range(2_000)]
        await world.produce(bytes(pack(items, codec=ZSTD)))
        await world.transaction(["aborted"], commit=False)
        await world.transaction(["committed"], commit=True)
        await world.sleep(2)
        values = [row.value for row in await world.delivered()]
        assert values == [b"%d" % n for n in range(2_000)] + [b"committed"]

    simulated(main)


def test_record_is_replaced_and_cancelled_by_key() -> None:
    async def main(world: ScheduleWorld) -> None:
        now = world.now_ms()
        await world.send([Record(0, now + 1000, b"a", b"1"), Record(1, now + 1000, b"b", b"1")])
        await world.sleep(0.1)
        await world.send([Record(0, now + 2000, b"a", b"2"), Record(1, now, b"b", None)])
        await world.sleep(3)
        found = await world.delivered()
        assert [(row.key, row.value) for row in found] == [(b"a", b"2")]
        assert found[0].timestamp >= now + 2000

    simulated(main, policy="compact")


@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_what_cancels_a_record_is_in_time_however_much_is_to_be_read_before_it(
    policy: str,
) -> None:
    """Both are due when the broker starts, and the index is lost."""

    async def main(world: ScheduleWorld) -> None:
        now = world.now_ms()
        far = now + 3_600_000
        await world.send([Record(0, now + 2000, b"a", b"cancelled")])
        large = [Record(n, far, b"x%d" % n, b"x" * 50_000) for n in range(10)]
        for _ in range(2):
            await world.send(large)
        cancel = Record(0, now, b"a", None, [(CANCELS, b"0")] if policy == "delete" else [])
        await world.send([cancel, Record(1, now + 2000, b"b", b"kept")])
        await world.world.life(0, "close")
        await world.sleep(5)
        assert await world.world.start()
        await world.sleep(2)
        assert [row.value for row in await world.delivered()] == [b"kept"]

    simulated(main, policy=policy)


def test_record_is_cancelled_by_offset() -> None:
    async def main(world: ScheduleWorld) -> None:
        now = world.now_ms()
        await world.send([Record(n, now + 1000, None, b"%d" % n) for n in range(3)])
        await world.sleep(0.1)
        await world.send([Record(0, now, None, None, [(CANCELS, b"1")])])
        await world.sleep(2)
        assert sorted(row.value or b"" for row in await world.delivered()) == [b"0", b"2"]

    simulated(main)


def test_record_is_repeated_until_it_is_cancelled() -> None:
    async def main(world: ScheduleWorld) -> None:
        now = world.now_ms()
        headers = [(DELIVER_EVERY, b"PT2S")]
        await world.send([Record(0, now + 500, b"a", b"x", headers)])
        await world.sleep(5)
        await world.restart()
        await world.sleep(2)
        await world.send([Record(0, now, b"a", None)])
        await world.sleep(5)
        found = await world.delivered()
        moments = [row.timestamp - now for row in found]
        assert [moment // 500 * 500 for moment in moments] == [500, 2500, 4500, 6500]

    simulated(main, policy="compact")


def test_missing_target_holds_only_its_records() -> None:
    async def main(world: ScheduleWorld) -> None:
        now = world.now_ms()
        await world.create("gone")
        await world.send([
            Record(0, now + 1000, b"a", b"1", [("to", b"gone")]),
            Record(1, now + 1000, b"b", b"2", [("to", b"orders")]),
        ])  # fmt: skip
        await world.call(DeleteTopicsRequest(topic_names=["gone"], timeout_ms=1000), 5)
        await world.sleep(2)
        assert [row.value for row in await world.delivered()] == [b"2"]
        deliverer = world.deliverer
        assert deliverer.state is not None
        assert deliverer.state.held == ((now + 1000, 0),)
        assert "gone does not exist" in deliverer.reasons[0]
        await world.restart()
        await world.create("gone")
        await world.sleep(HELD_RETRY_S + 2)
        assert [row.value for row in await world.delivered("gone")] == [b"1"]
        state = world.deliverer.state
        assert state is not None
        assert state.held == ()

    simulated(main, configs={"schedule.target.header": "to"})


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ([(DELIVER_AT, b"soon")], "is not a time"),
        ([("to", b"nothing")], "nothing does not exist"),
        ([("to", b"later")], "is a schedule topic itself"),
        ([("to", b"__consumer_offsets")], "does not exist"),
        ([("to", b"__schedule_state")], "is an internal topic"),
        ([], "no header to"),
    ],
)
def test_record_that_cannot_be_scheduled_is_refused(
    headers: list[tuple[str, bytes | None]], words: str
) -> None:
    async def main(world: ScheduleWorld) -> None:
        now = world.now_ms()
        good = Record(0, now, b"k", b"v", [("to", b"orders")])
        named = [("to", b"orders"), *headers] if headers else []
        batch = bytes(pack([good, Record(1, now, b"k", b"v", named)]))
        row = await world.try_produce(batch)
        assert row.error_code == ErrorCode.INVALID_RECORD
        assert words in (row.error_message or "")
        assert [each.batch_index for each in row.record_errors] == [1]
        assert await world.rows(LATER) == []

    simulated(main, configs={"schedule.target.header": "to"})


def test_clock_that_jumps() -> None:
    """Never early by the clock of the moment, never twice."""

    async def main(world: ScheduleWorld) -> None:
        now = world.now_ms()
        await world.send([Record(0, now + 3_600_000, b"k", b"hour")])
        await world.sleep(1)
        assert await world.delivered() == []
        world.jump(3_600_000)
        await world.sleep(2)
        assert [row.value for row in await world.delivered()] == [b"hour"]
        world.jump(-3_600_000)
        soon = world.now_ms() + 1000
        await world.send([Record(0, soon, b"k", b"soon")])
        await world.sleep(0.5)
        assert len(await world.delivered()) == 1, "it is not due by the clock"
        await world.sleep(2)
        found = await world.delivered()
        assert [row.value for row in found] == [b"hour", b"soon"]
        assert found[1].timestamp >= soon
        await world.restart()
        await world.sleep(2)
        assert len(await world.delivered()) == 2

    simulated(main)


def test_more_records_than_the_window_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "WINDOW_RECORDS", 50)
    monkeypatch.setattr(window.DueWindow.__init__, "__defaults__", (50, None))

    def place(number: int) -> int:
        return number * 7 % 1000 * 10

    async def main(world: ScheduleWorld) -> None:
        now = world.now_ms()
        for at in range(0, 1000, 100):
            items = [
                Record(n, now + 20_000 + place(at + n), b"k", b"%d" % (at + n)) for n in range(100)
            ]
            await world.send(items)
        await world.sleep(22)
        await world.restart()
        await world.sleep(15)
        found = await world.delivered()
        assert sorted(int(row.value or b"-1") for row in found) == list(range(1000))
        moments = [(place(int(row.value or b"")), row.timestamp) for row in found]
        assert moments == sorted(moments), "in due order"

    simulated(main)


def test_topic_stops_to_be_a_schedule_and_is_deleted() -> None:
    async def main(world: ScheduleWorld) -> None:
        now = world.now_ms()
        await world.send([Record(0, now + 1000, b"k", b"v")])
        await world.alter(LATER, {})
        await world.sleep(2)
        assert await world.delivered() == []
        assert world.service.deliverers == {}
        await world.alter(LATER, {"schedule.target.topic": ORDERS})
        await world.sleep(2)
        assert len(await world.delivered()) == 1
        await world.call(DeleteTopicsRequest(topic_names=[LATER], timeout_ms=1000), 5)
        await world.sleep(2)
        assert world.service.deliverers == {}
        assert all(not each._states for each in world.service.list_led())

    simulated(main)


def test_retention_keeps_what_waits() -> None:
    async def main(world: ScheduleWorld) -> None:
        now = world.now_ms()
        await world.send([Record(0, now - 10_000_000, b"k", b"old")])
        far = [(DELIVER_AT, str(now + 7_200_000).encode())]
        await world.send([Record(0, now - 10_000_000, b"k", b"waits", far)])
        await world.send([Record(0, now - 10_000_000, b"k", b"old")])
        await world.sleep(200)
        partition = world.partition(LATER)
        assert partition.kept_from == 1
        await world.sleep(7_200)
        assert len(await world.delivered()) == 3
        await world.sleep(700)
        assert partition.log_start == 3, "nothing waits any more"

    simulated(main, configs={"schedule.target.topic": ORDERS, "retention.ms": "60000"})


def test_nothing_is_delivered_while_the_broker_reads_only() -> None:
    async def main(world: ScheduleWorld) -> None:
        assert world.world.broker is not None
        configs = world.world.broker.parts.topics.configs
        await world.send([Record(0, world.now_ms() + 500, b"k", b"due")])
        await configs.replace_static({"broker.read.only": "true"})
        await world.sleep(5)
        assert await world.delivered() == []
        await configs.replace_static({"broker.read.only": None})
        await world.sleep(2)
        assert [row.value for row in await world.delivered()] == [b"due"]

    simulated(main)
