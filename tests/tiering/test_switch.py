"""The manifest of a new tier after a broker has switched to it.

Covers: kafkawire.broker.producer_ids.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkawire.broker.producer_ids import BLOCK
from kafkawire.manifest.reader import NoManifest, read_manifest
from tests.kit.tier.commands import (
    all_uploaded,
    buckets_in_memory,  # noqa: F401  (a fixture, by name)
    tiered,
)
from tests.kit.tier.fake_bucket import FakeBucket
from tests.kit.waiting import until

NEW = "s3://elsewhere/x"


def next_producer_id(bucket: FakeBucket) -> int:
    """The first producer id that a restore from the bucket may assign; -1 without a manifest."""
    try:
        return read_manifest(bucket.objects.__getitem__).cluster.next_producer_id
    except NoManifest:
        return -1


@pytest.mark.slow
async def test_producer_ids_leased_after_switch_are_in_manifest_of_new_tier(
    tmp_path: Path, buckets: dict[str, FakeBucket]
) -> None:
    async with tiered(tmp_path / "data") as tier:
        ids = tier.server.broker.producer_ids
        await ids.next_id()
        await tier.produce("t")
        await tier.until(all_uploaded, "why")
        await tier("move", "--to", NEW)
        await until(lambda: NEW in buckets and next_producer_id(buckets[NEW]) >= BLOCK)
        known = next_producer_id(buckets[NEW])
        while await ids.next_id() < known:
            pass
        await until(lambda: next_producer_id(buckets[NEW]) == known + BLOCK)
