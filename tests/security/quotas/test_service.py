"""Quotas in SQL and in memory, with several brokers on one database."""

from __future__ import annotations

import asyncio
from itertools import groupby
from pathlib import Path

import pytest

from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.log.io.disk import real_env
from kafkawire.metadata.sql import open_metadata
from kafkawire.metadata.store import SqlStore
from kafkawire.security import versions
from kafkawire.security.acls.security import Security
from kafkawire.security.quotas.alterations import Alteration, Entity
from kafkawire.security.quotas.arithmetic import SampleWindow
from kafkawire.security.quotas.sensors import ClientQuotas
from kafkawire.security.quotas.service import Quotas
from tests.kit.postgres import new_database
from tests.kit.waiting import no_wait, ticks, until

USER: Entity = (("user", "a"),)
ADDRESS: Entity = (("ip", None),)


async def quotas_of(store: SqlStore) -> Quotas:
    window = SampleWindow(11, 1000)
    quotas = Quotas(store, lambda: 0.0, window, window, no_wait)
    await quotas.start()
    return quotas


async def alter(quotas: Quotas, entity: Entity, key: str, value: float | None) -> None:
    found = await quotas.alter(
        [Alteration(entity, [(key, value)])], no_wait, validate_only=False, sender="a test"
    )
    assert found == {entity: None}


async def check(url: str, folder: str) -> None:
    stores = [open_metadata(url, folder) for _ in range(2)]
    for store in stores:
        await store.open()
    one, two = [await quotas_of(store) for store in stores]
    assert not one.of_clients
    await alter(one, USER, "producer_byte_rate", 1.5e6)
    await alter(one, USER, "request_percentage", 12.25)
    assert (one.of_clients, one.of_requests, one.of_connections) == (True, True, False)
    await two.refresh_from(0)
    assert not two.of_clients, "its version is the newest it knows"
    await two.refresh_from(2)
    assert two.rules.entities == one.rules.entities
    await alter(one, USER, "producer_byte_rate", None)
    await alter(two, ADDRESS, "connection_creation_rate", 7)
    assert two.rules.entities == {
        USER: {"request_percentage": 12.25},
        ADDRESS: {"connection_creation_rate": 7.0},
    }, "it noticed the change before its own"
    await one.refresh_from(4)
    assert one.rules.entities == two.rules.entities
    assert one.of_connections
    later = await quotas_of(stores[0])
    assert later.rules.entities == two.rules.entities
    for store in stores:
        await store.close()


async def test_quotas_are_stored_and_shared(tmp_path: Path) -> None:
    await check("", str(tmp_path))


@pytest.mark.real
async def test_quotas_are_stored_and_shared_in_postgres(postgres_url: str) -> None:
    await check(await new_database(postgres_url), "")


async def test_refresh_in_slices_shows_old_or_new_quotas(tmp_path: Path) -> None:
    """Also with a change that arrives meanwhile, which is applied after it."""
    seen: list[set[float | None]] = []
    changing: list[asyncio.Task[None]] = []
    client: ClientQuotas | None = None
    users = [f"user-{number}" for number in range(20)]

    async def watched() -> None:
        found = (one.rules.limit_of("producer_byte_rate", user, "c") for user in users)
        seen.append({None if limit is None else limit.value for limit in found})
        if client is not None and len(seen) == 5:
            changing.append(asyncio.ensure_future(alter(one, USER, "request_percentage", None)))
            assert one.of_client(client, users[0], "c") is client
        await ticks(1)

    store = open_metadata("", str(tmp_path))
    await store.open()
    window = SampleWindow(11, 1000)
    one = Quotas(store, lambda: 0.0, window, window, watched)
    other = await quotas_of(store)
    for user in users:
        await alter(other, (("user", user),), "producer_byte_rate", 1.0)
    await one.start()
    seen.clear()
    client = one.of_client(None, users[0], "c")
    for user in users:
        await alter(other, (("user", user),), "producer_byte_rate", 2.0)
    await alter(other, USER, "request_percentage", 3.0)
    await one.refresh()
    assert [limits for limits, _ in groupby(seen)] == [{1.0}, {2.0}]
    renewed = one.of_client(client, users[0], "c")
    assert renewed.produce is not None
    assert renewed.produce.limit == 2.0
    await changing[0]
    await other.refresh()
    assert one.rules.entities == other.rules.entities
    assert (one.rules.count, one.of_requests) == (20, False)
    await store.close()


async def test_validation_changes_nothing(tmp_path: Path) -> None:
    store = open_metadata("", str(tmp_path))
    await store.open()
    quotas = await quotas_of(store)
    wish = Alteration(USER, [("producer_byte_rate", 1.0)])
    found = await quotas.alter([wish], no_wait, validate_only=True, sender="a test")
    assert found == {USER: None}
    assert not quotas.rules.entities
    await store.close()


@pytest.mark.real
async def test_other_broker_enforces_changes(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also without an authorizer."""
    monkeypatch.setattr("kafkawire.security.following.ALONE_POLL_S", 0.02)
    url = await new_database(postgres_url)
    stores = [open_metadata(url, str(tmp_path)) for _ in range(2)]
    for store in stores:
        await store.open()
    one, two = [await quotas_of(store) for store in stores]
    security = await Security.open(real_env(), stores[1], BrokerConfig({}))
    await security.start_refresh(real_env(), stores[1], {versions.CLIENT_QUOTAS: two.refresh_from})
    await alter(one, USER, "producer_byte_rate", 1.5e6)
    await until(lambda: two.of_clients)
    await alter(one, USER, "producer_byte_rate", None)
    await until(lambda: not two.of_clients)
    await security.close()
    for store in stores:
        await store.close()
