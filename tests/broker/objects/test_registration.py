"""Registration of a broker that may run on another machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kafkawire.broker.liveness.takeover import RETURNING, is_returning
from kafkawire.broker.objects.opening import register
from kafkawire.metadata.catalog import BROKER_RESOURCE, ConfigChange
from kafkawire.metadata.sql import SqlMetadata
from kafkawire.metadata.store import BrokerSuperseded
from kafkawire.objectstore.errors import Refused
from tests.kit.env import memory_env
from tests.kit.log.logs import settings


async def unchanged() -> None:
    """The data folder was not superseded."""


async def start(url: str, after: int, store: Any = None) -> SqlMetadata:
    """Register broker 2 in a process of its own."""
    metadata = SqlMetadata(url)
    catalog = await metadata.open()
    config = settings(node_id=2, cluster_takeover_enable=True)
    try:
        await register(
            memory_env(), config, metadata, catalog, {}, "/data", store, after, unchanged
        )
    except BaseException:
        await metadata.close()
        raise
    return metadata


async def test_takeover_needs_the_epoch_that_was_absent(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/metadata.db"
    first = await start(url, -1)
    epoch = (await first.reload()).brokers[2].epoch
    await first.alter_configs([ConfigChange(BROKER_RESOURCE, "2", RETURNING, "true")])
    second = await start(url, epoch)
    catalog = await second.reload()
    assert catalog.brokers[2].epoch == epoch + 1
    assert not is_returning(catalog, 2)
    with pytest.raises(BrokerSuperseded):
        await start(url, epoch)
    for each in (first, second):
        await each.close()


async def test_broker_that_cannot_reach_its_tier_is_not_registered(tmp_path: Path) -> None:
    class Store:
        async def list(self, *_: object, **__: object) -> list[object]:
            raise Refused("AccessDenied", "wrong key")

    url = f"sqlite:///{tmp_path}/metadata.db"
    with pytest.raises(Refused):
        await start(url, -1, Store())
    metadata = SqlMetadata(url)
    assert not (await metadata.open()).brokers
    await metadata.close()
