"""Objects encrypted by the storage (SSE-S3, SSE-KMS), with a MinIO that has a key: written in every
way, read, copied, moved and restored.

Covers: kafkawire.objectstore.s3.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from kafkawire.objectstore.errors import ConditionFailed, Refused
from kafkawire.objectstore.url import parse_tier
from kafkawire.tiering.store.port import ObjectPart
from kafkawire.tiering.store.process import StoreProcess
from tests.kit.minio import KMS_KEY, Minio
from tests.kit.server import port_of, running
from tests.kit.tier.commands import Typed, all_uploaded
from tests.kit.tier.stores import PART_BYTES
from tests.real.test_tier_move import RECORDS, consume, produce

pytestmark = pytest.mark.real

WORDS = b"the plain text of a record, which no disk should have "
OPTIONS = {
    "AES256": "?sse=AES256",
    "aws:kms": "?sse=aws:kms",
    "aws:kms with a key": f"?sse=aws:kms&sse_kms_key_id={KMS_KEY}",
}


def objects(minio: Minio, url: str) -> dict[str, Any]:
    """The headers of each object in a bucket."""
    client, bucket = minio.client(), parse_tier(url).bucket
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
    keys = [each["Key"] for page in pages for each in page.get("Contents", [])]
    return {key: client.head_object(Bucket=bucket, Key=key) for key in keys}


def check_encrypted(found: dict[str, Any], sse: str) -> None:
    """Every object is encrypted, by the key of the storage."""
    assert found
    for key, head in found.items():
        assert head.get("ServerSideEncryption") == sse, key
        if sse == "aws:kms":
            assert head["SSEKMSKeyId"].endswith(KMS_KEY), key


def on_disk(minio: Minio) -> bool:
    """Whether the disk of the storage has the text."""
    assert minio.data is not None
    return any(WORDS in path.read_bytes() for path in minio.data.rglob("*") if path.is_file())


@pytest.mark.parametrize("kind", list(OPTIONS))
async def test_objects_are_encrypted_however_they_are_written(
    encrypting_minio: Minio, encrypting_tier: str, tmp_path: Path, kind: str
) -> None:
    url = encrypting_tier + OPTIONS[kind]
    small, large = WORDS * 100, WORDS * (2 * PART_BYTES // len(WORDS))
    (tmp_path / "small").write_bytes(small)
    (tmp_path / "large").write_bytes(large)
    store = StoreProcess(parse_tier(url), 1 << 16, PART_BYTES)
    other = StoreProcess(parse_tier(encrypting_tier + "-other" + OPTIONS[kind]), 100, PART_BYTES)
    try:
        first = await store.put("put", small)
        await store.put("put", small, if_match=first.etag)  # an ETag that is no checksum
        with pytest.raises(ConditionFailed):
            await store.put("put", small, if_match="0" * 32)
        await store.upload("small", str(tmp_path / "small"))
        await store.upload("slow", str(tmp_path / "small"), 1 << 20)  # by another way
        await store.upload("large", str(tmp_path / "large"))
        await other.copy_from(url, "copy", len(large), "large")
        check_encrypted(objects(encrypting_minio, url), kind.partition(" ")[0])
        check_encrypted(
            objects(encrypting_minio, encrypting_tier + "-other"), kind.partition(" ")[0]
        )
        assert (await store.get("put", 4, 10))[0] == small[4:14]
        await store.read("large", [ObjectPart(PART_BYTES - 50, 100, 0)])
        assert bytes(store.memory[:100]) == large[PART_BYTES - 50 :][:100]
        await other.download("copy", str(tmp_path / "again"))
        assert (tmp_path / "again").read_bytes() == large
        assert (await other.head("copy")).size_bytes == len(large)
    finally:
        await store.close()
        await other.close()
    if encrypting_minio.data is not None:
        assert not on_disk(encrypting_minio)


async def test_check_finds_the_text_of_objects_that_are_not_encrypted(
    encrypting_minio: Minio, encrypting_tier: str
) -> None:
    if encrypting_minio.data is None:
        pytest.skip("the disk is in a container")
    store = StoreProcess(parse_tier(encrypting_tier), 100)
    try:
        await store.put("k", WORDS * 100)
        assert on_disk(encrypting_minio)
        (head,) = objects(encrypting_minio, encrypting_tier).values()
        assert "ServerSideEncryption" not in head
        await store.delete(["k"])
    finally:
        await store.close()


async def test_unknown_key_is_refused(encrypting_tier: str) -> None:
    store = StoreProcess(parse_tier(encrypting_tier + "?sse=aws:kms&sse_kms_key_id=other"), 100)
    try:
        with pytest.raises(Refused, match="key with given key ID does not exist"):
            await store.put("k", b"x")
    finally:
        await store.close()


@pytest.mark.parametrize("sse", ["AES256", "aws:kms"])
async def test_broker_with_encrypted_tier_is_moved_and_restored(
    encrypting_minio: Minio, encrypting_tier: str, tmp_path: Path, sse: str
) -> None:
    url, target = f"{encrypting_tier}?sse={sse}", f"{encrypting_tier}-moved?sse={sse}"
    settings = {"tier_url": url, "journal_roll_ms": "200", "cut_interval_ms": "50"}
    async with running(tmp_path / "data", **settings) as server:
        tier = Typed(server)
        configs = {"local_retention_ms": "1", "segment_bytes": "1048576", "retention_ms": "-1"}
        await tier.produce("t", 1, **configs)
        await asyncio.to_thread(produce, tier.address, "t")
        await tier.until(all_uploaded, "why")
        check_encrypted(objects(encrypting_minio, url), sse)
        assert "agree" in await tier("scrub", "--deep")
        await tier("move", "--to", target)
        check_encrypted(objects(encrypting_minio, target), sse)
    os.rename(tmp_path / "data", tmp_path / "lost")
    words = ["restore", "--tier", target, "--data", str(tmp_path / "new"), "--yes"]
    await asyncio.to_thread(run_tier, words)
    async with running(tmp_path / "new", **{**settings, "tier_url": target}) as server:
        found = await asyncio.to_thread(consume, f"127.0.0.1:{port_of(server)}", "t")
        assert found[1:] == [b"%d" % number * 200 for number in range(RECORDS - 1)]
        check_encrypted(objects(encrypting_minio, target), sse)


def run_tier(words: list[str]) -> None:
    from typer.testing import CliRunner

    from kafkawire.cli.app import app

    result = CliRunner().invoke(app, ["tier", *words])
    assert result.exit_code == 0, result.output
