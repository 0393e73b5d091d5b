"""Scrubs of filter packs: what is damaged is dropped and written again, strangers are deleted.

Covers: kafkawire.tiering.scrub.packs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from kafkawire.manifest.keys import PACK_LIST, pack_key
from kafkawire.tiering.scrub.plan import AGE_FLOOR_MS, Finding, FindingKind, ScrubReport
from tests.kit.tier.life import Life
from tests.tiering.packs.test_packer import (
    check_packs,
    listed,
    live,
    packed,
    produced,
    small,  # noqa: F401  (a fixture, by name)
    stored,
)

STRANGE = pack_key(0)


async def found(life: Life, *, repair: bool = False, deep: bool = False) -> list[Finding]:
    report = [each async for each in life.tiering.scrub(repair, deep)][-1]
    assert isinstance(report, ScrubReport)
    return report.findings


def scrubbed(act: Callable[[Life], Awaitable[None]]) -> None:
    """Run `act` in a broker with packs that are older than an hour."""

    async def main(life: Life) -> None:
        await produced(life)
        life.world.clock_ms += AGE_FLOOR_MS + 60_000
        assert await found(life, deep=True) == []
        await act(life)

    live(main)


@pytest.mark.parametrize("kind", [FindingKind.DANGLING, FindingKind.SIZE, FindingKind.FORMAT])
def test_damaged_pack_is_written_again(kind: FindingKind) -> None:
    async def act(life: Life) -> None:
        bucket, number = life.world.bucket, listed(life.world).packs[0].number
        key = pack_key(number)
        if kind is FindingKind.DANGLING:
            bucket.forget(key)
        elif kind is FindingKind.SIZE:
            bucket.store(key, bucket.objects[key][:-1])
        else:
            bucket.store(key, bytes([bucket.objects[key][0] ^ 1]) + bucket.objects[key][1:])
        before = bucket.objects[PACK_LIST]
        [dry] = await found(life, deep=True)
        assert (dry.kind, dry.key, dry.action) == (
            kind, key, "would be written again with the next pack"
        )  # fmt: skip
        assert bucket.objects[PACK_LIST] == before, "a dry run changes nothing"
        [done] = await found(life, deep=True, repair=True)
        assert done.action == "will be written again with the next pack"
        await life.produce("t", 6)
        await packed(life)
        packs = listed(life.world)
        assert number not in [each.number for each in packs.packs]
        assert packs.packs[-1].number > number
        assert await found(life, deep=True) == []

    scrubbed(act)


def test_pack_of_no_list_is_deleted() -> None:
    async def act(life: Life) -> None:
        life.world.bucket.store(STRANGE, b"old")
        assert await found(life) == [], "it may be about to be named"
        life.world.clock_ms += AGE_FLOOR_MS + 60_000
        [dry] = await found(life)
        assert (dry.kind, dry.key, dry.action) == (FindingKind.ORPHAN, STRANGE, "would be deleted")
        assert [each.action for each in await found(life, repair=True)] == ["will be deleted"]
        assert STRANGE not in stored(life.world)
        check_packs(life.world)

    scrubbed(act)


def test_strange_names_and_damaged_lists_are_reported() -> None:
    async def act(life: Life) -> None:
        bucket = life.world.bucket
        bucket.store("filters/other", b"")
        life.world.clock_ms += AGE_FLOOR_MS + 60_000
        [strange] = await found(life, repair=True)
        assert (strange.kind, strange.key) == (FindingKind.ORPHAN, "filters/other")
        assert "filters/other" in bucket.objects
        bucket.forget("filters/other")
        whole = bucket.objects[PACK_LIST]
        bucket.store(PACK_LIST, b"{")
        [damaged] = await found(life, repair=True)
        assert (damaged.kind, damaged.key) == (FindingKind.FORMAT, PACK_LIST)
        bucket.store(PACK_LIST, whole)

    scrubbed(act)
