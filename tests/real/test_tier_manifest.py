"""The manifest in a folder and in MinIO, through the storage process and the worker process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.log.io.disk import real_env
from kafkawire.manifest.keys import snapshot_key
from kafkawire.manifest.reader import read_manifest
from kafkawire.metadata.catalog import Catalog, PartitionInfo, TopicInfo
from kafkawire.offsets.storage.memory import MemoryRows, MemoryStorage
from kafkawire.tiering.publishing.publisher import Rounds
from kafkawire.tiering.store.open import open_store
from tests.kit.minio import Minio

pytestmark = pytest.mark.real


Get = Callable[[str], bytes]


def folder_of(path: Path) -> Get:
    """Objects of a tier that is a folder."""
    return lambda key: (path / key).read_bytes()


def bucket_of(minio: Minio, url: str) -> Get:
    """Objects of a tier in MinIO, read by boto3 alone."""
    bucket, _, prefix = url.removeprefix("s3://").partition("?")[0].partition("/")
    client = minio.client()

    def get(key: str) -> bytes:
        name = f"{prefix.rstrip('/')}/{key}" if prefix else key
        try:
            return bytes(client.get_object(Bucket=bucket, Key=name)["Body"].read())
        except client.exceptions.NoSuchKey:
            raise KeyError(key) from None

    return get


async def test_manifest_in_folder_is_read_without_broker(tmp_path: Path) -> None:
    folder = tmp_path / "tier"
    await live_and_read(f"file://{folder}", folder_of(folder), tmp_path)
    assert (folder / snapshot_key(6)).is_file()


async def test_manifest_in_bucket_is_read_without_broker(
    minio: Minio, tier_url: str, tmp_path: Path
) -> None:
    await live_and_read(tier_url, bucket_of(minio, tier_url), tmp_path)


async def live_and_read(url: str, get: Get, tmp_path: Path) -> None:
    """Two lives of a broker, with folds in the first, and the manifest that a reader finds."""
    config = BrokerConfig({"tier.url": url, "tier.manifest.fold": "3"})
    catalog = Catalog("cluster-of-the-tests00")
    env = real_env()
    store = open_store(url, config)
    storage = MemoryStorage(MemoryRows(), 1, env.clock.now_ms, lambda _: 1)

    def rounds() -> Rounds:
        return Rounds(
            env, config, catalog, storage, store, {}, 1, catalog.cluster_id, str(tmp_path / "own")
        )

    try:
        one = rounds()
        await one.open()
        for n in range(7):
            info = TopicInfo(bytes([n]) * 16, f"t{n}", False, [PartitionInfo(n + 1, 0, 1, 0)], {})
            catalog.add_topic(info)
            one.topic_changed(info)
            await one.publish()
        while one._folds is not None:
            await env.sleep(0.01)
        await one.close()
        manifest = read_manifest(get)
        assert manifest.sequence == 7
        assert sorted(manifest.topics) == [f"t{n}" for n in range(7)]
        two = rounds()
        await two.open()
        assert (two.epoch, two.sequence) == (2, 7)
        await two.publish()
        assert two.sequence == 7
        await two.close()
        assert list((tmp_path / "own").iterdir()) == []
    finally:
        await store.close()
        await env.worker.close()
        env.offload.close()
