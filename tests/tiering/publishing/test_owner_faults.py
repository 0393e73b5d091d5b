"""Conflicts over a bucket: another broker takes it over, or it belongs to another cluster."""

from __future__ import annotations

import logging

import pytest

from kafkawire.manifest.keys import SEGMENTS
from tests.kit.tier.fake_bucket import no_hook
from tests.kit.tier.faults import CALM, HOUR_S, WARNINGS_PER_HOUR, listening, trickle, uploaded
from tests.kit.tier.life import SETTLE_S, Life
from tests.kit.tier.world import TierWorld

SERVING = {"tier_fenced_action": "serve"}
"""Records keep arriving at the broker that does not own the bucket."""


@pytest.mark.slow
def test_broker_stops_writing_to_bucket_taken_by_other_broker() -> None:
    """Two brokers of one cluster id (a restored one, for example): the later claim is valid.

    The earlier one serves its records, reports the owner of the bucket, and changes nothing there
    any more.
    """
    old, new = TierWorld(1, **CALM, **SERVING), TierWorld(2, **CALM)
    new.bucket = old.bucket
    first, second = Life(old), Life(new)
    old.bucket.hook = no_hook
    for life in first, second:  # the bucket has more than one broker alone expects
        life.committed = lambda method: None  # type: ignore[method-assign]

    async def begin() -> None:
        await first.start()
        await first.topic("t", 2)
        await first.produce("t", 2)
        await first.env.sleep(SETTLE_S)
        assert await uploaded(first, "t")

    async def take_over() -> None:
        await second.metadata.open()
        assert new.database.catalog is not None
        new.database.catalog.cluster_id = first.catalog.cluster_id
        new.database.next_partition = 100
        await second.start()
        await second.topic("u")
        await second.produce("u", 2)
        await second.env.sleep(SETTLE_S)
        assert await uploaded(second, "u")

    async def go_on() -> None:
        await first.produce("t", 1)
        await first.delete_records("t", 2)
        await first.env.sleep(SETTLE_S)
        assert {line["reason"] for line in await first.why()} >= {"owned by another broker"}
        before = manifest_keys(first)
        await trickle(first, "t", HOUR_S)
        assert manifest_keys(first) == before
        await first.check()

    with listening() as lines:
        first.loop.run_until_complete(begin())
        second.loop.run_until_complete(take_over())
        manifest = [key for key in manifest_keys(second) if "delta" in key]
        first.loop.run_until_complete(go_on())
        assert [key for key in manifest_keys(first) if "delta" in key] == manifest
        second.run(second.close)
        first.run(first.close)
    assert 1 <= lines.count(logging.ERROR) <= 3, lines.texts(logging.ERROR)


def manifest_keys(life: Life) -> list[str]:
    """Keys of the bucket except segments."""
    return [key for key in life.world.bucket.objects if not key.startswith(SEGMENTS)]


@pytest.mark.slow
def test_bucket_of_other_cluster_is_not_changed() -> None:
    old, new = TierWorld(1, **CALM), TierWorld(2, **CALM, **SERVING)
    first = Life(old)

    async def begin() -> None:
        await first.start()
        await first.topic("t")
        await first.produce("t", 1)
        await first.env.sleep(SETTLE_S)
        await first.close()

    first.run(begin)
    new.bucket = old.bucket
    other = Life(new)
    old.bucket.hook = no_hook
    other.committed = lambda method: None  # type: ignore[method-assign]
    before = old.bucket.objects

    async def come() -> None:
        await other.start()
        await other.topic("u")
        await other.produce("u", 1)
        await trickle(other, "u", HOUR_S)
        assert old.bucket.objects == before
        reasons = {line["reason"] for line in await other.why()}
        assert "owned by another broker" in reasons
        assert reasons <= {"owned by another broker", "active"}
        await other.check()
        await other.close()

    with listening() as lines:
        other.run(come)
    assert lines.count(logging.ERROR) <= 2, lines.texts(logging.ERROR)
    assert lines.count(logging.WARNING) <= WARNINGS_PER_HOUR
