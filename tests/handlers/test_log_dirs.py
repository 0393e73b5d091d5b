"""DescribeLogDirs: sizes of partitions, loaded or not, and the space on the disk.

Covers: kafkawire.handlers.describe_log_dirs.
"""

from __future__ import annotations

import pytest

from kafkawire.codec.errors import ErrorCode
from kafkawire.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from kafkawire.metadata.store import MetadataError
from tests.kit.admin import ME, OTHER, FakeBroker, by_name, call
from tests.kit.configs import assigned, create, make


@pytest.mark.parametrize("version", range(1, 6))
async def test_describe_log_dirs(version: int) -> None:
    broker = FakeBroker()
    await make(broker, "a", 2)
    await make(broker, "b", 1)
    broker.partition("a", 1).size_bytes = 123
    answer = await call(broker, DescribeLogDirsRequest(None), version)
    (row,) = answer.results
    assert (row.log_dir, row.error_code) == (broker.folder, 0)
    topics = by_name(row.topics)
    assert [(p.partition_index, p.partition_size) for p in topics["a"].partitions] == [
        (0, 0),
        (1, 123),
    ]
    assert set(topics) == {"a", "b"}
    if version >= 4:
        assert (row.total_bytes, row.usable_bytes) == (1000, 400)
    wanted = [DescribableLogDirTopic("a", [1, 1, 7, -1]), DescribableLogDirTopic("nope", [0])]
    (row,) = (await call(broker, DescribeLogDirsRequest(wanted), version)).results
    assert [(t.name, [p.partition_index for p in t.partitions]) for t in row.topics] == [("a", [1])]


async def test_describe_log_dirs_reads_sizes_of_unloaded_partitions_from_sql() -> None:
    broker = FakeBroker()
    await make(broker, "a", 2)
    await make(broker, "b", 1)
    numbers = [row.number for row in broker.topic("a").partitions]
    for number in numbers:
        del broker.log.partitions[number]
    broker.log.loader.fresh_from = numbers[1] + 1
    broker.storage.sizes = {numbers[0]: 55, numbers[1]: 0}
    (row,) = (await call(broker, DescribeLogDirsRequest(None), 4)).results
    sizes = {t.name: [p.partition_size for p in t.partitions] for t in row.topics}
    assert sizes == {"a": [55, 0], "b": [0]}
    assert broker.storage.asked == [numbers]
    broker.storage.fails = MetadataError("gone")
    (row,) = (await call(broker, DescribeLogDirsRequest(None), 4)).results
    assert (row.error_code, row.topics) == (ErrorCode.KAFKA_STORAGE_ERROR, [])


async def test_describe_log_dirs_lists_only_partitions_led_here() -> None:
    broker = FakeBroker()
    await create(broker, assigned("shared", [OTHER], [ME], [OTHER]))
    await create(broker, assigned("theirs", [OTHER]))
    wanted = [DescribableLogDirTopic("shared", [0, 1, 2]), DescribableLogDirTopic("theirs", [0])]
    for topics in (None, wanted):
        (row,) = (await call(broker, DescribeLogDirsRequest(topics), 4)).results
        found = [(t.name, [p.partition_index for p in t.partitions]) for t in row.topics]
        assert found == [("shared", [1])]


async def test_describe_log_dirs_returns_error_when_disk_fails() -> None:
    broker = FakeBroker()
    await make(broker, "a")
    broker.env.fs.fails = OSError("gone")
    (row,) = (await call(broker, DescribeLogDirsRequest(None), 4)).results
    assert (row.error_code, row.topics) == (ErrorCode.KAFKA_STORAGE_ERROR, [])
