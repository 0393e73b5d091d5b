"""Logs of objects over several lives of a broker: another tier, left objects, a fresh folder.

Covers: kafkawire.log.earlier_logs, kafkawire.log.adoption,
kafkawire.log.maintenance.object_release.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kafkawire.log.recovery.identity import IdentityError
from kafkawire.manifest.keys import log_object_key
from kafkawire.objectstore.errors import StoreError
from kafkawire.server.run import Server
from tests.kit.client import Client, batch
from tests.kit.produce_fetch import fetch, make, produce, values
from tests.kit.server import port_of, running
from tests.kit.tier.commands import (
    Typed,
    buckets_in_memory,  # noqa: F401  (a fixture, by name)
    tiered,
)
from tests.kit.tier.fake_bucket import FakeBucket
from tests.kit.tier.fake_store import FakeStore
from tests.kit.waiting import until

NAME = "records"


@asynccontextmanager
async def broker(
    folder: Path, tier: str = "tier", data: str = "data", **settings: str
) -> AsyncIterator[Server]:
    """A broker whose metadata are not in its data folder."""
    metadata = f"sqlite+aiosqlite:///{folder}/metadata.db"
    url = f"file://{folder}/{tier}"
    async with running(folder / data, metadata=metadata, tier_url=url, **settings) as server:
        yield server


async def append(server: Server, value: bytes) -> None:
    """Append a record to the topic, which is created if it is absent; it is acknowledged."""
    client = await Client.connect(port_of(server))
    if NAME not in server.broker.catalog.by_name:
        await make(client, NAME, durability="s3", tiering_max_lag_ms="3600000")
    answer = await client.call(produce(NAME, batch(value)), 9)
    assert answer.responses[0].partition_responses[0].error_code == 0
    await client.close()


async def read(server: Server) -> list[bytes]:
    """Read the topic from its beginning."""
    client = await Client.connect(port_of(server))
    answer = await client.call(fetch(NAME, 0), 11)
    await client.close()
    return values(answer.responses[0].partitions[0])


def own_key(epoch: int, sequence: int) -> str:
    """The key of a log object in the tier."""
    return f"nodes/1/{log_object_key(epoch, sequence)}"


def log_objects(folder: Path, tier: str = "tier") -> list[tuple[int, int]]:
    """Broker epoch and sequence number of the log objects of a tier."""
    found = (folder / tier / "nodes" / "1" / "log").glob("*/*")
    return sorted((int(each.parent.name), int(each.name)) for each in found)


@pytest.mark.slow
async def test_earlier_logs_are_read_in_the_tier_that_they_are_in(tmp_path: Path) -> None:
    async with broker(tmp_path) as server:
        await append(server, b"one")
    async with broker(tmp_path, tier="other") as server:
        await append(server, b"two")
        found = await Typed(server).json("status")
        places = [f"file://{tmp_path}/{tier}/nodes/1" for tier in ("tier", "other")]
        assert found["tier"]["log_objects"]["unreleased"] == dict.fromkeys(places, 1)
        assert found["tier"]["log_objects"]["unreleased_bytes"] > 0
        shown = await Typed(server)("status")
        assert f"    1 object in {places[0]}\n" in shown
        assert "not released, stored since the start: 1\n" in shown
    shutil.rmtree(tmp_path / "data")
    async with broker(tmp_path, tier="other") as server:
        assert await read(server) == [b"one", b"two"]
    assert log_objects(tmp_path) == [(1, 0), (1, 1)], "an object and a fence"
    assert log_objects(tmp_path, "other") == [(2, 0), (2, 1)]


@pytest.mark.slow
async def test_missing_tier_of_an_earlier_log_is_no_empty_log(tmp_path: Path) -> None:
    async with broker(tmp_path) as server:
        await append(server, b"one")
    (tmp_path / "tier").rename(tmp_path / "away")
    with pytest.raises(IdentityError, match="/tier/nodes/1 has log objects that broker 1 needs"):
        async with broker(tmp_path, tier="other"):
            pass
    (tmp_path / "away").rename(tmp_path / "tier")
    async with broker(tmp_path, tier="other") as server:
        assert await read(server) == [b"one"]


@pytest.mark.slow
async def test_start_deletes_what_earlier_lives_have_left(tmp_path: Path) -> None:
    async with broker(tmp_path) as server:
        await append(server, b"one")
    async with broker(tmp_path) as server:
        await append(server, b"two")
    own = tmp_path / "tier" / "nodes" / "1"
    above = own / log_object_key(1, 3)
    above.write_bytes(b"an object that was being stored when the fence was put")
    async with broker(tmp_path) as server:
        logs = server.broker.log.object_logs
        assert logs is not None
        await until(lambda: logs.orphans.done)
        assert not above.exists()
        assert {(1, 0), (1, 1), (2, 0), (2, 1)} <= set(log_objects(tmp_path))
        assert await read(server) == [b"one", b"two"]


async def test_broker_without_log_objects_makes_no_requests(tmp_path: Path) -> None:
    async with broker(tmp_path) as server:
        logs = server.broker.log.object_logs
        assert logs is not None
        assert not logs.orphans.done
        assert server.broker.tiering is not None
        assert "(log objects)" not in server.broker.tiering.meter.topics


@pytest.mark.slow
async def test_log_objects_stay_where_they_are_in_a_move(tmp_path: Path) -> None:
    to = f"file://{tmp_path}/other"
    async with broker(tmp_path, journal_roll_ms="50", cut_interval_ms="20") as server:
        tier = Typed(server)
        await tier.produce("uploaded")
        await tier.until(lambda found: found["tier"]["uploads"] > 0, "status")
    async with broker(tmp_path) as server:
        await append(server, b"one")
        shown = await Typed(server)("move", "--to", to)
        assert "not moved: 1 log object; keep the old tier until" in shown
        await append(server, b"two")
    shutil.rmtree(tmp_path / "data" / "brokers" / "1" / "journals")
    async with broker(tmp_path, tier="other") as server:
        assert await read(server) == [b"one", b"two"]
        await append(server, b"three")
        assert log_objects(tmp_path, "other") == [(3, 0)]


@pytest.mark.slow
async def test_objects_are_released_when_their_records_are_uploaded(
    tmp_path: Path, buckets: dict[str, FakeBucket]
) -> None:
    """A deletion that fails is repeated."""
    (bucket,) = buckets.values()
    async with tiered(tmp_path / "data", journal_roll_ms="50") as tier:
        objects = tier.server.broker.log.commit_log.object_sink
        await tier.produce("t", durability="s3", tiering_max_lag_ms="3600000")
        assert [key for key in bucket.objects if "/log/" in key] == [own_key(1, 0)]
        deleted = FakeStore.delete
        failed: list[list[str]] = []

        async def fail_once(self: FakeStore, keys: Sequence[str]) -> int:
            if own_key(1, 0) in keys and not failed:
                failed.append(list(keys))
                raise StoreError("InternalError", "the test says so")
            return await deleted(self, keys)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FakeStore, "delete", fail_once)
            await tier.produce("soon", durability="s3")  # makes the journals be cut and uploaded
            await until(lambda: objects.released_objects == 2)
        assert failed
        assert objects.unreleased_bytes == 0
        assert not [key for key in bucket.objects if "/log/" in key]
        shown = (await tier.json("status"))["tier"]["log_objects"]
        assert (shown["stored"], shown["released"], shown["unreleased"]) == (2, 2, {})
