"""Log objects that are not needed and were not deleted: what a start deletes, and what stays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kafkawire.log.maintenance import log_orphans as module
from kafkawire.log.maintenance.log_orphans import KEPT_MS, OrphanRemoval
from kafkawire.log.objects.format import write_fence
from kafkawire.manifest.keys import log_object_key
from kafkawire.objectstore.errors import StoreError
from kafkawire.offsets.catalog.object_logs import ObjectLog
from kafkawire.tiering.store.log_stores import LogStores
from kafkawire.tiering.store.metering import Meter
from tests.kit.env import EPOCH_MS, memory_env
from tests.kit.log.log_objects import NONCE, object_of
from tests.kit.tier.fake_bucket import FakeBucket
from tests.kit.tier.fake_store import FakeStore
from tests.kit.waiting import until

NODE = 1
HERE, THERE = "s3://bucket/prefix/nodes/1", "s3://other/nodes/1"
OLD_MS = EPOCH_MS - KEPT_MS - 1


class Fixture:
    """A broker whose rows and objects the test chooses."""

    def __init__(self) -> None:
        self.env = memory_env()
        self.env.clock.ms = EPOCH_MS  # type: ignore[attr-defined]
        self.buckets = {HERE: FakeBucket(), THERE: FakeBucket()}
        stores = LogStores(
            FakeStore(self.buckets[HERE]), "s3://bucket/prefix", NODE, Meter(), self._open
        )
        self.logs: list[ObjectLog] = []
        self.forgotten: list[int] = []
        self.may_forget = True
        self.removal = OrphanRemoval(self.env, stores, self._load, self._forget)

    def _open(self, url: str) -> FakeStore:
        assert url == f"{THERE}?create=false"
        return FakeStore(self.buckets[THERE])

    async def _load(self) -> list[ObjectLog]:
        return self.logs

    async def _forget(self, epoch: int) -> bool:
        if self.may_forget:
            self.forgotten.append(epoch)
            self.logs = [log for log in self.logs if log.broker_epoch != epoch]
        return self.may_forget

    def log(self, epoch: int, released: int, ended: int | None, **more: Any) -> None:
        """Add a row."""
        self.logs.append(
            replace(ObjectLog(NODE, epoch, HERE, released, ended, EPOCH_MS - 1), **more)
        )

    def put(self, epoch: int, *sequences: int, fence: int = -1, url: str = HERE) -> None:
        """Store objects of a log, and its fence."""
        bucket = self.buckets[url]
        prefix = "nodes/1/" if url == HERE else ""
        for each in sequences:
            bucket.store(prefix + log_object_key(epoch, each), object_of([], {}, epoch=epoch))
        if fence >= 0:
            data = write_fence(NODE, epoch, fence, NONCE, epoch + 1, EPOCH_MS)
            bucket.store(prefix + log_object_key(epoch, fence), data)

    def keys(self, url: str = HERE) -> list[tuple[int, int]]:
        """Epoch and sequence number of the stored objects."""
        found = [key.split("log/")[1].split("/") for key in self.buckets[url].objects]
        return [(int(epoch), int(sequence)) for epoch, sequence in found]


@pytest.fixture
def fixture() -> Fixture:
    return Fixture()


async def test_orphans_of_known_logs_are_deleted(fixture: Fixture) -> None:
    fixture.log(3, 2, 5)
    fixture.log(4, 1, None)
    fixture.put(3, 0, 1, 2, 3, 4, 6, 7, fence=5)
    fixture.put(4, 0, 1, 2)
    assert await fixture.removal.run_once() == 5
    assert fixture.keys() == [(3, 2), (3, 3), (3, 4), (3, 5), (4, 1), (4, 2)]
    assert await fixture.removal.run_once() == 0


async def test_objects_without_row_stay(fixture: Fixture) -> None:
    fixture.log(5, 0, None)
    fixture.put(2, 0, 1, fence=2)
    fixture.put(3, fence=9)  # young
    fixture.buckets[HERE].now_ms = lambda: OLD_MS
    fixture.put(1, 7)  # not a fence
    fixture.put(4, 0, fence=1)  # not alone
    fixture.put(6, 0)
    fixture.buckets[HERE].store("nodes/1/log/strange", b"")
    assert await fixture.removal.run_once() == 0
    assert len(fixture.buckets[HERE].objects) == 9


async def test_old_fence_without_row_is_deleted(fixture: Fixture) -> None:
    fixture.log(5, 0, None)
    fixture.put(5, 0)
    fixture.buckets[HERE].now_ms = lambda: OLD_MS
    fixture.put(3, fence=9)
    assert await fixture.removal.run_once() == 1
    assert fixture.keys() == [(5, 0)]


async def test_wall_clocks_alone_make_no_fence_old(fixture: Fixture) -> None:
    """The clock of the machine that ended a log showed 1970, or that of this one is ahead."""
    fixture.log(1, 3, 3, changed_ms=0)
    fixture.put(1, fence=3)
    fixture.put(2, fence=3)  # without a row
    fixture.log(5, 0, None)
    fixture.put(5, 0)
    fixture.env.clock.ms += 100 * KEPT_MS  # type: ignore[attr-defined]
    assert await fixture.removal.run_once() == 0
    assert fixture.keys() == [(1, 3), (2, 3), (5, 0)]
    fixture.buckets[HERE].now_ms = lambda: EPOCH_MS + KEPT_MS + 1
    fixture.put(5, 1)
    assert await fixture.removal.run_once() == 2
    assert fixture.keys() == [(5, 0), (5, 1)]


async def test_logs_are_forgotten_when_only_an_old_fence_is_left(fixture: Fixture) -> None:
    fixture.log(2, 3, 3)  # too young
    fixture.put(2, fence=3)
    fixture.buckets[HERE].now_ms = lambda: OLD_MS
    fixture.log(1, 3, 3, changed_ms=OLD_MS)
    fixture.put(1, 2, 4, fence=3)
    fixture.log(3, 2, 3, changed_ms=OLD_MS)  # not released
    fixture.put(3, 2, fence=3)
    fixture.log(4, 0, 0, changed_ms=OLD_MS)
    fixture.put(4, fence=0)
    fixture.log(5, 3, None, changed_ms=OLD_MS)
    fixture.may_forget = False
    assert await fixture.removal.run_once() == 2, "a superseded process forgets nothing"
    assert fixture.keys() == [(1, 3), (2, 3), (3, 2), (3, 3), (4, 0)]
    fixture.may_forget = True
    assert await fixture.removal.run_once() == 2
    assert fixture.forgotten == [1, 4]
    assert fixture.keys() == [(2, 3), (3, 2), (3, 3)]


async def test_places_of_other_tiers_are_cleaned(fixture: Fixture) -> None:
    fixture.log(3, 2, 3, url=THERE)
    fixture.put(3, 0, 1, 2, fence=3, url=THERE)
    fixture.put(3, 0, 1)  # this broker was restored, or has changed between two tiers
    assert await fixture.removal.run_once() == 2
    assert fixture.keys(THERE) == [(3, 2), (3, 3)]
    assert fixture.keys() == [(3, 0), (3, 1)]


async def test_many_objects_are_listed_in_pages(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafkawire.objectstore.port.MAX_LIST", 3)
    fixture.log(3, 7, 8)
    fixture.put(3, *range(8), fence=8)
    assert await fixture.removal.run_once() == 7
    assert fixture.keys() == [(3, 7), (3, 8)]


async def test_removal_is_repeated_until_it_succeeds(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_WAIT_S", 0.001)
    bucket = fixture.buckets[HERE]
    fixture.log(3, 2, 5)
    fixture.put(3, 0, 1)
    bucket.faults.error_rate = 1.0
    with pytest.raises(StoreError):
        await fixture.removal.run_once()
    fixture.removal.start()
    await until(lambda: bucket.requests["list"] > 3)
    bucket.faults.error_rate = 0.0
    await until(lambda: fixture.removal.done)
    assert fixture.keys() == []
    await fixture.removal.close()
