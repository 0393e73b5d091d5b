"""Requests counted by kind and by topic; the shares add up to the whole."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkawire.objectstore.errors import ConditionFailed, NoSuchObject, StoreError
from kafkawire.objectstore.port import FileRange
from kafkawire.tiering.store import metering
from kafkawire.tiering.store.metering import (
    CLUSTER,
    LOG_OBJECTS,
    MICRO,
    OTHERS,
    Meter,
    MeteredStore,
    charging,
    split,
)
from kafkawire.tiering.store.port import ObjectPart
from tests.kit.tier.fake_bucket import FakeBucket
from tests.kit.tier.fake_store import FakeStore


@pytest.fixture
def store() -> MeteredStore:
    return MeteredStore(FakeStore(FakeBucket()), Meter())


async def test_every_call_is_counted_by_kind(store: MeteredStore, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 1000)
    await store.upload("a/1", str(path))
    first = await store.put("a/2", b"12345")
    await store.put("a/2", b"123456", if_match=first.etag)
    await store.put_ranges("a/3", bytes(16), [FileRange(str(path), 0, 20)])
    await store.get("a/2")
    await store.read("a/1", [ObjectPart(0, 10, 0), ObjectPart(10, 20, 10)])
    await store.download("a/1", str(tmp_path / "copy"))
    await store.head("a/1")
    assert [found.key for found in await store.list("a/")] == ["a/1", "a/2", "a/3"]
    await store.delete(["a/1", "a/2", "a/3"])
    meter = store.meter
    assert dict(meter.requests) == {"PUT": 4, "GET": 3, "HEAD": 1, "LIST": 1, "DELETE": 1}
    assert (meter.in_bytes, meter.out_bytes) == (1000 + 5 + 6 + 40, 6 + 30 + 1000)
    assert list(meter.topics) == [CLUSTER]
    assert meter.topics[CLUSTER].requests() == dict(meter.requests)
    assert not meter.errors


async def test_the_parts_of_a_large_object_are_requests(tmp_path: Path) -> None:
    store = MeteredStore(FakeStore(FakeBucket(part_bytes=1 << 20)), Meter())
    path = tmp_path / "large"
    path.write_bytes(bytes(5 << 20))
    stored = await store.upload("large", str(path))
    assert store.meter.requests["PUT"] == stored.requests > 5


async def test_failures_are_counted_by_kind_and_raised(store: MeteredStore) -> None:
    with pytest.raises(NoSuchObject):
        await store.get("none")
    await store.put("one", b"")
    with pytest.raises(ConditionFailed):
        await store.put("one", b"", if_absent=True)
    inner = store.inner
    assert isinstance(inner, FakeStore)
    inner.bucket.faults.down = True
    inner.bucket.faults.timeout_s = 0
    with pytest.raises(StoreError):
        await store.head("one")
    assert dict(store.meter.errors) == {"NoSuchObject": 1, "ConditionFailed": 1, "StoreError": 1}
    assert dict(store.meter.requests) == {"GET": 1, "PUT": 2, "HEAD": 1}


async def test_requests_are_attributed_to_topics(store: MeteredStore) -> None:
    with charging({"a": 3, "b": 1}):
        await store.put("1", b"12345678")
        # A task started inside counts for the same topics, whenever it runs.
        task = asyncio.get_running_loop().create_task(store.get("1"))
    with charging({"b": 1}):
        await task
        await store.put("2", b"")
    await store.put("3", b"")
    with charging({LOG_OBJECTS: 1}):
        await store.put("4", b"12345")
    topics = store.meter.topics
    assert topics[LOG_OBJECTS].requests() == {"PUT": 1}
    assert topics[LOG_OBJECTS].in_bytes == 5
    assert topics["a"].requests() == {"PUT": 0.75, "GET": 0.75}
    assert topics["b"].requests() == {"PUT": 1.25, "GET": 0.25}
    assert topics[CLUSTER].requests() == {"PUT": 1}
    assert (topics["a"].in_bytes, topics["b"].in_bytes) == (6, 2)
    assert {name: usage.micro for name, usage in store.meter.month.items()} == {
        name: usage.micro for name, usage in topics.items()
    }


def test_the_number_of_topics_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metering, "MAX_TOPICS", 3)
    monkeypatch.setattr(metering, "MAX_SHARES", 2)
    meter = Meter()
    with charging({"a": 1, "b": 5, "c": 4}):
        meter.count("PUT", 1, in_bytes=100)
    assert {name: usage.in_bytes for name, usage in meter.topics.items()} == {
        "b": 50,
        "c": 40,
        OTHERS: 10,
    }
    with charging({"d": 1}):
        meter.count("PUT", 1, in_bytes=7)
    assert meter.topics[OTHERS].in_bytes == 17


def test_requests_without_weights_count_for_cluster() -> None:
    meter = Meter()
    with charging({"empty": 0}):
        meter.count("GET", 1)
    assert list(meter.topics) == [CLUSTER]


@given(st.integers(0, 1 << 50), st.lists(st.integers(0, 1 << 40), min_size=1, max_size=20))
def test_shares_sum_up_within_rounding(amount: int, weights: list[int]) -> None:
    weights.append(1)
    parts = split(amount, weights)
    assert sum(parts) == amount
    for part, weight in zip(parts, weights, strict=True):
        assert abs(part * sum(weights) - amount * weight) <= sum(weights)


@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 1000)), st.integers(1, 9))
def test_topics_sum_up_to_the_whole(weights: dict[str, int], requests: int) -> None:
    meter = Meter()
    with charging(weights):
        meter.count("PUT", requests, in_bytes=12345)
    assert sum(usage.micro["PUT"] for usage in meter.topics.values()) == requests * MICRO
    assert sum(usage.in_bytes for usage in meter.topics.values()) == 12345


async def test_durations_are_kept_by_operation() -> None:
    seconds = iter(range(100))
    meter = Meter(monotonic=lambda: float(next(seconds)))
    store = MeteredStore(FakeStore(FakeBucket()), meter)
    await store.put("k", b"x")
    await store.get("k")
    with pytest.raises(NoSuchObject):
        await store.head("none")
    taken = {name: found.total for name, found in meter.seconds.items() if any(found.counts)}
    assert taken == {"put": 1.0, "get": 1.0, "head": 1.0}
    assert set(meter.seconds) == {
        name for name in vars(MeteredStore) if not name.startswith("_") and name != "close"
    }
