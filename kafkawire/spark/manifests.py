"""The manifests behind a URL, read, and read again where only little is new."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from kafkawire.manifest.contents import Manifest
from kafkawire.manifest.keys import CURRENT, DELTAS
from kafkawire.manifest.layout import FormatError
from kafkawire.manifest.reader import LostManifest, NoManifest, read_manifest, refresh_manifest
from kafkawire.spark.asking import Broker
from kafkawire.spark.model import SourceError
from kafkawire.spark.places import FolderPlace, Place, open_place
from kafkawire.spark.spans import Sheet

logger = logging.getLogger(__name__)

AT_ONCE = 8
"""Deltas fetched at a time: an hour has hundreds, and each is one round trip."""


class NothingThere(SourceError):
    """There is no manifest, which may come."""


class Holding(NamedTuple):
    """A place with a manifest, and what that says."""

    place: Place
    sheet: Sheet

    @property
    def manifest(self) -> Manifest:
        """As it was read."""
        return self.sheet.manifest


def open_holdings(url: str) -> list[Holding]:
    """The manifest of a tier or of a broker's folder, or those of all brokers of a data folder.

    NothingThere if there is none, SourceError if one cannot be read.
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


def readable_holdings(broker: Broker) -> list[Holding]:
    """Manifests of the broker's own segments and of its tier, as far as they can be read from
    here: local files first. A broker that is another machine's, or no kafkawire, has none."""
    tier, folders = broker.segments()
    urls = [folder for folder in folders if os.path.isabs(folder)] + ([tier] if tier else [])
    cluster = broker.cluster_id()
    found: list[Holding] = []
    for url in urls:
        try:
            place = open_place(url)
            if not _has_manifest(place):
                continue
            holding = Holding(place, Sheet(_read(place)))
        except SourceError as failure:
            logger.warning("%s is read through the broker: %s", url, failure)
            continue
        if holding.manifest.state.cluster_id == cluster:
            found.append(holding)
    return found


def refreshed(holding: Holding) -> Holding:
    """What is there now; the same object if nothing is new."""
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
    """Fetches all deltas that are listed as soon as one is asked for."""

    def __init__(self, place: Place, pool: ThreadPoolExecutor) -> None:
        self._place = place
        self._pool = pool
        self._coming: dict[str, Future[bytes]] = {}

    def get(self, key: str) -> bytes:
        """As Place.get."""
        if key in self._coming:
            return self._coming.pop(key).result()
        data = self._place.get(key)
        if key.startswith(DELTAS) and not self._coming and not isinstance(self._place, FolderPlace):
            later = [each for each in self._place.list(DELTAS) if each > key]
            self._coming = {each: self._pool.submit(self._place.get, each) for each in later}
        return data
