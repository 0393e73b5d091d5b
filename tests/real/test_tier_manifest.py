"""The manifest on a real disk, through the storage process and the worker process."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkawire.codec.configs import BrokerConfig
from kafkawire.manifest.keys import snapshot_key
from kafkawire.manifest.reader import read_manifest
from kafkawire.metadata.catalog import Catalog, PartitionInfo, TopicInfo
from log.disk import real_env
from offsets.memory_storage import MemoryRows, MemoryStorage
from tiering.opening import open_store
from tiering.rounds import Rounds

pytestmark = pytest.mark.real


async def test_a_folder_is_read_without_a_broker(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'tier'}"
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
        assert (tmp_path / "tier" / snapshot_key(6)).is_file()
        manifest = read_manifest(lambda key: (tmp_path / "tier" / key).read_bytes())
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
