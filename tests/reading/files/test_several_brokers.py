"""A tier that several brokers use is read as one: no record twice, none missing.

Covers: kafkawire.reading.files.manifests.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kafkawire.manifest.contents import Manifest
from kafkawire.reading.catalog import SourceCatalog, open_catalog
from kafkawire.reading.files import manifests
from kafkawire.reading.files.locations import FolderPlace, Place
from kafkawire.reading.files.open import open_place
from kafkawire.reading.model.source import PartitionRange, Source
from tests.kit.spark.files import Files, Share, batch

Covered = list[tuple[int, int, str]]


class Tier:
    """A tier of brokers 1 and 2 with topic t, of which each has led the partition. `own`, `other`:
    what broker 1 and broker 2 write."""

    def __init__(self, folder: Path) -> None:
        self.url = str(folder / "tier")
        self.own = Files(open_place(self.url))
        self.other = Files(open_place(f"{self.url}/nodes/2"))
        for files in (self.own, self.other):
            [self.number] = files.topic("t")

    def put(self, files: Files, name: int, base: int, end: int, generation: int = 0) -> str:
        share = Share(self.number, [batch(base, end - base)])
        return files.put(name, share, generation=generation)

    def catalog(self) -> SourceCatalog:
        return open_catalog(Source(self.url))

    def covered(self, catalog: SourceCatalog) -> Covered:
        """Where each offset of the partition is read."""
        bounds = catalog.bounds("t", 0)
        part = catalog.part(PartitionRange("t", 0, bounds.start, bounds.end))
        places = [place.url for place in catalog.places]
        return [
            (each.base, each.end, places[each.place].rpartition("/")[2]) for each in part.pieces
        ]


@pytest.fixture
def tier(tmp_path: Path) -> Tier:
    return Tier(tmp_path)


def test_partition_that_moved_is_read_from_both(tier: Tier) -> None:
    tier.put(tier.own, 1, 0, 100)
    tier.own.publish(ends={tier.number: 0})  # broker 1 uploads it when broker 2 leads
    tier.put(tier.other, 2, 100, 200)
    tier.other.publish()
    catalog = tier.catalog()
    assert catalog.bounds("t", 0)[:3] == (0, 200, 200)
    assert tier.covered(catalog) == [(0, 100, "tier"), (100, 200, "2")]
    again = catalog.refresh_catalog()
    assert tier.covered(again.refresh_catalog()) == tier.covered(again) == tier.covered(catalog)


def test_highest_generation_and_log_start_hold(tier: Tier) -> None:
    tier.put(tier.own, 1, 0, 100)
    tier.put(tier.own, 3, 100, 200)
    tier.own.publish()
    tier.put(tier.other, 2, 50, 150, generation=1)
    tier.other.publish({tier.number: 60})
    found = [(60, 150, "2"), (150, 200, "tier")]
    assert tier.covered(tier.catalog()) == found


def test_objects_beyond_the_end_are_left_out(tier: Tier) -> None:
    """Of an upload that was not finished yet."""
    tier.put(tier.own, 1, 0, 100)
    tier.own.publish(ends={tier.number: 40})
    tier.put(tier.other, 2, 100, 200)
    tier.other.publish(ends={tier.number: 100})
    assert tier.covered(tier.catalog()) == [(0, 100, "tier")]


def test_tier_of_which_only_a_folder_has_a_manifest(tier: Tier) -> None:
    tier.put(tier.other, 2, 0, 100)
    tier.other.publish()
    catalog = tier.catalog()
    assert tier.covered(catalog) == [(0, 100, "2")]
    tier.put(tier.own, 1, 100, 200)
    tier.own.publish()
    assert tier.covered(catalog.refresh_catalog()) == [(0, 100, "2"), (100, 200, "tier")]


def test_folder_that_is_new_is_found(tier: Tier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "SEARCH_INTERVAL_S", -1.0)
    tier.put(tier.own, 1, 0, 100)
    tier.own.publish()
    catalog = tier.catalog()
    assert catalog.bounds("t", 0).end == 100
    tier.put(tier.other, 2, 100, 200)
    tier.other.publish()
    assert tier.covered(catalog.refresh_catalog()) == [(0, 100, "tier"), (100, 200, "2")]


def before_reading(url: str, change: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have something change once, after the manifest of broker 1 was read and before this one."""
    read, left = manifests._read, [change]

    def reading(place: Place) -> Manifest:
        if place.url.endswith(url) and left:
            left.pop()()
        return read(place)

    monkeypatch.setattr(manifests, "_read", reading)


def test_object_that_is_replaced_while_manifests_are_read(
    tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier.put(tier.own, 1, 0, 100)
    tier.put(tier.other, 2, 100, 200)
    for files in (tier.own, tier.other):
        files.publish()

    def replaced() -> None:
        tier.put(tier.own, 3, 0, 200, generation=1)
        tier.own.publish()
        tier.other.publish(gone=[2])

    before_reading("nodes/2", replaced, monkeypatch)
    assert tier.covered(tier.catalog()) == [(0, 200, "tier")]


def test_end_that_is_published_while_manifests_are_read(
    tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier.put(tier.own, 1, 0, 100)
    tier.own.publish()
    tier.put(tier.other, 2, 200, 300)
    tier.other.publish(ends={tier.number: 100})

    def uploaded() -> None:
        tier.put(tier.own, 3, 100, 200)
        tier.own.publish()
        tier.other.publish(ends={tier.number: 300})

    before_reading("nodes/2", uploaded, monkeypatch)
    found = [(0, 100, "tier"), (100, 200, "tier"), (200, 300, "2")]
    assert tier.covered(tier.catalog()) == found


def test_folders_are_found_by_listing_one_key_each(tier: Tier) -> None:
    place = tier.own.place
    assert isinstance(place, FolderPlace)
    for key in ("nodes/10/owner", "nodes/2/a", "nodes/2/b", "nodes/x/c", "nodes/30/a"):
        place.put(key, b"")
    assert sorted(manifests._listed_nodes(place)) == [2, 10, 30]
    assert sorted(manifests._local_nodes(place)) == [2, 10, 30]
    assert manifests.broker_folders(place) == []
    other = open_place(f"{tier.url}/nodes/2")
    assert manifests.whole_tier(other) == place
    assert manifests.whole_tier(place) is place
