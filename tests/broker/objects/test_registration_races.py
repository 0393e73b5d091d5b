"""Starts that find out that their broker was started elsewhere while they waited, with real SQL.

Covers: kafkawire.broker.objects.opening, kafkawire.broker.objects.fresh,
kafkawire.log.objects.port.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from kafkawire.broker.objects.fresh import _pair, check_unchanged
from kafkawire.broker.objects.opening import epoch_seen, register
from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.metadata import pairing
from kafkawire.metadata.pairing import StoredPairing
from kafkawire.metadata.sql import SqlMetadata
from kafkawire.metadata.store import BrokerSuperseded
from kafkawire.objectstore.errors import Refused, StoreError
from tests.kit.env import memory_env

TAKEOVER = BrokerConfig({"node.id": "1", "cluster.takeover.enable": "true"})
Start = Callable[[], Awaitable[SqlMetadata]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Open stores that share one database, one per process."""
    made: list[SqlMetadata] = []

    async def new() -> SqlMetadata:
        made.append(SqlMetadata(f"sqlite:///{tmp_path}/metadata.db"))
        await made[-1].open()
        return made[-1]

    yield new
    for store in made:
        await store.close()


class Store:
    """A tier whose first requests fail; `meanwhile` is awaited before each answer."""

    def __init__(
        self, failures: list[StoreError], meanwhile: Callable[[], Awaitable[None]]
    ) -> None:
        self.failures = failures
        self._meanwhile = meanwhile

    async def list(self, _: str, limit: int) -> list[str]:
        assert limit == 1
        await self._meanwhile()
        if self.failures:
            raise self.failures.pop(0)
        return []


async def try_to_register(metadata: SqlMetadata, store: Store) -> None:
    catalog = metadata._catalog
    after = epoch_seen(TAKEOVER, catalog)
    env = memory_env()
    await register(
        env, TAKEOVER, metadata, catalog, {}, "/data", cast("Any", store), after, nothing
    )


async def nothing() -> None:
    return


async def test_start_that_waits_for_its_tier_registers(
    start: Start, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafkawire.log.objects.port.MAX_WAIT_S", 0.001)
    metadata = await start()
    store = Store([StoreError("Timeout", "away")] * 3, nothing)
    with caplog.at_level(logging.WARNING):
        await try_to_register(metadata, store)
    assert caplog.messages == ["the start waits for the remote tier: Timeout: away"]
    assert metadata._catalog.brokers[1].epoch > 0
    await try_to_register(await start(), store)
    with pytest.raises(Refused, match="refused"):
        await try_to_register(await start(), Store([Refused("403", "refused")], nothing))


async def test_broker_that_was_started_elsewhere_meanwhile_is_refused(start: Start) -> None:
    await try_to_register(await start(), Store([], nothing))
    home, other = await start(), await start()

    async def take_over() -> None:
        await other.register_broker(1, {}, None)

    with pytest.raises(BrokerSuperseded):
        await try_to_register(home, Store([], take_over))


def test_broker_without_takeover_may_have_any_epoch() -> None:
    assert epoch_seen(BrokerConfig({"node.id": "1"}), cast("Any", None)) == -1


async def test_folder_that_was_superseded_is_refused(start: Start) -> None:
    home, other = await start(), await start()
    await home.register_broker(1, {}, None)
    await home.transact(lambda session: pairing.pair(session, 1, bytes(16), 3))
    stored = await home.transact(lambda session: pairing.load(session, 1))
    await check_unchanged(home, stored, 1, fresh=False)
    await other.register_broker(1, {}, None)
    paired = StoredPairing("c", 1, b"x" * 16, 4)
    old, new = (each._catalog.brokers[1].epoch for each in (home, other))
    with pytest.raises(BrokerSuperseded):
        await home.transact(lambda session: _pair(session, 1, old, paired))
    await check_unchanged(home, stored, 1, fresh=False)
    await other.transact(lambda session: _pair(session, 1, new, paired))
    with pytest.raises(BrokerSuperseded, match=f"epoch {new}"):
        await check_unchanged(home, stored, 1, fresh=False)


async def test_start_whose_folder_was_superseded_does_not_register(start: Start) -> None:
    """Otherwise it would supersede the start that has the newer folder, and fail itself."""
    home, guest = await start(), await start()
    stored = await home.transact(lambda session: pairing.load(session, 1))
    await guest.register_broker(1, {}, None)
    epoch = guest._catalog.brokers[1].epoch
    paired = replace(stored, metadata_id=b"2" * 16, generation=1)
    await guest.transact(lambda session: _pair(session, 1, epoch, paired))
    unchanged = partial(check_unchanged, home, stored, 1, fresh=False)
    await home.reload()
    with pytest.raises(BrokerSuperseded):
        await register(
            memory_env(), TAKEOVER, home, home._catalog, {}, "/data", None, epoch, unchanged
        )
    assert (await guest.reload()).brokers[1].epoch == epoch
