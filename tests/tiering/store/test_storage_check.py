"""Storage that ignores the condition of a PUT is recognised."""

from __future__ import annotations

from typing import Any

import pytest

from kafkawire.manifest.keys import CONDITIONAL_PUT
from kafkawire.objectstore.errors import Refused, StoreError
from kafkawire.objectstore.port import Stored
from kafkawire.tiering.store.port import ObjectStore
from kafkawire.tiering.store.storage_check import check_conditional_put
from tests.kit.tier.fake_bucket import FakeBucket
from tests.kit.tier.fake_store import FakeStore
from tests.kit.tier.stores import (
    each_store,  # noqa: F401  (a fixture, by name)
    each_store_world,  # noqa: F401  (a fixture, by name)
)


class IgnoringStore(FakeStore):
    """A store that replaces objects whatever the condition."""

    async def put(self, key: str, data: bytes, **condition: Any) -> Stored:
        return await super().put(key, data)


async def test_storage_with_conditional_put_passes(store: ObjectStore) -> None:
    for _ in range(2):
        await check_conditional_put(store)
    assert [found.key for found in await store.list("")] == [CONDITIONAL_PUT]


async def test_later_checks_are_one_request() -> None:
    store = FakeStore(FakeBucket())
    await check_conditional_put(store)
    assert store.requests["put"] == 2
    await check_conditional_put(store)
    assert store.requests["put"] == 3


async def test_storage_that_ignores_conditions_is_refused() -> None:
    store = IgnoringStore(FakeBucket())
    for _ in range(2):
        with pytest.raises(Refused, match=r"If-None-Match.*durability=s3") as caught:
            await check_conditional_put(store)
        assert caught.value.code == "ConditionIgnored"


async def test_check_that_cannot_be_made_is_another_error() -> None:
    store = FakeStore(FakeBucket())
    store.faults.error_rate = 1.0
    with pytest.raises(StoreError) as caught:
        await check_conditional_put(store)
    assert caught.value.retryable
    store.faults.error_rate, store.faults.lost_rate = 0.0, 1.0
    with pytest.raises(StoreError):
        await check_conditional_put(store)
    store.faults.lost_rate = 0.0
    await check_conditional_put(store)
