"""Every object store there is, for the tests of their common contract."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kafkawire.objectstore.folder import FolderProvider
from kafkawire.objectstore.open import make_provider
from kafkawire.objectstore.staging import SharedStaging
from kafkawire.objectstore.url import parse_tier
from kafkawire.tiering.store.port import ObjectStore
from kafkawire.tiering.store.process import StoreProcess
from tests.kit.tier.direct_store import DirectStore
from tests.kit.tier.fake_bucket import FakeBucket
from tests.kit.tier.fake_store import BUCKETS, FakeStore

MEMORY_BYTES = 1 << 20
PART_BYTES = 5 << 20
"""The smallest part that S3 accepts."""
TEN = b"0123456789"
KINDS = [
    "fake",
    "folder",
    "shared-folder",
    pytest.param("process-folder", marks=pytest.mark.real),
    pytest.param("s3", marks=pytest.mark.real),
    pytest.param("process-s3", marks=pytest.mark.real),
    pytest.param("azure", marks=pytest.mark.real),
]


@dataclass
class World:
    """A store, and the URLs of its tier and of another tier next to it."""

    kind: str
    store: ObjectStore
    url: str
    beside: str

    @property
    def real(self) -> bool:
        return self.kind != "fake"

    @property
    def compares_etags(self) -> bool:
        """Whether `if_match` is possible: a shared folder has no lock for it."""
        return self.kind != "shared-folder"

    def other(self) -> ObjectStore:
        """A store of the other tier."""
        return opened(self.kind, self.beside)


def opened(kind: str, url: str) -> ObjectStore:
    if kind == "fake":
        return FakeStore(BUCKETS.setdefault(url, FakeBucket()), None, MEMORY_BYTES)
    tier = parse_tier(url)
    if kind == "shared-folder":
        return DirectStore(FolderProvider(tier.folder, SharedStaging()), MEMORY_BYTES)
    if kind.startswith("process"):
        return StoreProcess(tier, MEMORY_BYTES, PART_BYTES)
    return DirectStore(make_provider(tier, PART_BYTES, 8, 4), MEMORY_BYTES)


@pytest.fixture(params=KINDS, name="world")
async def each_store_world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    kind = request.param
    url = f"{tmp_path}/tier"
    if kind.endswith("s3"):
        url = request.getfixturevalue("tier_url")
    if kind.endswith("azure"):
        url = request.getfixturevalue("azure_url")
    place, mark, options = url.partition("?")
    made = World(kind, opened(kind, url), url, f"{place}-beside{mark}{options}")
    yield made
    await made.store.close()
    if kind == "azure":
        # Azure's package leaves connections to the garbage collector.
        del made.store
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
    for name in (made.url, made.beside):
        BUCKETS.pop(name, None)


@pytest.fixture(name="store")
def each_store(world: World) -> ObjectStore:
    return world.store


async def outcomes(calls: list[Awaitable[Any]]) -> list[Any]:
    return await asyncio.gather(*calls, return_exceptions=True)
