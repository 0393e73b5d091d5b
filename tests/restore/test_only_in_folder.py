"""Which partitions an empty folder would lose."""

from __future__ import annotations

import pytest

from kafkawire.metadata.catalog import Catalog, PartitionInfo, TopicInfo
from kafkawire.metadata.checkpoint import Checkpoint, PartitionCheckpoint
from kafkawire.metadata.directory import local_group
from kafkawire.restore import lost_files as module
from kafkawire.restore.lost_files import find_only_in_folder
from tests.kit.offsets.worlds import (
    FOREIGN,
    MINE,
    World,
    each_world,  # noqa: F401  (a fixture, by name)
    finished,
    mapping,
)


def catalog(configs: dict[str, str]) -> Catalog:
    made = Catalog("cluster")
    made.set_groups([local_group(1), local_group(2)])
    for name, numbers, leader in (("a", MINE[:3], 1), ("b", MINE[3:], 1), ("f", [FOREIGN], 2)):
        infos = [PartitionInfo(number, at, leader, 0) for at, number in enumerate(numbers)]
        own = configs if name == "b" else {"retention.ms": "5"}
        made.add_topic(TopicInfo(name.encode() * 16, name, False, infos, own))
    return made


async def test_partitions_with_records_and_without_log_objects(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = await world.start()
    local, objects = catalog({"durability": "local"}), catalog({"durability": "s3"})
    assert await find_only_in_folder(storage, local, 1) == []
    states = [PartitionCheckpoint(number, 0, 0, [], []) for number in MINE]
    await storage.save_checkpoint(Checkpoint(1, 0, states))
    assert await find_only_in_folder(storage, local, 1) == [], "nothing was written"
    await finished(storage, mapping(3, 0, 5), mapping(5, 0, 5))
    states = [PartitionCheckpoint(number, 7, 7, [], []) for number in (1, 4)]
    await storage.save_checkpoint(Checkpoint(1, 0, states))
    assert await find_only_in_folder(storage, local, 1) == ["a-0", "a-2", "b-0", "b-1"]
    assert await find_only_in_folder(storage, objects, 1) == ["a-0", "a-2"]
    assert await find_only_in_folder(storage, local, 2) == []
    monkeypatch.setattr(module, "MAX_NAMED", 3)
    monkeypatch.setattr(module, "SCANNED_AT_ONCE", 2)
    assert await find_only_in_folder(storage, local, 1) == ["a-0", "a-2", "b-0", "1 more"]
