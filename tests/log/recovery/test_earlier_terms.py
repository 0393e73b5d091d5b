"""Journals with records of a term that has ended, at a start.

Covers: kafkawire.log.recovery.earlier_terms, kafkawire.log.recovery.earlier_terms.
"""

from __future__ import annotations

import logging

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.partition.partition import Partition
from kafkawire.log.recovery.earlier_terms import LeftRecords, read_left, write_left
from tests.kit.env import EPOCH_MS
from tests.kit.log.logs import batch, read_all
from tests.kit.log.pair import Pair
from tests.kit.waiting import settle, until

HOME = "/data/brokers/1"


@pytest.fixture
async def pair() -> Pair:
    made = Pair()
    await made.start()
    return made


async def append(partition: Partition, *values: bytes) -> None:
    for value in values:
        partition.append(batch(value), EPOCH_MS)
    await partition.log.wait_until_committed()


async def code_at(partition: Partition, offset: int) -> tuple[ErrorCode, str]:
    with pytest.raises(KafkaError) as caught:
        await read_all(partition, offset)
    return caught.value.code, caught.value.message or ""


async def divided(pair: Pair) -> int:
    """Offsets 2 and 3 are in the journals of both brokers, with different values."""
    (partition,) = await pair.topic("t")
    await append(partition, b"0", b"1")
    handed = await pair.first.log.hand_over([partition.number])
    pair.first.log.resume(handed.ready)
    await append(partition, b"first 2", b"first 3", b"first 4")
    (moved,) = await pair.move([partition.number], 2)
    assert moved.next_offset == 2
    await append(moved, b"second 2", b"second 3")
    return partition.number


async def test_epoch_is_stored_before_the_first_append(pair: Pair) -> None:
    number = await divided(pair)
    (row,) = await pair.second.storage.load_partitions([number])
    assert row.checkpoint is not None
    assert row.checkpoint.leader_epochs == [(0, 0), (1, 2)]
    assert row.checkpoint.next_offset == 2, "nothing but the epoch"


async def test_records_of_an_earlier_term_are_left(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    number = await divided(pair)
    await pair.second.log.checkpoint()
    await pair.first.kill()
    pair.change([number], 1)
    await pair.second.log.resign([number])
    with caplog.at_level(logging.WARNING):
        await pair.first.start()
    again = await pair.first.find(number)
    assert (again.next_offset, again.cut_offset) == (4, 2)
    assert not again.rows
    assert await code_at(again, 2) == (
        ErrorCode.KAFKA_STORAGE_ERROR,
        "t-0: offset 2 is in no segment and not at this broker, since its leader changed before it "
        "was cut",
    )
    said = [each.getMessage() for each in caplog.records]
    assert any("offsets 2-4 of it are only in the journals of this broker" in e for e in said)
    assert any("offsets 2-3 of t-0 are in no segment and not at this broker" in e for e in said)
    await append(again, b"third 4")
    assert await read_all(again, 4) == [(4, b"third 4")]


@pytest.mark.parametrize("how", ["kill", "close"])
async def test_journals_are_kept_over_restarts(
    pair: Pair, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    number = await divided(pair)
    (kept,) = pair.first.log.leadership.kept.values()
    for _ in range(2):
        if how == "kill":
            await pair.first.kill()
        else:
            await pair.first.log.close()
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            await pair.first.start()
        assert any("offsets 2-4 of it" in each.getMessage() for each in caplog.records)
        assert pair.first.log.leadership.kept == {number: kept}
        log = pair.first.log
        log.journals.prepare(again=True)
        await until(lambda log=log: bool(log.journals.ready))  # type: ignore[misc]
        log.commit_log.roll()
        await log.commit_log.wait_until_committed()
        await settle()
        await log.checkpoint()
        await log.retention.reclaim()
        assert set(kept) <= log.journals.by_number.keys()
    topic = pair.first.catalog.locate(number)
    assert topic is not None
    pair.first.log.remove_topic(pair.first.catalog.remove_topic(topic.topic_id))
    await pair.first.log.checkpoint()
    await pair.first.log.retention.reclaim()
    assert not set(kept) & pair.first.log.journals.by_number.keys()


async def test_planned_moves_leave_nothing(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    (partition,) = await pair.topic("t")
    await append(partition, b"0")
    numbers = (await pair.first.log.hand_over([partition.number])).ready
    (moved,) = await pair.move(numbers, 2)
    await append(moved, b"1")
    await pair.second.log.hand_over(numbers)
    (partition,) = await pair.move(numbers, 1)
    await append(partition, b"2")
    for member in (pair.first, pair.second):
        await member.kill()
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            await member.start()
        assert not any("journals of this broker" in each.getMessage() for each in caplog.records)
        assert not member.log.leadership.kept
    again = await pair.first.find(numbers[0])
    assert await read_all(again) == [(0, b"0"), (1, b"1"), (2, b"2")]


async def test_file_of_left_records(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    fs = pair.fs
    assert read_left(fs, HOME) == {}
    left = {3: LeftRecords(5, 9, [1, 2]), 1: LeftRecords(0, 1, [2])}
    write_left(fs, HOME, left)
    assert read_left(fs, HOME) == left
    file = fs.open(f"{HOME}/left")
    file.pwritev([b"x"], 3)
    assert read_left(fs, HOME) == {}
    assert "is damaged" in caplog.text
