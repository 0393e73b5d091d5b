"""Scrubs of a running broker: damage is found and repaired, everything else is unchanged.

Covers: kafkawire.tiering.scrub.check, kafkawire.tiering.scrub.scrub,
kafkawire.tiering.scrub.scrub.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable

import pytest
from crc32c import crc32c

from kafkawire.codec.segment.format import Origin
from kafkawire.codec.segment.layout import VERSION
from kafkawire.log.local_manifest.pending_changes import Added
from kafkawire.manifest.keys import CURRENT, SEGMENTS, segment_key
from kafkawire.offsets.catalog.port import COPY_FINISHED, DELETE_STARTED, ObjectRow, unpack_ranges
from kafkawire.tiering.scrub.plan import (
    AGE_FLOOR_MS,
    MAX_FINDINGS,
    Finding,
    FindingKind,
    ScrubProgress,
    ScrubReport,
    Seen,
    Suspect,
    compare,
)
from tests.kit.env import EPOCH_MS
from tests.kit.log.segments import Part, batch, segment
from tests.kit.tier.life import Life
from tests.kit.tier.world import TierWorld

STRANGE = b"\x01" * 16
OLD_MS = AGE_FLOOR_MS + 60_000
LIFE_S = 600.0
"""Limit in virtual time; a test that takes longer hangs."""


def uuid(number: int) -> bytes:
    return number.to_bytes(16, "big")


# What differs


def row(number: int, state: int = COPY_FINISHED, size: int = 10) -> ObjectRow:
    return ObjectRow(uuid(number), number, 1, state=state, size_bytes=size)


def test_matching_rows_and_objects_have_no_findings() -> None:
    seen = [Seen(uuid(1), 10, 0), Seen(uuid(2), 99, 0), Seen(uuid(3), 5, 0)]
    rows = [row(1), row(2, DELETE_STARTED), row(3, 0)]
    compared = compare(seen, rows, {uuid(1), uuid(2)}, 100)
    assert (compared.suspects, compared.sound, compared.young) == ([], [uuid(1)], 0)


def test_every_kind_of_difference_is_found() -> None:
    seen = [Seen(uuid(1), 10, 99), Seen(uuid(2), 10, 100), Seen(uuid(3), 9, 0)]
    compared = compare(seen, [row(3), row(4), row(5, 0)], {uuid(3), uuid(5), uuid(6)}, 100)
    assert compared.suspects == [
        Suspect(FindingKind.ORPHAN, uuid(1)), Suspect(FindingKind.SIZE, uuid(3)),
        Suspect(FindingKind.DANGLING, uuid(4)), Suspect(FindingKind.UNNAMED, uuid(4)),
        Suspect(FindingKind.NAMED, uuid(6)),
    ]  # fmt: skip
    assert (compared.sound, compared.young) == ([], 1)
    unknown = compare(seen, [row(3)], None, 100).suspects
    assert unknown == [Suspect(FindingKind.ORPHAN, uuid(1)), Suspect(FindingKind.SIZE, uuid(3))]


def test_findings_are_bounded() -> None:
    report = ScrubReport()
    for _ in range(MAX_FINDINGS + 5):
        report.add(Finding(FindingKind.ORPHAN, "k", "t"))
    assert (len(report.findings), report.more) == (MAX_FINDINGS, 5)


# A running broker


class Unwatched(Life):
    """A life in which the bucket may contradict the rows."""

    def requested(self, kind: str, key: str) -> None:
        pass


def live(
    act: Callable[[Life], Awaitable[None]], kind: type[Life] = Life, *, settles: bool = True
) -> None:
    """A broker with a topic in the bucket, an hour after it was uploaded; then `act`."""
    life = kind(TierWorld(1))

    async def main() -> None:
        await life.start()
        await life.topic("t", 2)
        await life.produce("t", 3)
        await life.settle()
        life.world.clock_ms += OLD_MS
        async with asyncio.timeout(LIFE_S):
            await act(life)
        if settles:
            await life.settle()
        async with asyncio.timeout(LIFE_S):
            await life.close()

    life.run(main)
    assert not life.loop.failures


async def scrub(
    life: Life, *, repair: bool = False, deep: bool = False, skip_lost: bool = False
) -> ScrubReport:
    reported = [each async for each in life.tiering.scrub(repair, deep, skip_lost)]
    report = reported.pop()
    assert isinstance(report, ScrubReport)
    assert all(isinstance(each, ScrubProgress) for each in reported)
    return report


def kinds(report: ScrubReport) -> list[str]:
    return sorted(finding.kind.value for finding in report.findings)


def objects(life: Life) -> list[str]:
    return [key for key in life.world.bucket.objects if key.startswith(SEGMENTS)]


async def finished(life: Life) -> list[ObjectRow]:
    return await life.storage.objects(1, (COPY_FINISHED,), 100)


async def everything(life: Life) -> None:
    await life.check()


@pytest.mark.parametrize("deep", [False, True])
def test_sound_bucket_has_no_findings(deep: bool) -> None:
    async def act(life: Life) -> None:
        before = life.world.bucket.objects
        requests = life.world.bucket.requests.copy()
        report = await scrub(life, repair=True, deep=deep)
        assert report.findings == []
        assert report.objects == report.rows == len(objects(life)) > 1
        assert report.bytes == sum(len(before[key]) for key in objects(life))
        assert life.world.bucket.objects == before, "a scrub of a sound bucket writes nothing"
        made = life.world.bucket.requests - requests
        assert (made["list"], made["put"], made["delete"]) == (2, 0, 0)
        assert life.world.fs.listdir(life.log.folder + "/tier-scrub") == ["manifest"]

    live(act)


def put(life: Life, key: str, data: bytes) -> None:
    """Store an object, dated now."""
    life.world.now_s = life.loop.now
    life.world.bucket.store(key, data)


def orphan(cluster_id: str, generation: int = 0) -> bytes:
    return segment([Part(1, [batch(0)])], STRANGE, origin=Origin(cluster_id, generation))


def test_orphan_with_only_copy_is_kept() -> None:
    async def act(life: Life) -> None:
        key = segment_key(STRANGE)
        put(life, key, orphan(life.catalog.cluster_id))
        life.world.clock_ms += OLD_MS
        (finding,) = (await scrub(life, repair=True)).findings
        assert (finding.kind, finding.action) == (FindingKind.ORPHAN, "")
        assert "the only copy of t1-2 offsets 0-0: it is kept" in finding.text
        await life.env.sleep(30)
        assert key in life.world.bucket.objects
        life.world.bucket.forget(key)

    live(act)


def test_orphans_are_deleted_in_two_phases() -> None:
    async def act(life: Life) -> None:
        bucket, key = life.world.bucket, segment_key(STRANGE)
        put(life, key, bucket.data(objects(life)[0]))  # another upload of the same segment
        young = await scrub(life, repair=True)
        assert (young.findings, young.young) == ([], 1)
        life.world.clock_ms += OLD_MS
        dry = await scrub(life)
        assert [(f.kind, f.key, f.action) for f in dry.findings] == [
            (FindingKind.ORPHAN, key, "would be deleted after the grace")
        ]
        assert await life.storage.objects_by_uuid([STRANGE]) == []
        report = await scrub(life, repair=True)
        assert [f.action for f in report.findings] == ["will be deleted after the grace"]
        (now,) = await life.storage.objects_by_uuid([STRANGE])
        assert now.state == DELETE_STARTED
        assert (await scrub(life, repair=True)).findings == [], "it is being uploaded"
        await life.env.sleep(30)
        assert key not in bucket.objects
        assert await life.storage.objects_by_uuid([STRANGE]) == []
        assert (await scrub(life)).findings == []

    live(act)


def test_foreign_objects_are_kept() -> None:
    async def act(life: Life) -> None:
        bucket = life.world.bucket
        put(life, segment_key(STRANGE), orphan("another"))
        put(life, SEGMENTS + "zzz", b"notes of somebody")
        put(life, segment_key(b"\x02" * 16), b"no segment at all")
        life.world.clock_ms += OLD_MS
        report = await scrub(life, repair=True)
        assert {f.key[-10:-8]: f.action for f in report.findings if f.key.endswith("t")} == {
            "01": "", "02": "will be deleted after the grace",
        }  # fmt: skip
        assert kinds(report) == ["orphan"] * 3
        await life.env.sleep(30)
        assert segment_key(STRANGE) in bucket.objects
        assert SEGMENTS + "zzz" in bucket.objects
        assert segment_key(b"\x02" * 16) not in bucket.objects
        bucket.forget(segment_key(STRANGE))

    live(act)


@pytest.mark.parametrize("harm", ["forget", "truncate", "change"])
def test_lost_object_is_uploaded_again_from_file(harm: str) -> None:
    async def act(life: Life) -> None:
        bucket = life.world.bucket
        lost = (await finished(life))[0]
        key = segment_key(lost.uuid)
        if harm == "forget":
            bucket.forget(key)
        elif harm == "truncate":
            bucket.truncate(key, 500)
        else:
            data = bytearray(bucket.data(key))
            data[-20] ^= 1
            bucket.store(key, bytes(data))
        kind = {"forget": "dangling", "truncate": "size", "change": "format"}[harm]
        dry = await scrub(life)
        assert (kinds(dry), dry.findings[0].action) == ([kind], "would be uploaded again")
        assert await life.storage.objects_by_uuid([lost.uuid]) == [lost]
        report = await scrub(life, repair=True)
        assert (kinds(report), report.findings[0].action) == ([kind], "will be uploaded again")
        await life.env.sleep(30)
        (segment_row,) = await life.storage.segments_by_id([lost.segment_id])
        assert segment_row.object not in (b"", lost.uuid)
        assert await life.storage.objects_by_uuid([lost.uuid]) == []
        assert (await scrub(life, deep=True)).findings == []

    live(act)


def test_deep_scrub_finds_flipped_bit_of_batch() -> None:
    async def act(life: Life) -> None:
        bucket = life.world.bucket
        lost = (await finished(life))[1]
        data = bytearray(bucket.data(segment_key(lost.uuid)))
        data[150] ^= 16
        bucket.store(segment_key(lost.uuid), bytes(data))
        assert (await scrub(life)).findings == []
        report = await scrub(life, repair=True, deep=True)
        assert kinds(report) == ["format"]
        assert "are damaged: bytes" in report.findings[0].text
        await life.env.sleep(30)
        assert (await scrub(life, deep=True)).findings == []

    live(act)


def test_permanently_lost_objects_are_named() -> None:
    async def act(life: Life) -> None:
        lost = (await finished(life))[0]
        await life.log.segments.swapper.update(
            lambda: life.storage.set_local([lost.segment_id], False)
        )
        await life.log.segments.store.remove_files([life.log.segments.store.by_id[lost.segment_id]])
        life.world.bucket.forget(segment_key(lost.uuid))
        report = await scrub(life, repair=True)
        (finding,) = report.findings
        assert (finding.kind, finding.action) == (FindingKind.DANGLING, "")
        first, second = unpack_ranges(lost.ranges)
        assert finding.text == (
            f"its object is gone; lost: offsets {first[1]}-{first[2] - 1} of t-0, "
            f"{second[1]}-{second[2] - 1} of t-1"
        )
        assert await life.storage.objects_by_uuid([lost.uuid]) == [lost]

    live(act, settles=False)


@pytest.mark.parametrize("known", [True, False])
def test_objects_of_a_newer_program_are_left_alone(known: bool) -> None:
    """Neither uploaded again, nor deleted as an orphan, nor written again without its records."""

    async def act(life: Life) -> None:
        row = (await finished(life))[0]
        bucket, uuid = life.world.bucket, row.uuid if known else STRANGE
        data = bytearray(bucket.data(segment_key(row.uuid)))
        struct.pack_into("<I", data, 8, VERSION + 1)
        struct.pack_into("<I", data, 12, crc32c(bytes(data[16:64]), crc32c(bytes(data[:12]))))
        bucket.store(segment_key(uuid), bytes(data))
        life.world.clock_ms += OLD_MS
        for deep in (False, True):
            report = await scrub(life, repair=True, deep=deep, skip_lost=True)
            (finding,) = report.findings
            assert (finding.kind, finding.action) == (FindingKind.UNREADABLE, "")
            assert "start the newer version that wrote it" in finding.text
        await life.env.sleep(30)
        assert bucket.data(segment_key(uuid)) == bytes(data)
        assert (await finished(life))[0] == row

    live(act, Unwatched, settles=False)


def test_manifest_is_repaired() -> None:
    async def act(life: Life) -> None:
        bucket, rounds = life.world.bucket, life.tiering.rounds
        rows = await finished(life)
        stranger = ObjectRow(STRANGE, rows[0].segment_id, 1, state=COPY_FINISHED, size_bytes=5)
        (segment_row,) = await life.storage.segments_by_id([rows[0].segment_id])
        mappings = await life.storage.segment_mappings([segment_row.id])
        # The manifest lists an object that does not exist, and misses one that does.
        await rounds.publish([Added(stranger, segment_row, mappings)], {rows[1].uuid: EPOCH_MS})
        dry = await scrub(life)
        assert kinds(dry) == ["named", "unnamed"]
        report = await scrub(life, repair=True)
        assert {f.kind: f.action for f in report.findings} == {
            FindingKind.NAMED: "will be deleted after the grace",
            FindingKind.UNNAMED: "will be entered in the manifest",
        }  # fmt: skip
        await life.env.sleep(30)
        assert (await scrub(life)).findings == []
        bucket.forget(CURRENT)
        assert kinds(await scrub(life)) == ["unreadable"]

    live(act, Unwatched, settles=False)


def test_scrub_concurrent_with_traffic_has_no_findings() -> None:
    async def act(life: Life) -> None:
        found = []
        for _ in range(8):
            await life.produce("t", 1)
            await life.delete_records("t", 5)
            report = await scrub(life, repair=True)
            found += report.findings
        assert found == []

    live(act)


def test_bucket_of_other_cluster_is_not_repaired() -> None:
    async def act(life: Life) -> None:
        life.tiering.state = "owned by another"
        put(life, segment_key(STRANGE), orphan(life.catalog.cluster_id))
        life.world.clock_ms += OLD_MS
        report = await scrub(life, repair=True)
        assert not report.repaired
        assert kinds(report) == ["orphan", "unreadable"]
        assert "nothing is repaired: owned by another" in report.findings[0].text
        assert await life.storage.objects_by_uuid([STRANGE]) == []

    live(act, settles=False)
