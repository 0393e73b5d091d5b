"""A bucket that was deleted, emptied, replaced or put back to an older state: no local file is
removed, nothing is written to it, and `tier scrub --repair` uploads again what is still here.

Covers: kafkawire.tiering.publishing.lost_objects, kafkawire.tiering.retention.local_files.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kafkawire.log.recovery.identity import IdentityError
from kafkawire.manifest.keys import CURRENT, OWNER
from kafkawire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kafkawire.server.http_pages import health
from kafkawire.server.run import Server
from kafkawire.tiering.publishing.owner import OwnerRecord
from kafkawire.tiering.scrub.plan import FindingKind, ScrubReport
from tests.kit.client import Client, batch
from tests.kit.produce_fetch import fetch, make, produce, values
from tests.kit.server import port_of, running
from tests.kit.waiting import until
from tests.tiering.test_broker import QUICK, Folder, files, tier_of, uploaded

SLOW_REMOVAL = {**QUICK, "log_segment_delete_delay_ms": "3600000", "tier_retry_max_ms": "1000"}
LOST = "the remote tier .* cannot be used, records stay on the disk of this broker, .*: "


async def fill(server: Server, first: int, last: int) -> None:
    """Upload one segment for each batch."""
    client = await Client.connect(port_of(server))
    if "t" not in server.broker.catalog.by_name:
        await make(client, "t")
    for number in range(first, last):
        await client.call(produce("t", batch(b"%d" % number)), 9)
        await uploaded(server, number + 1)
    await client.close()


async def evict(server: Server) -> None:
    """Mark all segments as remote only, as local retention does before it removes the files."""
    segments, storage = server.broker.log.segments, server.broker.storage
    ids = [each for each, segment in segments.store.by_id.items() if segment.row.object]
    assert ids
    await segments.swapper.update(lambda: storage.set_local(ids, False))


async def values_of(server: Server) -> list[bytes]:
    client = await Client.connect(port_of(server))
    found: list[bytes] = []
    while True:
        answer = await client.call(fetch("t", len(found), wait_ms=500), 12)
        (row,) = answer.responses[0].partitions
        assert row.error_code == 0
        found += values(row)
        if len(found) == row.high_watermark:
            break
    await client.close()
    return found


async def repaired(server: Server) -> list[tuple[FindingKind, str]]:
    """Run `tier scrub --repair`; return its findings."""
    report = ScrubReport()
    async for reported in tier_of(server).scrub(repair=True, deep=False):
        if isinstance(reported, ScrubReport):
            report = reported
    return [(finding.kind, finding.action) for finding in report.findings]


def deleted(tier: Path, old: Path) -> None:
    shutil.rmtree(tier)


def emptied(tier: Path, old: Path) -> None:
    shutil.rmtree(tier)
    tier.mkdir()


def objects_deleted(tier: Path, old: Path) -> None:
    shutil.rmtree(tier / "segments")


def manifest_and_objects_deleted(tier: Path, old: Path) -> None:
    shutil.rmtree(tier / "segments")
    (tier / CURRENT).unlink()


def older_copy(tier: Path, old: Path) -> None:
    shutil.rmtree(tier)
    old.rename(tier)


def of_another_cluster(tier: Path, old: Path) -> None:
    shutil.rmtree(tier)
    tier.mkdir()
    (tier / OWNER).write_bytes(OwnerRecord("x" * 22, 1, 3, "nonce", 1).pack())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "why"),
    [
        (deleted, "NoSuchBucket: the folder .* is gone"),
        (emptied, "ObjectsLost: its manifest does not name objects .* tier scrub --repair"),
        (manifest_and_objects_deleted, "ObjectsLost: its manifest does not name objects of this"),
        (older_copy, "ObjectsLost: its manifest does not name objects of this"),
        (of_another_cluster, "OwnedByOther: the tier belongs to the cluster x"),
    ],
)
async def test_start_without_its_bucket_keeps_local_files(
    tmp_path: Path,
    how: Callable[[Path, Path], None],
    why: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tier, old = tmp_path / "tier", tmp_path / "old"
    settings = {**SLOW_REMOVAL, "tier_url": f"file://{tier}"}
    async with running(tmp_path / "data", **settings) as server:
        await fill(server, 0, 2)
        if how is older_copy:
            shutil.copytree(tier, old)
        await fill(server, 2, 4)
        await evict(server)
    before = files(tmp_path / "data")
    how(tier, old)
    objects = Folder(tier).segments().values()  # their files may be removed
    before = {name: data for name, data in before.items() if data not in objects}
    there = {path: path.stat().st_mtime_ns for path in tier.rglob("*") if path.is_file()}
    async with running(tmp_path / "data", **settings) as server:
        await until(lambda: tier_of(server).state not in ("attaching", "attached"), "refused")
        await tier_of(server).local.scan()
        await tier_of(server).local.relieve()
        assert files(tmp_path / "data") == before
        (line,) = [r.getMessage() for r in caplog.records if "cannot be used" in r.getMessage()]
        assert re.match(LOST + why, line), line
        assert tier.exists() == (how is not deleted)
        now = {path: path.stat().st_mtime_ns for path in tier.rglob("*") if path.is_file()}
        assert how is older_copy or now == there, "nothing was written to the bucket"
        if how is of_another_cluster:
            return
        tier.mkdir(exist_ok=True)
        await until(lambda: "ObjectsLost" in str(tier_of(server).error), "the new bucket is empty")
        lost = 2 if how is older_copy else 4
        found = [pair for pair in await repaired(server) if pair[0] == FindingKind.DANGLING]
        assert found == [(FindingKind.DANGLING, "will be uploaded again")] * lost
        await until(lambda: Folder(tier).end("t") == 4, "uploaded again")
        assert await values_of(server) == [b"%d" % number for number in range(4)]


@pytest.mark.slow
async def test_manifest_alone_is_written_again(tmp_path: Path) -> None:
    tier = tmp_path / "tier"
    settings = {**SLOW_REMOVAL, "tier_url": f"file://{tier}"}
    async with running(tmp_path / "data", **settings) as server:
        await fill(server, 0, 3)
    shutil.rmtree(tier / "manifest")
    async with running(tmp_path / "data", **settings) as server:
        await until(lambda: Folder(tier).end("t") == 3, "a new manifest")


@pytest.mark.slow
@pytest.mark.parametrize("how", [deleted, emptied, objects_deleted, manifest_and_objects_deleted])
async def test_bucket_that_is_lost_while_the_broker_runs(
    tmp_path: Path, how: Callable[[Path, Path], None]
) -> None:
    tier = tmp_path / "tier"
    settings = {**QUICK, "tier_url": f"file://{tier}", "tier_retry_max_ms": "1000"}
    async with running(tmp_path / "data", **settings) as server:
        await fill(server, 0, 3)
        assert health(server)[1]["status"] == "ok"
        how(tier, tmp_path / "old")
        before = files(tmp_path / "data")
        client = await Client.connect(port_of(server))
        change = AlterableConfig(name="local.retention.ms", config_operation=0, value="1")
        resource = AlterConfigsResource(resource_type=2, resource_name="t", configs=[change])
        await client.call(IncrementalAlterConfigsRequest(resources=[resource]), 1)
        await client.close()
        tiering = tier_of(server)
        for _ in range(3):
            await tiering.local.scan()
        assert files(tmp_path / "data").items() >= before.items()
        assert await values_of(server) == [b"0", b"1", b"2"]
        if how is objects_deleted:
            await until(lambda: len(Folder(tier).segments()) >= 3, "uploaded again")
            assert health(server)[1]["status"] == "ok"
            return
        if how is not deleted:
            await until(lambda: "ObjectsLost" in str(tiering.error), "the loss is noticed")
            assert tiering.state == "refused"
        await until(lambda: health(server)[1]["status"] == "degraded", "its health says so")
        well, facts = health(server)
        assert well
        assert f"the remote tier file://{tier} cannot be used: " in str(facts["reason"])
        assert re.search("is gone|ObjectsLost", str(facts["reason"]))


@pytest.mark.slow
async def test_start_without_the_tier_is_refused_unless_it_is_asked_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data, tier = tmp_path / "data", tmp_path / "tier"
    async with running(data, **SLOW_REMOVAL, tier_url=f"file://{tier}") as server:
        await fill(server, 0, 1)
    with pytest.raises(IdentityError, match=f"are in file://{tier}, .* start with --tier file://"):
        async with running(data, **SLOW_REMOVAL):
            raise AssertionError("it was served")
    async with running(data, **SLOW_REMOVAL, tier_missing_action="serve") as server:
        assert await values_of(server) == [b"0"]
        assert "and the broker runs without a tier: reads of what is not" in caplog.text
    async with running(data, **SLOW_REMOVAL, tier_url=f"file://{tier}") as server:
        await fill(server, 1, 2)


@pytest.mark.slow
async def test_start_without_a_tier_that_has_nothing_is_served(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with running(data, **SLOW_REMOVAL, tier_url=f"file://{tmp_path}/tier") as server:
        assert tier_of(server)
    async with running(data, **SLOW_REMOVAL) as server:
        assert server.broker.tiering is None
