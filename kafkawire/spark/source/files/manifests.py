"""The manifests at a URL, read once and then refreshed incrementally."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from kafkawire.codec.format_errors import FormatError
from kafkawire.manifest.contents import Manifest
from kafkawire.manifest.keys import CURRENT, DELTAS, SNAPSHOTS, delta_key, sequence_of
from kafkawire.manifest.reader import LostManifest, NoManifest, read_manifest, refresh_manifest
from kafkawire.spark.brokers.queries import BrokerQueries
from kafkawire.spark.model.source import SourceError
from kafkawire.spark.source.files.data_folder import tiers_of
from kafkawire.spark.source.files.locations import FolderPlace, Place
from kafkawire.spark.source.files.open import open_place
from kafkawire.spark.source.files.spans import Sheet

logger = logging.getLogger(__name__)

AT_ONCE = 32
"""Deltas fetched concurrently with a snapshot: an hour has hundreds, each is one round trip, and a
client keeps more connections."""


class NothingThere(SourceError):
    """There is no manifest yet."""


class Holding(NamedTuple):
    """A place with a manifest and its contents."""

    place: Place
    sheet: Sheet

    @property
    def manifest(self) -> Manifest:
        """Return the manifest as last read."""
        return self.sheet.manifest


def open_holdings(url: str) -> list[Holding]:
    """Open the manifest of a tier or of a broker's folder, or those of all brokers of a data
    folder.

    Raises NothingThere if there is none, SourceError if one cannot be read.
    """
    place = open_place(url)
    if not isinstance(place, FolderPlace) or _has_manifest(place):
        return [Holding(place, Sheet(_read(place)))]
    found = [each for each in _brokers(place) if _has_manifest(each)]
    if not found:
        raise NothingThere(
            f"{url} has no manifest, neither as a tier or a broker's folder (manifest/current) "
            "nor as a data folder (brokers/*/manifest/current)"
        )
    return [Holding(each, Sheet(_read(each))) for each in found]


class UnreadableTier(NamedTuple):
    """A tier that cannot be read now, and why."""

    url: str
    reason: str


def tier_holdings(holdings: Sequence[Holding]) -> tuple[list[Holding], list[UnreadableTier]]:
    """Return the manifests of the tiers of these data folders, and the tiers that cannot be
    read."""
    found: list[Holding] = []
    failed: list[UnreadableTier] = []
    clusters = {holding.manifest.state.cluster_id for holding in holdings}
    folders = [each.place for each in holdings if isinstance(each.place, FolderPlace)]
    known = {place.url for place in folders}
    for url in dict.fromkeys(url for place in folders for url in tiers_of(place)):
        try:
            place = open_place(url)
            if place.url in known:
                continue
            holding = Holding(place, Sheet(_read(place)))
        except NothingThere:
            continue  # no uploads yet
        except SourceError as failure:
            logger.warning("the tier %s cannot be read: %s", url, failure)
            failed.append(UnreadableTier(url, str(failure)))
            continue
        if holding.manifest.state.cluster_id in clusters:
            found.append(holding)
    return found, failed


def readable_holdings(broker: BrokerQueries) -> list[Holding]:
    """Return the manifests of the broker's own segments and of its tier, as far as they can be read
    from here: local files first. A broker on another machine, or one that is not kafkawire, has
    none."""
    tier, folders = broker.segments()
    urls = [folder for folder in folders if os.path.isabs(folder)] + ([tier] if tier else [])
    cluster = broker.cluster_id()
    found: list[Holding] = []
    for url in urls:
        try:
            place = open_place(url)
            holding = Holding(place, Sheet(_read(place)))
        except NothingThere:
            continue
        except SourceError as failure:
            logger.warning("%s is read through the broker: %s", url, failure)
            continue
        if holding.manifest.state.cluster_id == cluster:
            found.append(holding)
    return found


def refreshed(holding: Holding) -> Holding:
    """Current manifest; the same object if nothing is new."""
    known = holding.manifest
    manifest = _reading(holding.place, lambda get: refresh_manifest(known, get))
    return holding if manifest is known else Holding(holding.place, Sheet(manifest))


def _brokers(place: FolderPlace) -> list[FolderPlace]:
    folder = os.path.join(place.tier.folder, "brokers")
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    found = [open_place(os.path.join(folder, name)) for name in names]
    return [each for each in found if isinstance(each, FolderPlace)]


def _has_manifest(place: Place) -> bool:
    try:
        return place.size(CURRENT) >= 0
    except FileNotFoundError:
        return False


def _read(place: Place) -> Manifest:
    return _reading(place, read_manifest)


def _reading(place: Place, read: Callable[[Callable[[str], bytes]], Manifest]) -> Manifest:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            return read(_Ahead(place, pool).get)
        except NoManifest:
            raise NothingThere(
                f"{place.url} has no manifest (manifest/current): nothing was uploaded there yet, "
                "or the URL is not that of the tier"
            ) from None
        except (LostManifest, FormatError) as failure:
            raise SourceError(f"{place.url}: {failure}") from None


class _Ahead:
    """Prefetches the objects that are read next, so that a manifest with few deltas takes three
    round trips: `current` and a list of the deltas; the snapshot, the deltas after it, and the one
    that does not exist yet; `current` again."""

    def __init__(self, place: Place, pool: ThreadPoolExecutor) -> None:
        self._place = place
        self._pool = pool
        self._begun = isinstance(place, FolderPlace)
        self._listing: Future[list[int]] | None = None
        self._coming: dict[str, Future[bytes]] = {}

    def get(self, key: str) -> bytes:
        """Get an object like Place.get."""
        if key in self._coming:
            return self._coming.pop(key).result()
        if key == CURRENT and not self._begun:
            self._listing = self._pool.submit(self._listed)
        self._begun = True
        if key.startswith(SNAPSHOTS):
            self._fetch_behind(key)
            return self._place.get(key)
        data = self._place.get(key)
        if key.startswith(DELTAS):  # new deltas exist
            self._fetch_behind(key)
        return data

    def _listed(self) -> list[int]:
        """Return the sequence numbers of all deltas."""
        found = map(sequence_of, self._place.list(DELTAS))
        return [number for number in found if number is not None]

    def _fetch_behind(self, key: str) -> None:
        """Fetch the deltas after a snapshot or delta, unless that was done, and the next one, which
        is missing at the time of the request; `current` is read later."""
        if self._coming or isinstance(self._place, FolderPlace):
            return
        known, self._listing = self._listing, None
        last = sequence_of(key) or 0
        later = [each for each in (known.result() if known else self._listed()) if each > last]
        for number in (*later, max(later, default=last) + 1):
            wanted = delta_key(number)
            self._coming[wanted] = self._pool.submit(self._place.get, wanted)
