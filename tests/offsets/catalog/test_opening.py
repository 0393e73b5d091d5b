"""The choice of storage when a broker opens, and the refusal of another one than it had."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from kafkawire.metadata.checkpoint import Checkpoint, PartitionCheckpoint
from kafkawire.metadata.sql import open_metadata
from kafkawire.metadata.store import MetadataError
from kafkawire.offsets.catalog.port import SegmentCatalog
from kafkawire.offsets.storage.open import check_storage, open_storage
from tests.kit.offsets.worlds import SqlWorld

KINDS = ["sql", "rocksdb", "memory"]


Opened = Callable[[str], Awaitable[SegmentCatalog]]


@pytest.fixture(name="opened")
async def each_opened(tmp_path: Path) -> AsyncIterator[Opened]:
    """Opens the storage of a broker whose home is `tmp_path`."""
    stores = []

    async def opened(kind: str) -> SegmentCatalog:
        metadata = open_metadata(f"sqlite:///{tmp_path}/metadata.db", "")
        await metadata.open()
        stores.append(metadata)
        await check_storage(kind, metadata, str(tmp_path), 1)
        return open_storage(kind, metadata, str(tmp_path), 1, lambda: 5, {1: 1}.get)

    yield opened
    for metadata in stores:
        await metadata.close()


@pytest.mark.parametrize("first", KINDS)
async def test_broker_keeps_its_storage(opened: Opened, tmp_path: Path, first: str) -> None:
    await SqlWorld(f"sqlite:///{tmp_path}/metadata.db").make()
    storage = await opened(first)
    await storage.save_checkpoint(Checkpoint(1, 9, [PartitionCheckpoint(1, 7, 0)]))
    await storage.close()
    again = await opened(first)
    assert await again.load_log_position(1) == (0 if first == "memory" else 9)
    await again.close()
    for kind in KINDS if first != "memory" else []:  # no file of that storage is left
        if kind == first:
            continue
        with pytest.raises(MetadataError) as caught:
            await opened(kind)
        words = f" convert them with kafkawire offsets convert --to {kind},"
        convert = "" if kind == "memory" else words
        assert str(caught.value) == (
            f"offset.storage={kind}: the offsets of broker 1 are in {first}: "
            f"start with offset.storage={first},{convert} or with an empty data folder"
        )


async def test_missing_package_is_named(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await SqlWorld(f"sqlite:///{tmp_path}/metadata.db").make()
    monkeypatch.setitem(__import__("sys").modules, "rocksdict", None)
    storage = await opened("rocksdb")
    with pytest.raises(MetadataError, match=r"needs rocksdict: .*\[rocksdb\]"):
        await storage.load_log_position(1)


async def test_newer_or_damaged_rocksdb_folder_is_refused_in_one_sentence(
    opened: Opened, tmp_path: Path
) -> None:
    await SqlWorld(f"sqlite:///{tmp_path}/metadata.db").make()
    storage = await opened("rocksdb")
    await storage.load_log_position(1)
    second = await opened("rocksdb")
    with pytest.raises(MetadataError, match=r"offsets failed \(.*[Ll]ock"):
        await second.load_log_position(1)
    await storage.close()
    import rocksdict

    options = rocksdict.Options(raw_mode=True)
    database = rocksdict.Rdict(f"{tmp_path}/offsets", options)
    database.put(b"v", b"\x09")
    database.close()
    with pytest.raises(MetadataError, match="has format version 9, this kafkawire reads up to 2"):
        await (await opened("rocksdb")).load_log_position(1)
    (tmp_path / "offsets" / "CURRENT").write_text("nonsense")
    with pytest.raises(MetadataError, match="offsets is damaged") as caught:
        await (await opened("rocksdb")).load_log_position(1)
    assert "\n" not in str(caught.value)
