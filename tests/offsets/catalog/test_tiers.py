"""Which broker writes to which tier, if several are started with one URL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from kafkawire.metadata.sql import SqlMetadata
from kafkawire.offsets.catalog.port import (
    BEING_LEFT,
    COPY_FINISHED,
    CURRENT,
    LIVE,
    ObjectRow,
    SegmentRow,
    TierRow,
)
from kafkawire.offsets.catalog.sql.storage import SqlStorage
from tests.kit.postgres import new_database

URL = "s3://bucket/p"
BROKERS = range(1, 6)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.real)])
async def stores(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[list[SqlMetadata]]:
    """The database as each of the brokers opens it."""
    url = f"sqlite:///{tmp_path}/metadata.db"
    if request.param == "postgres":
        url = await new_database(request.getfixturevalue("postgres_url"))
    made = [SqlMetadata(url) for _ in BROKERS]
    for store in made:
        await store.open()
    yield made
    for store in made:
        await store.close()


def storage_of(stores: list[SqlMetadata], node_id: int) -> SqlStorage:
    return SqlStorage(stores[node_id - 1], node_id, lambda: 0)


def own(node_id: int) -> str:
    return f"{URL}/nodes/{node_id}"


async def test_one_of_brokers_that_start_together_gets_the_url(stores: list[SqlMetadata]) -> None:
    storages = {node_id: storage_of(stores, node_id) for node_id in BROKERS}
    for _ in range(2):
        claims = [each.claim_tier(URL, own(node_id), 7) for node_id, each in storages.items()]
        found = await asyncio.gather(*claims)
        (first,) = [row.node_id for row in found if row.url == URL]
        urls = {row.node_id: row.url for row in found}
        assert urls == {n: URL if n == first else own(n) for n in BROKERS}
        assert sorted(row.id for row in found) == list(range(len(BROKERS)))
        assert await storages[1].tiers() == sorted(found, key=lambda row: row.id)


async def test_tier_of_earlier_version_is_of_the_broker_with_objects_there(
    stores: list[SqlMetadata],
) -> None:
    one, two = storage_of(stores, 1), storage_of(stores, 2)
    rows = [TierRow(0, "s3://old", BEING_LEFT, 1), TierRow(1, URL, CURRENT, 2)]
    for row in rows:
        await one.save_tier(row)
    segment = SegmentRow(
        bytes(16), 1, 0, state=LIVE, local=False, object=b"1" * 16, tier=1, size_bytes=9
    )
    made = ObjectRow(b"1" * 16, 0, 1, 1, COPY_FINISHED, 9)
    await one.enter_remote([(segment, made, [])])
    assert await two.adopt_tiers() == [replace(rows[0], node_id=2), rows[1]]
    assert (await two.claim_tier(URL, own(2), 3)).url == own(2)
    adopted = await one.adopt_tiers()
    assert [row.node_id for row in adopted] == [2, 1, 2]
    assert await one.claim_tier(URL, own(1), 4) == adopted[1]
