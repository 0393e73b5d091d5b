"""The stores of log objects: which folder or tier, how requests are counted, the check."""

from __future__ import annotations

from typing import Any

import pytest

from kafkawire.objectstore.errors import NoSuchObject, Refused, StoreError
from kafkawire.objectstore.port import Stored
from kafkawire.objectstore.url import parse_tier
from kafkawire.tiering.store.log_stores import LogStores, folder_of_node
from kafkawire.tiering.store.metering import LOG_OBJECTS, Meter
from tests.kit.tier.fake_bucket import FakeBucket
from tests.kit.tier.fake_store import FakeStore

TIER = "s3://bucket/prefix?region=x"
OWN = "s3://bucket/prefix/nodes/7?region=x"


class Fixture:
    """The stores of broker 7. `opened`: buckets of other places by URL."""

    def __init__(self) -> None:
        self.bucket = FakeBucket()
        self.meter = Meter()
        self.opened: dict[str, FakeBucket] = {}
        self.stores = LogStores(FakeStore(self.bucket), TIER, 7, self.meter, self._open)

    def _open(self, url: str) -> FakeStore:
        self.opened[url] = FakeBucket()
        return FakeStore(self.opened[url])


async def test_places_of_logs() -> None:
    fixture = Fixture()
    stores = fixture.stores
    assert stores.url == OWN
    await stores.at(OWN).put("log/a", b"own")
    await stores.at("s3://bucket/prefix/nodes/8").put("log/a", b"of another broker, other options")
    assert fixture.bucket.objects == {
        "nodes/7/log/a": b"own",
        "nodes/8/log/a": b"of another broker, other options",
    }
    assert not fixture.opened
    for url in ("s3://bucket/other/nodes/7", "s3://bucket/prefix/nodes/x", "s3://other"):
        store = stores.at(url)
        await stores.at(url).put("log/a", b"left")
        assert (await store.get("log/a"))[0] == b"left"
        assert [each.key for each in await store.list("log/")] == ["log/a"]
        assert await store.delete(["log/a"]) == 1
        with pytest.raises(NoSuchObject):
            await store.get("log/a")
    assert len(fixture.opened) == 3
    with pytest.raises(ValueError, match="no tier that is known"):
        stores.at("gs://bucket/nodes/7")
    await stores.close()


async def test_requests_are_charged_to_log_objects() -> None:
    fixture = Fixture()
    store = fixture.stores.at(OWN)
    await store.put("log/a", b"12345")
    await store.put_ranges("log/b", b"12345678", [])
    await store.get("log/a")
    await store.list("log/")
    await store.delete(["log/a"])
    assert list(fixture.meter.topics) == [LOG_OBJECTS]
    usage = fixture.meter.topics[LOG_OBJECTS]
    assert usage.requests() == {"PUT": 2, "GET": 1, "LIST": 1, "DELETE": 1}
    assert (usage.in_bytes, usage.out_bytes) == (13, 5)


async def test_check_is_made_once_it_succeeds() -> None:
    fixture = Fixture()
    fixture.bucket.faults.error_rate = 1.0
    for _ in range(2):
        with pytest.raises(StoreError):
            await fixture.stores.check()
    fixture.bucket.faults.error_rate = 0.0
    puts = fixture.meter.requests["PUT"]
    for _ in range(3):
        assert await fixture.stores.check() == ""
    assert fixture.meter.requests["PUT"] == puts + 2
    assert list(fixture.bucket.objects) == ["conditional-put"]


async def test_only_ignored_conditions_make_storage_unusable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fixture = Fixture()
    fixture.bucket.faults.refused = "AccessDenied"
    with pytest.raises(Refused):
        await fixture.stores.check()
    fixture.bucket.faults.refused = ""
    put = FakeStore.put

    async def ignore(self: FakeStore, key: str, data: bytes, **condition: Any) -> Stored:
        return await put(self, key, data)

    monkeypatch.setattr(FakeStore, "put", ignore)
    for _ in range(2):
        assert "replaced the object 'conditional-put'" in await fixture.stores.check()


def test_folders_of_brokers() -> None:
    found = {
        url: folder_of_node(parse_tier(url))
        for url in (
            "s3://bucket/nodes/1", "s3://bucket/p/nodes/12?region=x", "file:///tier/nodes/3", "s3://bucket/1",
            "s3://bucket/p/nodes/01", "s3://bucket/nodes", "s3://bucket",
        )
    }  # fmt: skip
    assert list(found.values()) == ["nodes/1", "nodes/12", "nodes/3", None, None, None, None]
