"""Committed offsets are uploaded as soon as the lag limit of any topic requires its records to be.

Covers: kafkawire.tiering.upload.offsets.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.log.partition.topic_configs import TopicConfigs
from kafkawire.metadata.catalog import (
    TOPIC_RESOURCE,
    Catalog,
    ConfigChange,
    PartitionInfo,
    TopicInfo,
)
from kafkawire.tiering.upload.offsets import UploadProgress
from tests.kit.log.cutting import fill
from tests.kit.log.logs import World
from tests.kit.tier.world import TierProcess, TierWorld

OFFSETS = "__consumer_offsets"
LAG = "tiering.max.lag.ms"
USUAL_MS = 300_000


class Broker:
    """A catalog and its typed settings, changed like the log does."""

    def __init__(self) -> None:
        config = BrokerConfig()
        config.texts["tier.url"] = "s3://bucket"
        self.catalog = Catalog("cluster")
        self.number = 0
        self.add(OFFSETS, internal=True)
        self.configs = TopicConfigs(self.catalog, config)
        self.internal = self.configs.config_of_topic(self.catalog.by_name[OFFSETS].id)

    def add(self, name: str, *, internal: bool = False, **settings: str) -> TopicInfo:
        self.number += 1
        texts = {key.replace("_", "."): value for key, value in settings.items()}
        row = PartitionInfo(self.number, 0, 1, 0)
        info = TopicInfo(self.number.to_bytes(16, "big"), name, internal, [row], texts)
        self.catalog.add_topic(info)
        return info

    def create(self, name: str, **settings: Any) -> list[TopicInfo]:
        return self.configs.note_lags([self.add(name, **settings)])

    def alter(self, name: str, key: str, value: str | None) -> list[TopicInfo]:
        self.catalog.apply_config(ConfigChange(TOPIC_RESOURCE, name, key, value))
        info = self.catalog.by_name[name]
        self.configs.topic_changed(info, [])
        return self.configs.note_lags([info])

    def delete(self, name: str) -> list[TopicInfo]:
        info = self.catalog.remove_topic(self.catalog.by_name[name].id)
        return self.configs.remove_topic(info.id)


def test_lag_of_internal_topics_follows_smallest_lag() -> None:
    broker = Broker()
    assert broker.internal.tier_lag_ms == USUAL_MS
    assert [info.name for info in broker.create("a", tiering_max_lag_ms="60000")] == [OFFSETS]
    assert broker.internal.tier_lag_ms == 60_000
    assert broker.create("long", tiering_max_lag_ms="900000") == []
    assert broker.create("local", tiering_max_lag_ms="5000", remote_storage_enable="false") == []
    assert broker.create("b", tiering_max_lag_ms="5000")
    assert broker.internal.tier_lag_ms == 5_000
    assert broker.alter("b", "retention.ms", "1") == []
    assert broker.alter("b", "remote.log.copy.disable", "true")
    assert broker.internal.tier_lag_ms == 60_000
    assert broker.alter("a", LAG, None)
    assert broker.internal.tier_lag_ms == USUAL_MS
    assert broker.alter("b", "remote.log.copy.disable", None)
    assert broker.delete("b")
    assert broker.internal.tier_lag_ms == USUAL_MS


def test_internal_topic_may_have_smaller_lag() -> None:
    broker = Broker()
    broker.create("a", tiering_max_lag_ms="60000")
    broker.alter(OFFSETS, LAG, "7000")
    broker.alter(OFFSETS, "segment.ms", "4000")
    assert (broker.internal.tier_lag_ms, broker.internal.segment_ms) == (7000, 4000)
    broker.alter(OFFSETS, LAG, None)
    assert (broker.internal.tier_lag_ms, broker.internal.segment_ms) == (60_000, 4000)


def test_smallest_lag_is_correct_after_any_changes() -> None:
    broker, rng = Broker(), random.Random(5)
    lags: dict[str, int] = {}
    for step in range(500):
        if lags and rng.random() < 0.4:
            name = rng.choice(sorted(lags))
            del lags[name]
            broker.delete(name)
        elif lags and rng.random() < 0.5:
            name = rng.choice(sorted(lags))
            lags[name] = rng.randrange(5, 20) * 1000
            broker.alter(name, LAG, str(lags[name]))
        else:
            lags[f"t{step}"] = rng.randrange(5, 20) * 1000
            broker.create(f"t{step}", tiering_max_lag_ms=str(lags[f"t{step}"]))
        assert broker.internal.tier_lag_ms == min(lags.values(), default=USUAL_MS)
    again = TopicConfigs(broker.catalog, broker.configs._broker)
    internal = again.config_of_topic(broker.catalog.by_name[OFFSETS].id)
    assert internal.tier_lag_ms == broker.internal.tier_lag_ms


@pytest.mark.parametrize("altered", [False, True])
def test_commits_are_uploaded_within_lag_of_records(altered: bool) -> None:
    process = TierProcess(TierWorld(1, journal_roll_ms=600_000, hot_bytes=1 << 26))

    async def main() -> None:
        await process.start()
        (offsets,) = await process.create(OFFSETS, internal=True, cleanup_policy="compact")
        lag: dict[str, Any] = {"tiering_max_lag_ms": "5000"}
        await process.create("clicks", **({} if altered else lag))
        if altered:
            await process.alter("clicks", **lag)
        for _ in range(5):
            process.append(offsets, 3)
            await process.log.commit_log.wait_until_committed()
            end = offsets.high_watermark
            await process.env.sleep(5)
            assert offsets.commit_offset >= end
        await process.close()

    process.run(main)


async def test_offsets_of_partitions_of_another_leader_are_left_to_it() -> None:
    """A segment may have parts of them."""
    world = World(hot_bytes=0)
    await world.start()
    stays, goes = await world.topic("t", 2)
    await fill(stays, 3)
    await fill(goes, 3)
    numbers = [stays.number, goes.number]
    await world.log.hand_over(numbers)
    gone: set[int] = set()
    progress = UploadProgress(
        world.env, world.log.partitions, world.storage, lambda number: number in gone
    )
    for _ in range(2):
        expected = {number: 3 for number in numbers if number not in gone}
        assert await progress.find_commit_offsets(numbers, lambda _: True) == expected
        assert await progress.find_dispatch_offsets(numbers, lambda _: True) == expected
        gone.add(goes.number)
