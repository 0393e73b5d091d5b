"""Brokers that start with an empty folder and the metadata of another one, on SQLite and
PostgreSQL: the same broker is refused, a second one starts.

Covers: kafkawire.log.recovery.identity, kafkawire.metadata.pairing.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkawire.codec.errors import ErrorCode
from kafkawire.log.recovery.identity import IdentityError
from kafkawire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kafkawire.messages.metadata import MetadataRequest
from kafkawire.server.run import Server
from tests.kit.client import Client, batch
from tests.kit.postgres import new_database
from tests.kit.produce_fetch import fetch, make, produce
from tests.kit.server import port_of, running
from tests.kit.waiting import until

TIERED = {
    "tiering_max_lag_ms": "5000",
    "tiering_min_object_bytes": "1",
    "cut_interval_ms": "100",
    "journal_roll_ms": "300",
    "log_local_retention_ms": "1",
    "log_segment_delete_delay_ms": "1",
}


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.real)])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Metadata that several data folders can use."""
    if request.param == "sqlite":
        (tmp_path / "sql").mkdir()
        return f"sqlite:///{tmp_path}/sql/metadata.db"
    return await new_database(request.getfixturevalue("postgres_url"))


async def refused(folder: Path, url: str, words: str, node_id: str = "1", **settings: str) -> None:
    """Check that a broker does not start, and what it says."""
    with pytest.raises(IdentityError, match=words) as why:
        async with running(folder, metadata=url, node_id=node_id, **settings):
            pass
    sentence = str(why.value)
    assert sentence.startswith(f"{folder} holds nothing of broker {node_id}, which used ")
    assert (url.rpartition("/")[2] in sentence, "\n" in sentence) == (True, False)
    assert not (folder / "brokers" / node_id).exists(), "what the start created is removed"


async def fill(server: Server) -> None:
    """Create the topic "t" with ten records."""
    client = await Client.connect(port_of(server))
    await make(client, "t")
    answer = await client.call(produce("t", batch(*[b"x"] * 10)), 9)
    assert answer.responses[0].partition_responses[0].error_code == 0
    await client.close()


async def check_leader(server: Server, leader: int) -> None:
    """Check that a broker names the leader of "t" and serves none of its records."""
    client = await Client.connect(port_of(server))
    (topic,) = (await client.call(MetadataRequest(None), 12)).topics
    assert [(p.partition_index, p.leader_id) for p in topic.partitions] == [(0, leader)]
    codes = []
    written = await client.call(produce("t", batch(b"y")), 9)
    codes.append(written.responses[0].partition_responses[0].error_code)
    read = await client.call(fetch("t", 0), 11)
    codes.append(read.responses[0].partitions[0].error_code)
    ends = ListOffsetsTopic("t", [ListOffsetsPartition(0, -1, -1)])
    listed = await client.call(ListOffsetsRequest(-1, 0, [ends]), 7)
    codes.append(listed.topics[0].partitions[0].error_code)
    assert codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 3
    await client.close()


@pytest.mark.slow
async def test_broker_with_empty_folder_is_refused_and_another_starts(
    tmp_path: Path, url: str
) -> None:
    first, second, empty = (tmp_path / name for name in ("first", "second", "empty"))
    async with running(first, metadata=url):
        pass
    await refused(
        empty, url, "with `kafkawire restore BACKUP` .* `kafkawire serve --set node.id=2`$"
    )
    async with running(first, metadata=url) as server:
        await fill(server)  # only its journals have them
        await refused(empty, url, "add a broker to the cluster with .*node.id=2`")
        async with running(second, metadata=url, node_id="2") as other:
            await check_leader(other, 1)
            await refused(empty, url, "node.id=3`")
        await refused(empty, url, "node.id=3`", node_id="2")
    await refused(empty, url, "holds nothing of broker 1")
    await refused(second, url, "holds nothing of broker 1")
    async with running(second, metadata=url, node_id="2") as other:
        await check_leader(other, 1)


async def test_refused_start_leaves_files_of_others(tmp_path: Path, url: str) -> None:
    async with running(tmp_path / "first", metadata=url) as server:
        await fill(server)
    home = tmp_path / "empty" / "brokers" / "1"
    home.mkdir(parents=True)
    (home / "notes").write_text("mine")
    with pytest.raises(IdentityError, match="holds nothing of broker 1"):
        async with running(tmp_path / "empty", metadata=url):
            pass
    assert (home / "notes").read_text() == "mine"


@pytest.mark.real
async def test_empty_folder_is_refused_when_all_records_are_in_tier(
    tmp_path: Path, url: str
) -> None:
    tier = str(tmp_path / "bucket")
    async with running(tmp_path / "first", metadata=url, tier_url=tier, **TIERED) as server:
        await fill(server)
        segments = Path(server.broker.folder, "segments")
        number = server.broker.catalog.by_name["t"].partitions[0].number
        partition = server.broker.log.partitions[number]
        await until(lambda: partition.commit_offset == 10, "all records are in the tier")
        await until(lambda: not list(segments.glob("*.segment")), "no segment is left")
    for settings in ({}, {"tier_url": tier}):
        await refused(tmp_path / "empty", url, "with `kafkawire restore TIER` ", **settings)
