"""The ends of logs of earlier lives: the fence, and objects that are missing or damaged."""

from __future__ import annotations

import logging

import pytest

from kafkawire.log.earlier_logs import EarlierLogs, EarlierObject
from kafkawire.log.journal.format import JournalFormatError
from kafkawire.log.objects.format import VERSION, read_header, write_fence
from kafkawire.manifest.keys import log_object_key
from kafkawire.objectstore.errors import Refused
from kafkawire.offsets.catalog.object_logs import ObjectLog
from tests.kit.env import memory_env
from tests.kit.log.log_objects import NONCE, frame_of, naming_of, object_of
from tests.kit.log.logs import batch
from tests.kit.log.object_world import OneStore
from tests.kit.tier.fake_bucket import FakeBucket, StoreFaults
from tests.kit.tier.fake_store import FakeStore

NODE, EPOCH, NOW = 1, 7, 9
OPEN = ObjectLog(NODE, EPOCH, OneStore.url, 0, None, 0)


def small(sequence: int) -> bytes:
    """An object of one partition, which ends at offset 10."""
    frames = [frame_of(5, 64, [batch(b"a")]), frame_of(5, 4096, [batch(b"b")])]
    return object_of(frames, {5: naming_of(5)}, epoch=EPOCH, sequence=sequence)


class Fixture:
    """A bucket with the first objects of a log."""

    def __init__(self, count: int) -> None:
        self.bucket = FakeBucket(faults=StoreFaults(timeout_s=0.001))
        for sequence in range(count):
            self.bucket.store(log_object_key(EPOCH, sequence), small(sequence))
        self.logs = EarlierLogs(
            memory_env(), OneStore(FakeStore(self.bucket)), NODE, NOW, bytes(16)
        )

    def fenced_at(self) -> list[int]:
        heads = [read_header(data, key) for key, data in self.bucket.objects.items()]
        return [head.sequence for head in heads if head.is_fence]


@pytest.mark.parametrize("count", [0, 1, 16, 17, 40])
async def test_open_log_gets_a_fence_after_its_last_object(count: int) -> None:
    fixture = Fixture(count)
    ended, found = await fixture.logs.fence_log(OPEN)
    assert (ended, fixture.fenced_at()) == (count, [count])
    assert [each.sequence for each in found] == list(range(count))
    assert all(each.ends == {5: 10} and not each.fence for each in found)
    head = read_header(fixture.bucket.data(log_object_key(EPOCH, count)), "")
    assert (head.nonce, head.fenced_by, head.node_id) == (bytes(16), NOW, NODE)


async def test_released_objects_are_not_read() -> None:
    fixture = Fixture(5)
    for sequence in range(3):
        fixture.bucket.forget(log_object_key(EPOCH, sequence))
    ended, found = await fixture.logs.fence_log(ObjectLog(NODE, EPOCH, OneStore.url, 3, None, 0))
    assert (ended, [each.sequence for each in found]) == (5, [3, 4])


async def test_fence_that_is_there_ends_the_log() -> None:
    fixture = Fixture(2)
    fence = write_fence(NODE, EPOCH, 2, NONCE, 8, 0)
    fixture.bucket.store(log_object_key(EPOCH, 2), fence)
    fixture.bucket.store(log_object_key(EPOCH, 3), small(3))  # stored late, never acknowledged
    ended, found = await fixture.logs.fence_log(OPEN)
    assert (ended, len(found), fixture.bucket.requests["put"]) == (2, 2, 0)


async def test_object_that_comes_before_the_fence_is_part_of_the_log() -> None:
    fixture = Fixture(1)

    def store(moment: str, kind: str, key: str) -> None:
        if (moment, kind, key) == ("call", "put", log_object_key(EPOCH, 1)):
            fixture.bucket.held.setdefault(key, fixture.bucket.held[log_object_key(EPOCH, 0)])
            fixture.bucket.store(key, small(1))
            fixture.bucket.hook = lambda *_: None

    fixture.bucket.hook = store
    ended, found = await fixture.logs.fence_log(OPEN)
    assert (ended, len(found), fixture.fenced_at()) == (2, 2, [2])


async def test_fence_whose_answer_was_lost_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafkawire.objectstore.backoff.wait_s", lambda *_: 0.0)
    fixture = Fixture(1)
    fixture.bucket.faults.lost_rate = 0.5
    ended, found = await fixture.logs.fence_log(OPEN)
    assert (ended, len(found), fixture.fenced_at()) == (1, 1, [1])


async def test_end_waits_for_the_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafkawire.objectstore.backoff.wait_s", lambda *_: 0.0)
    fixture = Fixture(3)
    fixture.bucket.faults.slow_down_rate = 0.8
    assert (await fixture.logs.fence_log(OPEN))[0] == 3
    fixture.bucket.faults = StoreFaults(refused="AccessDenied")
    with pytest.raises(Refused):
        await fixture.logs.fence_log(OPEN)


async def test_missing_and_damaged_objects_are_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fixture = Fixture(4)
    fixture.bucket.forget(log_object_key(EPOCH, 1))
    fixture.bucket.truncate(log_object_key(EPOCH, 2), 50)
    with caplog.at_level(logging.CRITICAL):
        ended, found = await fixture.logs.fence_log(ObjectLog(NODE, EPOCH, OneStore.url, 0, 4, 0))
    assert (ended, [(each.sequence, each.ends) for each in found]) == (
        4,
        [(0, {5: 10}), (2, {}), (3, {5: 10})],
    )
    assert [log_object_key(EPOCH, at) in caplog.text for at in range(4)] == [
        False, True, True, False,
    ]  # fmt: skip


async def test_object_of_newer_program_refuses_the_start() -> None:
    fixture = Fixture(1)
    key = log_object_key(EPOCH, 0)
    data = bytearray(fixture.bucket.data(key))
    data[8:12] = (VERSION + 1).to_bytes(4, "big")
    fixture.bucket.store(key, bytes(data))
    with pytest.raises(JournalFormatError, match="newer"):
        await fixture.logs.fence_log(OPEN)
    with pytest.raises(JournalFormatError, match="newer"):
        await fixture.logs.frames(EarlierObject(OneStore.url, key, EPOCH, 0, 0, {}))


async def test_frames_before_a_damaged_one_are_read(caplog: pytest.LogCaptureFixture) -> None:
    fixture = Fixture(2)
    _, found = await fixture.logs.fence_log(OPEN)
    assert [len(await fixture.logs.frames(each)) for each in found] == [2, 2]
    data = bytearray(fixture.bucket.data(found[1].key))
    data[-20] ^= 1
    fixture.bucket.store(found[1].key, bytes(data))
    fixture.bucket.forget(found[0].key)
    with caplog.at_level(logging.CRITICAL):
        assert [len(await fixture.logs.frames(each)) for each in found] == [0, 1]
    assert "is missing" in caplog.text
    assert "is damaged after 1 frames" in caplog.text
