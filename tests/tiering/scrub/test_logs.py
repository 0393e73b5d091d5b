"""Scrubs of log objects: needed ones that are missing or damaged, orphans, logs of other tiers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from kafkawire.log.object_logs import ObjectLogs
from kafkawire.log.objects.format import write_fence
from kafkawire.manifest.keys import SEGMENTS, log_object_key
from kafkawire.tiering.scrub.logs import LogCheck
from kafkawire.tiering.scrub.plan import Finding, FindingKind
from tests.kit.log.log_objects import NONCE
from tests.kit.tier.commands import (
    Typed,
    buckets_in_memory,  # noqa: F401  (a fixture, by name)
    tiered,
)
from tests.kit.tier.fake_bucket import FakeBucket
from tests.kit.waiting import WITHIN_S

LATE: dict[str, Any] = {"durability": "s3", "tiering_max_lag_ms": "3600000"}
FUTURE_MS = 1 << 60
"""Nothing is too young to be judged."""


def key(epoch: int, sequence: int) -> str:
    return f"nodes/1/{log_object_key(epoch, sequence)}"


async def found(
    tier: Typed, *, deep: bool = False, repair: bool = False, before_ms: int = FUTURE_MS
) -> list[Finding]:
    """The findings about log objects."""
    logs = tier.server.broker.log.object_logs
    assert isinstance(logs, ObjectLogs)
    return await LogCheck(tier.server.broker.env, logs, repair, before_ms).run(deep)


@pytest.fixture
def bucket(buckets: dict[str, FakeBucket]) -> FakeBucket:
    (made,) = buckets.values()
    return made


def log_objects(bucket: FakeBucket) -> set[str]:
    return {each for each in bucket.objects if "/log/" in each}


async def test_sound_logs_have_no_findings(tmp_path: Path, bucket: FakeBucket) -> None:
    for _ in range(2):
        async with tiered(tmp_path / "data") as tier:
            await tier.produce("t", **LATE)
            assert await found(tier, deep=True) == []
            await wait_for_count(tier, bucket)


async def wait_for_count(tier: Typed, bucket: FakeBucket) -> None:
    """Wait until a scrub has counted what is in the bucket, segments too: some objects may be
    stored and released while it runs."""
    until = time.monotonic() + WITHIN_S
    while True:
        there = log_objects(bucket) | {each for each in bucket.objects if SEGMENTS in each}
        size = sum(len(bucket.data(each)) for each in there)
        report = await tier.json("scrub", "--deep")
        assert report["findings"] == []
        if there and (report["objects"], report["bytes"]) == (len(there), size):
            return
        assert time.monotonic() < until, f"a scrub counts {report}, and there are {there}"


async def test_missing_and_damaged_objects_are_reported(tmp_path: Path, bucket: FakeBucket) -> None:
    async with tiered(tmp_path / "data") as tier:
        for _ in range(3):
            await tier.produce("t", **LATE)
    async with tiered(tmp_path / "data") as tier:
        data = bytearray(bucket.data(key(1, 1)))
        data[-100] ^= 1
        bucket.store(key(1, 1), bytes(data))
        bucket.forget(key(1, 2))
        missing, damaged = await found(tier, deep=True)
        assert (missing.kind, missing.key) == (FindingKind.DANGLING, log_object_key(1, 2))
        assert "would lose records" in missing.text
        assert (damaged.kind, damaged.key) == (FindingKind.FORMAT, log_object_key(1, 1))
        assert "CRC" in damaged.text or "checksum" in damaged.text or "whole" in damaged.text
        assert await found(tier) == [missing], "not every byte is read"
        assert await found(tier, deep=True, repair=True) == [missing, damaged]


async def test_missing_object_of_the_open_log_is_reported(
    tmp_path: Path, bucket: FakeBucket
) -> None:
    async with tiered(tmp_path / "data", log_object_linger_ms="0") as tier:
        for _ in range(8):
            await tier.produce("t", **LATE)
        bucket.forget(key(1, 1))
        bucket.forget(key(1, 6))  # as if it was being stored now
        (missing,) = await found(tier)
        assert missing.key == log_object_key(1, 1)


async def test_orphans_are_reported_and_deleted(tmp_path: Path, bucket: FakeBucket) -> None:
    async with tiered(tmp_path / "data") as tier:
        await tier.produce("t", **LATE)
    async with tiered(tmp_path / "data") as tier:
        above = key(1, 4)
        bucket.store(above, b"was being stored when the fence was put")
        assert await found(tier, before_ms=0) == [], "too young to be judged"
        (dry,) = await found(tier)
        assert (dry.kind, dry.key, dry.action) == (
            FindingKind.ORPHAN, log_object_key(1, 4), "would be deleted"
        )  # fmt: skip
        assert above in bucket.objects
        (done,) = await found(tier, repair=True)
        assert done.action == "will be deleted"
        assert above not in bucket.objects
        assert await found(tier, deep=True) == []


async def test_unknown_logs_and_names_are_kept(tmp_path: Path, bucket: FakeBucket) -> None:
    async with tiered(tmp_path / "data") as tier:
        await tier.produce("t", **LATE)
        bucket.store(key(99, 0), write_fence(1, 99, 0, NONCE, 100, 0))
        assert await found(tier) == [], "a fence alone is all that is left of a log"
        bucket.store(key(99, 1), b"")
        bucket.store("nodes/1/log/strange", b"")
        strange, unknown = await found(tier, repair=True)
        assert (strange.kind, strange.key) == (FindingKind.ORPHAN, "log/strange")
        assert unknown.text == "2 objects of a log that no row knows, kept"
        assert {key(99, 1), "nodes/1/log/strange"} <= set(bucket.objects)


async def test_place_that_cannot_be_read_is_reported(tmp_path: Path, bucket: FakeBucket) -> None:
    async with tiered(tmp_path / "data") as tier:
        await tier.produce("t", **LATE)
        bucket.faults.error_rate = 1.0
        (finding,) = await found(tier)
        assert (finding.kind, finding.key) == (
            FindingKind.UNREADABLE, "s3://bucket/prefix/nodes/1"
        )  # fmt: skip
        bucket.faults.error_rate = 0.0
