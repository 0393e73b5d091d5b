"""Live partitions and the integration object, against a broker in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from kafkawire.client.cluster import Cluster
from kafkawire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kafkawire.offsets import (
    ClientError,
    LiveSource,
    OffsetIntegration,
    OffsetOutOfRange,
    OffsetType,
)
from tests.kit.server import port_of, running

T = TypeVar("T")
PAIRS = [(b"k", b"%d" % at) for at in range(10)]


async def against_a_broker(folder: Path, work: Callable[[str], T]) -> T:
    """Run `work` with the address of a broker that has the topic `t` of two partitions."""
    async with running(folder) as server:
        address = f"127.0.0.1:{port_of(server)}"

        def prepared() -> T:
            with Cluster(address) as cluster:
                cluster.request(19, CreateTopicsRequest([CreatableTopic("t", 2, 1)], 5000))
            return work(address)

        return await asyncio.to_thread(prepared)


@pytest.mark.slow
async def test_publish_subscribe_commit_and_resume(tmp_path: Path) -> None:
    def work(address: str) -> None:
        with OffsetIntegration(address) as offsets:
            assert offsets.publish("t", 1, PAIRS) == (0, 10)
            assert offsets.publish("t", 1, PAIRS[:3]) == (10, 13)
            reader = offsets.subscribe("one", "t", 1, OffsetType.EXACT_OFFSET, 4, group="g")
            assert [record.offset for record in offsets.read("one", 3)] == [4, 5, 6]
            assert [record.offset for record in offsets.read("one", 100)] == list(range(7, 13))
            assert offsets.read("one", 5) == []
            assert (reader.at_end, offsets.lag("one")) == (True, 0)
            reader.seek_to_offset(9)
            offsets.commit("one")
            resumed = offsets.subscribe("two", "t", 1, OffsetType.RESUME_OR_LATEST, group="g")
            assert resumed.position == 9
            fresh = offsets.subscribe("three", "t", 1, OffsetType.RESUME_OR_LATEST, group="h")
            assert fresh.position == 13
            assert offsets.validate_range("t", 1, 0, 13).size == 13
            with pytest.raises(OffsetOutOfRange):
                offsets.validate_range("t", 1, 0, 14)
            offsets.unsubscribe("two")
            with pytest.raises(KeyError):
                offsets.lag("two")

    await against_a_broker(tmp_path, work)


@pytest.mark.slow
async def test_invalid_operations_are_refused(tmp_path: Path) -> None:
    def work(address: str) -> None:
        with OffsetIntegration(address) as offsets:
            for call in (
                lambda: offsets.publish("t", 7, PAIRS),
                lambda: offsets.subscribe("x", "none", 0),
                lambda: offsets.source("t", -1),
            ):
                with pytest.raises(ClientError):
                    call()
            with pytest.raises(ValueError, match="no records"):
                offsets.publish("t", 0, [])
            offsets.subscribe("one", "t", 0)
            with pytest.raises(ValueError, match="exists"):
                offsets.subscribe("one", "t", 0)
            with pytest.raises(ValueError, match="no group"):
                offsets.commit("one")

    await against_a_broker(tmp_path, work)


@pytest.mark.slow
async def test_live_source_reflects_current_log(tmp_path: Path) -> None:
    def work(address: str) -> None:
        with Cluster(address) as cluster, OffsetIntegration(address) as offsets:
            source = LiveSource(cluster, ("t", 0))
            assert (source.log_start(), source.high_watermark()) == (0, 0)
            assert source.offset_at(0) is None
            offsets.publish("t", 0, PAIRS)
            assert source.high_watermark() == 10
            assert source.offset_at(0) == 0
            assert source.leader == 1
            assert LiveSource(cluster, ("t", 0), committed={("t", 0): 3}).committed("g") == 3

    await against_a_broker(tmp_path, work)
