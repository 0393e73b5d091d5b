"""Failures of S3 as MinIO produces them; no unfinished upload is left in a bucket."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kafkawire.objectstore.errors import NoSuchObject, Refused, StoreError
from kafkawire.objectstore.url import parse_tier
from kafkawire.tiering.store.port import ObjectPart
from kafkawire.tiering.store.process import StoreProcess
from tests.kit.minio import Minio
from tests.kit.tier.stores import PART_BYTES
from tests.kit.waiting import until
from tests.log.io.test_worker import gone


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("AWS_ACCESS_KEY_ID", "nobody", "InvalidAccessKeyId"),
        ("AWS_SECRET_ACCESS_KEY", "wrong-secret", "SignatureDoesNotMatch"),
    ],
)
async def test_wrong_credentials(
    tier_url: str, monkeypatch: pytest.MonkeyPatch, name: str, value: str, code: str
) -> None:
    monkeypatch.setenv(name, value)
    store = StoreProcess(parse_tier(tier_url), 100)
    try:
        for ask in (store.get("k"), store.put("k", b""), store.list(""), store.delete(["k"])):
            with pytest.raises(Refused) as caught:
                await ask
            assert caught.value.code == code
        with pytest.raises(Refused):
            await store.head("k")
    finally:
        await store.close()


@pytest.mark.real
async def test_bucket_that_cannot_be_created(minio: Minio, tier_url: str) -> None:
    store = StoreProcess(parse_tier(tier_url + "?create=false"), 100)
    try:
        for ask in (store.get("k"), store.head("k"), store.put("k", b""), store.list("")):
            with pytest.raises(Refused, match="does not exist, and create=false forbids"):
                await ask
        minio.client().create_bucket(Bucket=parse_tier(tier_url).bucket)
        await store.put("k", b"")  # the bucket exists now, and no restart was needed
    finally:
        await store.close()


@pytest.mark.real
async def test_deleted_bucket_is_created_again(minio: Minio, tier_url: str, tmp_path: Path) -> None:
    store, bucket, client = StoreProcess(parse_tier(tier_url), 100), "", minio.client()
    bucket = parse_tier(tier_url).bucket
    try:
        with pytest.raises(NoSuchObject):
            await store.get("k")  # made at the first call, whatever that was
        await store.put("k", bytes(100))
        client.delete_object(Bucket=bucket, Key="tier/k")
        client.delete_bucket(Bucket=bucket)
        (tmp_path / "here").write_bytes(bytes(2 * PART_BYTES))
        asked = [
            store.get("k"), store.head("k"), store.put("k", b""), store.list(""),
            store.read("k", [ObjectPart(0, 10, 0)]), store.upload("k", str(tmp_path / "here")),
            store.download("k", str(tmp_path / "new")), store.delete(["k"]),
        ]  # fmt: skip
        for outcome in await asyncio.gather(*asked, return_exceptions=True):
            assert type(outcome) is Refused
            assert outcome.code == "NoSuchBucket"
    finally:
        await store.close()


@pytest.mark.real
async def test_bucket_is_created_concurrently(tier_url: str) -> None:
    stores = [StoreProcess(parse_tier(tier_url)) for _ in range(3)]
    try:
        await asyncio.gather(*(store.put(f"k{n}", b"") for n, store in enumerate(stores)))
        assert len(await stores[0].list("")) == 3
    finally:
        for store in stores:
            await store.close()


@pytest.mark.real
async def test_unsupported_encryption_is_reported(tier_url: str) -> None:
    store = StoreProcess(parse_tier(tier_url + "?sse=AES256"))
    try:
        with pytest.raises(Refused):  # this MinIO has no keys
            await store.put("k", b"x")
    finally:
        await store.close()


@pytest.mark.real
async def test_unsupported_storage_class_is_reported(
    minio: Minio, tier_url: str, tmp_path: Path
) -> None:
    (tmp_path / "here").write_bytes(b"x" * 100)
    bucket, key = parse_tier(tier_url).bucket, f"{parse_tier(tier_url).prefix}/segments/k"
    store = StoreProcess(parse_tier(tier_url), storage_class="REDUCED_REDUNDANCY")
    try:
        await store.upload("segments/k", str(tmp_path / "here"))
        found = minio.client().head_object(Bucket=bucket, Key=key)
        assert found["StorageClass"] == "REDUCED_REDUNDANCY"
    finally:
        await store.close()
    store = StoreProcess(parse_tier(tier_url), storage_class="GLACIER_IR")
    try:
        with pytest.raises(Refused, match="InvalidStorageClass"):  # MinIO does not have it
            await store.upload("segments/l", str(tmp_path / "here"))
    finally:
        await store.close()


def unfinished(minio: Minio, url: str) -> list[Any]:
    bucket = parse_tier(url).bucket
    found: list[Any] = (
        minio.client().list_multipart_uploads(Bucket=bucket, Prefix="tier/slow").get("Uploads", [])
    )
    return found


@pytest.mark.real
async def test_cancelled_uploads_leave_no_parts(
    minio: Minio, tier_url: str, tmp_path: Path
) -> None:
    (tmp_path / "here").write_bytes(bytes(3 * PART_BYTES))
    store = StoreProcess(parse_tier(tier_url), 0, PART_BYTES)
    await store.put("k", b"")
    for ends in (True, False):
        upload = asyncio.ensure_future(store.upload("slow", str(tmp_path / "here"), 1 << 20))
        await until(lambda: bool(unfinished(minio, tier_url)))
        if ends:
            upload.cancel()
            with pytest.raises(asyncio.CancelledError):
                await upload
            await until(lambda: not unfinished(minio, tier_url))
        else:
            await store.close()
            with pytest.raises(StoreError):
                await upload
    assert unfinished(minio, tier_url) == []


@pytest.mark.real
async def test_uploads_of_killed_child_are_aborted(
    minio: Minio, tier_url: str, tmp_path: Path
) -> None:
    (tmp_path / "here").write_bytes(bytes(3 * PART_BYTES))
    store = StoreProcess(parse_tier(tier_url), 0, PART_BYTES)
    await store.put("k", b"")
    upload = asyncio.ensure_future(store.upload("slow", str(tmp_path / "here"), 1 << 20))
    await until(lambda: bool(unfinished(minio, tier_url)))
    assert store.pid is not None
    os.kill(store.pid, signal.SIGKILL)
    with pytest.raises(StoreError, match="SIGKILL"):
        await upload
    assert unfinished(minio, tier_url)
    await store.head("k")
    assert unfinished(minio, tier_url) == []
    await store.close()


PARENT = """
import asyncio, sys
from kafkawire.tiering.store.open import parse_tier
from kafkawire.tiering.store.process import StoreProcess

async def main():
    store = StoreProcess(parse_tier(sys.argv[1]), 0, 5 << 20)
    await store.put("k", b"x")
    print(store.pid, flush=True)
    await store.upload("slow", sys.argv[2], 1 << 20)

asyncio.run(main())
"""


@pytest.mark.real
def test_uploads_of_killed_broker_are_aborted(minio: Minio, tier_url: str, tmp_path: Path) -> None:
    (tmp_path / "here").write_bytes(bytes(3 * PART_BYTES))
    command = [sys.executable, "-c", PARENT, tier_url, str(tmp_path / "here")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        asyncio.run(until(lambda: bool(unfinished(minio, tier_url))))
        parent.kill()
    asyncio.run(until(lambda: gone(pid)))
    assert unfinished(minio, tier_url) == []
