"""Whole brokers with topics of durability=s3 whose data folder is lost, replaced or put back.

The metadata is in SQLite, the tier in another folder.

Covers: kafkawire.restore.lost_files, kafkawire.log.recovery.result,
kafkawire.broker.objects.fresh, kafkawire.broker.objects.opening.
"""

from __future__ import annotations

import logging
import shutil
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from kafkawire.codec.batches import build, iter_batches, records
from kafkawire.log.recovery.identity import IdentityError
from kafkawire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kafkawire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kafkawire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kafkawire.restore import lost_files
from kafkawire.server.run import Server
from tests.kit.client import Client
from tests.kit.server import port_of, running
from tests.kit.waiting import until

pytestmark = pytest.mark.slow
QUICK = {"journal.roll.ms": "100", "cut.interval.ms": "50", "hot.bytes": str(1 << 20)}
ROWS = [b"%d" % at for at in range(40)]


def broker(tmp_path: Path) -> AbstractAsyncContextManager[Server]:
    return running(tmp_path / "data", tier_url=str(tmp_path / "tier"), durability="s3", **QUICK)


async def create(server: Server, name: str, **configs: str) -> None:
    client = await Client.connect(port_of(server))
    rows = [CreatableTopicConfig(key, value) for key, value in configs.items()]
    made = await client.call(CreateTopicsRequest([CreatableTopic(name, 1, 1, configs=rows)]), 5)
    assert made.topics[0].error_code == 0
    await client.close()


async def produce(server: Server, name: str, values: list[bytes]) -> int:
    """Append each value as a batch; return the offset of the first one."""
    client = await Client.connect(port_of(server))
    bases = []
    for value in values:
        raw = bytes(build([(None, value)], timestamp_ms=1_700_000_000_000))
        data = [PartitionProduceData(0, raw)]
        request = ProduceRequest(None, -1, 30_000, [TopicProduceData(name, partition_data=data)])
        (done,) = (await client.call(request, 9)).responses[0].partition_responses
        assert done.error_code == 0
        bases.append(done.base_offset)
    await client.close()
    return int(bases[0])


async def consume(server: Server, name: str) -> list[tuple[int, bytes]]:
    client = await Client.connect(port_of(server))
    found: list[tuple[int, bytes]] = []
    offset, end = 0, 1
    while offset < end:
        ask = [FetchPartition(0, fetch_offset=offset, partition_max_bytes=1 << 20)]
        request = FetchRequest(max_wait_ms=2000, topics=[FetchTopic(name, partitions=ask)])
        (part,) = (await client.call(request, 11)).responses[0].partitions
        assert part.error_code == 0, (offset, part.error_code)
        got, end = bytes(part.records or b""), part.high_watermark
        for at, _ in iter_batches(got):
            found += [(each.offset, bytes(each.value)) for each in records(got, at)]  # type: ignore[arg-type]
        offset = found[-1][0] + 1 if found else 0
    await client.close()
    return found


async def all_cut(server: Server, name: str) -> None:
    """Wait until a segment has records that are in no journal any more."""
    info = server.broker.catalog.by_name[name]
    partition = server.broker.log.partitions[info.partitions[0].number]
    await until(lambda: partition.cut_offset == partition.next_offset)


def lose(tmp_path: Path) -> Path:
    """Take away the folder of the broker; return where it is."""
    kept = tmp_path / "kept"
    shutil.rmtree(kept, ignore_errors=True)
    (tmp_path / "data" / "brokers").rename(kept)
    return kept


async def filled(tmp_path: Path) -> None:
    async with broker(tmp_path) as server:
        await create(server, "t")
        await produce(server, "t", ROWS[:20])
        await all_cut(server, "t")  # in a local segment, not uploaded yet
        await produce(server, "t", ROWS[20:])


EXPECTED = list(enumerate(ROWS))


async def test_empty_folder_is_filled_from_the_tier(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await filled(tmp_path)
    lose(tmp_path)
    with caplog.at_level(logging.WARNING):
        async with broker(tmp_path) as server:
            assert await consume(server, "t") == EXPECTED
            assert await produce(server, "t", [b"more"]) == len(ROWS)
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert not (tmp_path / "data/brokers/1/adopting").exists()
    async with broker(tmp_path) as server:
        assert await consume(server, "t") == [*EXPECTED, (len(ROWS), b"more")]


async def test_folder_that_is_put_back_is_superseded(tmp_path: Path) -> None:
    await filled(tmp_path)
    kept = lose(tmp_path)
    async with broker(tmp_path) as server:
        await produce(server, "t", [b"more"])
    shutil.rmtree(tmp_path / "data/brokers")
    kept.rename(tmp_path / "data/brokers")
    async with broker(tmp_path) as server:
        assert await consume(server, "t") == [*EXPECTED, (len(ROWS), b"more")]
    assert (tmp_path / "data/brokers/1/superseded/1/journals").is_dir()


async def test_folder_that_is_put_back_before_the_other_was_filled_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of its segments were removed: its journals and segments do not fit SQL any more."""
    await filled(tmp_path)
    kept = lose(tmp_path)
    real = lost_files.correct_rows

    async def fail(*arguments: Any) -> None:
        await real(*arguments)
        raise OSError("the machine is switched off")

    with monkeypatch.context() as patch:
        patch.setattr(lost_files, "correct_rows", fail)
        with pytest.raises(OSError, match="switched off"):
            async with broker(tmp_path):
                pass
    shutil.rmtree(tmp_path / "data/brokers")
    kept.rename(tmp_path / "data/brokers")
    async with broker(tmp_path) as server:
        assert await consume(server, "t") == EXPECTED


async def test_records_that_only_the_folder_has_refuse_the_start(tmp_path: Path) -> None:
    async with broker(tmp_path) as server:
        await create(server, "t")
        await create(server, "own", durability="local")
        await produce(server, "own", ROWS[:3])
    kept = lose(tmp_path)
    with pytest.raises(IdentityError, match="own-0 are only in the folder"):
        async with broker(tmp_path):
            pass
    shutil.rmtree(tmp_path / "data/brokers", ignore_errors=True)
    kept.rename(tmp_path / "data/brokers")
    async with broker(tmp_path) as server:
        assert await consume(server, "own") == list(enumerate(ROWS[:3]))
