"""Brokers and storage that ignores the condition of a PUT: a start and new topics are refused.

Covers: kafkawire.broker.objects.opening, kafkawire.broker.objects.opening.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kafkawire.codec.errors import ErrorCode
from kafkawire.log.recovery.identity import IdentityError
from kafkawire.messages.create_topics import CreateTopicsRequest
from kafkawire.objectstore.port import Stored
from tests.kit.client import Client
from tests.kit.configs import wanted
from tests.kit.server import port_of
from tests.kit.tier.commands import (
    Typed,
    buckets_in_memory,  # noqa: F401  (a fixture, by name)
    tiered,
)
from tests.kit.tier.fake_bucket import FakeBucket
from tests.kit.tier.fake_store import FakeStore
from tests.kit.waiting import until


async def create(tier: Typed, name: str, **configs: Any) -> Any:
    """Ask for a topic; return its row of the answer."""
    client = await Client.connect(port_of(tier.server))
    try:
        answer = await client.call(CreateTopicsRequest([wanted(name, **configs)], 9000), 7)
        return answer.topics[0]
    finally:
        await client.close()


@pytest.fixture
def ignoring(monkeypatch: pytest.MonkeyPatch, buckets: dict[str, FakeBucket]) -> None:
    """Have all stores replace objects whatever the condition."""
    put = FakeStore.put

    async def ignore(self: FakeStore, key: str, data: bytes, **condition: Any) -> Stored:
        return await put(self, key, data)

    monkeypatch.setattr(FakeStore, "put", ignore)


async def test_topic_is_refused_in_storage_without_conditions(
    tmp_path: Path, ignoring: None
) -> None:
    async with tiered(tmp_path / "data") as tier:
        assert (await create(tier, "local")).error_code == 0
        for name in ("one", "two"):
            row = await create(tier, name, durability="s3")
            assert row.error_code == ErrorCode.INVALID_CONFIG
            assert "replaced the object 'conditional-put'" in row.error_message
        assert "one" not in tier.server.broker.catalog.by_name


async def test_start_is_refused_in_storage_without_conditions(
    tmp_path: Path, ignoring: None
) -> None:
    with pytest.raises(IdentityError, match="use a storage with conditional PUT"):
        async with tiered(tmp_path / "data", durability="s3"):
            pass
    async with tiered(tmp_path / "data") as tier:
        assert (await create(tier, "local")).error_code == 0


async def test_requests_of_log_objects_are_counted(
    tmp_path: Path, buckets: dict[str, FakeBucket]
) -> None:
    (bucket,) = buckets.values()
    async with tiered(tmp_path / "data", tier_prices="PUT=1000,GB_MONTH=1") as tier:
        await tier.produce("t", durability="s3", tiering_max_lag_ms="3600000")
        cost = await tier.json("cost")
        by_topic = {row["topic"]: row for row in cost["topics"]}
        assert by_topic["(log objects)"]["requests"] == {"PUT": 3, "LIST": 1}, (
            "two PUTs and LIST are checks"
        )
        assert by_topic["(log objects)"]["in_bytes"] > 3000
        assert cost["storage"]["log_object_bytes"] > 3000
        assert cost["storage"]["bytes"] == cost["storage"]["log_object_bytes"]
    assert [key for key in bucket.objects if "/log/" in key] == [f"nodes/1/log/{1:020}/{0:020}"]
    async with tiered(tmp_path / "data", tier_prices="PUT=1000") as tier:
        log = tier.server.broker.log
        await until(lambda: log.object_logs is not None and log.object_logs.release is not None)
        assert log.commit_log.object_sink.unreleased_bytes > 3000
