"""A data folder as source includes its tier: records whose local files were deleted.

Covers: kafkawire.reading.files.data_folder.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

from kafkawire.metadata.tables import metadata
from kafkawire.offsets.catalog.port import BEING_LEFT, CURRENT, LEFT
from kafkawire.reading.catalog import SourceCatalog, open_catalog
from kafkawire.reading.files import manifests
from kafkawire.reading.files.locations import FolderPlace, PlaceError
from kafkawire.reading.files.open import open_place
from kafkawire.reading.model.source import PartitionRange, Source, SourceError
from kafkawire.reading.plan import plan_tasks
from tests.kit.spark.files import START_MS, Files, Share, batches
from tests.kit.spark.reads import read, rows_of

LATE = 200
"""The first offset with a local file."""


def record_tiers(data: Path, *rows: tuple[str, int]) -> None:
    """Write the metadata file of a data folder with these tiers."""
    path = data / "metadata.db"
    engine = create_engine(f"sqlite:///{path}")
    metadata.create_all(engine)
    engine.dispose()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executemany(
            "INSERT INTO tiers (id, url, state, created_ms) VALUES (?, ?, ?, 0)",
            [(number, url, state) for number, (url, state) in enumerate(rows)],
        )


def fill(files: Files, first: int) -> Files:
    """Topic t: offsets [first, 300) in segments of 100; the log starts at 0."""
    [number] = files.topic("t")
    for base in range(first, 300, 100):
        files.put(base + 1, Share(number, batches(base, [10] * 10)))
    files.publish(starts={number: 0})
    return files


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder with the newest 100 of 300 records; its tier has all of them."""
    home = tmp_path / "data"
    fill(Files(open_place(str(home / "brokers" / "1"))), LATE)
    tier = fill(Files(open_place(str(tmp_path / "tier"))), 0)
    record_tiers(home, ("file:///gone", LEFT), (tier.place.url, CURRENT))
    return home


def offsets(catalog: SourceCatalog, **more: Any) -> list[tuple[str, int, int]]:
    part = catalog.part(PartitionRange("t", 0, *catalog.bounds("t", 0)[::2]))
    [task] = plan_tasks([part], task_bytes=1 << 30)
    return read(catalog.source, catalog.places, task)[0]


@pytest.mark.parametrize("folder", ["data", "data/brokers/1"])
@pytest.mark.parametrize("strict", [True, False])
def test_cold_records_are_read_from_the_tier(
    folder: str, strict: bool, data: Path, tmp_path: Path
) -> None:
    catalog = open_catalog(Source(str(tmp_path / folder), fail_on_data_loss=strict))
    assert offsets(catalog) == rows_of("t", 0, range(300))
    local = [isinstance(place, FolderPlace) for place in catalog.places]
    part = catalog.part(PartitionRange("t", 0, LATE, 300))
    assert (local, {piece.place for piece in part.pieces}) == ([True, True], {0})
    assert catalog.offset_for_time("t", 0, START_MS + 50) == 50
    assert offsets(catalog.refresh_catalog()) == rows_of("t", 0, range(300))


def broken(url: str, opened: Callable[[str], Any]) -> Callable[[str], Any]:
    """A function that opens places, except one."""

    def open_one(wanted: str) -> Any:
        if wanted == url:
            raise PlaceError("S3 refused (AccessDenied)")
        return opened(wanted)

    return open_one


def test_a_tier_that_cannot_be_read_is_named_with_the_ranges(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = open_place(str(tmp_path / "tier")).url
    opened = open_place
    monkeypatch.setattr(manifests, "open_place", broken(url, opened))
    catalog = open_catalog(Source(str(data), fail_on_data_loss=False))
    sentence = (
        rf"{data} has no local files of t-0 \[0, 200\), and its tier {url} cannot be read: "
        r"S3 refused \(AccessDenied\)"
    )
    with pytest.raises(SourceError, match=sentence):
        offsets(catalog)
    with pytest.raises(SourceError, match=sentence):
        catalog.offset_for_time("t", 0, START_MS)
    part = catalog.part(PartitionRange("t", 0, LATE, 300))
    assert [piece.base for piece in part.pieces] == [LATE]  # what is local is read
    monkeypatch.setattr(manifests, "open_place", opened)
    assert offsets(catalog.refresh_catalog()) == rows_of("t", 0, range(300))


def test_a_tier_that_is_being_left_is_read_too(data: Path, tmp_path: Path) -> None:
    old = open_place(str(tmp_path / "tier")).url
    (data / "metadata.db").unlink()
    record_tiers(data, (old, BEING_LEFT), (str(tmp_path / "new"), CURRENT))
    assert offsets(open_catalog(Source(str(data)))) == rows_of("t", 0, range(300))


def test_a_tier_of_another_cluster_is_left_out(data: Path, tmp_path: Path) -> None:
    other = Files(open_place(str(tmp_path / "other")), cluster="zyxwvutsrqponmlkjihgfe")
    fill(other, 0)
    (data / "metadata.db").unlink()
    record_tiers(data, (other.place.url, CURRENT))
    assert len(open_catalog(Source(str(data))).places) == 1


def test_damaged_metadata_is_reported(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    (data / "metadata.db").write_bytes(b"not a database" * 100)
    assert len(open_catalog(Source(str(data))).places) == 1
    assert "metadata.db cannot be read (file is not a database)" in caplog.text
